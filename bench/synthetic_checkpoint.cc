#include "bench/synthetic_checkpoint.h"

#include <quire/alloc/status_macros.h>
#include <quire/loader/safetensors_writer.h>

#include <bit>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <span>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"

namespace quire {
namespace {

constexpr uint64_t kHidden = 256;
constexpr uint64_t kIntermediate = 768;
constexpr uint64_t kLayers = 4;
constexpr uint64_t kHeads = 4;
constexpr uint64_t kKvHeads = 2;
constexpr uint64_t kHeadDim = kHidden / kHeads;
constexpr uint64_t kBytes = 256;  // the vocabulary: one token a byte

nlohmann::json Config() {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"hidden_size", kHidden},
          {"intermediate_size", kIntermediate},
          {"num_hidden_layers", kLayers},
          {"num_attention_heads", kHeads},
          {"num_key_value_heads", kKvHeads},
          {"vocab_size", kBytes},
          {"max_position_embeddings", 2048},
          {"hidden_act", "silu"},
          {"rms_norm_eps", 1e-5},
          {"rope_theta", 10000.0},
          {"tie_word_embeddings", true},
          {"torch_dtype", "float32"}};
}

// How byte-level tokenizers spell a byte: the printable ones of Latin-1 as
// themselves, the others as the characters from U+0100 on.
std::string ByteSpelling(uint32_t byte) {
  const auto is_printable = [](uint32_t b) {
    return (b >= 0x21 && b < 0x7f) || (b >= 0xa1 && b < 0x100 && b != 0xad);
  };
  uint32_t code_point = byte;
  if (!is_printable(byte)) {
    code_point = 0x100;
    for (uint32_t b = 0; b < byte; ++b) code_point += is_printable(b) ? 0 : 1;
  }
  if (code_point < 0x80) return std::string(1, static_cast<char>(code_point));
  return {static_cast<char>(0xc0 | code_point >> 6),
          static_cast<char>(0x80 | (code_point & 0x3f))};
}

nlohmann::json TokenizerJson() {
  nlohmann::json vocabulary = nlohmann::json::object();
  for (uint32_t byte = 0; byte < kBytes; ++byte)
    vocabulary[ByteSpelling(byte)] = byte;
  const nlohmann::json byte_level = {{"type", "ByteLevel"},
                                     {"add_prefix_space", false},
                                     {"trim_offsets", true},
                                     {"use_regex", true}};
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", nlohmann::json::array()},
          {"normalizer", nullptr},
          {"pre_tokenizer", byte_level},
          {"post_processor", nullptr},
          {"decoder", byte_level},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", false},
            {"byte_fallback", false},
            {"vocab", vocabulary},
            {"merges", nlohmann::json::array()}}}};
}

std::vector<SafetensorsEntry> Tensors() {
  std::vector<SafetensorsEntry> tensors;
  const auto add = [&](std::string name, std::vector<uint64_t> shape) {
    tensors.push_back({std::move(name), DType::kF32, std::move(shape)});
  };
  add("model.embed_tokens.weight", {kBytes, kHidden});
  add("model.norm.weight", {kHidden});
  for (uint64_t layer = 0; layer < kLayers; ++layer) {
    const std::string prefix = absl::StrCat("model.layers.", layer, ".");
    add(prefix + "input_layernorm.weight", {kHidden});
    add(prefix + "post_attention_layernorm.weight", {kHidden});
    add(prefix + "self_attn.q_proj.weight", {kHeads * kHeadDim, kHidden});
    add(prefix + "self_attn.k_proj.weight", {kKvHeads * kHeadDim, kHidden});
    add(prefix + "self_attn.v_proj.weight", {kKvHeads * kHeadDim, kHidden});
    add(prefix + "self_attn.o_proj.weight", {kHidden, kHeads * kHeadDim});
    add(prefix + "mlp.gate_proj.weight", {kIntermediate, kHidden});
    add(prefix + "mlp.up_proj.weight", {kIntermediate, kHidden});
    add(prefix + "mlp.down_proj.weight", {kHidden, kIntermediate});
  }
  return tensors;
}

// Norms of one; everything else uniform, of such a size that what goes through
// a layer keeps its own.
std::vector<float> Weights(const SafetensorsEntry& tensor,
                           std::mt19937_64* random) {
  if (tensor.shape.size() == 1)
    return std::vector<float>(tensor.shape[0], 1.0f);
  const uint64_t inputs = tensor.shape[1];
  std::vector<float> values(tensor.shape[0] * inputs);
  const double bound = std::sqrt(3.0 / static_cast<double>(inputs));
  for (float& value : values) {
    const double unit = static_cast<double>((*random)() >> 11) * 0x1p-53;
    value = static_cast<float>((2 * unit - 1) * bound);
  }
  return values;
}

absl::Status WriteText(const std::string& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary);
  out << text << std::flush;
  if (out.good()) return absl::OkStatus();
  return absl::UnknownError(absl::StrCat("cannot write ", path));
}

// What was not there and is written, until it is kept: an output is whole or
// absent.
class WrittenFiles {
 public:
  ~WrittenFiles() {
    std::error_code ignored;  // what cannot be removed stays
    for (const std::string& path : paths_)
      std::filesystem::remove(path, ignored);
  }
  void Add(const std::string& path) {
    std::error_code ignored;
    if (!std::filesystem::exists(path, ignored)) paths_.push_back(path);
  }
  void Keep() { paths_.clear(); }

 private:
  std::vector<std::string> paths_;
};

}  // namespace

absl::Status WriteSyntheticCheckpoint(const std::string& folder,
                                      uint64_t seed) {
  static_assert(std::endian::native == std::endian::little,
                "safetensors files are little-endian");
  const std::string weights = folder + "/model.safetensors";
  const std::string tokenizer = folder + "/tokenizer.json";
  const std::string config = folder + "/config.json";
  WrittenFiles written;
  for (const std::string& path : {weights, tokenizer, config})
    written.Add(path);
  const std::vector<SafetensorsEntry> tensors = Tensors();
  QUIRE_ASSIGN_OR_RETURN(
      const auto writer,
      SafetensorsWriter::Create(weights, tensors, {{"format", "pt"}}));
  std::mt19937_64 random(seed);
  for (const SafetensorsEntry& tensor : tensors) {
    const std::vector<float> values = Weights(tensor, &random);
    QUIRE_RETURN_IF_ERROR(
        writer->Append(tensor.name, std::as_bytes(std::span(values))));
  }
  QUIRE_RETURN_IF_ERROR(writer->Finish());
  QUIRE_RETURN_IF_ERROR(WriteText(tokenizer, TokenizerJson().dump(1) + "\n"));
  QUIRE_RETURN_IF_ERROR(WriteText(config, Config().dump(1) + "\n"));
  written.Keep();
  return absl::OkStatus();
}

}  // namespace quire
