#include "quire/model/weight_data.h"

#include <cstring>
#include <optional>
#include <unordered_set>
#include <utility>

#include "model/decoder/gptq_weights.h"
#include "model/decoder/weight_defects.h"
#include "model/ops/planar_repack.h"
#include "quire/loader/gptq.h"
#include "quire/loader/scaled_modules.h"
#include "quire/model/ops.h"
#include "quire/model/thread_pool.h"

namespace quire {
namespace {

// What holds an element, or a block of GGUF.
Bytes UnitOf(DType dtype) { return Bytes(BlockBits(dtype) / 8); }

bool MayHoldNonFinite(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 ||
         dtype == DType::kBF16 || IsBlockQuantized(dtype);
}

// "model.norm" of "model.norm.weight".
std::string ModuleOf(const TensorInfo& tensor) {
  return tensor.name.substr(0, tensor.name.rfind('.'));
}

class DataCheck {
 public:
  DataCheck(const Checkpoint& checkpoint, const QuantizedModules& modules,
            const PieceReader& read)
      : checkpoint_(checkpoint), modules_(modules), read_(read) {}

  void CheckGroups();
  void CheckTables();
  void CheckWeights();
  DataFindings Take() {
    defects_.AppendTo(&findings_.warnings);
    return std::move(findings_);
  }

 private:
  void CheckZeros(const GptqModule& module);
  uint64_t CountIn(const TensorInfo& tensor, DType dtype);
  void Read(const TensorInfo& tensor, Bytes unit, const SeePiece& see);

  const Checkpoint& checkpoint_;
  const QuantizedModules& modules_;
  const PieceReader& read_;
  WeightDefects defects_;
  DataFindings findings_;
};

void DataCheck::CheckGroups() {
  for (const GptqModule& module : modules_.gptq) {
    GroupIndexOddity oddity;
    const auto groups = ReadGroupIndex(checkpoint_, module, &oddity);
    if (groups.ok())
      defects_.AddGroupIndex(module, oddity);
    else
      findings_.errors.push_back(groups.status());
  }
  for (const ScaledModule& module : modules_.scaled) {
    const auto columns = ReadScaleColumns(checkpoint_, module);
    if (!columns.ok()) findings_.errors.push_back(columns.status());
  }
}

void DataCheck::CheckTables() {
  for (const GptqModule& module : modules_.gptq) {
    defects_.AddNonFinite(
        module.name, {.scales = CountIn(*module.scales, module.scales->dtype)});
    CheckZeros(module);
  }
  for (const ScaledModule& module : modules_.scaled)
    defects_.AddNonFinite(
        module.name, {.scales = CountIn(*module.scales, module.scales_dtype)});
}

void DataCheck::CheckZeros(const GptqModule& module) {
  const int bits = module.settings.bits;
  const uint64_t row_words = PackedWords(module.out_features, bits);
  ThreadPool alone(1);
  std::vector<uint32_t> words;
  std::optional<ZeroConvention> found;
  uint64_t wrapped = 0;
  Read(*module.qzeros, Bytes(row_words * sizeof(uint32_t)),
       [&](std::span<const std::byte> piece) {
         words.resize(piece.size() / sizeof(uint32_t));
         std::memcpy(words.data(), piece.data(), piece.size());
         if (module.packing == GptqPacking::kPlanar)
           RepackPlanar(words.data(), bits,
                        words.size() / static_cast<size_t>(bits), 1, &alone);
         const uint64_t groups = words.size() / row_words;
         const ZeroConvention here = DetectZeroConvention(
             words.data(), groups, module.out_features, bits);
         found = found.value_or(here) == here ? here : ZeroConvention::kNeither;
         wrapped +=
             CountWrappedZeros(words.data(), groups, module.out_features, bits);
       });
  if (found.has_value())
    defects_.AddZeros(
        module, ReadZeros(module, modules_.gptq_config->zeros_are_v2(), *found),
        wrapped);
}

void DataCheck::CheckWeights() {
  std::unordered_set<const TensorInfo*> done(modules_.ignored.begin(),
                                             modules_.ignored.end());
  for (const GptqModule& module : modules_.gptq) done.insert(module.scales);
  for (const ScaledModule& module : modules_.scaled) {
    done.insert(module.scales);
    if (module.kind == CodeKind::kF8E4M3)
      defects_.AddNonFinite(module.name,
                            {.codes = CountIn(*module.codes, DType::kF8E4M3)});
  }
  for (const TensorInfo& tensor : checkpoint_.tensors()) {
    if (done.contains(&tensor) || !MayHoldNonFinite(tensor.dtype)) continue;
    const uint64_t found = CountIn(tensor, tensor.dtype);
    defects_.AddNonFinite(ModuleOf(tensor),
                          IsBlockQuantized(tensor.dtype)
                              ? NonFiniteCounts{.scales = found}
                              : NonFiniteCounts{.codes = found});
  }
}

uint64_t DataCheck::CountIn(const TensorInfo& tensor, DType dtype) {
  const Bytes unit = UnitOf(dtype);
  uint64_t found = 0;
  Read(tensor, unit, [&](std::span<const std::byte> piece) {
    found += CountNonFinite(piece.data(), dtype,
                            piece.size() / unit.value() * BlockElements(dtype));
  });
  return found;
}

void DataCheck::Read(const TensorInfo& tensor, Bytes unit,
                     const SeePiece& see) {
  const absl::Status read = read_(tensor, unit, see);
  if (!read.ok()) findings_.errors.push_back(read);
}

}  // namespace

DataFindings CheckWeightData(const Checkpoint& checkpoint,
                             const QuantizedModules& modules, DataParts parts,
                             const PieceReader& read) {
  DataCheck check(checkpoint, modules, read);
  if (parts.groups) check.CheckGroups();
  if (parts.tables) check.CheckTables();
  if (parts.weights) check.CheckWeights();
  return check.Take();
}

}  // namespace quire
