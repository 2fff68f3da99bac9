// The families whose keys and values are known, and what their configurations
// leave out.

#ifndef QUIRE_MODEL_CONFIG_KV_FAMILY_H_
#define QUIRE_MODEL_CONFIG_KV_FAMILY_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace quire {

// Larger than any model, small enough that a layer's bytes cannot overflow.
inline constexpr uint64_t kMaxKvDimension = uint64_t{1} << 24;
inline constexpr uint64_t kMaxKvPositions = uint64_t{1} << 40;

// Which layers see the last `sliding_window` tokens only. A list of layer_types
// comes before that.
enum class WindowedLayers : uint8_t {
  kNone,
  kAll,
  kAllButEveryNth,  // sliding_window_pattern: the last of so many sees all
  // With use_sliding_window:
  kLaterOnes,     // those from max_window_layers on
  kEarlierEven,   // every other one of those before max_window_layers
  kAllWhereUsed,  // all
};

// Of transformers' configuration_*.py, with what its classes take for fields
// that are left out. A configuration by itself says how large its model is;
// only as the text_config of a model of images and text it may leave that out,
// too.
struct KvFamily {
  const char* model_type;
  // llama.cpp's name of the architecture; null: it has none of its own.
  const char* gguf_architecture;
  uint64_t max_positions;
  uint64_t layers;
  uint64_t heads;
  uint64_t hidden = 0;    // 0: there is a head_dim
  uint64_t kv_heads = 0;  // 0: as many as there are heads
  uint64_t head_dim = 0;  // 0: hidden_size / heads
  // May leave its size out by itself as well.
  bool has_sizes = false;
  WindowedLayers windowed = WindowedLayers::kNone;
  uint64_t window = 0;  // 0: none
  uint64_t max_window_layers = 28;
  uint64_t pattern = 0;
  // One vector a token, of kv_lora_rank + qk_rope_head_dim elements.
  bool latent = false;
  uint64_t latent_rank = 0;
  uint64_t latent_rope = 0;
};

// By model_type; null: not known.
const KvFamily* FindKvFamily(std::string_view model_type);
// The first one of that architecture.
const KvFamily* FindGgufKvFamily(std::string_view architecture);
// "llama, ..." for messages.
std::string KnownKvFamilies();
std::string KnownGgufKvFamilies();

}  // namespace quire

#endif  // QUIRE_MODEL_CONFIG_KV_FAMILY_H_
