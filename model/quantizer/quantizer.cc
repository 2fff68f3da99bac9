#include "quire/model/quantizer.h"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/config/family.h"
#include "model/decoder/layer_runner.h"
#include "model/quantizer/checkpoint_export.h"
#include "model/quantizer/layer_quantizer.h"
#include "quire/alloc/status_macros.h"
#include "quire/paging/kv_cache.h"

namespace quire {
namespace {

double Seconds() {
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

// The hidden states of the calibration tokens, and a cache of one layer that
// they pass through.
class CalibrationPass {
 public:
  static absl::StatusOr<std::unique_ptr<CalibrationPass>> Create(
      Session& source, const ModelConfig* exported,
      std::span<const std::vector<TokenId>> sequences) {
    std::unique_ptr<CalibrationPass> pass(
        new CalibrationPass(source, sequences));
    QUIRE_RETURN_IF_ERROR(pass->Initialize(exported));
    return pass;
  }

  ~CalibrationPass() {
    // Run is synchronous: nothing uses the sequence.
    if (sequence_ != SequenceId())
      cache_->Release(sequence_, Fence()).IgnoreError();
  }

  // The layer with its own weights; the hidden states stay as they are.
  void Observe(const DecoderLayer& layer,
               const LayerRunner::Observer& observer) {
    ForEachSequence([&](float* states, size_t tokens) {
      std::copy_n(states, tokens * hidden_.columns, scratch_.data);
      Run(*original_, layer, tokens, scratch_.data, observer);
    });
  }

  // The quantised layer: the hidden states become its outputs.
  void Advance(const DecoderLayer& layer) {
    ForEachSequence([&](float* states, size_t tokens) {
      Run(*exported_, layer, tokens, states, {});
    });
  }

 private:
  CalibrationPass(Session& source,
                  std::span<const std::vector<TokenId>> sequences)
      : source_(source), sequences_(sequences), workspace_(&source.runtime()) {}

  absl::Status Initialize(const ModelConfig* exported) {
    const ModelConfig& config = source_.config();
    size_t total = 0;
    size_t longest = 0;
    for (const auto& sequence : sequences_) {
      QUIRE_RETURN_IF_ERROR(CheckTokens(sequence, config.vocab_size));
      total += sequence.size();
      longest = std::max(longest, sequence.size());
    }
    QUIRE_ASSIGN_OR_RETURN(hidden_,
                           workspace_.Allocate(total, config.hidden_size));
    QUIRE_ASSIGN_OR_RETURN(scratch_,
                           workspace_.Allocate(longest, config.hidden_size));
    size_t row = 0;
    for (const auto& sequence : sequences_) {
      for (const TokenId token : sequence)
        DequantizeRow(source_.weights().embedding(), static_cast<size_t>(token),
                      hidden_.row(row++));
    }
    QUIRE_ASSIGN_OR_RETURN(const KvLayout layout,
                           KvLayout::Create({.layers = 1,
                                             .kv_heads = config.kv_heads,
                                             .head_dim = config.head_dim,
                                             .dtype = KvDType::kF32},
                                            1));
    Runtime& runtime = source_.runtime();
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

  template <typename Body>
  void ForEachSequence(const Body& body) {
    size_t row = 0;
    for (const auto& sequence : sequences_) {
      body(hidden_.row(row), sequence.size());
      row += sequence.size();
    }
  }

  void Run(LayerRunner& runner, const DecoderLayer& layer, size_t tokens,
           float* states, const LayerRunner::Observer& observer) {
    runner.Run(layer, std::span(places_).first(tokens), KvDType::kF32, states,
               /*adapters=*/{}, observer);
  }

  Session& source_;
  const std::span<const std::vector<TokenId>> sequences_;
  Workspace workspace_;
  ActivationBuffer hidden_, scratch_;
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

  absl::Status Write(SafetensorsWriter* writer) const {
    QUIRE_RETURN_IF_ERROR(
        ExportMatrix(weights_.embedding(),
                     absl::StrCat(names_.embedding, ".weight"), writer));
    QUIRE_RETURN_IF_ERROR(
        ExportVector(weights_.output_norm(), hidden_,
                     absl::StrCat(names_.output_norm, ".weight"), writer));
    if (const DenseMatrix* head = Head())
      QUIRE_RETURN_IF_ERROR(
          ExportMatrix(*head, absl::StrCat(names_.output, ".weight"), writer));
    return absl::OkStatus();
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
    const auto* head = std::get_if<DenseMatrix>(&weights_.output().matrix);
    return head != nullptr && head->data != weights_.embedding().data ? head
                                                                      : nullptr;
  }

  const ModelWeights& weights_;
  const uint64_t hidden_;
  const TensorNames& names_;
};

absl::Status CheckSource(const Session& source) {
  if (source.checkpoint().Find("rope_freqs.weight") != nullptr)
    return absl::UnimplementedError(absl::StrCat(
        source.checkpoint().folder(),
        ": rope_freqs.weight has no equivalent in config.json; quantise from "
        "the Hugging Face checkpoint of this model"));
  if (!std::holds_alternative<DenseMatrix>(source.weights().output().matrix))
    return absl::FailedPreconditionError(
        absl::StrCat(source.checkpoint().folder(),
                     ": the output head is quantised already"));
  return absl::OkStatus();
}

absl::StatusOr<QuantizeReport> WriteQuantized(
    Session& source, const Tokenizer& tokenizer, const std::string& out,
    std::span<const std::vector<TokenId>> calibration,
    const QuantizeOptions& options) {
  const double start = Seconds();
  const bool calibrated = options.method == QuantizeMethod::kGptq;
  const ModelWeights& weights = source.weights();
  const ModelConfig& config = source.config();
  ModelConfig exported = config;
  exported.rope.pairing = RopePairing::kHalf;
  const TensorNames& names = NamesFor(CheckpointFormat::kSafetensors);
  const PlainTensors plain(source);

  std::vector<SafetensorsEntry> entries;
  plain.AppendEntries(&entries);
  for (uint32_t i = 0; i < config.layers; ++i)
    AppendLayerEntries(weights.layers()[i], config, names.InLayer(i, ""),
                       options, &entries);
  QUIRE_ASSIGN_OR_RETURN(
      const std::unique_ptr<SafetensorsWriter> writer,
      SafetensorsWriter::Create(out + "/model.safetensors", entries,
                                {{"format", "pt"}}));
  QUIRE_RETURN_IF_ERROR(plain.Write(writer.get()));

  std::unique_ptr<CalibrationPass> pass;
  if (calibrated) {
    QUIRE_ASSIGN_OR_RETURN(
        pass, CalibrationPass::Create(source, &exported, calibration));
  }
  for (uint32_t i = 0; i < config.layers; ++i) {
    const DecoderLayer& layer = weights.layers()[i];
    const std::string prefix = names.InLayer(i, "");
    std::unique_ptr<LayerCalibration> seen;
    if (calibrated) {
      seen = std::make_unique<LayerCalibration>(config);
      pass->Observe(layer, seen->Observer(&source.pool()));
      QUIRE_RETURN_IF_ERROR(seen->Factor(options, prefix, &source.pool()));
    }
    QUIRE_ASSIGN_OR_RETURN(
        const std::unique_ptr<QuantizedLayer> quantized,
        QuantizedLayer::Create(layer, config, seen.get(), prefix, options,
                               writer.get(), &source.pool()));
    for (const LayerNorm& norm : LayerNorms(layer, config))
      QUIRE_RETURN_IF_ERROR(ExportVector(
          *norm.vector, norm.size, absl::StrCat(prefix, norm.module, ".weight"),
          writer.get()));
    if (calibrated) pass->Advance(quantized->layer());
    if (options.progress)
      options.progress({i + 1, config.layers, Seconds() - start});
  }
  QUIRE_RETURN_IF_ERROR(writer->Finish());
  QUIRE_RETURN_IF_ERROR(WriteTokenizer(source.checkpoint(), tokenizer, out));
  // Last: a folder with a configuration is a whole checkpoint.
  QUIRE_RETURN_IF_ERROR(
      WriteConfig(source.checkpoint(), config,
                  weights.layers()[0].query.bias.data != nullptr,
                  QuantizationJson(options), out));

  QuantizeReport report;
  report.modules = config.layers * static_cast<uint32_t>(kLayerLinears);
  for (const auto& sequence : calibration)
    report.calibration_tokens += sequence.size();
  uint64_t bytes = 0;
  for (const SafetensorsEntry& entry : entries) {
    uint64_t elements = 1;
    for (const uint64_t dimension : entry.shape) elements *= dimension;
    bytes += BytesOf(entry.dtype, elements).value_or(Bytes(0)).value();
  }
  report.bytes = Bytes(bytes);
  report.seconds = Seconds() - start;
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

absl::StatusOr<QuantizeReport> QuantizeModel(
    Session& source, const Tokenizer& tokenizer, const std::string& out,
    std::span<const std::vector<TokenId>> calibration,
    const QuantizeOptions& options) {
  QUIRE_RETURN_IF_ERROR(options.Validate());
  QUIRE_RETURN_IF_ERROR(CheckSource(source));
  if (options.method == QuantizeMethod::kGptq && calibration.empty())
    return absl::InvalidArgumentError("there are no calibration tokens");
  QUIRE_RETURN_IF_ERROR(CreateEmptyFolder(out));
  absl::StatusOr<QuantizeReport> report =
      WriteQuantized(source, tokenizer, out, calibration, options);
  if (!report.ok()) RemoveExportedFiles(out);
  return report;
}

}  // namespace quire
