// quire inspect: what a checkpoint is, and what is wrong with it.

#include <chrono>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "model/cli/inspection.h"
#include "model/cli/output.h"
#include "model/cli/verbs.h"
#include "quire/alloc/status_macros.h"
#include "quire/loader/checkpoint.h"
#include "quire/loader/quantization.h"
#include "quire/loader/tensor_pieces.h"
#include "quire/model/chat_template.h"
#include "quire/model/model_weights.h"
#include "quire/model/tokenizer.h"
#include "quire/model/weight_data.h"

namespace quire {
namespace {

using nlohmann::json;

struct InspectOptions {
  std::string model;
  bool headers_only = false;
  bool json = false;
};

// What was found, and the first thing that is wrong.
struct Inspection {
  json report;
  absl::Status first_defect;

  void AddDefect(const absl::Status& status) {
    report["defects"].push_back(std::string(status.message()));
    first_defect.Update(status);
  }
  void AddWarnings(const std::vector<std::string>& warnings) {
    for (const std::string& warning : warnings)
      report["warnings"].push_back(warning);
  }
};

void DescribeFiles(const Checkpoint& checkpoint, json* report) {
  json files = json::array();
  for (const CheckpointFile& file : checkpoint.files())
    files.push_back({{"path", file.path}, {"bytes", file.size.value()}});
  struct TypeTotals {
    uint64_t tensors = 0;
    uint64_t bytes = 0;
  };
  std::map<std::string, TypeTotals> totals;
  uint64_t elements = 0;
  for (const TensorInfo& tensor : checkpoint.tensors()) {
    TypeTotals& total = totals[DTypeName(tensor.dtype)];
    ++total.tensors;
    total.bytes += tensor.size.value();
    elements += tensor.elements();
  }
  json types = json::object();
  for (const auto& [name, total] : totals)
    types[name] = {{"tensors", total.tensors}, {"bytes", total.bytes}};
  (*report)["format"] =
      checkpoint.format() == CheckpointFormat::kGguf ? "gguf" : "safetensors";
  (*report)["files"] = files;
  (*report)["tensors"] = checkpoint.tensors().size();
  (*report)["elements"] = elements;
  (*report)["bytes"] = checkpoint.total_size().value();
  (*report)["types"] = types;
}

const char* LayoutName(const GptqConfig& config) {
  switch (config.packing()) {
    case GptqPacking::kAwq:
      return "gemm";
    case GptqPacking::kPlanar:
      return "gptq_p";
    case GptqPacking::kGptq:
      break;
  }
  return config.zeros_are_v2() ? "gptq_v2" : "gptq";
}

json DescribeGptq(const QuantizedModules& quantized) {
  const GptqConfig& config = *quantized.gptq_config;
  std::set<int> bits;
  std::set<int64_t> group_sizes;
  for (const GptqModule& module : quantized.gptq) {
    bits.insert(module.settings.bits);
    group_sizes.insert(module.settings.group_size);
  }
  return {{"checkpoint_format", LayoutName(config)},
          {"modules", quantized.gptq.size()},
          {"bits", bits},
          {"group_sizes", group_sizes},
          {"sym", config.defaults().sym},
          {"desc_act", config.defaults().desc_act}};
}

// "128x128", "row", "tensor": what shares a scale.
std::string BlockName(const ScaledModule& module) {
  if (module.scale_rows() == 1 && module.scale_columns() == 1) return "tensor";
  if (module.block_rows == 1 && module.scale_columns() == 1) return "row";
  return absl::StrCat(module.block_rows, "x", module.block_columns);
}

json DescribeScaled(const QuantizedModules& quantized) {
  std::set<int> bits;
  std::set<std::string> codes;
  std::set<std::string> blocks;
  bool zero_points = false;
  for (const ScaledModule& module : quantized.scaled) {
    bits.insert(CodeBits(module.kind));
    codes.insert(CodeKindName(module.kind));
    blocks.insert(BlockName(module));
    zero_points |= module.zeros != nullptr;
  }
  return {{"modules", quantized.scaled.size()},
          {"bits", bits},
          {"codes", codes},
          {"blocks", blocks},
          {"zero_points", zero_points}};
}

// Reads from the files, and shows how far it has come where a person watches.
PieceReader ReadingFrom(const Checkpoint& checkpoint) {
  const auto start = std::chrono::steady_clock::now();
  return [&checkpoint, show = LoadProgressLine(), start, last = start,
          done = Bytes(0)](const TensorInfo& tensor, Bytes unit,
                           const SeePiece& see) mutable {
    return ReadInPieces(
        checkpoint, tensor, unit, [&](std::span<const std::byte> piece) {
          see(piece);
          done = SaturatingAdd(done, Bytes(piece.size()));
          const auto now = std::chrono::steady_clock::now();
          if (!show || now - last < std::chrono::milliseconds(250)) return;
          last = now;
          show({done, checkpoint.total_size(),
                std::chrono::duration<double>(now - start).count()});
        });
  };
}

void DescribeQuantization(const QuantizedModules& quantized,
                          Inspection* inspection) {
  if (quantized.method == QuantizationMethod::kNone) return;
  json report = quantized.gptq_config ? DescribeGptq(quantized)
                                      : DescribeScaled(quantized);
  report["method"] = QuantizationMethodName(quantized.method);
  inspection->report["quantization"] = std::move(report);
}

void DescribeData(const Checkpoint& checkpoint,
                  const QuantizedModules& quantized, DataParts parts,
                  Inspection* inspection) {
  const DataFindings findings =
      CheckWeightData(checkpoint, quantized, parts, ReadingFrom(checkpoint));
  for (const absl::Status& error : findings.errors)
    inspection->AddDefect(error);
  inspection->AddWarnings(findings.warnings);
}

// Returns what is odd about the tensors, the checkpoint's own warnings and
// those about its quantisation among it; nothing where the model is not known.
// `quantized` may be null.
std::optional<std::vector<std::string>> DescribeModel(
    const Checkpoint& checkpoint, const QuantizedModules* quantized,
    Inspection* inspection) {
  json& report = inspection->report;
  const absl::StatusOr<ModelConfig> config = ParseModelConfig(checkpoint);
  if (!config.ok()) {
    // A family that cannot be run may still be a sound checkpoint.
    if (absl::IsUnimplemented(config.status()))
      report["unsupported"] = std::string(config.status().message());
    else
      inspection->AddDefect(config.status());
    return std::nullopt;
  }
  report["family"] = config->family;
  report["model"] = {{"layers", config->layers},
                     {"hidden_size", config->hidden_size},
                     {"intermediate_size", config->intermediate_size},
                     {"attention_heads", config->heads},
                     {"key_value_heads", config->kv_heads},
                     {"head_dim", config->head_dim},
                     {"vocab_size", config->vocab_size},
                     {"max_positions", config->max_positions},
                     {"tied_embeddings", config->tied_embeddings},
                     {"eos_tokens", config->eos_tokens}};
  auto oddities = ModelWeights::Check(checkpoint, *config, quantized);
  if (oddities.ok()) return *std::move(oddities);
  if (absl::IsUnimplemented(oddities.status()))
    report["unsupported"] = std::string(oddities.status().message());
  else if (inspection->first_defect.ok())
    inspection->AddDefect(oddities.status());
  return std::nullopt;
}

// Returns the quantised modules, where they could be found.
absl::StatusOr<QuantizedModules> DescribeContents(const Checkpoint& checkpoint,
                                                  DataParts parts,
                                                  Inspection* inspection) {
  absl::StatusOr<QuantizedModules> quantized = FindQuantizedModules(checkpoint);
  if (quantized.ok()) {
    DescribeQuantization(*quantized, inspection);
    DescribeData(checkpoint, *quantized, parts, inspection);
  } else {
    inspection->AddDefect(quantized.status());
  }
  if (const auto oddities = DescribeModel(
          checkpoint, quantized.ok() ? &*quantized : nullptr, inspection)) {
    inspection->AddWarnings(*oddities);
  } else {
    inspection->AddWarnings(checkpoint.warnings());
    if (quantized.ok()) inspection->AddWarnings(quantized->notes);
  }
  return quantized;
}

// The tokenizer, where there is one: a model runs on tokens as well.
void DescribeTokenizer(const std::string& model, const Checkpoint& checkpoint,
                       Inspection* inspection) {
  const bool gguf = checkpoint.format() == CheckpointFormat::kGguf;
  const json& metadata = checkpoint.gguf_metadata();
  if (gguf && !metadata.contains("tokenizer.ggml.model")) return;
  const absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer =
      gguf ? Tokenizer::FromGguf(metadata, model) : Tokenizer::Load(model);
  if (tokenizer.ok()) {
    inspection->report["tokenizer"] = {
        {"vocab_size", (*tokenizer)->vocab_size()}};
  } else if (absl::IsUnimplemented(tokenizer.status())) {
    inspection->AddWarnings({std::string(tokenizer.status().message())});
  } else if (!absl::IsNotFound(tokenizer.status())) {
    inspection->AddDefect(tokenizer.status());
  }
}

void DescribeChatTemplates(const Checkpoint& checkpoint,
                           Inspection* inspection) {
  const auto templates = ReadChatTemplates(checkpoint);
  if (!templates.ok()) return inspection->AddDefect(templates.status());
  if (!templates->empty()) inspection->report["chat_templates"] = *templates;
}

// With nothing looked at.
Inspection StartInspection(const std::string& path) {
  return {
      {{"path", path}, {"defects", json::array()}, {"warnings", json::array()}},
      absl::OkStatus()};
}

Inspection InspectCheckpoint(const InspectOptions& options) {
  Inspection inspection = StartInspection(options.model);
  const absl::StatusOr<std::unique_ptr<Checkpoint>> checkpoint =
      Checkpoint::Open(options.model);
  if (!checkpoint.ok()) {
    inspection.AddDefect(checkpoint.status());
    return inspection;
  }
  DescribeFiles(**checkpoint, &inspection.report);
  const bool data = !options.headers_only;
  // What is wrong with the modules is among the defects.
  DescribeContents(**checkpoint,
                   {.groups = true, .tables = data, .weights = data},
                   &inspection)
      .IgnoreError();
  DescribeTokenizer(options.model, **checkpoint, &inspection);
  DescribeChatTemplates(**checkpoint, &inspection);
  inspection.report["runnable"] = inspection.first_defect.ok() &&
                                  !inspection.report.contains("unsupported");
  return inspection;
}

absl::Status PrintInspection(const json& report) {
  std::string text;
  const auto line = [&](const char* title, const std::string& value) {
    absl::StrAppend(&text, absl::StrFormat("%-14s %s\n", title, value));
  };
  line("path", report["path"]);
  if (report.contains("format")) {
    line("format", report["format"]);
    line("size",
         absl::StrCat(report["tensors"].get<uint64_t>(), " tensors, ",
                      FormatBytes(Bytes(report["bytes"].get<uint64_t>())),
                      " in ", report["files"].size(), " file(s)"));
    for (const auto& [name, type] : report["types"].items())
      line(("  " + name).c_str(),
           absl::StrCat(type["tensors"].get<uint64_t>(), " tensors, ",
                        FormatBytes(Bytes(type["bytes"].get<uint64_t>()))));
  }
  if (report.contains("quantization"))
    line("quantization", report["quantization"].dump());
  if (report.contains("model")) line("model", report["model"].dump());
  if (report.contains("tokenizer"))
    line("tokenizer", report["tokenizer"].dump());
  // The texts are for programs; a person wants to know that they are there.
  const json templates = report.value("chat_templates", json::object());
  for (const auto& [name, source] : templates.items())
    line("chat template",
         absl::StrCat(name, ", ", source.get_ref<const std::string&>().size(),
                      " bytes"));
  if (report.contains("unsupported"))
    line("not runnable", report["unsupported"]);
  for (const json& defect : report["defects"]) line("defect", defect);
  for (const json& warning : report.value("warnings", json::array()))
    line("warning", warning);
  return PrintText(text);
}

// Whether a configuration says what the tensors are for.
bool SaysWhatItIs(const Checkpoint& checkpoint) {
  return checkpoint.format() == CheckpointFormat::kGguf ||
         checkpoint.config().contains("model_type");
}

absl::Status Inspect(const InspectOptions& options) {
  const Inspection inspection = InspectCheckpoint(options);
  QUIRE_RETURN_IF_ERROR(options.json ? PrintJson(inspection.report)
                                     : PrintInspection(inspection.report));
  return inspection.first_defect;
}

}  // namespace

absl::StatusOr<DescribedModel> CheckDescribedModel(
    const Checkpoint& checkpoint) {
  if (!SaysWhatItIs(checkpoint))
    return DescribedModel{checkpoint.warnings(), std::nullopt};
  Inspection inspection = StartInspection(checkpoint.folder());
  absl::StatusOr<QuantizedModules> quantized =
      DescribeContents(checkpoint, {.groups = true}, &inspection);
  if (!inspection.first_defect.ok()) return inspection.first_defect;
  QUIRE_RETURN_IF_ERROR(quantized.status());
  return DescribedModel{
      inspection.report["warnings"].get<std::vector<std::string>>(),
      *std::move(quantized)};
}

void AddInspectVerb(CLI::App* app, Action* chosen) {
  auto options = std::make_shared<InspectOptions>();
  CLI::App* verb = app->add_subcommand(
      "inspect", "What a checkpoint is, and what is wrong with it");
  verb->add_option("MODEL", options->model,
                   "Folder, .safetensors or .gguf file")
      ->required();
  verb->add_flag("--headers-only", options->headers_only,
                 "Read no weights: what is wrong in them stays unknown");
  verb->add_flag("--json", options->json, "Machine-readable");
  verb->callback([=] { *chosen = [=] { return Inspect(*options); }; });
}

}  // namespace quire
