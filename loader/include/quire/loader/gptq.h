// GPTQ and AWQ checkpoints: which modules are quantised, how, and whether their
// tensors agree with each other.
//
// Format (AutoGPTQ's qlinear_cuda.py, GPTQModel's nn_modules/qlinear): for a
// linear of K inputs and N outputs at b bits with group size g, G = ceil(K /
// g):
//   qweight I32 [ceil(K*b/32), N]   codes along K: every 32 codes take b words,
//                                   one little-endian bit string
//   qzeros  I32 [G, ceil(N*b/32)]   packed likewise along N
//   scales  F16/BF16/F32 [G, N]
//   g_idx   I32 [K], may be absent: then row k belongs to group k / g
//   bias    [N], optional
//   W[k, n] = scales[g_idx[k], n] * (q[k, n] - zero[g_idx[k], n])
// Checkpoints of format "gptq" (v1, also the meaning of a missing field) store
// zero - 1, modulo 2^b in every field; "gptq_v2" stores zero.
//
// "gptq_p" (GPTQModel's docs/gptq_planar.md) stores zero too, and cuts every 32
// codes into planes of 4, 2 and 1 bits, the low bits first, each of which is a
// bit string: 3 bits are 2 words of 2 bits each and 1 word of the highest ones,
// 7 are 4 + 2 + 1. K and N are multiples of 32; 2, 4 and 8 bits are one plane,
// and so as in gptq_v2. 5, 6 and 7 bits there are in this layout only.
//
// AWQ's GEMM layout (AutoAWQ's awq/modules/linear/gemm.py) says the same with 4
// bits, packed along the outputs:
//   qweight I32 [K, N/8]   nibble i of word w is column 8*w + kAwqOrder[i]
//   qzeros  I32 [G, N/8]   likewise; stores zero
//   scales  F16/BF16/F32 [G, N]

#ifndef QUIRE_LOADER_GPTQ_H_
#define QUIRE_LOADER_GPTQ_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "quire/loader/checkpoint.h"

namespace quire {

class GptqOverrides;
class OneCompSettings;

enum class GptqPacking : uint8_t { kGptq, kPlanar, kAwq };
// The column of a word, 0 to 7, that stands in each nibble of AWQ's words.
inline constexpr int kAwqOrder[8] = {0, 2, 4, 6, 1, 3, 5, 7};

// What a configuration says of one module.
struct GptqSettings {
  int bits = 4;  // 2, 3, 4 or 8; 5, 6 and 7 too, where they are planar
  // -1: one group. 0: the configuration does not say, and FindGptqModules takes
  // it from the shapes (AutoGPTQ's default is -1, GPTQModel's is 128).
  int64_t group_size = 0;
  bool desc_act = false;
  bool sym = true;
};

// The checkpoint's quantisation configuration, all spellings understood
// (bits/wbits/w_bit, groupsize, actorder, checkpoint_format/format, `dynamic`
// overrides, ...). Formats that are neither GPTQ nor AWQ are refused by name.
class GptqConfig {
 public:
  // `checkpoint` has quantised modules. Errors name the file and the field.
  static absl::StatusOr<GptqConfig> Parse(const Checkpoint& checkpoint);

  GptqPacking packing() const { return packing_; }
  // Zero points are stored as they are: gptq_v2, gptq_p, and AWQ.
  bool zeros_are_v2() const { return zeros_are_v2_; }
  const GptqSettings& defaults() const { return defaults_; }
  // With the overrides for `module` ("model.layers.0.self_attn.q_proj");
  // nullopt where the configuration says that it is not quantised. An error
  // where a pattern of `dynamic` takes too many steps to match.
  absl::StatusOr<std::optional<GptqSettings>> ForModule(
      std::string_view module) const;
  // The file and the object in it, for messages: "config.json:
  // quantization_config".
  const std::string& where() const { return where_; }

 private:
  GptqConfig() = default;

  std::string where_;
  GptqSettings defaults_;
  GptqPacking packing_ = GptqPacking::kGptq;
  bool zeros_are_v2_ = false;
  // Immutable, so copies share them.
  std::shared_ptr<const GptqOverrides> overrides_;     // `dynamic`
  std::shared_ptr<const OneCompSettings> per_module_;  // OneComp's tables
};

// One quantised linear; the tensors belong to the checkpoint.
struct GptqModule {
  std::string name;  // without ".qweight"
  GptqSettings settings;
  GptqPacking packing = GptqPacking::kGptq;
  uint64_t in_features = 0;   // K
  uint64_t out_features = 0;  // N
  uint64_t groups = 0;        // G
  // Less than K where the shapes leave a choice, see SetInFeatures.
  uint64_t least_in_features = 0;
  bool infers_group_size = false;  // the configuration does not say
  const TensorInfo* qweight = nullptr;
  const TensorInfo* qzeros = nullptr;
  const TensorInfo* scales = nullptr;
  const TensorInfo* g_idx = nullptr;  // null: absent
  const TensorInfo* bias = nullptr;   // null: absent

  // Settles on a number of inputs; false where the shapes have another.
  bool SetInFeatures(uint64_t inputs);
};

// Every module with a ".qweight", in name order. Quantised or not is decided by
// the tensors, never by the configuration; bits and groups are checked against
// every shape. Where there is no g_idx to tell the number of inputs, it is the
// most that the rows of qweight and of the scales hold, until SetInFeatures.
// Other tensors of a module, such as OneComp's `perm`, are left alone.
absl::StatusOr<std::vector<GptqModule>> FindGptqModules(
    const Checkpoint& checkpoint, const GptqConfig& config);

// What may be odd in a g_idx.
enum class GroupIndexOddity : uint8_t {
  kNone,
  kAllZero,        // though there are several groups
  kUnequalGroups,  // of other sizes than the format makes
};

// The group of every input row: from g_idx where there is one, else k / g. A
// g_idx that is all zero while there are more groups counts as missing. Errors
// name the tensor, the row and the value where one is outside [0, groups).
// `oddity`, where it is given, is set to what is odd and no error.
absl::StatusOr<std::vector<uint32_t>> ReadGroupIndex(
    const Checkpoint& checkpoint, const GptqModule& module,
    GroupIndexOddity* oddity = nullptr);

// What the stored zero points of a symmetric module say of the convention.
enum class ZeroConvention { kV1, kV2, kNeither };
// `words` are qzeros of a module; looks for the symmetric fingerprint,
// zero = 2^(bits-1) in every field of `out_features` columns.
ZeroConvention DetectZeroConvention(const uint32_t* words, uint64_t groups,
                                    uint64_t out_features, int bits);

// Fields that are 2^bits - 1: in v1 a zero point of 0, less one.
uint64_t CountWrappedZeros(const uint32_t* words, uint64_t groups,
                           uint64_t out_features, int bits);

}  // namespace quire

#endif  // QUIRE_LOADER_GPTQ_H_
