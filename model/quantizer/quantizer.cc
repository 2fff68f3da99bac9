#include "quire/model/quantizer.h"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/config/family.h"
#include "model/decoder/layer_runner.h"
#include "model/quantizer/activation_cache.h"
#include "model/quantizer/checkpoint_export.h"
#include "model/quantizer/layer_memory.h"
#include "model/quantizer/layer_quantizer.h"
#include "model/quantizer/output_folder.h"
#include "model/quantizer/part_feed.h"
#include "quire/alloc/quote.h"
#include "quire/alloc/status_macros.h"
#include "quire/loader/quantization.h"
#include "quire/paging/kv_cache.h"

namespace quire {
namespace {

double NowInSeconds() {
  return std::chrono::duration<double>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// AutoGPTQ's and GPTQModel's fields.
nlohmann::json QuantizationJson(const QuantizeOptions& options) {
  const char* format = ExportedZeroOffset(options) == 1 ? "gptq" : "gptq_v2";
  return {{"bits", options.bits},
          {"group_size", options.group_size},
          {"sym", options.sym},
          {"desc_act", options.act_order},
          {"static_groups", options.static_groups},
          {"damp_percent", options.damping},
          {"true_sequential", false},
          {"lm_head", false},
          {"quant_method", "gptq"},
          {"checkpoint_format", format},
          {"pack_dtype", "int32"},
          {"meta", {{"quantizer", {"quire"}}}}};
}

// What takes the calibration tokens' hidden states through one layer after
// another.
class CalibrationPass {
 public:
  // Begins with the embedding's rows. REQUIRES: the embedding is acquired.
  static absl::StatusOr<std::unique_ptr<CalibrationPass>> Create(
      Session& source, const ModelConfig* exported,
      std::span<const std::vector<TokenId>> sequences, Bytes limit) {
    std::unique_ptr<CalibrationPass> pass(
        new CalibrationPass(source, sequences));
    QUIRE_RETURN_IF_ERROR(pass->Initialize(exported, limit));
    return pass;
  }

  ~CalibrationPass() {
    // Run is synchronous: nothing uses the sequence.
    if (sequence_ != SequenceId())
      cache_->Release(sequence_, Fence()).IgnoreError();
  }

  // Host memory of the hidden states.
  Bytes host_bytes() const { return states_->host_bytes(); }

  // The layer with its own weights; the hidden states stay as they are.
  absl::Status Observe(const DecoderLayer& layer,
                       const LayerRunner::Observer& observer) {
    return states_->ForEach(ActivationCache::Access::kRead,
                            [&](size_t batch, float* rows) {
                              Run(*original_, layer, batch, rows, observer);
                              return absl::OkStatus();
                            });
  }

  // The quantised layer: the hidden states become its outputs.
  absl::Status Advance(const DecoderLayer& layer) {
    return states_->ForEach(ActivationCache::Access::kUpdate,
                            [&](size_t batch, float* rows) {
                              Run(*exported_, layer, batch, rows, {});
                              return absl::OkStatus();
                            });
  }

 private:
  CalibrationPass(Session& source,
                  std::span<const std::vector<TokenId>> sequences)
      : source_(source), sequences_(sequences) {}

  absl::Status Initialize(const ModelConfig* exported, Bytes limit) {
    const ModelConfig& config = source_.config();
    size_t longest = 0;
    for (const auto& sequence : sequences_) {
      QUIRE_RETURN_IF_ERROR(CheckTokens(sequence, config.vocab_size));
      longest = std::max(longest, sequence.size());
    }
    Runtime& runtime = source_.runtime();
    QUIRE_ASSIGN_OR_RETURN(states_,
                           ActivationCache::Create(&runtime, sequences_,
                                                   config.hidden_size, limit));
    QUIRE_RETURN_IF_ERROR(states_->ForEach(
        ActivationCache::Access::kFill, [&](size_t batch, float* rows) {
          for (const TokenId token : sequences_[batch]) {
            DequantizeRow(source_.weights().embedding(),
                          static_cast<size_t>(token), rows);
            rows += config.hidden_size;
          }
          return absl::OkStatus();
        }));
    QUIRE_ASSIGN_OR_RETURN(const KvLayout layout,
                           KvLayout::Create({.layers = 1,
                                             .kv_heads = config.kv_heads,
                                             .head_dim = config.head_dim,
                                             .dtype = KvDType::kF32},
                                            1));
    QUIRE_ASSIGN_OR_RETURN(
        cache_, KvCache::Create(runtime.memory(), layout,
                                {.max_sequence_length = longest,
                                 .max_sequences = 1,
                                 .owner = runtime.owners()->Register("kv")}));
    QUIRE_ASSIGN_OR_RETURN(sequence_, cache_->Admit(longest));
    QUIRE_ASSIGN_OR_RETURN(view_, cache_->View(sequence_, 0));
    for (size_t t = 0; t < longest; ++t) places_.push_back({t, &view_});

    const std::vector<float>& frequencies =
        source_.weights().inverse_frequencies();
    const auto max_tokens = static_cast<uint32_t>(longest);
    QUIRE_ASSIGN_OR_RETURN(original_,
                           LayerRunner::Create(&runtime, &config, frequencies,
                                               max_tokens, &source_.pool()));
    QUIRE_ASSIGN_OR_RETURN(exported_,
                           LayerRunner::Create(&runtime, exported, frequencies,
                                               max_tokens, &source_.pool()));
    return absl::OkStatus();
  }

  void Run(LayerRunner& runner, const DecoderLayer& layer, size_t batch,
           float* rows, const LayerRunner::Observer& observer) {
    runner.Run(layer, std::span(places_).first(sequences_[batch].size()),
               KvDType::kF32, rows, /*adapters=*/{}, observer);
  }

  Session& source_;
  const std::span<const std::vector<TokenId>> sequences_;
  std::unique_ptr<ActivationCache> states_;
  std::unique_ptr<KvCache> cache_;
  SequenceId sequence_;
  KvLayerView view_;
  std::vector<TokenPlace> places_;
  // The source's rotary pairs, and those of the checkpoint that is written.
  std::unique_ptr<LayerRunner> original_, exported_;
};

// Everything that is written as it is: embedding, norms, head.
class PlainTensors {
 public:
  explicit PlainTensors(const Session& source)
      : weights_(source.weights()),
        hidden_(source.config().hidden_size),
        names_(NamesFor(CheckpointFormat::kSafetensors)) {}

  void AppendEntries(std::vector<SafetensorsEntry>* entries) const {
    AppendMatrix(names_.embedding, weights_.embedding(), entries);
    entries->push_back({absl::StrCat(names_.output_norm, ".weight"),
                        ExportedType(weights_.output_norm().dtype),
                        {hidden_}});
    if (const DenseMatrix* head = Head())
      AppendMatrix(names_.output, *head, entries);
  }

  // Each with its part acquired.
  absl::Status WriteEmbedding(SafetensorsWriter* writer) const {
    return ExportMatrix(weights_.embedding(),
                        absl::StrCat(names_.embedding, ".weight"), writer);
  }
  absl::Status WriteNorm(SafetensorsWriter* writer) const {
    return ExportVector(weights_.output_norm(), hidden_,
                        absl::StrCat(names_.output_norm, ".weight"), writer);
  }
  absl::Status WriteHead(SafetensorsWriter* writer) const {
    const DenseMatrix* const head = Head();
    return head == nullptr
               ? absl::OkStatus()
               : ExportMatrix(*head, absl::StrCat(names_.output, ".weight"),
                              writer);
  }

 private:
  static void AppendMatrix(const char* module, const DenseMatrix& matrix,
                           std::vector<SafetensorsEntry>* entries) {
    entries->push_back({absl::StrCat(module, ".weight"),
                        ExportedType(matrix.dtype),
                        {matrix.out_features, matrix.in_features}});
  }

  // Null where it is the embedding.
  const DenseMatrix* Head() const {
    return weights_.tied_head()
               ? nullptr
               : std::get_if<DenseMatrix>(&weights_.output().matrix);
  }

  const ModelWeights& weights_;
  const uint64_t hidden_;
  const TensorNames& names_;
};

bool IsDense(const Linear& linear) {
  return std::holds_alternative<DenseMatrix>(linear.matrix);
}

// The tensors of the file.
std::vector<SafetensorsEntry> Entries(const Session& source,
                                      const PlainTensors& plain,
                                      const QuantizeOptions& options) {
  const TensorNames& names = NamesFor(CheckpointFormat::kSafetensors);
  std::vector<SafetensorsEntry> entries;
  plain.AppendEntries(&entries);
  for (uint32_t i = 0; i < source.config().layers; ++i)
    AppendLayerEntries(source.weights().layers()[i], source.config(),
                       names.InLayer(i, ""), options, &entries);
  return entries;
}

Bytes TotalBytes(std::span<const SafetensorsEntry> entries) {
  Bytes total;
  for (const SafetensorsEntry& entry : entries) {
    uint64_t elements = 1;
    for (const uint64_t dimension : entry.shape) elements *= dimension;
    total =
        SaturatingAdd(total, BytesOf(entry.dtype, elements).value_or(Bytes(0)));
  }
  return total;
}

// One run over the parts of the model in their order: embedding, layers, last
// norm, head. Of the weights one part stands on the device, and the next one
// is on its way.
absl::Status WriteModel(Session& source,
                        std::span<const std::vector<TokenId>> calibration,
                        const QuantizeOptions& options,
                        const PlainTensors& plain, SafetensorsWriter* writer,
                        QuantizeReport* report) {
  const double start = NowInSeconds();
  const ModelConfig& config = source.config();
  ModelConfig exported = config;
  exported.rope.pairing = RopePairing::kHalf;
  const TensorNames& names = NamesFor(CheckpointFormat::kSafetensors);
  PartFeed parts(&source.runtime(), &source.weights());
  size_t part = 0;

  QUIRE_RETURN_IF_ERROR(parts.Acquire(part));
  QUIRE_RETURN_IF_ERROR(plain.WriteEmbedding(writer));
  std::unique_ptr<CalibrationPass> pass;
  if (options.method == QuantizeMethod::kGptq) {
    QUIRE_ASSIGN_OR_RETURN(
        pass, CalibrationPass::Create(source, &exported, calibration,
                                      options.activation_cache));
    report->activation_cache = pass->host_bytes();
  }
  QUIRE_RETURN_IF_ERROR(parts.Release(part++));

  for (uint32_t i = 0; i < config.layers; ++i) {
    const DecoderLayer& layer = source.weights().layers()[i];
    const std::string prefix = names.InLayer(i, "");
    QUIRE_RETURN_IF_ERROR(parts.Acquire(part));
    std::optional<LayerCalibration> seen;
    if (pass != nullptr) {
      seen.emplace(config, options);
      QUIRE_RETURN_IF_ERROR(
          pass->Observe(layer, seen->Observer(&source.pool())));
    }
    QUIRE_ASSIGN_OR_RETURN(
        const std::unique_ptr<QuantizedLayer> quantized,
        QuantizedLayer::Create(layer, config, seen ? &*seen : nullptr, prefix,
                               options, writer, &source.pool()));
    seen.reset();
    for (const LayerNorm& norm : LayerNorms(layer, config))
      QUIRE_RETURN_IF_ERROR(
          ExportVector(*norm.vector, norm.size,
                       absl::StrCat(prefix, norm.module, ".weight"), writer));
    // Its norms still run.
    if (pass != nullptr)
      QUIRE_RETURN_IF_ERROR(pass->Advance(quantized->layer()));
    QUIRE_RETURN_IF_ERROR(parts.Release(part++));
    if (options.progress)
      options.progress({i + 1, config.layers, NowInSeconds() - start});
  }

  QUIRE_RETURN_IF_ERROR(parts.Acquire(part));
  QUIRE_RETURN_IF_ERROR(plain.WriteNorm(writer));
  QUIRE_RETURN_IF_ERROR(parts.Release(part++));
  // It was written as the embedding.
  if (source.weights().tied_head()) return absl::OkStatus();
  QUIRE_RETURN_IF_ERROR(parts.Acquire(part));
  return plain.WriteHead(writer);
}

absl::StatusOr<QuantizeReport> WriteCheckpoint(
    Session& source, const Tokenizer* tokenizer, const std::string& folder,
    std::span<const std::vector<TokenId>> calibration,
    const QuantizeOptions& options) {
  const double start = NowInSeconds();
  const PlainTensors plain(source);
  const std::vector<SafetensorsEntry> entries = Entries(source, plain, options);
  QUIRE_ASSIGN_OR_RETURN(
      const std::unique_ptr<SafetensorsWriter> writer,
      SafetensorsWriter::Create(folder + "/model.safetensors", entries,
                                {{"format", "pt"}}));
  QuantizeReport report;
  QUIRE_RETURN_IF_ERROR(
      WriteModel(source, calibration, options, plain, writer.get(), &report));
  QUIRE_RETURN_IF_ERROR(writer->Finish());
  QUIRE_RETURN_IF_ERROR(WriteTokenizer(source.checkpoint(), tokenizer, folder));
  QUIRE_RETURN_IF_ERROR(
      WriteConfig(source.checkpoint(), source.config(),
                  source.weights().layers()[0].query.bias.data != nullptr,
                  QuantizationJson(options), folder));

  report.modules =
      source.config().layers * static_cast<uint32_t>(kLayerLinears);
  for (const auto& sequence : calibration)
    report.calibration_tokens += sequence.size();
  report.bytes = TotalBytes(entries);
  report.layer = LayerMemory(source.config(), options, source.pool().threads());
  report.seconds = NowInSeconds() - start;
  return report;
}

}  // namespace

absl::Status QuantizeOptions::Validate() const {
  if (bits != 2 && bits != 3 && bits != 4 && bits != 8)
    return absl::InvalidArgumentError(
        absl::StrCat("bits is ", bits, ", not 2, 3, 4 or 8"));
  if (group_size != -1 && (group_size < 8 || group_size > 65536))
    return absl::InvalidArgumentError(absl::StrCat(
        "group_size is ", group_size, ", not -1 or from 8 to 65536"));
  if (!(damping > 0 && damping < 1))
    return absl::InvalidArgumentError(
        absl::StrCat("damping is ", damping, ", not between 0 and 1"));
  return absl::OkStatus();
}

absl::Status CheckQuantizeSource(const Checkpoint& source) {
  if (source.Find("rope_freqs.weight") != nullptr)
    return absl::UnimplementedError(absl::StrCat(
        source.folder(),
        ": rope_freqs.weight has no equivalent in config.json; quantise from "
        "the Hugging Face checkpoint of this model"));
  QUIRE_ASSIGN_OR_RETURN(const QuantizedModules quantized,
                         FindQuantizedModules(source));
  if (quantized.gptq.empty() && quantized.scaled.empty())
    return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      source.folder(), ": ",
      Printable(quantized.gptq.empty() ? quantized.scaled.front().name
                                       : quantized.gptq.front().name),
      " is quantised already; quantise from the checkpoint in 16 or 32 bits"));
}

absl::Status CheckQuantizeSource(const Session& source) {
  QUIRE_RETURN_IF_ERROR(CheckQuantizeSource(source.checkpoint()));
  const std::string& folder = source.checkpoint().folder();
  if (source.weights().embedding_on_disk())
    return absl::FailedPreconditionError(absl::StrCat(
        folder,
        ": the embedding is read by rows, and has to be written whole "
        "(embedding_by_rows)"));
  if (!IsDense(source.weights().output()))
    return absl::FailedPreconditionError(
        absl::StrCat(folder, ": the output head is quantised already"));
  const TensorNames& names = NamesFor(CheckpointFormat::kSafetensors);
  const std::vector<DecoderLayer>& layers = source.weights().layers();
  for (uint32_t i = 0; i < layers.size(); ++i) {
    for (const LayerLinear& entry : LayerLinears()) {
      if (!IsDense(layers[i].*entry.linear))
        return absl::FailedPreconditionError(
            absl::StrCat(folder, ": ", names.InLayer(i, names.*entry.module),
                         " is quantised already"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckQuantizeOutput(const std::string& out) {
  return OutputFolder::Create(out).status();
}

absl::StatusOr<QuantizeReport> QuantizeModel(
    Session& source, const Tokenizer* tokenizer, const std::string& out,
    std::span<const std::vector<TokenId>> calibration,
    const QuantizeOptions& options) {
  QUIRE_RETURN_IF_ERROR(options.Validate());
  QUIRE_RETURN_IF_ERROR(CheckQuantizeSource(source));
  if (options.method == QuantizeMethod::kGptq && calibration.empty())
    return absl::InvalidArgumentError("there are no calibration tokens");
  QUIRE_ASSIGN_OR_RETURN(const std::unique_ptr<OutputFolder> folder,
                         OutputFolder::Create(out));
  QUIRE_ASSIGN_OR_RETURN(const QuantizeReport report,
                         WriteCheckpoint(source, tokenizer, folder->staging(),
                                         calibration, options));
  QUIRE_RETURN_IF_ERROR(folder->Commit());
  return report;
}

}  // namespace quire
