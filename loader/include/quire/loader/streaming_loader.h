// Carries tensors from files to the device through a small ring of pinned
// buffers.
//
// Chunks, not tensors: an embedding of 1.2 GiB passes through a ring of 32 MiB.
// Reads, copies and checks overlap; a buffer is read into again only when the
// copy out of it has completed. The page cache is dropped behind the reader,
// files are never mapped, and the ring is pinned at first use and freed at the
// end. Peak host memory is the ring, whatever the model.

#ifndef QUIRE_LOADER_STREAMING_LOADER_H_
#define QUIRE_LOADER_STREAMING_LOADER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "quire/alloc/driver.h"
#include "quire/alloc/units.h"
#include "quire/loader/checkpoint.h"
#include "quire/loader/tensor_slice.h"

namespace quire {

inline constexpr Bytes kMaxStagingBytes = MiB(64);

struct LoadProgress {
  Bytes done;
  Bytes total;
  double seconds;

  // So far; 0 where no time has passed.
  double bytes_per_second() const {
    return seconds > 0 ? static_cast<double>(done.value()) / seconds : 0;
  }
  // At that rate; 0 where it is not known.
  double seconds_left() const {
    const double rate = bytes_per_second();
    return rate > 0
               ? static_cast<double>(SaturatingSubtract(total, done).value()) /
                     rate
               : 0;
  }
};

enum class LoadOrder : uint8_t {
  kFile,   // of the bytes in the files: each is read from front to back
  kGiven,  // of the placements: what is wanted first arrives first
};

struct StreamingOptions {
  int buffers = 4;
  Bytes buffer_size = MiB(8);  // buffers * buffer_size <= kMaxStagingBytes
  // crc32 (zlib's) of every tensor in LoadReport::crc32, of the bytes as they
  // passed through the ring.
  bool checksum = false;
  // Reads pass the page cache by (O_DIRECT), where the file system allows it.
  // The size of the buffers is a multiple of 4096 then.
  bool direct = false;
  // Called from the loading thread, a few times a second and at the end.
  std::function<void(const LoadProgress&)> progress;
  LoadOrder order = LoadOrder::kFile;
  // With kGiven, ascending: `arrived` is called, from the loading thread, when
  // so many of the first placements are on the device, whole. Of StreamTensors
  // alone: a model, whose parts are finished together, has none.
  std::vector<size_t> milestones;
  std::function<void(size_t placements)> arrived;
  // Set by another thread to stop: the load returns kCancelled.
  const std::atomic<bool>* cancelled = nullptr;
};

// Where the bytes of a tensor go. The destination holds tensor->size bytes.
struct TensorPlacement {
  const TensorInfo* tensor;
  DeviceAddress destination;
};

// Where the bytes of a slice go, its runs one behind the other. The destination
// holds slice.size() bytes; a slice of nothing needs none.
struct SlicePlacement {
  TensorSlice slice;
  DeviceAddress destination;
};

struct LoadReport {
  Bytes bytes;
  double seconds = 0;
  Bytes staging_peak;   // pinned memory held at once
  bool direct = false;  // every read passed the page cache by
  uint64_t chunks = 0;
  // Reads that failed for a passing reason, and were made again.
  uint64_t read_retries = 0;
  std::unordered_map<std::string, uint32_t> crc32;  // by tensor name
};

// Streams every placement, in the order of the options; returns when all bytes
// are on the device. On an error everything that this call took is given back;
// the destinations hold garbage. The error names file, tensor and offset: a
// file that became shorter or was changed during the load is one.
absl::StatusOr<LoadReport> StreamTensors(
    Driver* driver, DeviceId device, const Checkpoint& checkpoint,
    std::span<const TensorPlacement> placements,
    const StreamingOptions& options = {});

// What StreamTensors pins for these, at its most: each buffer of the ring is as
// large as the largest part of a file that passes through it. Errors: as
// StreamTensors', of the options and the placements.
absl::StatusOr<Bytes> StagingBytes(const Checkpoint& checkpoint,
                                   std::span<const TensorPlacement> placements,
                                   const StreamingOptions& options = {});

// The same as StreamTensors for parts of tensors: what one rank takes of
// linears that several compute together (tensor_split.h). No other byte is
// read. Runs of a few KiB cost a call of the system each. REQUIRES:
// options.checksum is not set, as checksums are of whole tensors, and
// options.direct is not, as runs begin anywhere.
absl::StatusOr<LoadReport> StreamSlices(
    Driver* driver, DeviceId device, const Checkpoint& checkpoint,
    std::span<const SlicePlacement> placements,
    const StreamingOptions& options = {});

// The CRC-32 of bytes one behind the other, of both their own.
uint32_t JoinCrc32(uint32_t first, uint32_t second, Bytes second_size);

// The checksums in a folder's manifest.json, by tensor name, as
// make_shaped_checkpoint.py writes them:
//   {"files": {"model.safetensors": {"tensors": {name: {"crc32":
//   "00ff12ab"}}}}}
// kNotFound where there is no manifest.
absl::StatusOr<std::unordered_map<std::string, uint32_t>> ReadManifest(
    const std::string& folder);

}  // namespace quire

#endif  // QUIRE_LOADER_STREAMING_LOADER_H_
