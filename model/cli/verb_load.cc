// quire load: the streaming loader alone, measured.

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "model/cli/inspection.h"
#include "model/cli/memory_output.h"
#include "model/cli/options.h"
#include "model/cli/output.h"
#include "model/cli/verbs.h"
#include "quire/alloc/leak_report.h"
#include "quire/alloc/status_macros.h"
#include "quire/loader/checkpoint.h"
#include "quire/loader/process_memory.h"
#include "quire/loader/streaming_loader.h"

namespace quire {
namespace {

struct LoadOptions {
  std::string model;
  bool verify = false;
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

absl::Status Load(LoadOptions options) {
  QUIRE_ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint,
                         Checkpoint::Open(options.model));
  // Whose tensors do not fit each other is not worth the time.
  QUIRE_RETURN_IF_ERROR(CheckDescribedModel(*checkpoint));
  options.device.backing = options.backing == "memory";
  QUIRE_ASSIGN_OR_RETURN(const std::unique_ptr<Runtime> runtime,
                         CreateRuntime(options.device));
  std::optional<std::unordered_map<std::string, uint32_t>> manifest;
  if (options.verify) {
    // Before the load: a folder that cannot be verified should say so at once.
    QUIRE_ASSIGN_OR_RETURN(manifest, ReadManifest(checkpoint->folder()));
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
  for (const TensorInfo& tensor : checkpoint->tensors()) {
    QUIRE_ASSIGN_OR_RETURN(
        const DeviceAddress address,
        runtime->allocator()->Allocate(tensor.size, {.owner = owner}));
    placements.push_back({&tensor, address});
  }
  StreamingOptions streaming;
  streaming.checksum = options.verify;
  streaming.progress = LoadProgressLine();
  QUIRE_ASSIGN_OR_RETURN(const LoadReport report,
                         StreamTensors(runtime->driver(), DeviceId(0),
                                       *checkpoint, placements, streaming));
  const Bytes anonymous_peak = sampler->Stop();
  if (manifest)
    QUIRE_RETURN_IF_ERROR(CompareWithManifest(*checkpoint, report, *manifest));

  const double rate =
      report.seconds > 0
          ? static_cast<double>(report.bytes.value()) / report.seconds
          : 0;
  const AllocatorStatistics memory = runtime->allocator()->GetStatistics();
  if (options.json)
    return PrintJson(
        {{"bytes", report.bytes.value()},
         {"seconds", report.seconds},
         {"bytes_per_second", rate},
         {"tensors", placements.size()},
         {"files", checkpoint->files().size()},
         {"chunks", report.chunks},
         {"staging_peak", report.staging_peak.value()},
         {"anonymous_peak", anonymous_peak.value()},
         {"device_mapped", memory.mapped_bytes},
         {"verified_tensors", manifest ? checkpoint->tensors().size() : 0},
         {"warnings", checkpoint->warnings()}});
  for (const std::string& warning : checkpoint->warnings())
    PrintWarning(warning);
  return PrintText(absl::StrFormat(
      "%d tensors, %s in %.2f s (%s/s)\n"
      "staging peak    %s\n"
      "anonymous peak  %s\n"
      "device          %s mapped\n%s",
      placements.size(), FormatBytes(report.bytes), report.seconds,
      FormatBytes(Bytes(static_cast<uint64_t>(rate))),
      FormatBytes(report.staging_peak), FormatBytes(anonymous_peak),
      FormatBytes(Bytes(memory.mapped_bytes)),
      manifest ? "every tensor agrees with the manifest\n" : ""));
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
                 "Compare the CRC-32 of every tensor with manifest.json");
  verb->add_option("--backing", options->backing,
                   "memory, or none: the device's pages carry no memory")
      ->check(CLI::IsMember({"memory", "none"}))
      ->capture_default_str();
  AddDeviceOptions(verb, DriverChoice::kHostOrCuda, &options->device);
  verb->add_flag("--json", options->json, "Machine-readable");
  verb->callback([=] { *chosen = [=] { return Load(*options); }; });
}

}  // namespace quire
