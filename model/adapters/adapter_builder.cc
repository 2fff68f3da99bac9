#include "model/adapters/adapter_builder.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "model/config/rotary_rows.h"
#include "quire/alloc/allocator.h"
#include "quire/alloc/quote.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

// Puts pieces one behind the other.
class Packing {
 public:
  // The place of `size` more bytes; nullopt where the sum exceeds 64 bits.
  std::optional<Bytes> Add(Bytes size) {
    const auto begin = CheckedAlignUp(end_, kDefaultAlignment);
    const auto end = begin ? CheckedAdd(*begin, size) : std::nullopt;
    if (!end) return std::nullopt;
    end_ = *end;
    return begin;
  }
  Bytes end() const { return end_; }

 private:
  Bytes end_;
};

}  // namespace

AdapterBuilder::AdapterBuilder(const ModelConfig& config, bool tied_head,
                               const LoraAdapter& source, Adapter* adapter)
    : config_(config),
      tied_head_(tied_head),
      source_(source),
      names_(NamesOf(source.modules())),
      adapter_(adapter) {}

absl::Status AdapterBuilder::Build(const StreamingOptions* streaming) {
  const Driver& driver = *adapter_->runtime_->driver();
  if (streaming != nullptr && !driver.device_memory_is_host_memory())
    return absl::FailedPreconditionError(
        absl::StrCat("the host operations cannot run on the memory of driver '",
                     driver.name(), "'"));
  adapter_->warnings_ = source_.warnings();
  AddSlots();
  QUIRE_RETURN_IF_ERROR(Describe());
  std::vector<TensorPlacement> tensors;
  QUIRE_RETURN_IF_ERROR(Allocate(&tensors));
  if (streaming == nullptr) return absl::OkStatus();
  QUIRE_RETURN_IF_ERROR(StreamTensors(adapter_->runtime_->driver(), DeviceId(0),
                                      source_.checkpoint(), tensors, *streaming)
                            .status());
  for (size_t i = 0; i < tensors.size(); ++i)
    QUIRE_RETURN_IF_ERROR(Finish(tensors[i], placements_[i].rotary));
  return absl::OkStatus();
}

void AdapterBuilder::AddLinear(std::string name, LinearAdapter* linear,
                               uint64_t rows, uint64_t columns, bool rotary) {
  slots_[std::move(name)] = {
      .linear = linear, .rows = rows, .columns = columns, .rotary = rotary};
}

void AdapterBuilder::AddVector(std::string name, ParameterVector* vector,
                               uint64_t size) {
  slots_[std::move(name)] = {.vector = vector, .rows = size, .columns = 1};
}

// Under the names of the model that the adapter was trained with, whatever the
// base model was read from: Hugging Face's, or those of a wrapper around it.
void AdapterBuilder::AddSlots() {
  AdapterWeights& weights = adapter_->weights_;
  const uint64_t hidden = config_.hidden_size;
  const uint64_t ffn = config_.intermediate_size;
  const uint64_t queries = config_.query_size();
  const uint64_t keys = config_.kv_size();
  AddLinear(names_.embedding, &weights.embedding, config_.vocab_size, hidden);
  slots_[names_.embedding].target = LoraTarget::kEmbedding;
  AddLinear(names_.output, &weights.output, config_.vocab_size, hidden);
  slots_[names_.output].target = LoraTarget::kOutputHead;
  AddVector(names_.output_norm, &weights.output_norm, hidden);
  weights.layers.resize(config_.layers);
  for (uint32_t i = 0; i < config_.layers; ++i) {
    LayerAdapter& layer = weights.layers[i];
    const auto name = [&](const char* module) {
      return names_.InLayer(i, module);
    };
    AddLinear(name(names_.query), &layer.query, queries, hidden, true);
    AddLinear(name(names_.key), &layer.key, keys, hidden, true);
    AddLinear(name(names_.value), &layer.value, keys, hidden);
    AddLinear(name(names_.attention_output), &layer.attention_output, hidden,
              queries);
    AddLinear(name(names_.gate), &layer.gate, ffn, hidden);
    AddLinear(name(names_.up), &layer.up, ffn, hidden);
    AddLinear(name(names_.down), &layer.down, hidden, ffn);
    AddVector(name(names_.attention_norm), &layer.attention_norm, hidden);
    AddVector(name(names_.ffn_norm), &layer.ffn_norm, hidden);
    if (!config_.head_norms) continue;
    AddVector(name(names_.query_norm), &layer.query_norm, config_.head_dim);
    AddVector(name(names_.key_norm), &layer.key_norm, config_.head_dim);
  }
}

absl::Status AdapterBuilder::Describe() {
  for (const LoraModule& module : source_.modules())
    QUIRE_RETURN_IF_ERROR(DescribeModule(module));
  for (const auto& [name, slot] : slots_) {
    if (slot.linear != nullptr)
      QUIRE_RETURN_IF_ERROR(source_.CheckTarget(name, slot.target));
  }
  return CheckTying();
}

absl::Status AdapterBuilder::CheckTying() const {
  if (!tied_head_ || !source_.ties_weights()) return absl::OkStatus();
  for (const char* name : {names_.embedding, names_.output}) {
    if (const LoraModule* module = source_.Find(name))
      return absl::UnimplementedError(
          source_
              .Error(module->tensor(),
                     "is to stay tied (ensure_weight_tying), which is not "
                     "supported where the output head is the embedding")
              .message());
  }
  return absl::OkStatus();
}

absl::Status AdapterBuilder::DescribeModule(const LoraModule& module) {
  const auto found = slots_.find(module.name);
  if (found == slots_.end())
    return source_.Error(
        module.tensor(),
        absl::StrCat("is of a module that a ", config_.family, " model of ",
                     config_.layers, " layers does not have"));
  const Slot& slot = found->second;
  ++adapter_->modules_;
  if (module.bias != nullptr &&
      (slot.vector != nullptr || slot.target == LoraTarget::kEmbedding))
    return source_.Error(*module.bias, "is of a module that has no bias");
  if (slot.vector != nullptr) {
    if (module.a != nullptr)
      return source_.Error(*module.a, "is of a module that is no linear");
    return DescribeVector(*module.weight, slot.rows, false, slot.vector);
  }
  if (module.a != nullptr) QUIRE_RETURN_IF_ERROR(DescribeProduct(module, slot));
  if (module.weight != nullptr)
    QUIRE_RETURN_IF_ERROR(DescribeMatrix(*module.weight, slot.rows,
                                         slot.columns, slot.rotary,
                                         Replaced(module, slot)));
  if (module.bias == nullptr) return absl::OkStatus();
  return DescribeVector(*module.bias, slot.rows, slot.rotary,
                        &slot.linear->bias);
}

std::vector<DenseMatrix*> AdapterBuilder::Replaced(const LoraModule& module,
                                                   const Slot& slot) const {
  std::vector<DenseMatrix*> matrices = {&slot.linear->weight};
  if (!tied_head_ || module.copied || slot.target == LoraTarget::kLinear)
    return matrices;
  // PEFT loads into the one matrix that both are.
  const bool is_embedding = slot.target == LoraTarget::kEmbedding;
  const LoraModule* const other =
      source_.Find(is_embedding ? names_.output : names_.embedding);
  if (other == nullptr || other->weight == nullptr)
    matrices.push_back(is_embedding ? &adapter_->weights_.output.weight
                                    : &adapter_->weights_.embedding.weight);
  return matrices;
}

absl::Status AdapterBuilder::DescribeProduct(const LoraModule& module,
                                             const Slot& slot) {
  const bool embedding = slot.target == LoraTarget::kEmbedding;
  if (module.embedding != embedding)
    return source_.Error(*module.a, embedding
                                        ? "is of a linear, the module is an "
                                          "embedding"
                                        : "is of an embedding, the module is "
                                          "a linear");
  if (embedding && module.b_bias != nullptr)
    return source_.Error(*module.b_bias, "is of an embedding, which has none");
  const uint64_t outputs = embedding ? slot.columns : slot.rows;
  const uint64_t inputs = embedding ? slot.rows : slot.columns;
  LowRankProduct& product = slot.linear->product;
  product.scale = module.scale;
  adapter_->rank_ = std::max(adapter_->rank_, module.rank);
  QUIRE_RETURN_IF_ERROR(
      DescribeMatrix(*module.a, module.rank, inputs, false, {&product.a}));
  QUIRE_RETURN_IF_ERROR(DescribeMatrix(*module.b, outputs, module.rank,
                                       slot.rotary, {&product.b}));
  if (module.b_bias == nullptr) return absl::OkStatus();
  return DescribeVector(*module.b_bias, outputs, slot.rotary, &product.bias);
}

absl::Status AdapterBuilder::DescribeVector(const TensorInfo& tensor,
                                            uint64_t size, bool rotary,
                                            ParameterVector* vector) {
  if (tensor.shape != std::vector<uint64_t>{size})
    return source_.Error(
        tensor, absl::StrCat("has shape [", absl::StrJoin(tensor.shape, ", "),
                             "], the model says [", size, "]"));
  vector->dtype = tensor.dtype;
  placements_.push_back(
      {&tensor, [vector](void* data) { vector->data = data; }, rotary});
  return absl::OkStatus();
}

absl::Status AdapterBuilder::DescribeMatrix(
    const TensorInfo& tensor, uint64_t rows, uint64_t columns, bool rotary,
    std::vector<DenseMatrix*> matrices) {
  const std::vector<uint64_t> expected = {rows, columns};
  if (tensor.shape != expected)
    return source_.Error(
        tensor, absl::StrCat("has shape [", absl::StrJoin(tensor.shape, ", "),
                             "], the model says [",
                             absl::StrJoin(expected, ", "), "]"));
  for (DenseMatrix* const matrix : matrices)
    *matrix = {
        .dtype = tensor.dtype, .out_features = rows, .in_features = columns};
  placements_.push_back({&tensor,
                         [matrices = std::move(matrices)](void* data) {
                           for (DenseMatrix* const m : matrices) m->data = data;
                         },
                         rotary});
  return absl::OkStatus();
}

// In one piece: the tensors come and go together, and each by itself would
// leave a part of a page unused.
absl::Status AdapterBuilder::Allocate(std::vector<TensorPlacement>* tensors) {
  Packing packing;
  std::vector<std::optional<Bytes>> offsets;
  for (const Placement& placement : placements_)
    offsets.push_back(packing.Add(placement.tensor->size));
  const auto scratch = [&](uint64_t columns) -> std::optional<Bytes> {
    const auto floats =
        CheckedMultiply(columns, uint64_t{adapter_->max_tokens_});
    const auto size =
        floats ? CheckedMultiply(Bytes(sizeof(float)), *floats) : std::nullopt;
    return size ? packing.Add(*size) : std::nullopt;
  };
  const bool has_products = adapter_->rank_ > 0;
  offsets.push_back(scratch(adapter_->rank_));
  offsets.push_back(scratch(has_products ? ProductScratch::kColumns : 0));
  if (std::find(offsets.begin(), offsets.end(), std::nullopt) != offsets.end())
    return absl::ResourceExhaustedError(absl::StrCat(
        "adapter ", Quoted(adapter_->name_), ": its tensors, and rank ",
        adapter_->rank_, " for batches of ", adapter_->max_tokens_,
        " tokens, exceed 64 bits"));

  QUIRE_ASSIGN_OR_RETURN(const DeviceAddress base,
                         adapter_->Allocate(packing.end()));
  const auto at = [&](size_t i) {
    return DeviceAddress(base.value() + offsets[i]->value());
  };
  for (size_t i = 0; i < placements_.size(); ++i) {
    placements_[i].assign(at(i).host_pointer<void>());
    tensors->push_back({placements_[i].tensor, at(i)});
  }
  if (!has_products) return absl::OkStatus();
  adapter_->scratch_ = {
      .low_rank = at(placements_.size()).host_pointer<float>(),
      .part = at(placements_.size() + 1).host_pointer<float>()};
  return absl::OkStatus();
}

absl::Status AdapterBuilder::Finish(const TensorPlacement& placed,
                                    bool rotary) {
  auto* const data = placed.destination.host_pointer<std::byte>();
  QUIRE_RETURN_IF_ERROR(CheckFinite(*placed.tensor, data));
  if (rotary && config_.rope.pairing != RopePairing::kHalf)
    PermuteRows(*placed.tensor, data);
  return absl::OkStatus();
}

// Head by head, since no row leaves its head.
void AdapterBuilder::PermuteRows(const TensorInfo& tensor,
                                 std::byte* data) const {
  const size_t head_dim = config_.head_dim;
  const size_t rows = tensor.shape[0];
  const size_t row_bytes = tensor.size.value() / rows;
  std::vector<std::byte> head(head_dim * row_bytes);
  for (size_t first = 0; first < rows; first += head_dim) {
    std::byte* const at = data + first * row_bytes;
    std::memcpy(head.data(), at, head.size());
    for (size_t row = 0; row < head_dim; ++row)
      std::memcpy(
          at + SourceRow(config_.rope, config_.head_dim, row) * row_bytes,
          head.data() + row * row_bytes, row_bytes);
  }
}

// One such element makes every logit of every sequence that uses it one.
absl::Status AdapterBuilder::CheckFinite(const TensorInfo& tensor,
                                         const void* data) const {
  const size_t rows = tensor.shape[0];
  const size_t columns = tensor.elements() / rows;
  const DenseMatrix matrix = {.data = data,
                              .dtype = tensor.dtype,
                              .out_features = rows,
                              .in_features = columns};
  std::vector<float> row(columns);
  for (size_t i = 0; i < rows; ++i) {
    DequantizeRow(matrix, i, row.data());
    const auto odd = std::find_if(row.begin(), row.end(),
                                  [](float x) { return !std::isfinite(x); });
    if (odd != row.end())
      return source_.Error(
          tensor,
          absl::StrCat("has an element that is not finite: ", *odd, " at ", i,
                       ", ", std::distance(row.begin(), odd)));
  }
  return absl::OkStatus();
}

}  // namespace quire
