// Finds the quantised linears of a checkpoint and checks that the shapes of
// their tensors agree with each other and with the configuration.

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <optional>
#include <span>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "loader/packed_words.h"
#include "loader/tensor_errors.h"
#include "quire/alloc/status_macros.h"
#include "quire/loader/gptq.h"

namespace quire {
namespace {

constexpr uint64_t kAwqColumns = 8;  // of a word of AWQ
constexpr std::string_view kQweightSuffix = ".qweight";
constexpr int64_t kUsualGroupSize = 128;

// Words that `codes` take: every 32 codes are `bits` words.
std::optional<uint64_t> WordsFor(uint64_t codes, int bits) {
  const auto total = CheckedMultiply(codes, static_cast<uint64_t>(bits));
  if (!total) return std::nullopt;
  return CeilDivide(*total, kWordBits);
}

uint64_t GroupsFor(uint64_t in_features, int64_t group_size) {
  if (group_size < 0) return 1;
  return CeilDivide(in_features, static_cast<uint64_t>(group_size));
}

// What the number of groups says where the configuration says nothing.
int64_t InferGroupSize(uint64_t in_features, uint64_t groups) {
  if (groups == 1) return -1;
  if (GroupsFor(in_features, kUsualGroupSize) == groups) return kUsualGroupSize;
  return static_cast<int64_t>(CeilDivide(in_features, groups));
}

// Checks one module, tensor by tensor.
class ModuleChecker {
 public:
  ModuleChecker(const Checkpoint& checkpoint, const GptqConfig& config,
                GptqModule* module)
      : checkpoint_(checkpoint), config_(config), module_(*module) {}

  absl::Status Check() {
    QUIRE_RETURN_IF_ERROR(FindTensors());
    if (module_.packing == GptqPacking::kAwq) {
      QUIRE_RETURN_IF_ERROR(FindAwqSizes());
      module_.least_in_features = module_.in_features;
    } else {
      QUIRE_RETURN_IF_ERROR(FindSizes());
      QUIRE_RETURN_IF_ERROR(CheckQweight());
      QUIRE_RETURN_IF_ERROR(CheckPlanes());
    }
    QUIRE_RETURN_IF_ERROR(CheckGroups());
    return CheckBiasTensor(checkpoint_, module_.bias, module_.out_features);
  }

 private:
  absl::Status Error(const TensorInfo& tensor,
                     const std::string& problem) const {
    return TensorError(checkpoint_, tensor, problem);
  }

  const TensorInfo* FindPart(const char* part) const {
    return checkpoint_.Find(absl::StrCat(module_.name, ".", part));
  }

  absl::StatusOr<const TensorInfo*> RequirePart(const char* part) const {
    return RequireTensor(checkpoint_, absl::StrCat(module_.name, ".", part),
                         *module_.qweight);
  }

  absl::Status FindTensors() {
    QUIRE_ASSIGN_OR_RETURN(module_.qzeros, RequirePart("qzeros"));
    QUIRE_ASSIGN_OR_RETURN(module_.scales, RequirePart("scales"));
    module_.g_idx = FindPart("g_idx");
    module_.bias = FindPart("bias");

    const TensorInfo& qweight = *module_.qweight;
    for (const TensorInfo* words : {&qweight, module_.qzeros}) {
      if (words->dtype != DType::kI32)
        return Error(*words,
                     "packed codes are I32; codes that were saved unpacked, "
                     "one in each element, are not supported");
    }
    for (const TensorInfo* matrix : {&qweight, module_.qzeros, module_.scales})
      if (matrix->shape.size() != 2 || matrix->elements() == 0)
        return Error(*matrix, "two dimensions are needed, none of them zero");
    if (!IsFloatType(module_.scales->dtype))
      return Error(*module_.scales, "scales are F16, BF16 or F32");
    if (module_.g_idx != nullptr &&
        (module_.g_idx->dtype != DType::kI32 ||
         module_.g_idx->shape.size() != 1 || module_.g_idx->elements() == 0))
      return Error(*module_.g_idx, "g_idx is I32, with one value per input");
    return absl::OkStatus();
  }

  // K and N, from the tensors that state them most directly.
  absl::Status FindSizes() {
    const TensorInfo& qweight = *module_.qweight;
    const auto bits = static_cast<uint64_t>(module_.settings.bits);
    module_.out_features = module_.scales->shape[1];
    if (qweight.shape[1] != module_.out_features) {
      const bool awq = WordsFor(module_.out_features, module_.settings.bits) ==
                       qweight.shape[1];
      return Error(qweight, absl::StrCat("the scales have ",
                                         module_.out_features, " columns",
                                         awq ? "; it looks packed along the "
                                               "outputs, as AWQ does, but the "
                                               "configuration says GPTQ"
                                             : ""));
    }
    if (module_.g_idx != nullptr) {
      module_.in_features = module_.g_idx->shape[0];
      module_.least_in_features = module_.in_features;
      return absl::OkStatus();
    }
    const auto stored_bits = CheckedMultiply(qweight.shape[0], kWordBits);
    if (!stored_bits)
      return Error(qweight, "its rows have more bits than can be counted");
    module_.in_features = *stored_bits / bits;
    module_.least_in_features = module_.packing == GptqPacking::kPlanar
                                    ? module_.in_features
                                    : (*stored_bits - kWordBits) / bits + 1;
    ChooseByGroups();
    return absl::OkStatus();
  }

  // Leaves the numbers of inputs that have as many groups as there are, if
  // there are any: the last word, and the last group, may be used in part.
  void ChooseByGroups() {
    if (module_.settings.group_size <= 0) return;
    const auto group_size = static_cast<uint64_t>(module_.settings.group_size);
    const uint64_t groups = module_.scales->shape[0];
    const uint64_t end =
        CheckedMultiply(groups, group_size).value_or(UINT64_MAX);
    const uint64_t begin = end - group_size + 1;
    uint64_t& least = module_.least_in_features;
    uint64_t& most = module_.in_features;
    if (end < least || begin > most) return;
    least = std::max(least, begin);
    most = std::min(most, end);
  }

  // The same where words lie along the outputs.
  absl::Status FindAwqSizes() {
    const TensorInfo& qweight = *module_.qweight;
    module_.in_features = qweight.shape[0];
    module_.out_features = module_.scales->shape[1];
    if (module_.g_idx != nullptr)
      return Error(*module_.g_idx, "AWQ has no order of activations");
    if (module_.out_features % kAwqColumns != 0)
      return Error(*module_.scales, absl::StrCat("AWQ packs ", kAwqColumns,
                                                 " columns into a word, so "
                                                 "their number is a multiple"));
    if (qweight.shape[1] != module_.out_features / kAwqColumns) {
      const bool gptq = qweight.shape[1] == module_.out_features;
      return Error(
          qweight,
          absl::StrCat(module_.out_features, " outputs (the scales' columns) ",
                       "need ", module_.out_features / kAwqColumns, " columns",
                       gptq ? "; it looks packed along the inputs, as GPTQ "
                              "does, but the configuration says AWQ"
                            : ""));
    }
    // Eight rows become one row of words (see RepackAwqCodes).
    if (module_.in_features % kAwqColumns != 0)
      return Error(qweight,
                   absl::StrCat(module_.in_features,
                                " inputs are no multiple of ", kAwqColumns));
    return absl::OkStatus();
  }

  // "64 inputs (the length of g_idx)".
  std::string Inputs() const {
    if (module_.packing == GptqPacking::kAwq)
      return absl::StrCat(module_.in_features, " inputs (the rows of qweight)");
    return absl::StrCat(module_.in_features, " inputs (",
                        module_.g_idx != nullptr
                            ? std::string("the length of g_idx")
                            : absl::StrCat("the most that qweight holds at ",
                                           module_.settings.bits, " bits"),
                        ")");
  }

  absl::Status CheckQweight() const {
    const TensorInfo& qweight = *module_.qweight;
    const uint64_t rows = qweight.shape[0];
    const auto needed = WordsFor(module_.in_features, module_.settings.bits);
    if (needed == rows) return absl::OkStatus();
    std::string hint;
    if (rows == module_.in_features) {
      hint = "; it seems to hold unpacked codes, which are not supported";
    } else {
      for (const int bits : {2, 3, 4, 8})
        if (WordsFor(module_.in_features, bits) == rows)
          hint = absl::StrCat("; it would fit ", bits, " bits");
    }
    return Error(qweight,
                 absl::StrCat(Inputs(), " with bits = ", module_.settings.bits,
                              " (", config_.where(), ") need ",
                              needed.value_or(0), " rows", hint));
  }

  // Planes are of 32 codes.
  absl::Status CheckPlanes() const {
    if (module_.packing != GptqPacking::kPlanar ||
        (module_.in_features % kWordBits == 0 &&
         module_.out_features % kWordBits == 0))
      return absl::OkStatus();
    return Error(
        *module_.qweight,
        absl::StrCat(Inputs(), " and ", module_.out_features,
                     " outputs; in the planar layout (", config_.where(),
                     ") both are multiples of ", kWordBits));
  }

  absl::Status CheckGroups() {
    int64_t& group_size = module_.settings.group_size;
    const TensorInfo& scales = *module_.scales;
    module_.groups = scales.shape[0];
    module_.infers_group_size = group_size == 0;
    if (module_.infers_group_size)
      group_size = InferGroupSize(module_.in_features, module_.groups);
    const uint64_t needed = GroupsFor(module_.in_features, group_size);
    if (module_.groups != needed)
      return Error(scales, absl::StrCat(Inputs(), " with group_size = ",
                                        group_size, " (", config_.where(),
                                        ") need ", needed, " rows"));
    const TensorInfo& qzeros = *module_.qzeros;
    if (qzeros.shape[0] != module_.groups)
      return Error(qzeros,
                   absl::StrCat("the scales have ", module_.groups, " rows"));
    const auto columns = WordsFor(module_.out_features, module_.settings.bits);
    if (columns != qzeros.shape[1])
      return Error(qzeros,
                   absl::StrCat(module_.out_features, " outputs with bits = ",
                                module_.settings.bits, " (", config_.where(),
                                ") need ", columns.value_or(0), " columns"));
    return absl::OkStatus();
  }

  const Checkpoint& checkpoint_;
  const GptqConfig& config_;
  GptqModule& module_;
};

}  // namespace

bool GptqModule::SetInFeatures(uint64_t inputs) {
  if (inputs < least_in_features || inputs > in_features) return false;
  if (inputs == in_features) return true;
  if (infers_group_size) {
    const int64_t inferred = InferGroupSize(inputs, groups);
    if (GroupsFor(inputs, inferred) != groups) return false;
    settings.group_size = inferred;
  }
  in_features = least_in_features = inputs;
  return true;
}

absl::StatusOr<std::vector<GptqModule>> FindGptqModules(
    const Checkpoint& checkpoint, const GptqConfig& config) {
  std::vector<GptqModule> modules;
  for (const TensorInfo& tensor : checkpoint.tensors()) {
    if (!tensor.name.ends_with(kQweightSuffix)) continue;
    GptqModule module;
    module.name =
        tensor.name.substr(0, tensor.name.size() - kQweightSuffix.size());
    module.packing = config.packing();
    module.qweight = &tensor;
    QUIRE_ASSIGN_OR_RETURN(const auto settings, config.ForModule(module.name));
    // The tensors decide: a module that the configuration excludes, and that is
    // quantised all the same, has the defaults.
    module.settings = settings.value_or(config.defaults());
    modules.push_back(std::move(module));
  }
  std::sort(
      modules.begin(), modules.end(),
      [](const GptqModule& a, const GptqModule& b) { return a.name < b.name; });
  for (GptqModule& module : modules)
    QUIRE_RETURN_IF_ERROR(ModuleChecker(checkpoint, config, &module).Check());
  return modules;
}

}  // namespace quire
