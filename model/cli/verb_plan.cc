// quire plan: what would fit, before a weight is read.

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "model/cli/kv_plan_output.h"
#include "model/cli/option_rules.h"
#include "model/cli/options.h"
#include "model/cli/output.h"
#include "model/cli/verbs.h"
#include "model/engine/shape_checkpoint.h"
#include "quire/alloc/quote.h"
#include "quire/alloc/status_macros.h"
#include "quire/loader/checkpoint.h"
#include "quire/model/kv_plan.h"
#include "quire/model/plan.h"
#include "quire/model/published_models.h"

namespace quire {
namespace {

using nlohmann::json;

struct PlanOptions {
  std::string model;
  std::vector<std::string> adapters;
  SessionOptions session;
  bool tensors = false;
  bool json = false;
};

// As --device-map takes it.
json PlaceJson(const MemoryPlace& place) {
  if (place.tier == MemoryTier::kDevice) return place.device.value();
  return PlaceName(place);
}

json MapJson(const std::vector<WeightPart>& parts,
             const std::vector<MemoryPlace>& places) {
  json map = json::object();
  for (size_t i = 0; i < places.size(); ++i)
    map[parts[i].name] = PlaceJson(places[i]);
  return map;
}

json DevicesJson(const ModelPlan& plan) {
  json devices = json::array();
  for (size_t i = 0; i < plan.devices.size(); ++i) {
    const DevicePlan& device = plan.devices[i];
    devices.push_back({{"device", i},
                       {"usable", device.usable.value()},
                       {"weights", device.weights.value()},
                       {"workspace", device.workspace.value()},
                       {"buffers", device.buffers.value()},
                       {"fixed", device.fixed.value()},
                       {"peak", device.peak.value()},
                       {"running_peak", device.running_peak.value()},
                       {"layers", device.layers},
                       {"kv_bytes_per_token", device.kv_token.value()},
                       {"kv", device.kv.value()}});
  }
  return devices;
}

json TensorsJson(const ModelPlan& plan) {
  json tensors = json::array();
  for (const WeightTensor& tensor : plan.tensors)
    tensors.push_back({{"name", tensor.name},
                       {"dtype", DTypeName(tensor.dtype)},
                       {"shape", tensor.shape},
                       {"module", plan.parts[tensor.part].name},
                       {"device", PlaceJson(plan.parts[tensor.part].place)},
                       {"file_bytes", tensor.file.value()},
                       {"bytes", tensor.memory.value()},
                       {"workspace", tensor.workspace.value()}});
  return tensors;
}

json AlternativesJson(const ModelPlan& plan) {
  json alternatives = json::array();
  for (const PlannedAlternative& alternative : plan.alternatives)
    alternatives.push_back(
        {{"description", alternative.description},
         {"fits", alternative.fits},
         {"host", alternative.host.value()},
         {"disk", alternative.disk.value()},
         {"longest_sequence", alternative.longest_sequence},
         {"device_map", MapJson(plan.parts, alternative.places)}});
  return alternatives;
}

json ToJson(const ModelPlan& plan, const SessionOptions& options) {
  json parts = json::array();
  std::vector<MemoryPlace> places;
  for (const WeightPart& part : plan.parts) {
    parts.push_back({{"module", part.name},
                     {"device", PlaceJson(part.place)},
                     {"bytes", part.size.value()}});
    places.push_back(part.place);
  }
  json adapters = json::array();
  for (const WeightPart& adapter : plan.adapters) {
    adapters.push_back(
        {{"name", adapter.name}, {"bytes", adapter.size.value()}});
  }
  return {{"decodes", true},
          {"fits", plan.fits},
          {"device_memory", plan.device_memory.value()},
          {"usable", plan.usable.value()},
          {"page_size", plan.page_size.value()},
          {"weights", plan.weights.value()},
          {"workspace", plan.workspace.value()},
          {"adapters", std::move(adapters)},
          {"fixed", plan.fixed.value()},
          {"parameters", plan.parameters},
          {"rule_of_thumb", plan.rule_of_thumb.value()},
          {"kv", KvJson(options, plan.kinds, plan.kv_token, plan.layers_per_row,
                        plan.kv, plan.layouts)},
          {"tokens", plan.kv_tokens},
          {"max_model_len", plan.max_model_len},
          {"longest_sequence", plan.longest_sequence},
          {"batches", BatchesJson(plan.batches)},
          {"placement", std::move(parts)},
          {"device_map", MapJson(plan.parts, places)},
          {"devices", DevicesJson(plan)},
          {"host", plan.host.value()},
          {"staging_peak", plan.staging_peak.value()},
          {"host_peak", plan.host_peak.value()},
          {"disk", plan.disk.value()},
          {"alternatives", AlternativesJson(plan)},
          {"advice", plan.advice},
          {"warnings", plan.warnings}};
}

// "0", "cpu": runs of parts in one place, as "model.layers.0 .. model.norm".
std::string PlacementText(const ModelPlan& plan) {
  std::string text;
  for (size_t first = 0; first < plan.parts.size();) {
    const MemoryPlace place = plan.parts[first].place;
    Bytes size;
    size_t end = first;
    for (; end < plan.parts.size() && plan.parts[end].place == place; ++end)
      size = SaturatingAdd(size, plan.parts[end].size);
    absl::StrAppendFormat(&text, "%6s  %10s  %s%s%s\n", PlaceName(place),
                          FormatBytes(size), plan.parts[first].name,
                          end - first > 1 ? " .. " : "",
                          end - first > 1 ? plan.parts[end - 1].name : "");
    first = end;
  }
  return text;
}

// One line for each tensor, and their sum beside the rule of thumb.
std::string TensorsText(const ModelPlan& plan) {
  std::string text =
      absl::StrFormat("\n%6s %15s %15s %12s  %-7s %s\n", "place", "on disk",
                      "in memory", "workspace", "type", "tensor");
  Bytes file, memory, workspace;
  const auto line = [&text](const std::string& place, Bytes on_disk,
                            Bytes in_memory, Bytes tables,
                            const std::string& type, const std::string& name) {
    absl::StrAppendFormat(&text, "%6s %15u %15u %12u  %-7s %s\n", place,
                          on_disk.value(), in_memory.value(), tables.value(),
                          type, name);
  };
  for (const WeightTensor& tensor : plan.tensors) {
    line(PlaceName(plan.parts[tensor.part].place), tensor.file, tensor.memory,
         tensor.workspace, DTypeName(tensor.dtype),
         absl::StrCat(Printable(tensor.name), " [",
                      absl::StrJoin(tensor.shape, ", "), "]"));
    file = SaturatingAdd(file, tensor.file);
    memory = SaturatingAdd(memory, tensor.memory);
    workspace = SaturatingAdd(workspace, tensor.workspace);
  }
  line("sum", file, memory, workspace, "", "");
  absl::StrAppendFormat(&text,
                        "parameters x bytes x 1.2, as people reckon: %u\n",
                        plan.rule_of_thumb.value());
  return text;
}

std::string ToText(const ModelPlan& plan, const SessionOptions& options) {
  std::string text;
  const auto line = [&text](const char* title, const std::string& value) {
    absl::StrAppendFormat(&text, "%-18s %s\n", title, value);
  };
  line("device",
       absl::StrFormat("%s, %s of it usable in pages of %s",
                       FormatBytes(plan.device_memory),
                       FormatBytes(plan.usable), FormatBytes(plan.page_size)));
  line("weights",
       absl::StrFormat("%s, %.3g parameters in matrices (rule of thumb: %s)",
                       FormatBytes(plan.weights),
                       static_cast<double>(plan.parameters),
                       FormatBytes(plan.rule_of_thumb)));
  line("workspace", FormatBytes(plan.workspace));
  for (const WeightPart& adapter : plan.adapters) {
    line("adapter", absl::StrFormat("%s for %s", FormatBytes(adapter.size),
                                    Printable(adapter.name)));
  }
  line("on devices",
       absl::StrFormat("%s in pages, with buffers", FormatBytes(plan.fixed)));
  line("host memory",
       absl::StrFormat("%s at the peak of the load, beside the program",
                       FormatBytes(plan.host_peak)));
  line("keys and values",
       absl::StrFormat("%s left for %u tokens of %s (%s, %u layers to a row)",
                       FormatBytes(plan.kv), plan.kv_tokens,
                       FormatBytes(plan.kv_token),
                       KvDTypeName(options.kv_dtype), plan.layers_per_row));
  absl::StrAppend(&text, KvFormulaText(plan.kinds));
  line("longest sequence",
       absl::StrFormat("%u of %u tokens", plan.longest_sequence,
                       plan.max_model_len));
  absl::StrAppend(&text, "\n place\n", PlacementText(plan));
  absl::StrAppend(&text, BatchesText(plan.batches, options.max_sequences));
  absl::StrAppend(&text, KvLayoutsText(plan.layouts));
  text += plan.fits ? "\nIt fits.\n" : "\nIt does not fit.\n";
  for (const std::string& advice : plan.advice) {
    absl::StrAppendFormat(&text, "- %s\n", advice);
  }
  return text;
}

absl::Status PrintKvPlan(const PlanOptions& options, const KvConfig& config,
                         std::optional<Bytes> weights,
                         std::string why_not_decoded) {
  QUIRE_ASSIGN_OR_RETURN(
      const KvPlan plan,
      PlanKv(config, weights, std::move(why_not_decoded), options.session));
  return options.json ? PrintJson(KvPlanJson(plan, options.session))
                      : PrintText(KvPlanText(plan, options.session));
}

absl::Status PrintModelPlan(const PlanOptions& options,
                            const Checkpoint& checkpoint,
                            const ModelConfig& config) {
  QUIRE_ASSIGN_OR_RETURN(const ModelPlan plan,
                         PlanModel(checkpoint, config, options.session));
  if (options.json) {
    json result = ToJson(plan, options.session);
    if (options.tensors) result["tensors"] = TensorsJson(plan);
    return PrintJson(result);
  }
  for (const std::string& warning : plan.warnings) PrintWarning(warning);
  std::string text = ToText(plan, options.session);
  if (options.tensors) text += TensorsText(plan);
  return PrintText(text);
}

// A model that the decoder refuses has keys and values nevertheless.
absl::Status PlanWithoutDecoder(const PlanOptions& options,
                                const Checkpoint& checkpoint,
                                const absl::Status& refusal) {
  const absl::StatusOr<KvConfig> config =
      checkpoint.format() == CheckpointFormat::kGguf
          ? ParseGgufKvConfig(checkpoint.gguf_metadata(),
                              checkpoint.files().front().path)
          : ParseKvConfig(checkpoint.config(),
                          checkpoint.folder() + "/config.json");
  QUIRE_RETURN_IF_ERROR(config.status());
  return PrintKvPlan(options, *config,
                     checkpoint.tensors().empty()
                         ? std::nullopt
                         : std::optional(checkpoint.total_size()),
                     std::string(refusal.message()));
}

absl::Status Plan(PlanOptions options) {
  std::error_code error;
  const bool exists = std::filesystem::exists(options.model, error);
  const PublishedModel* const published =
      exists ? nullptr : FindPublishedModel(options.model);
  if (!exists && !error && published == nullptr) {
    return absl::NotFoundError(absl::StrCat(
        Quoted(options.model),
        " is no file or folder, and no published model that is known; known: ",
        absl::StrJoin(PublishedModels(), ", ",
                      [](std::string* names, const PublishedModel& model) {
                        absl::StrAppend(names, model.name);
                      })));
  }
  if (published != nullptr) {
    QUIRE_ASSIGN_OR_RETURN(const KvConfig config, published->ParseKv());
    options.session.adapters = NameAdapters(options.adapters);
    return PrintKvPlan(options, config, published->weights,
                       absl::StrCat(options.model,
                                    " names a published configuration: to "
                                    "decode takes a checkpoint"));
  }
  QUIRE_RETURN_IF_ERROR(ChooseOwnAdapter(options.model, &options.adapters));
  options.session.adapters = NameAdapters(options.adapters);
  const bool no_weights = HasNoWeights(options.model);
  QUIRE_ASSIGN_OR_RETURN(std::unique_ptr<Checkpoint> checkpoint,
                         no_weights ? OpenConfiguration(options.model)
                                    : Checkpoint::Open(options.model));
  const absl::StatusOr<ModelConfig> config = ParseModelConfig(*checkpoint);
  if (absl::IsUnimplemented(config.status()))
    return PlanWithoutDecoder(options, *checkpoint, config.status());
  QUIRE_RETURN_IF_ERROR(config.status());
  if (no_weights) {
    QUIRE_ASSIGN_OR_RETURN(checkpoint, OpenShape(options.model));
  }
  return PrintModelPlan(options, *checkpoint, *config);
}

}  // namespace

void AddPlanVerb(CLI::App* app, Action* chosen) {
  auto options = std::make_shared<PlanOptions>();
  CLI::App* verb = app->add_subcommand(
      "plan",
      "What would fit on a device: weights, workspace, sequences. Ends with 0 "
      "whether it fits or not: \"fits\" of --json says so");
  verb->add_option("MODEL", options->model,
                   "Folder, .safetensors or .gguf file; a folder with nothing "
                   "but config.json, or the name of a published model such as "
                   "gpt-oss-20b, will do")
      ->required();
  AddAdapterOption(verb, &options->adapters,
                   "Folder of a LoRA adapter that is to be resident as well; "
                   "may be repeated");
  AddSessionOptions(verb, &options->session, DriverChoice::kHostOrCuda);
  verb->add_flag("--tensors", options->tensors,
                 "List every tensor: where it goes, and what it takes there");
  verb->add_flag("--json", options->json, "Machine-readable");
  verb->callback([=] {
    FinishSessionOptions(*verb, &options->session, {.shows_all_layouts = true});
    *chosen = [=] { return Plan(*options); };
  });
}

}  // namespace quire
