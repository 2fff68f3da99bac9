// quire inspect: what a checkpoint is, and what is wrong with it.

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
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
#include "quire/model/model_weights.h"
#include "quire/model/tokenizer.h"

namespace quire {
namespace {

using nlohmann::json;

struct InspectOptions {
  std::string model;
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
  (*report)["warnings"] = checkpoint.warnings();
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

void DescribeQuantization(const Checkpoint& checkpoint,
                          Inspection* inspection) {
  const absl::StatusOr<QuantizedModules> quantized =
      FindQuantizedModules(checkpoint);
  if (!quantized.ok()) return inspection->AddDefect(quantized.status());
  if (quantized->method == QuantizationMethod::kNone) return;
  // The group index is data, not a header; it is small, and nothing else tells
  // whether it is right.
  for (const GptqModule& module : quantized->gptq)
    if (const auto groups = ReadGroupIndex(checkpoint, module); !groups.ok())
      inspection->AddDefect(groups.status());
  for (const ScaledModule& module : quantized->scaled)
    if (const auto columns = ReadScaleColumns(checkpoint, module);
        !columns.ok())
      inspection->AddDefect(columns.status());
  json report = quantized->gptq_config ? DescribeGptq(*quantized)
                                       : DescribeScaled(*quantized);
  report["method"] = QuantizationMethodName(quantized->method);
  inspection->report["quantization"] = std::move(report);
  for (const std::string& note : quantized->notes)
    inspection->report["warnings"].push_back(note);
}

void DescribeModel(const Checkpoint& checkpoint, Inspection* inspection) {
  json& report = inspection->report;
  const absl::StatusOr<ModelConfig> config = ParseModelConfig(checkpoint);
  if (!config.ok()) {
    // A family that cannot be run may still be a sound checkpoint.
    if (absl::IsUnimplemented(config.status()))
      report["unsupported"] = std::string(config.status().message());
    else
      inspection->AddDefect(config.status());
    return;
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
  const absl::Status weights = ModelWeights::Check(checkpoint, *config);
  if (absl::IsUnimplemented(weights))
    report["unsupported"] = std::string(weights.message());
  else if (!weights.ok() && inspection->first_defect.ok())
    inspection->AddDefect(weights);
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
    inspection->report["warnings"].push_back(
        std::string(tokenizer.status().message()));
  } else if (!absl::IsNotFound(tokenizer.status())) {
    inspection->AddDefect(tokenizer.status());
  }
}

// With nothing looked at.
Inspection StartInspection(const std::string& path) {
  return {
      {{"path", path}, {"defects", json::array()}, {"warnings", json::array()}},
      absl::OkStatus()};
}

Inspection InspectCheckpoint(const std::string& model) {
  Inspection inspection = StartInspection(model);
  const absl::StatusOr<std::unique_ptr<Checkpoint>> checkpoint =
      Checkpoint::Open(model);
  if (!checkpoint.ok()) {
    inspection.AddDefect(checkpoint.status());
    return inspection;
  }
  DescribeFiles(**checkpoint, &inspection.report);
  DescribeQuantization(**checkpoint, &inspection);
  DescribeModel(**checkpoint, &inspection);
  DescribeTokenizer(model, **checkpoint, &inspection);
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
  if (report.contains("unsupported"))
    line("not runnable", report["unsupported"]);
  for (const json& defect : report["defects"]) line("defect", defect);
  for (const json& warning : report.value("warnings", json::array()))
    line("warning", warning);
  return PrintText(text);
}

absl::Status Inspect(const InspectOptions& options) {
  const Inspection inspection = InspectCheckpoint(options.model);
  QUIRE_RETURN_IF_ERROR(options.json ? PrintJson(inspection.report)
                                     : PrintInspection(inspection.report));
  return inspection.first_defect;
}

}  // namespace

absl::Status CheckDescribedModel(const Checkpoint& checkpoint) {
  if (checkpoint.format() == CheckpointFormat::kSafetensors &&
      !checkpoint.config().contains("model_type"))
    return absl::OkStatus();
  Inspection inspection = StartInspection(checkpoint.folder());
  DescribeQuantization(checkpoint, &inspection);
  DescribeModel(checkpoint, &inspection);
  return inspection.first_defect;
}

void AddInspectVerb(CLI::App* app, Action* chosen) {
  auto options = std::make_shared<InspectOptions>();
  CLI::App* verb = app->add_subcommand(
      "inspect", "What a checkpoint is, and what is wrong with it");
  verb->add_option("MODEL", options->model,
                   "Folder, .safetensors or .gguf file")
      ->required();
  verb->add_flag("--json", options->json, "Machine-readable");
  verb->callback([=] { *chosen = [=] { return Inspect(*options); }; });
}

}  // namespace quire
