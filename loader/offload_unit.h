// One unit of an OffloadStore: its addresses, and where its bytes are kept.

#ifndef QUIRE_LOADER_OFFLOAD_UNIT_H_
#define QUIRE_LOADER_OFFLOAD_UNIT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "loader/disk_feed.h"
#include "loader/scratch_file.h"
#include "quire/alloc/device_memory.h"
#include "quire/alloc/driver.h"
#include "quire/alloc/units.h"
#include "quire/loader/device_map.h"

namespace quire {

// Host memory, in whole pages, which a driver may pin where it is.
class HostBlock {
 public:
  static absl::StatusOr<HostBlock> Create(Bytes size);
  HostBlock(HostBlock&& other) noexcept;
  HostBlock& operator=(HostBlock&&) = delete;
  ~HostBlock();

  // Until the end of the block. REQUIRES: `driver` outlives the block.
  absl::Status Pin(Driver* driver);

  std::byte* data() const { return data_; }
  Bytes size() const { return size_; }  // of the pages

 private:
  HostBlock(std::byte* data, Bytes size) : data_(data), size_(size) {}

  std::byte* data_;
  Bytes size_;
  Driver* pinned_by_ = nullptr;
};

// Bytes of a unit that no tensor of a file has: tables that were made of
// others.
struct HostPatch {
  uint64_t offset = 0;  // in the unit
  std::vector<std::byte> bytes;
};

struct OffloadUnit {
  std::string name;
  MemoryTier tier = MemoryTier::kHost;
  AddressRange* range = nullptr;  // null once no pass has the unit
  DeviceAddress base;             // of the range, also when that is gone
  uint64_t committed = 0;         // pages, from the start
  uint64_t used = 0;              // bytes, from the start
  size_t slot = 0;
  std::optional<EventId> loaded;  // on the stream of copies
  uint64_t loads = 0;             // that were queued
  bool finished = false;

  // Of the host.
  std::optional<HostBlock> block;
  // To the device: it is pinned by now, or is not to be.
  bool was_copied = false;
  // Of the disk.
  std::unique_ptr<ScratchFile> scratch;
  std::vector<DiskPiece> pieces;
  std::vector<HostPatch> patches;
};

}  // namespace quire

#endif  // QUIRE_LOADER_OFFLOAD_UNIT_H_
