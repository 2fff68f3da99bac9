#include "model/cli/verification.h"

#include <malloc.h>

#include <algorithm>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "quire/alloc/quote.h"
#include "quire/alloc/runtime.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

// Beside the largest tensor, for what an allocator keeps.
constexpr Bytes kMargin = MiB(64);

const std::string& PathOf(const Checkpoint& checkpoint,
                          const TensorInfo& tensor) {
  return checkpoint.files()[tensor.file].path;
}

// Reads the tensors onto a device whose pages carry no memory, all to the same
// place.
absl::StatusOr<LoadReport> ReadAgain(const Checkpoint& checkpoint,
                                     std::span<const TensorInfo* const> tensors,
                                     StreamingOptions options) {
  options.checksum = true;
  options.order = LoadOrder::kFile;
  options.milestones.clear();
  Bytes largest(1);
  for (const TensorInfo* const tensor : tensors)
    largest = std::max(largest, tensor->size);
  QUIRE_ASSIGN_OR_RETURN(
      const std::unique_ptr<Runtime> runtime,
      CreateRuntime({.device_memory = SaturatingAdd(largest, kMargin),
                     .memory_utilization = 1,
                     .backing = false}));
  QUIRE_ASSIGN_OR_RETURN(const DeviceAddress landing,
                         runtime->allocator()->Allocate(largest));
  std::vector<TensorPlacement> placements;
  placements.reserve(tensors.size());
  for (const TensorInfo* const tensor : tensors)
    placements.push_back({tensor, landing});
  absl::StatusOr<LoadReport> report = StreamTensors(
      runtime->driver(), DeviceId(0), checkpoint, placements, options);
  QUIRE_RETURN_IF_ERROR(runtime->allocator()->Free(landing));
  return report;
}

absl::Status CompareWithManifest(const Checkpoint& checkpoint,
                                 const TensorInfo& tensor, uint32_t actual,
                                 uint32_t expected) {
  if (actual == expected) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrFormat("%s: tensor %s has CRC-32 %08x, the manifest says %08x",
                      Printable(PathOf(checkpoint, tensor)),
                      Printable(tensor.name), actual, expected));
}

// The manifest, parsed, takes several times what the index of a checkpoint
// does, in blocks that the C library would keep through the load.
void GiveFreedMemoryBack() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

}  // namespace

absl::StatusOr<Verification> Verification::Prepare(
    const Checkpoint& checkpoint) {
  const absl::Cleanup give_back = GiveFreedMemoryBack;
  Verification verification;
  const auto manifest = ReadManifest(checkpoint.folder());
  if (absl::IsNotFound(manifest.status())) return verification;
  QUIRE_RETURN_IF_ERROR(manifest.status());
  std::vector<uint32_t>& expected = verification.expected_.emplace();
  expected.reserve(checkpoint.tensors().size());
  for (const TensorInfo& tensor : checkpoint.tensors()) {
    const auto found = manifest->find(tensor.name);
    if (found == manifest->end())
      return absl::NotFoundError(
          absl::StrCat(Printable(checkpoint.folder()),
                       "/manifest.json: has no tensor ", Printable(tensor.name),
                       " of ", Printable(PathOf(checkpoint, tensor))));
    expected.push_back(found->second);
  }
  return verification;
}

absl::Status Verification::Check(const Checkpoint& checkpoint,
                                 const LoadReport& load,
                                 StreamingOptions options) const {
  const std::vector<TensorInfo>& tensors = checkpoint.tensors();
  std::vector<const TensorInfo*> to_read;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto loaded = load.crc32.find(tensors[i].name);
    const bool was_loaded = loaded != load.crc32.end();
    if (was_loaded != expected_.has_value()) to_read.push_back(&tensors[i]);
    if (was_loaded && expected_)
      QUIRE_RETURN_IF_ERROR(CompareWithManifest(
          checkpoint, tensors[i], loaded->second, (*expected_)[i]));
  }
  if (to_read.empty()) return absl::OkStatus();
  QUIRE_ASSIGN_OR_RETURN(const LoadReport again,
                         ReadAgain(checkpoint, to_read, std::move(options)));
  for (const TensorInfo* const tensor : to_read) {
    const uint32_t second = again.crc32.at(tensor->name);
    if (expected_) {
      QUIRE_RETURN_IF_ERROR(CompareWithManifest(
          checkpoint, *tensor, second,
          (*expected_)[static_cast<size_t>(tensor - tensors.data())]));
      continue;
    }
    const uint32_t first = load.crc32.at(tensor->name);
    if (first != second)
      return absl::DataLossError(absl::StrFormat(
          "%s: tensor %s was read with CRC-32 %08x, and then with %08x",
          Printable(PathOf(checkpoint, *tensor)), Printable(tensor->name),
          first, second));
  }
  return absl::OkStatus();
}

uint64_t Verification::TensorsOf(const Checkpoint& checkpoint,
                                 const LoadReport& load) const {
  return expected_ ? checkpoint.tensors().size() : load.crc32.size();
}

absl::StatusOr<std::unique_ptr<Session>> OpenVerified(
    std::unique_ptr<Checkpoint> checkpoint, const SessionOptions& options) {
  if (!options.streaming.checksum)
    return Session::Open(std::move(checkpoint), options);
  QUIRE_ASSIGN_OR_RETURN(const Verification verification,
                         Verification::Prepare(*checkpoint));
  QUIRE_ASSIGN_OR_RETURN(std::unique_ptr<Session> session,
                         Session::Open(std::move(checkpoint), options));
  QUIRE_RETURN_IF_ERROR(verification.Check(session->checkpoint(),
                                           session->weights().load_report(),
                                           options.streaming));
  return session;
}

}  // namespace quire
