// compressed-tensors: for a linear of N outputs and K inputs
//   weight_packed I32 [N, ceil(K*bits/32)]  pack-quantized: codes of a row as
//                                           one little-endian bit string, the
//                                           value plus 2^(bits-1)
//   weight_shape  I64 [2]                   N and K, with weight_packed
//   weight_packed U8 [N, K/2]               mxfp4-pack-quantized: two E2M1
//   codes
//                                           a byte, the low nibble first;
//                                           weight_scale is U8, 2^(stored -
//                                           127)
//   weight        I8 or F8_E4M3 [N, K]      int- and float-quantized
//   weight_scale  [1], [N, 1], [N, G] or a grid of blocks
//   weight_zero_point                       of what is not symmetric: as the
//                                           scales, I8, or packed down the rows
//   weight_g_idx  I32 [K]                   with actorder "group"
// (compressed_tensors/compressors/pack_quantized and naive_quantized.)

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "loader/compressed_tensors_config.h"
#include "loader/packed_words.h"
#include "loader/scaled_module_readers.h"
#include "loader/tensor_errors.h"
#include "quire/alloc/quote.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

using Strategy = CompressedScheme::Strategy;

constexpr std::string_view kPackedSuffix = ".weight_packed";
constexpr std::string_view kPlainSuffix = ".weight";

const char* StrategyName(Strategy strategy) {
  switch (strategy) {
    case Strategy::kTensor:
      return "tensor";
    case Strategy::kChannel:
      return "channel";
    case Strategy::kGroup:
      return "group";
    case Strategy::kBlock:
      return "block";
  }
  return "?";
}

// Words for codes of 4 or 8 bits; saturating, so that nothing fits it.
uint64_t WordsFor(uint64_t codes, uint64_t bits) {
  const uint64_t per_word = kWordBits / bits;
  return codes / per_word + (codes % per_word != 0 ? 1 : 0);
}

class ModuleReader {
 public:
  ModuleReader(const Checkpoint& checkpoint,
               const CompressedTensorsConfig& config)
      : checkpoint_(checkpoint), config_(config) {}

  absl::StatusOr<ScaledModule> Read(const TensorInfo& codes, bool packed) {
    ScaledModule module;
    module.name = ModuleOf(codes, packed ? kPackedSuffix : kPlainSuffix);
    QUIRE_ASSIGN_OR_RETURN(scheme_, config_.ForModule(module.name));
    QUIRE_RETURN_IF_ERROR(packed ? SetPackedCodes(codes, &module)
                                 : SetCodes(codes, &module));
    QUIRE_ASSIGN_OR_RETURN(
        const TensorInfo* const scales,
        RequireTensor(checkpoint_, PartName(module, "weight_scale"), codes));
    QUIRE_RETURN_IF_ERROR(SetScales(
        checkpoint_, *scales,
        scheme_->BlockFor(module.out_features, module.in_features),
        absl::StrCat("strategy ", Quoted(StrategyName(scheme_->strategy)),
                     " of ", scheme_->where),
        &module));
    QUIRE_RETURN_IF_ERROR(SetZeros(&module));
    QUIRE_RETURN_IF_ERROR(SetGroupIndex(&module));
    return module;
  }

 private:
  static std::string PartName(const ScaledModule& module, const char* part) {
    return absl::StrCat(module.name, ".", part);
  }

  absl::Status Error(const TensorInfo& tensor,
                     const std::string& problem) const {
    return TensorError(checkpoint_, tensor, problem);
  }

  absl::Status SetCodes(const TensorInfo& codes, ScaledModule* module) const {
    const bool is_float = codes.dtype == DType::kF8E4M3;
    if (is_float != scheme_->is_float || scheme_->bits != 8)
      return Error(codes, absl::StrCat(scheme_->where, " says ", scheme_->bits,
                                       " bits of type ",
                                       scheme_->is_float ? "float" : "int"));
    module->kind = is_float ? CodeKind::kF8E4M3 : CodeKind::kInt8;
    return SetPlainCodes(checkpoint_, codes, module);
  }

  absl::Status SetPackedCodes(const TensorInfo& codes,
                              ScaledModule* module) const {
    if (scheme_->is_float) return SetFloat4Codes(codes, module);
    if (codes.dtype != DType::kI32 || codes.shape.size() != 2 ||
        codes.elements() == 0)
      return Error(codes,
                   "packed codes are I32 of two dimensions, none of "
                   "them zero");
    module->kind = scheme_->bits == 4 ? CodeKind::kUint4 : CodeKind::kUint8;
    module->codes = &codes;
    QUIRE_RETURN_IF_ERROR(ReadShape(codes, module));
    const uint64_t words = WordsFor(module->in_features, scheme_->bits);
    if (codes.shape[0] != module->out_features || codes.shape[1] != words) {
      const bool other = WordsFor(module->in_features,
                                  scheme_->bits == 4 ? 8 : 4) == codes.shape[1];
      return Error(
          codes,
          absl::StrCat("weight_shape [", module->out_features, ", ",
                       module->in_features, "] at ", scheme_->bits, " bits (",
                       scheme_->where, ") needs [", module->out_features, ", ",
                       words, "]",
                       other ? absl::StrCat("; it would fit ",
                                            scheme_->bits == 4 ? 8 : 4, " bits")
                             : ""));
    }
    module->row_bytes = words * (kWordBits / 8);
    module->bias = checkpoint_.Find(PartName(*module, "bias"));
    return CheckBiasTensor(checkpoint_, module->bias, module->out_features);
  }

  absl::Status SetFloat4Codes(const TensorInfo& codes,
                              ScaledModule* module) const {
    if (scheme_->bits != 4)
      return Error(codes,
                   absl::StrCat(scheme_->where, " says ", scheme_->bits,
                                " bits of type float, but floats that are "
                                "packed have 4"));
    if (codes.dtype != DType::kU8)
      return Error(codes, "packed codes of 4-bit floats are U8");
    QUIRE_RETURN_IF_ERROR(SetPlainCodes(checkpoint_, codes, module));
    const auto in_features = CheckedMultiply(codes.shape[1], uint64_t{2});
    if (!in_features) return Error(codes, "has too many inputs");
    module->kind = CodeKind::kF4E2M1;
    module->in_features = *in_features;
    return absl::OkStatus();
  }

  // K is stated by these two numbers only: the words of a row may be padded.
  absl::Status ReadShape(const TensorInfo& codes, ScaledModule* module) const {
    QUIRE_ASSIGN_OR_RETURN(
        const TensorInfo* const tensor,
        RequireTensor(checkpoint_, PartName(*module, "weight_shape"), codes));
    const bool wide = tensor->dtype == DType::kI64;
    if ((!wide && tensor->dtype != DType::kI32) ||
        tensor->shape != std::vector<uint64_t>{2})
      return Error(*tensor, "a shape is I64 or I32 [2]");
    std::vector<std::byte> bytes;
    QUIRE_RETURN_IF_ERROR(checkpoint_.ReadSmallTensor(*tensor, &bytes));
    int64_t sizes[2];
    for (int i = 0; i < 2; ++i) {
      if (wide) {
        std::memcpy(&sizes[i], bytes.data() + i * sizeof(int64_t),
                    sizeof(int64_t));
      } else {
        int32_t size;
        std::memcpy(&size, bytes.data() + i * sizeof(int32_t), sizeof(size));
        sizes[i] = size;
      }
      if (sizes[i] <= 0)
        return Error(*tensor, absl::StrCat("holds ", sizes[i],
                                           ", which is not above 0"));
    }
    module->out_features = static_cast<uint64_t>(sizes[0]);
    module->in_features = static_cast<uint64_t>(sizes[1]);
    return absl::OkStatus();
  }

  absl::Status SetZeros(ScaledModule* module) const {
    // Those of a symmetric module are 0, where a writer keeps them at all.
    if (scheme_->symmetric) return absl::OkStatus();
    if (scheme_->is_float)
      return Error(*module->codes,
                   absl::StrCat(scheme_->where,
                                " says that it is not symmetric, which floats "
                                "are"));
    QUIRE_ASSIGN_OR_RETURN(
        const TensorInfo* const zeros,
        RequireTensor(checkpoint_, PartName(*module, "weight_zero_point"),
                      *module->codes));
    const uint64_t rows = module->scale_rows();
    const uint64_t columns = module->scale_columns();
    if (zeros->dtype == DType::kI8) {
      if (zeros->elements() != module->scales->elements())
        return Error(*zeros, absl::StrCat("the scales need zero points [", rows,
                                          ", ", columns, "]"));
    } else if (zeros->dtype == DType::kI32) {
      const uint64_t words = WordsFor(rows, scheme_->bits);
      if (zeros->shape != std::vector<uint64_t>{words, columns})
        return Error(*zeros,
                     absl::StrCat("[", rows, ", ", columns, "] zero points at ",
                                  scheme_->bits, " bits need [", words, ", ",
                                  columns, "]"));
    } else {
      return Error(*zeros, "zero points are I8, or I32 where they are packed");
    }
    module->zeros = zeros;
    return absl::OkStatus();
  }

  absl::Status SetGroupIndex(ScaledModule* module) const {
    module->g_idx = checkpoint_.Find(PartName(*module, "weight_g_idx"));
    if (module->g_idx == nullptr) return absl::OkStatus();
    if (module->g_idx->dtype != DType::kI32 ||
        module->g_idx->shape != std::vector<uint64_t>{module->in_features})
      return Error(*module->g_idx, absl::StrCat("the module needs g_idx I32 [",
                                                module->in_features, "]"));
    return absl::OkStatus();
  }

  const Checkpoint& checkpoint_;
  const CompressedTensorsConfig& config_;
  const CompressedScheme* scheme_ = nullptr;
};

}  // namespace

absl::Status FindCompressedTensors(const Checkpoint& checkpoint,
                                   const JsonFields& config,
                                   QuantizedModules* result) {
  QUIRE_ASSIGN_OR_RETURN(const CompressedTensorsConfig parsed,
                         CompressedTensorsConfig::Parse(config));
  ModuleReader reader(checkpoint, parsed);
  for (const TensorInfo& tensor : checkpoint.tensors()) {
    const bool packed = tensor.name.ends_with(kPackedSuffix);
    const bool plain =
        tensor.name.ends_with(kPlainSuffix) &&
        (tensor.dtype == DType::kI8 || tensor.dtype == DType::kF8E4M3);
    if (!packed && !plain) continue;
    QUIRE_ASSIGN_OR_RETURN(ScaledModule module, reader.Read(tensor, packed));
    for (const TensorInfo* const read :
         {checkpoint.Find(module.name + ".weight_shape"),
          checkpoint.Find(module.name + ".weight_zero_point")})
      if (read != nullptr && read != module.zeros)
        result->ignored.push_back(read);
    result->scaled.push_back(std::move(module));
  }
  SortByName(&result->scaled);
  QUIRE_RETURN_IF_ERROR(CheckScalesAreUsed(
      checkpoint, *result, "weight_packed, or of type I8 or F8_E4M3"));
  IgnoreActivationScales(checkpoint, result);
  if (parsed.quantizes_activations())
    result->notes.push_back(absl::StrCat(
        config.where(),
        ": input_activations are quantised by other tools; here they stay "
        "float32"));
  return absl::OkStatus();
}

}  // namespace quire
