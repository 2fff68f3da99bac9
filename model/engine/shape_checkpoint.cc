#include "model/engine/shape_checkpoint.h"

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "model/config/family.h"
#include "model/decoder/gptq_weights.h"
#include "quire/alloc/quote.h"
#include "quire/alloc/status_macros.h"
#include "quire/loader/gptq.h"
#include "quire/loader/json_fields.h"
#include "quire/model/model_config.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

absl::StatusOr<DType> DTypeOf(const Checkpoint& checkpoint) {
  const JsonFields fields(checkpoint.config(),
                          absl::StrCat(checkpoint.folder(), "/config.json"));
  // transformers 5 has the shorter name.
  const char* const field = fields.Has("dtype") ? "dtype" : "torch_dtype";
  QUIRE_ASSIGN_OR_RETURN(const std::string name,
                         fields.GetStringOr(field, "bfloat16"));
  if (name == "bfloat16") return DType::kBF16;
  if (name == "float16") return DType::kF16;
  if (name == "float32") return DType::kF32;
  return fields.Error(field, absl::StrCat("is ", Quoted(name)));
}

class ShapeBuilder {
 public:
  ShapeBuilder(const ModelConfig& config, DType dtype,
               std::optional<GptqConfig> gptq)
      : config_(config),
        names_(NamesFor(CheckpointFormat::kSafetensors)),
        dtype_(dtype),
        gptq_(std::move(gptq)) {}

  absl::StatusOr<std::vector<TensorInfo>> Build() {
    const uint64_t hidden = config_.hidden_size;
    const uint64_t ffn = config_.intermediate_size;
    AddTensor(absl::StrCat(names_.embedding, ".weight"), dtype_,
              {config_.vocab_size, hidden});
    for (uint32_t i = 0; i < config_.layers; ++i) {
      const struct {
        const char* module;
        uint64_t out, in;
        bool bias;
      } linears[] = {
          {names_.query, config_.query_size(), hidden, config_.qkv_bias},
          {names_.key, config_.kv_size(), hidden, config_.qkv_bias},
          {names_.value, config_.kv_size(), hidden, config_.qkv_bias},
          {names_.attention_output, hidden, config_.query_size(),
           config_.attention_output_bias},
          {names_.gate, ffn, hidden, config_.ffn_bias},
          {names_.up, ffn, hidden, config_.ffn_bias},
          {names_.down, hidden, ffn, config_.ffn_bias}};
      for (const auto& linear : linears)
        QUIRE_RETURN_IF_ERROR(AddLinear(names_.InLayer(i, linear.module),
                                        linear.out, linear.in, linear.bias));
      AddNorm(names_.InLayer(i, names_.attention_norm), hidden);
      AddNorm(names_.InLayer(i, names_.ffn_norm), hidden);
      if (config_.head_norms) {
        AddNorm(names_.InLayer(i, names_.query_norm), config_.head_dim);
        AddNorm(names_.InLayer(i, names_.key_norm), config_.head_dim);
      }
    }
    AddNorm(names_.output_norm, hidden);
    if (!config_.tied_embeddings)
      AddTensor(absl::StrCat(names_.output, ".weight"), dtype_,
                {config_.vocab_size, hidden});
    return std::move(tensors_);
  }

 private:
  void AddNorm(const std::string& module, uint64_t size) {
    AddTensor(absl::StrCat(module, ".weight"), dtype_, {size});
  }

  absl::Status AddLinear(const std::string& module, uint64_t out, uint64_t in,
                         bool bias) {
    if (bias) AddTensor(absl::StrCat(module, ".bias"), dtype_, {out});
    std::optional<GptqSettings> settings;
    if (gptq_.has_value()) {
      QUIRE_ASSIGN_OR_RETURN(settings, gptq_->ForModule(module));
    }
    if (!settings.has_value()) {
      AddTensor(absl::StrCat(module, ".weight"), dtype_, {out, in});
      return absl::OkStatus();
    }
    // Such a module has a g_idx to tell how many inputs there are.
    if (in * static_cast<uint64_t>(settings->bits) % 32 != 0)
      return absl::UnimplementedError(absl::StrCat(
          gptq_->where(), ": module ", Quoted(module), " has ", in,
          " inputs of ", settings->bits,
          " bits, no whole number of words: what its tensors are cannot be "
          "told from a configuration"));
    const uint64_t groups =
        settings->group_size <= 0
            ? 1
            : (in - 1) / static_cast<uint64_t>(settings->group_size) + 1;
    AddTensor(absl::StrCat(module, ".qweight"), DType::kI32,
              {PackedWords(in, settings->bits), out});
    AddTensor(absl::StrCat(module, ".qzeros"), DType::kI32,
              {groups, PackedWords(out, settings->bits)});
    AddTensor(absl::StrCat(module, ".scales"), DType::kF16, {groups, out});
    return absl::OkStatus();
  }

  // Dimensions are below 2^32, so the product of two and an element fit.
  void AddTensor(std::string name, DType dtype, std::vector<uint64_t> shape) {
    TensorInfo tensor;
    tensor.name = std::move(name);
    tensor.dtype = dtype;
    tensor.shape = std::move(shape);
    tensor.offset = end_;
    tensor.size = BytesOf(dtype, tensor.elements()).value_or(Bytes(0));
    end_ = SaturatingAdd(end_, tensor.size.value());
    tensors_.push_back(std::move(tensor));
  }

  const ModelConfig& config_;
  const TensorNames& names_;
  const DType dtype_;
  const std::optional<GptqConfig> gptq_;
  std::vector<TensorInfo> tensors_;
  uint64_t end_ = 0;
};

absl::StatusOr<std::vector<TensorInfo>> TensorsOf(
    const Checkpoint& checkpoint) {
  QUIRE_ASSIGN_OR_RETURN(const ModelConfig config,
                         ParseModelConfig(checkpoint));
  QUIRE_ASSIGN_OR_RETURN(const DType dtype, DTypeOf(checkpoint));
  std::optional<GptqConfig> gptq;
  if (!checkpoint.quantization_config().empty()) {
    QUIRE_ASSIGN_OR_RETURN(gptq, GptqConfig::Parse(checkpoint));
    if (gptq->packing() != GptqPacking::kGptq)
      return absl::UnimplementedError(absl::StrCat(
          gptq->where(),
          ": what tensors AWQ has cannot be told from a configuration"));
  }
  return ShapeBuilder(config, dtype, std::move(gptq)).Build();
}

}  // namespace

bool HasNoWeights(const std::string& path) {
  std::error_code error;
  if (!fs::is_regular_file(path + "/config.json", error)) return false;
  for (const auto& entry : fs::directory_iterator(path, error)) {
    const std::string extension = entry.path().extension();
    if (extension == ".safetensors" || extension == ".bin" ||
        extension == ".pt" || extension == ".pth" || extension == ".gguf" ||
        entry.path().filename().string().ends_with(".index.json"))
      return false;
  }
  return !error;
}

absl::StatusOr<std::unique_ptr<Checkpoint>> OpenConfiguration(
    const std::string& folder) {
  return Checkpoint::Describe(
      folder, [](const Checkpoint&) { return std::vector<TensorInfo>(); });
}

absl::StatusOr<std::unique_ptr<Checkpoint>> OpenShape(
    const std::string& folder) {
  return Checkpoint::Describe(folder, TensorsOf);
}

}  // namespace quire
