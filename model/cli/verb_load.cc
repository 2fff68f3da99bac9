// quire load: the streaming loader alone, measured; or a model onto its tiers.

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "model/cli/inspection.h"
#include "model/cli/memory_output.h"
#include "model/cli/option_rules.h"
#include "model/cli/options.h"
#include "model/cli/output.h"
#include "model/cli/verbs.h"
#include "model/cli/verification.h"
#include "quire/alloc/leak_report.h"
#include "quire/alloc/status_macros.h"
#include "quire/loader/checkpoint.h"
#include "quire/loader/device_map.h"
#include "quire/loader/load_order.h"
#include "quire/loader/process_memory.h"
#include "quire/loader/streaming_loader.h"
#include "quire/model/session.h"
#include "quire/model/weight_data.h"

namespace quire {
namespace {

struct LoadOptions {
  std::string model;
  std::string order = "file";
  std::string progress = "auto";
  std::string backing = "memory";
  SessionOptions session;  // device, reading, and the tiers
  bool json = false;
};

// What there is to tell of a load.
struct LoadSummary {
  LoadReport report;
  uint64_t tensors = 0;
  uint64_t files = 0;
  Bytes anonymous_peak;
  Bytes device_mapped;
  const char* verified_by = "nothing";
  uint64_t verified_tensors = 0;
  // Of a placed model: bytes by place, and the place of each part.
  std::vector<std::pair<std::string, Bytes>> tiers;
  nlohmann::json device_map;
  nlohmann::json memory;
  std::vector<std::string> warnings;
};

absl::Status PrintSummary(const LoadSummary& summary, bool as_json) {
  const LoadReport& report = summary.report;
  const double rate =
      report.seconds > 0
          ? static_cast<double>(report.bytes.value()) / report.seconds
          : 0;
  if (as_json) {
    nlohmann::json result = {{"bytes", report.bytes.value()},
                             {"seconds", report.seconds},
                             {"bytes_per_second", rate},
                             {"tensors", summary.tensors},
                             {"files", summary.files},
                             {"chunks", report.chunks},
                             {"staging_peak", report.staging_peak.value()},
                             {"anonymous_peak", summary.anonymous_peak.value()},
                             {"device_mapped", summary.device_mapped.value()},
                             {"direct_io", report.direct},
                             {"read_retries", report.read_retries},
                             {"verified_tensors", summary.verified_tensors},
                             {"verified_by", summary.verified_by},
                             {"warnings", summary.warnings}};
    if (!summary.tiers.empty()) {
      for (const auto& [place, bytes] : summary.tiers)
        result["tiers"][place] = bytes.value();
      result["device_map"] = summary.device_map;
      result["memory"] = summary.memory;
    }
    return PrintJson(result);
  }
  for (const std::string& warning : summary.warnings) PrintWarning(warning);
  std::string text = absl::StrFormat(
      "%d tensors, %s in %.2f s (%s/s)\n"
      "staging peak    %s\n"
      "anonymous peak  %s\n"
      "device          %s mapped\n",
      summary.tensors, FormatBytes(report.bytes), report.seconds,
      FormatBytes(Bytes(static_cast<uint64_t>(rate))),
      FormatBytes(report.staging_peak), FormatBytes(summary.anonymous_peak),
      FormatBytes(summary.device_mapped));
  for (const auto& [place, bytes] : summary.tiers)
    absl::StrAppend(
        &text, absl::StrFormat("on %-12s %s\n", place, FormatBytes(bytes)));
  if (summary.verified_tensors > 0)
    absl::StrAppend(&text, "every tensor ",
                    std::string_view(summary.verified_by) == "manifest"
                        ? "agrees with the manifest\n"
                        : "was the same in a second pass\n");
  return PrintText(text);
}

// The tensors in the order of loading; with --order layers, groups of them are
// announced as they arrive.
std::vector<const TensorInfo*> OrderTensors(const Checkpoint& checkpoint,
                                            const LoadOptions& options,
                                            StreamingOptions* streaming) {
  std::vector<const TensorInfo*> tensors;
  if (options.order == "file") {
    for (const TensorInfo& tensor : checkpoint.tensors())
      tensors.push_back(&tensor);
    return tensors;
  }
  LayerOrder order = OrderByLayer(checkpoint);
  streaming->order = LoadOrder::kGiven;
  if (options.progress == "json") {
    for (const LoadGroup& group : order.groups)
      streaming->milestones.push_back(group.end);
    streaming->arrived = [groups = std::move(order.groups),
                          next = size_t{0}](size_t tensors_there) mutable {
      PrintEvent({{"event", "arrived"},
                  {"module", groups[next++].name},
                  {"tensors", tensors_there}});
    };
  }
  return std::move(order.tensors);
}

// The tensors where they were loaded to, in memory of the host.
PieceReader PiecesOnDevice(std::span<const TensorPlacement> placements) {
  std::unordered_map<const TensorInfo*, const std::byte*> bytes;
  for (const TensorPlacement& placement : placements)
    bytes[placement.tensor] =
        placement.destination.host_pointer<const std::byte>();
  return [bytes = std::move(bytes)](const TensorInfo& tensor, Bytes,
                                    const SeePiece& see) {
    see({bytes.at(&tensor), tensor.size.value()});
    return absl::OkStatus();
  };
}

// Onto the device alone; of any family, as the loader needs no model.
absl::StatusOr<LoadSummary> LoadOntoDevice(const Checkpoint& checkpoint,
                                           const LoadOptions& options) {
  // Whose tensors do not fit each other is not worth the time.
  LoadSummary summary;
  QUIRE_ASSIGN_OR_RETURN(DescribedModel described,
                         CheckDescribedModel(checkpoint));
  summary.warnings = std::move(described.oddities);
  QUIRE_ASSIGN_OR_RETURN(const std::unique_ptr<Runtime> runtime,
                         CreateRuntime(options.session.device));
  const bool looks_at_data =
      runtime->driver()->device_memory_is_host_memory() &&
      options.session.device.backing;
  if (!looks_at_data) described.quantized.reset();
  StreamingOptions streaming = options.session.streaming;
  std::optional<Verification> verification;
  if (streaming.checksum) {
    QUIRE_ASSIGN_OR_RETURN(verification, Verification::Prepare(checkpoint));
  }

  QUIRE_ASSIGN_OR_RETURN(const std::unique_ptr<AnonymousPeakSampler> sampler,
                         AnonymousPeakSampler::Start());
  const OwnerId owner = runtime->owners()->Register("weights");
  std::vector<TensorPlacement> placements;
  placements.reserve(checkpoint.tensors().size());
  const auto give_back = absl::MakeCleanup([&] {
    for (const TensorPlacement& placement : placements)
      (void)runtime->allocator()->Free(placement.destination);
    if (const auto leaks = FindLeaks(*runtime); !leaks.empty())
      WarnOfLeaks(leaks);
  });
  for (const TensorInfo* const tensor :
       OrderTensors(checkpoint, options, &streaming)) {
    QUIRE_ASSIGN_OR_RETURN(
        const DeviceAddress address,
        runtime->allocator()->Allocate(tensor->size, {.owner = owner}));
    placements.push_back({tensor, address});
  }
  QUIRE_ASSIGN_OR_RETURN(
      summary.report, StreamTensors(runtime->driver(), DeviceId(0), checkpoint,
                                    placements, streaming));
  summary.anonymous_peak = sampler->Stop();
  if (verification) {
    QUIRE_RETURN_IF_ERROR(
        verification->Check(checkpoint, summary.report, streaming));
    summary.verified_by = verification->by();
    summary.verified_tensors =
        verification->TensorsOf(checkpoint, summary.report);
  }

  if (described.quantized && looks_at_data) {
    // What it is told to verify it looks at whole.
    const std::vector<std::string> odd =
        CheckWeightData(checkpoint, *described.quantized,
                        {.tables = true, .weights = streaming.checksum},
                        PiecesOnDevice(placements))
            .warnings;
    summary.warnings.insert(summary.warnings.end(), odd.begin(), odd.end());
  }
  summary.tensors = placements.size();
  summary.files = checkpoint.files().size();
  summary.device_mapped =
      Bytes(runtime->allocator()->GetStatistics().mapped_bytes);
  return summary;
}

// As a verb that runs the model has it: parts on devices, the host and the
// disk, beside workspace and room for a sequence.
absl::StatusOr<LoadSummary> LoadOntoTiers(
    std::unique_ptr<Checkpoint> checkpoint, const LoadOptions& options) {
  LoadSummary summary;
  QUIRE_ASSIGN_OR_RETURN(const std::unique_ptr<AnonymousPeakSampler> sampler,
                         AnonymousPeakSampler::Start());
  std::optional<Verification> verification;
  if (options.session.streaming.checksum) {
    QUIRE_ASSIGN_OR_RETURN(verification, Verification::Prepare(*checkpoint));
  }
  QUIRE_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session,
                         Session::Open(std::move(checkpoint), options.session));
  summary.anonymous_peak = sampler->Stop();
  const Checkpoint& loaded = session->checkpoint();
  const ModelWeights& weights = session->weights();
  summary.report = weights.load_report();
  if (verification) {
    QUIRE_RETURN_IF_ERROR(
        verification->Check(loaded, summary.report, options.session.streaming));
    summary.verified_by = verification->by();
    summary.verified_tensors = verification->TensorsOf(loaded, summary.report);
  }
  QUIRE_ASSIGN_OR_RETURN(
      const std::vector<PlacementBlock> blocks,
      ModelWeights::Blocks(loaded, session->config(), options.session.weights));
  std::map<MemoryPlace, Bytes> tiers;
  for (size_t part = 0; part < blocks.size(); ++part) {
    const MemoryPlace place = weights.parts()[part].place;
    tiers[place] = SaturatingAdd(tiers[place], blocks[part].size);
    summary.device_map[blocks[part].name] = PlaceName(place);
  }
  for (const auto& [place, bytes] : tiers)
    summary.tiers.emplace_back(PlaceName(place), bytes);
  for (int i = 0; i < session->runtime().device_count(); ++i)
    summary.device_mapped =
        SaturatingAdd(summary.device_mapped, Bytes(session->runtime()
                                                       .allocator(DeviceId(i))
                                                       ->GetStatistics()
                                                       .mapped_bytes));
  summary.memory = MemoryJson(*session);
  summary.warnings = weights.warnings();
  summary.warnings.insert(summary.warnings.end(),
                          session->empty_devices().begin(),
                          session->empty_devices().end());
  summary.tensors = loaded.tensors().size();
  summary.files = loaded.files().size();
  return summary;
}

absl::Status Load(LoadOptions options) {
  QUIRE_ASSIGN_OR_RETURN(std::unique_ptr<Checkpoint> checkpoint,
                         Checkpoint::Open(options.model));
  options.session.device.backing = options.backing == "memory";
  options.session.streaming.progress = LoadProgressIn(options.progress);
  QUIRE_ASSIGN_OR_RETURN(const LoadSummary summary,
                         options.session.placement.in_use()
                             ? LoadOntoTiers(std::move(checkpoint), options)
                             : LoadOntoDevice(*checkpoint, options));
  return PrintSummary(summary, options.json);
}

}  // namespace

void AddLoadVerb(CLI::App* app, Action* chosen) {
  auto options = std::make_shared<LoadOptions>();
  options->session.on_leaks = WarnOfLeaks;
  CLI::App* verb = app->add_subcommand(
      "load", "Streams a checkpoint to the device and measures that");
  verb->add_option("MODEL", options->model,
                   "Folder, .safetensors or .gguf file; of any family")
      ->required();
  verb->add_option("--order", options->order,
                   "file: from front to back; layers: as a model needs them, "
                   "with an event for each where --progress is json")
      ->check(CLI::IsMember({"file", "layers"}))
      ->capture_default_str();
  AddReadOptions(verb, &options->session.streaming);
  AddProgressOption(verb, &options->progress);
  verb->add_option("--backing", options->backing,
                   "memory, or none: the device's pages carry no memory")
      ->check(CLI::IsMember({"memory", "none"}))
      ->capture_default_str();
  AddDeviceOptions(verb, DriverChoice::kHostOrCuda, &options->session.device);
  AddPlacementOptions(verb, &options->session.placement);
  verb->add_flag("--json", options->json, "Machine-readable");
  verb->callback([=] {
    const bool host = options->session.device.driver == "host";
    RejectIdleOption(*verb, "--backing", host, "without --driver host");
    // A model that is placed is built, and parts are loaded as they lie.
    const bool whole = !options->session.placement.in_use();
    const std::string placed = "with --device-map or --max-memory";
    RejectIdleOption(*verb, "--backing", whole || options->backing == "memory",
                     placed);
    RejectIdleOption(*verb, "--order", whole || options->order == "file",
                     placed);
    RejectIdleOption(*verb, "--driver", whole || host, placed);
    FinishSessionOptions(*verb, &options->session);
    *chosen = [=] { return Load(*options); };
  });
}

}  // namespace quire
