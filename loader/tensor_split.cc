#include "quire/loader/tensor_split.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "loader/packed_words.h"
#include "quire/alloc/quote.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

constexpr uint64_t kWordBytes = 4;
// Rows and columns of AWQ that are repacked together.
constexpr uint64_t kAwqSquare = 8;

struct Range {
  uint64_t begin = 0;
  uint64_t end = 0;
  uint64_t size() const { return end - begin; }
};

// What a share may not cut, and why.
struct Unit {
  uint64_t size;
  const char* what;
};

// Equal shares of the features along the axis.
absl::StatusOr<std::vector<Range>> Shares(const std::string& module,
                                          uint64_t in_features,
                                          uint64_t out_features,
                                          const SplitRule& rule,
                                          std::vector<Unit> units) {
  const bool outputs = rule.axis == SplitAxis::kOutputs;
  const uint64_t features = outputs ? out_features : in_features;
  const char* const kind = outputs ? " outputs" : " inputs";
  if (rule.ranks == 0 || rule.unit == 0)
    return absl::InvalidArgumentError(
        absl::StrCat(Printable(module), ": ", rule.ranks, " ranks in units of ",
                     rule.unit, ": both are at least 1"));
  // Nothing is cut.
  if (rule.ranks == 1) return std::vector<Range>{{0, features}};
  if (features % rule.ranks != 0)
    return absl::InvalidArgumentError(
        absl::StrCat(Printable(module), ": ", features, kind,
                     " have no equal shares for ", rule.ranks, " ranks"));
  const uint64_t share = features / rule.ranks;
  units.push_back({rule.unit, "those of one head"});
  for (const Unit& unit : units) {
    if (share % unit.size != 0)
      return absl::InvalidArgumentError(absl::StrCat(
          Printable(module), ": ", features, kind, " over ", rule.ranks,
          " ranks: a share of ", share, " is no multiple of ", unit.size, ", ",
          unit.what, ", which cannot be cut"));
  }
  std::vector<Range> shares;
  for (uint32_t rank = 0; rank < rule.ranks; ++rank)
    shares.push_back({rank * share, (rank + 1) * share});
  return shares;
}

// A tensor seen as `count` tables of `rows` rows of `row_bytes` bytes.
struct Tables {
  const TensorInfo* tensor;
  uint64_t count;
  uint64_t rows;
  uint64_t row_bytes;
};

TensorSlice Rows(const Tables& tables, Range rows) {
  return {.tensor = tables.tensor,
          .offset = rows.begin * tables.row_bytes,
          .run = rows.size() * tables.row_bytes,
          .stride = tables.rows * tables.row_bytes,
          .count = tables.count};
}

TensorSlice Columns(const Tables& tables, Range bytes) {
  return {.tensor = tables.tensor,
          .offset = bytes.begin,
          .run = bytes.size(),
          .stride = tables.row_bytes,
          .count = tables.count * tables.rows};
}

// Bytes of `elements` plain elements.
uint64_t ElementBytes(DType dtype, uint64_t elements) {
  return elements * (BlockBits(dtype) / 8);
}

Range Scaled(Range range, uint64_t multiplier, uint64_t divisor = 1) {
  return {range.begin * multiplier / divisor, range.end * multiplier / divisor};
}

// Of outputs the rank's own; else rank 0's whole, so that it is added once.
TensorSlice Bias(const TensorInfo* bias, uint64_t count, uint64_t out_features,
                 SplitAxis axis, Range share) {
  if (bias == nullptr) return {};
  if (axis == SplitAxis::kInputs)
    return share.begin == 0 ? WholeTensor(bias) : TensorSlice{};
  return Columns({bias, 1, count, ElementBytes(bias->dtype, out_features)},
                 Scaled(share, ElementBytes(bias->dtype, 1)));
}

LinearShard Sizes(Range share, const SplitRule& rule, uint64_t in_features,
                  uint64_t out_features) {
  const bool outputs = rule.axis == SplitAxis::kOutputs;
  LinearShard shard;
  shard.begin = share.begin;
  shard.end = share.end;
  shard.in_features = outputs ? in_features : share.size();
  shard.out_features = outputs ? share.size() : out_features;
  return shard;
}

// The groups of a rank's inputs. Where groups come in order, from its first to
// its last one; else all of them, as any may occur.
Range GroupsOf(const std::vector<uint32_t>& group_of_input, uint64_t groups,
               Range inputs) {
  if (!std::is_sorted(group_of_input.begin(), group_of_input.end()))
    return {0, groups};
  return {group_of_input[inputs.begin],
          uint64_t{group_of_input[inputs.end - 1]} + 1};
}

std::vector<uint32_t> SliceGroups(const std::vector<uint32_t>& group_of_input,
                                  Range inputs, Range groups) {
  std::vector<uint32_t> slice;
  slice.reserve(inputs.size());
  for (uint64_t k = inputs.begin; k < inputs.end; ++k)
    slice.push_back(group_of_input[k] - static_cast<uint32_t>(groups.begin));
  return slice;
}

// ---- GPTQ and AWQ -----------------------------------------------------------

// Codes that fill whole words.
uint64_t CodesOfWords(int bits) {
  const auto width = static_cast<uint64_t>(bits);
  return kWordBits % width == 0 ? kWordBits / width : kWordBits;
}

void SliceGptqOutputs(const GptqModule& m, Range outputs, LinearShard* shard) {
  const auto bits = static_cast<uint64_t>(m.settings.bits);
  const bool awq = m.packing == GptqPacking::kAwq;
  const uint64_t code_row = m.qweight->shape[1] * kWordBytes;
  const uint64_t zero_row = m.qzeros->shape[1] * kWordBytes;
  const Range words = Scaled(outputs, bits * kWordBytes, kWordBits);
  shard->codes = Columns({m.qweight, 1, m.qweight->shape[0], code_row},
                         awq ? words : Scaled(outputs, kWordBytes));
  shard->zeros = Columns({m.qzeros, 1, m.groups, zero_row}, words);
  shard->scales = Columns(
      {m.scales, 1, m.groups, ElementBytes(m.scales->dtype, m.out_features)},
      Scaled(outputs, ElementBytes(m.scales->dtype, 1)));
}

void SliceGptqInputs(const GptqModule& m, Range inputs, Range groups,
                     LinearShard* shard) {
  const auto bits = static_cast<uint64_t>(m.settings.bits);
  const bool awq = m.packing == GptqPacking::kAwq;
  shard->codes = Rows(
      {m.qweight, 1, m.qweight->shape[0], m.qweight->shape[1] * kWordBytes},
      awq ? inputs : Scaled(inputs, bits, kWordBits));
  shard->zeros =
      Rows({m.qzeros, 1, m.groups, m.qzeros->shape[1] * kWordBytes}, groups);
  shard->scales = Rows(
      {m.scales, 1, m.groups, ElementBytes(m.scales->dtype, m.out_features)},
      groups);
}

// ---- Codes with scales ------------------------------------------------------

Tables ScaleTables(const ScaledModule& m) {
  return {m.scales, m.count, m.scale_rows(),
          ElementBytes(m.scales_dtype, m.scale_columns())};
}

void SliceScaledOutputs(const ScaledModule& m, Range outputs,
                        LinearShard* shard) {
  shard->codes = Rows({m.codes, m.count, m.out_features, m.row_bytes}, outputs);
  shard->row_bytes = m.row_bytes;
  shard->scales = WholeTensor(m.scales);
  shard->zeros = WholeTensor(m.zeros);
  if (m.scale_rows() == 1) return;
  const Range rows = {outputs.begin / m.block_rows,
                      CeilDivide(outputs.end, m.block_rows)};
  shard->scales = Rows(ScaleTables(m), rows);
  if (m.zeros == nullptr) return;
  const uint64_t columns = m.scale_columns();
  if (m.zeros->dtype == DType::kI8) {
    shard->zeros = Rows({m.zeros, m.count, m.scale_rows(), columns}, rows);
    return;
  }
  const auto bits = static_cast<uint64_t>(CodeBits(m.kind));
  const Range words = {rows.begin * bits / kWordBits,
                       CeilDivide(rows.end * bits, kWordBits)};
  shard->zeros =
      Rows({m.zeros, 1, m.zeros->shape[0], columns * kWordBytes}, words);
}

void SliceScaledInputs(const ScaledModule& m, Range inputs, Range columns,
                       LinearShard* shard) {
  const auto bits = static_cast<uint64_t>(CodeBits(m.kind));
  const Range bytes = Scaled(inputs, bits, 8);
  shard->codes =
      Columns({m.codes, m.count, m.out_features, m.row_bytes}, bytes);
  shard->row_bytes = bytes.size();
  shard->scales =
      Columns(ScaleTables(m), Scaled(columns, ElementBytes(m.scales_dtype, 1)));
  if (m.zeros == nullptr) return;
  const bool packed = m.zeros->dtype == DType::kI32;
  const uint64_t element = packed ? kWordBytes : 1;
  shard->zeros =
      Columns({m.zeros, m.count, packed ? m.zeros->shape[0] : m.scale_rows(),
               m.scale_columns() * element},
              Scaled(columns, element));
}

std::vector<Unit> ScaledUnits(const ScaledModule& module, SplitAxis axis,
                              bool in_order) {
  const auto bits = static_cast<uint64_t>(CodeBits(module.kind));
  if (axis == SplitAxis::kInputs) {
    const uint64_t container =
        module.codes->dtype == DType::kI32 ? kWordBits : 8;
    std::vector<Unit> units = {
        {container / bits, "the codes that are stored together"}};
    if (in_order && module.scale_columns() > 1)
      units.push_back({module.block_columns, "the inputs of one scale"});
    return units;
  }
  if (module.scale_rows() == 1) return {};
  std::vector<Unit> units = {{module.block_rows, "the outputs of one scale"}};
  if (module.zeros != nullptr && module.zeros->dtype == DType::kI32)
    units.push_back({module.block_rows * (kWordBits / bits),
                     "the outputs whose zero points share a word"});
  return units;
}

}  // namespace

absl::StatusOr<std::vector<LinearShard>> SplitLinear(
    const Checkpoint& checkpoint, const GptqModule& module,
    const SplitRule& rule) {
  const Unit unit = module.packing == GptqPacking::kAwq
                        ? Unit{kAwqSquare,
                               "the codes that are repacked "
                               "together"}
                        : Unit{CodesOfWords(module.settings.bits),
                               "the codes of whole words"};
  QUIRE_ASSIGN_OR_RETURN(const std::vector<Range> shares,
                         Shares(module.name, module.in_features,
                                module.out_features, rule, {unit}));
  QUIRE_ASSIGN_OR_RETURN(const std::vector<uint32_t> group_of_input,
                         ReadGroupIndex(checkpoint, module));
  std::vector<LinearShard> shards;
  for (const Range& share : shares) {
    LinearShard shard =
        Sizes(share, rule, module.in_features, module.out_features);
    if (shares.size() == 1) {
      shard.codes = WholeTensor(module.qweight);
      shard.zeros = WholeTensor(module.qzeros);
      shard.scales = WholeTensor(module.scales);
      shard.groups = module.groups;
      shard.group_of_input = group_of_input;
    } else if (rule.axis == SplitAxis::kOutputs) {
      SliceGptqOutputs(module, share, &shard);
      shard.groups = module.groups;
      shard.group_of_input = group_of_input;
    } else {
      const Range groups = GroupsOf(group_of_input, module.groups, share);
      SliceGptqInputs(module, share, groups, &shard);
      shard.groups = groups.size();
      shard.group_of_input = SliceGroups(group_of_input, share, groups);
    }
    shard.bias = Bias(module.bias, 1, module.out_features, rule.axis, share);
    shards.push_back(std::move(shard));
  }
  return shards;
}

absl::StatusOr<std::vector<LinearShard>> SplitLinear(
    const Checkpoint& checkpoint, const ScaledModule& module,
    const SplitRule& rule) {
  QUIRE_ASSIGN_OR_RETURN(const std::vector<uint32_t> column_of_input,
                         ReadScaleColumns(checkpoint, module));
  const bool in_order = column_of_input.empty();
  QUIRE_ASSIGN_OR_RETURN(
      const std::vector<Range> shares,
      Shares(module.name, module.in_features, module.out_features, rule,
             ScaledUnits(module, rule.axis, in_order)));
  std::vector<LinearShard> shards;
  for (const Range& share : shares) {
    LinearShard shard =
        Sizes(share, rule, module.in_features, module.out_features);
    Range columns = {0, module.scale_columns()};
    if (shares.size() == 1) {
      shard.codes = WholeTensor(module.codes);
      shard.row_bytes = module.row_bytes;
      shard.scales = WholeTensor(module.scales);
      shard.zeros = WholeTensor(module.zeros);
      shard.group_of_input = column_of_input;
    } else if (rule.axis == SplitAxis::kOutputs) {
      SliceScaledOutputs(module, share, &shard);
      shard.group_of_input = column_of_input;
    } else {
      // In order a share begins and ends a block.
      if (in_order && columns.size() > 1)
        columns = Scaled(share, 1, module.block_columns);
      SliceScaledInputs(module, share, columns, &shard);
      if (!in_order)
        shard.group_of_input = SliceGroups(column_of_input, share, columns);
    }
    shard.groups = columns.size();
    shard.bias =
        Bias(module.bias, module.count, module.out_features, rule.axis, share);
    shards.push_back(std::move(shard));
  }
  return shards;
}

absl::StatusOr<std::vector<LinearShard>> SplitLinear(
    const Checkpoint& checkpoint, const PlainLinear& linear,
    const SplitRule& rule) {
  const TensorInfo& weight = *linear.weight;
  if (weight.shape.size() != 2 || weight.elements() == 0)
    return absl::InvalidArgumentError(
        absl::StrCat(Printable(checkpoint.files()[weight.file].path),
                     ": tensor ", Quoted(weight.name),
                     ": a linear has two dimensions, none of them zero"));
  const uint64_t out_features = weight.shape[0];
  const uint64_t in_features = weight.shape[1];
  const uint64_t row_bytes = weight.size.value() / out_features;
  const bool rounded_whole =
      linear.rounded_block.has_value() && *linear.rounded_block >= in_features;
  if (linear.rounded_block == 0)
    return absl::InvalidArgumentError(
        absl::StrCat(Printable(weight.name), ": rounded in blocks of 0"));
  std::vector<Unit> units;
  if (rule.axis == SplitAxis::kInputs) {
    units.push_back({BlockElements(weight.dtype), "the inputs of one block"});
    if (linear.rounded_block.has_value() && !rounded_whole)
      units.push_back({*linear.rounded_block, "the inputs of one scale"});
  }
  QUIRE_ASSIGN_OR_RETURN(
      const std::vector<Range> shares,
      Shares(weight.name, in_features, out_features, rule, std::move(units)));
  std::vector<LinearShard> shards;
  for (const Range& share : shares) {
    LinearShard shard = Sizes(share, rule, in_features, out_features);
    const Tables rows = {&weight, 1, out_features, row_bytes};
    shard.row_bytes = row_bytes;
    if (shares.size() == 1) {
      shard.codes = WholeTensor(&weight);
    } else if (rule.axis == SplitAxis::kOutputs) {
      shard.codes = Rows(rows, share);
    } else if (rounded_whole) {
      shard.codes = WholeTensor(&weight);
      shard.rounded_first = true;
    } else {
      const uint64_t block = BlockElements(weight.dtype);
      const Range bytes = Scaled(share, BlockBits(weight.dtype) / 8, block);
      shard.codes = Columns(rows, bytes);
      shard.row_bytes = bytes.size();
    }
    shard.bias = Bias(linear.bias, 1, out_features, rule.axis, share);
    shards.push_back(std::move(shard));
  }
  return shards;
}

absl::Status ReadSlice(const Checkpoint& checkpoint, const TensorSlice& slice,
                       std::vector<std::byte>* out) {
  out->clear();
  if (slice.tensor == nullptr) return absl::OkStatus();
  std::vector<std::byte> whole;
  QUIRE_RETURN_IF_ERROR(checkpoint.ReadSmallTensor(*slice.tensor, &whole));
  out->resize(slice.size().value());
  for (uint64_t i = 0; i < slice.count; ++i)
    std::memcpy(out->data() + i * slice.run,
                whole.data() + slice.offset + i * slice.stride, slice.run);
  return absl::OkStatus();
}

}  // namespace quire
