// quire load: the streaming loader alone, measured.

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
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
#include "quire/alloc/leak_report.h"
#include "quire/alloc/status_macros.h"
#include "quire/loader/checkpoint.h"
#include "quire/loader/load_order.h"
#include "quire/loader/process_memory.h"
#include "quire/loader/streaming_loader.h"

namespace quire {
namespace {

struct LoadOptions {
  std::string model;
  bool verify = false;
  bool direct = false;
  std::string order = "file";
  std::string progress = "auto";
  std::string backing = "memory";
  DeviceOptions device;
  bool json = false;
};

// Compares what passed through the ring with the folder's manifest.
absl::Status CompareWithManifest(
    const Checkpoint& checkpoint, const LoadReport& report,
    const std::unordered_map<std::string, uint32_t>& manifest) {
  for (const TensorInfo& tensor : checkpoint.tensors()) {
    const std::string& path = checkpoint.files()[tensor.file].path;
    const auto expected = manifest.find(tensor.name);
    if (expected == manifest.end())
      return absl::NotFoundError(absl::StrCat(checkpoint.folder(),
                                              "/manifest.json: has no tensor ",
                                              tensor.name, " of ", path));
    const uint32_t actual = report.crc32.at(tensor.name);
    if (actual != expected->second)
      return absl::DataLossError(absl::StrFormat(
          "%s: tensor %s has CRC-32 %08x, the manifest says %08x", path,
          tensor.name, actual, expected->second));
  }
  return absl::OkStatus();
}

// Reads everything a second time, and compares.
absl::Status CompareWithSecondPass(const Runtime& runtime,
                                   const Checkpoint& checkpoint,
                                   std::span<const TensorPlacement> placements,
                                   StreamingOptions streaming,
                                   const LoadReport& first) {
  streaming.milestones.clear();
  QUIRE_ASSIGN_OR_RETURN(const LoadReport second,
                         StreamTensors(runtime.driver(), DeviceId(0),
                                       checkpoint, placements, streaming));
  for (const TensorInfo& tensor : checkpoint.tensors()) {
    const uint32_t one = first.crc32.at(tensor.name);
    const uint32_t two = second.crc32.at(tensor.name);
    if (one != two)
      return absl::DataLossError(absl::StrFormat(
          "%s: tensor %s was read with CRC-32 %08x, and then with %08x",
          checkpoint.files()[tensor.file].path, tensor.name, one, two));
  }
  return absl::OkStatus();
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

absl::Status Load(LoadOptions options) {
  QUIRE_ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint,
                         Checkpoint::Open(options.model));
  // Whose tensors do not fit each other is not worth the time.
  QUIRE_ASSIGN_OR_RETURN(std::vector<std::string> warnings,
                         CheckDescribedModel(*checkpoint));
  options.device.backing = options.backing == "memory";
  QUIRE_ASSIGN_OR_RETURN(const std::unique_ptr<Runtime> runtime,
                         CreateRuntime(options.device));
  std::optional<std::unordered_map<std::string, uint32_t>> manifest;
  if (options.verify) {
    // Before the load: a manifest that is wrong should say so at once.
    auto read = ReadManifest(checkpoint->folder());
    if (!read.ok() && !absl::IsNotFound(read.status())) return read.status();
    if (read.ok()) manifest = *std::move(read);
  }

  QUIRE_ASSIGN_OR_RETURN(const std::unique_ptr<AnonymousPeakSampler> sampler,
                         AnonymousPeakSampler::Start());
  const OwnerId owner = runtime->owners()->Register("weights");
  std::vector<TensorPlacement> placements;
  placements.reserve(checkpoint->tensors().size());
  const auto give_back = absl::MakeCleanup([&] {
    for (const TensorPlacement& placement : placements)
      (void)runtime->allocator()->Free(placement.destination);
    if (const auto leaks = FindLeaks(*runtime); !leaks.empty())
      WarnOfLeaks(leaks);
  });
  StreamingOptions streaming;
  streaming.checksum = options.verify;
  streaming.direct = options.direct;
  streaming.progress = LoadProgressIn(options.progress);
  for (const TensorInfo* const tensor :
       OrderTensors(*checkpoint, options, &streaming)) {
    QUIRE_ASSIGN_OR_RETURN(
        const DeviceAddress address,
        runtime->allocator()->Allocate(tensor->size, {.owner = owner}));
    placements.push_back({tensor, address});
  }
  QUIRE_ASSIGN_OR_RETURN(const LoadReport report,
                         StreamTensors(runtime->driver(), DeviceId(0),
                                       *checkpoint, placements, streaming));
  const Bytes anonymous_peak = sampler->Stop();
  if (manifest) {
    QUIRE_RETURN_IF_ERROR(CompareWithManifest(*checkpoint, report, *manifest));
  } else if (options.verify) {
    QUIRE_RETURN_IF_ERROR(CompareWithSecondPass(*runtime, *checkpoint,
                                                placements, streaming, report));
  }

  if (runtime->driver()->device_memory_is_host_memory() &&
      options.device.backing) {
    // What it is told to verify it looks at whole.
    const std::vector<std::string> odd = CheckLoadedData(
        *checkpoint, {.tables = true, .weights = options.verify},
        PiecesOnDevice(placements));
    warnings.insert(warnings.end(), odd.begin(), odd.end());
  }

  const double rate =
      report.seconds > 0
          ? static_cast<double>(report.bytes.value()) / report.seconds
          : 0;
  const AllocatorStatistics memory = runtime->allocator()->GetStatistics();
  if (options.json)
    return PrintJson({{"bytes", report.bytes.value()},
                      {"seconds", report.seconds},
                      {"bytes_per_second", rate},
                      {"tensors", placements.size()},
                      {"files", checkpoint->files().size()},
                      {"chunks", report.chunks},
                      {"staging_peak", report.staging_peak.value()},
                      {"anonymous_peak", anonymous_peak.value()},
                      {"device_mapped", memory.mapped_bytes},
                      {"direct_io", report.direct},
                      {"read_retries", report.read_retries},
                      {"verified_tensors",
                       options.verify ? checkpoint->tensors().size() : 0},
                      {"verified_by", !options.verify ? "nothing"
                                      : manifest      ? "manifest"
                                                      : "second pass"},
                      {"warnings", warnings}});
  for (const std::string& warning : warnings) PrintWarning(warning);
  return PrintText(absl::StrFormat(
      "%d tensors, %s in %.2f s (%s/s)\n"
      "staging peak    %s\n"
      "anonymous peak  %s\n"
      "device          %s mapped\n%s",
      placements.size(), FormatBytes(report.bytes), report.seconds,
      FormatBytes(Bytes(static_cast<uint64_t>(rate))),
      FormatBytes(report.staging_peak), FormatBytes(anonymous_peak),
      FormatBytes(Bytes(memory.mapped_bytes)),
      !options.verify ? ""
      : manifest      ? "every tensor agrees with the manifest\n"
                      : "every tensor was the same in a second pass\n"));
}

}  // namespace

void AddLoadVerb(CLI::App* app, Action* chosen) {
  auto options = std::make_shared<LoadOptions>();
  CLI::App* verb = app->add_subcommand(
      "load", "Streams a checkpoint to the device and measures that");
  verb->add_option("MODEL", options->model,
                   "Folder, .safetensors or .gguf file; of any family")
      ->required();
  verb->add_flag("--verify", options->verify,
                 "Compare the CRC-32 of every tensor with manifest.json, or, "
                 "where there is none, with that of a second pass");
  verb->add_option("--order", options->order,
                   "file: from front to back; layers: as a model needs them, "
                   "with an event for each where --progress is json")
      ->check(CLI::IsMember({"file", "layers"}))
      ->capture_default_str();
  verb->add_flag("--direct-io", options->direct,
                 "Read past the page cache, where the file system allows it");
  AddProgressOption(verb, &options->progress);
  verb->add_option("--backing", options->backing,
                   "memory, or none: the device's pages carry no memory")
      ->check(CLI::IsMember({"memory", "none"}))
      ->capture_default_str();
  AddDeviceOptions(verb, DriverChoice::kHostOrCuda, &options->device);
  verb->add_flag("--json", options->json, "Machine-readable");
  verb->callback([=] {
    for (const char* option : {"--device-memory", "--backing"})
      RejectIdleOption(*verb, option, options->device.driver == "host",
                       "without --driver host");
    *chosen = [=] { return Load(*options); };
  });
}

}  // namespace quire
