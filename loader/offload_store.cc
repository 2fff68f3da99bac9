// How the streams work together.
//
// `copies_` carries every unit to the device. Before a unit is copied into its
// slot, copies_ waits for the event that was recorded when the last user of the
// slot was released; before a unit is used, its user waits for the event that
// was recorded behind its copy. Nothing here waits on the host.
//
// What is asked for statistics runs on the streams too: a function behind each
// copy counts it, a function before each wait looks whether it was counted
// already.

#include "quire/loader/offload_store.h"

#include <zlib.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "loader/checkpoint_file.h"
#include "loader/offload_unit.h"
#include "loader/posix_file.h"
#include "quire/alloc/allocator.h"
#include "quire/alloc/quote.h"
#include "quire/alloc/status_macros.h"
#include "quire/alloc/try_twice.h"

namespace quire {
namespace {

constexpr size_t kNoUnit = SIZE_MAX;

int64_t Now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// What functions on streams write. Shared with them, as they may outlive a
// store whose streams could not be drained.
struct Progress {
  explicit Progress(size_t units) : loaded(units) {}

  std::vector<std::atomic<uint64_t>> loaded;  // by unit
  std::atomic<uint64_t> acquired{0};
  std::atomic<uint64_t> hits{0};
  std::atomic<int64_t> stall_nanoseconds{0};
  std::atomic<int64_t> missed_at{0};  // 0: the last one was a hit
};

}  // namespace

class OffloadStore::Impl {
 public:
  Impl(DeviceMemory* memory, OwnerId owner, const OffloadOptions& options)
      : memory_(memory),
        driver_(memory->driver()),
        owner_(owner),
        options_(options),
        slots_(options.slots),
        feed_(driver_, memory->device(), static_cast<size_t>(options.buffers),
              options.buffer_size) {}
  ~Impl();

  absl::Status Open();
  absl::StatusOr<size_t> Begin(std::string name, MemoryTier tier,
                               Bytes max_size);
  absl::StatusOr<DeviceAddress> Allocate(Bytes size);
  absl::Status Finish(
      const Checkpoint& checkpoint, std::span<const TensorPlacement> tensors,
      const std::unordered_map<std::string, uint32_t>& checksums);
  void SetSchedule(std::vector<size_t> visits);
  DeviceAddress address(size_t unit) const { return units_[unit].base; }
  const void* HostPointer(size_t unit, DeviceAddress address) const;
  absl::Status ReadFromDisk(size_t unit, DeviceAddress from,
                            std::span<std::byte> out) const;
  absl::Status Acquire(size_t visit, StreamId stream);
  absl::Status Release(size_t visit, StreamId stream);
  absl::Status EndPass(bool completed);
  OffloadStatistics GetStatistics() const;

 private:
  struct Slot {
    std::vector<PageHandle> pages;
    std::optional<EventId> released;
    size_t holds = kNoUnit;
  };

  // ---- Filling ----
  absl::Status KeepOnHost(OffloadUnit* unit);
  absl::Status KeepInFolder(OffloadUnit* unit);
  absl::Status KeepInCheckpoint(
      OffloadUnit* unit, const Checkpoint& checkpoint,
      std::span<const TensorPlacement> tensors,
      const std::unordered_map<std::string, uint32_t>& checksums);
  absl::StatusOr<uint32_t> ChecksumOnDevice(DeviceAddress from, Bytes size);
  absl::Status KeepPatch(OffloadUnit* unit, uint64_t begin, uint64_t end);
  absl::StatusOr<const RandomAccessFile*> OpenFileOf(
      const Checkpoint& checkpoint, uint32_t file);
  // Calls `sink` with the bytes of the device, one buffer after another.
  absl::Status ReadBack(
      DeviceAddress from, Bytes size,
      const std::function<absl::Status(std::span<const std::byte>)>& sink);

  // ---- Running ----
  absl::Status QueueLoad(size_t unit);
  absl::Status QueueBytes(OffloadUnit* unit);
  // Pins what the unit is kept in, where the budget and the system allow.
  absl::Status PinBeforeFirstCopy(OffloadUnit* unit);

  DeviceMemory* const memory_;
  Driver* const driver_;
  const OwnerId owner_;
  const OffloadOptions options_;
  std::optional<StreamId> copies_;
  std::vector<OffloadUnit> units_;
  std::vector<Slot> slots_;
  std::vector<size_t> visits_;  // units
  Bytes pinned_;                // of blocks
  Bytes streamed_;
  std::map<uint32_t, std::unique_ptr<PosixFile>> files_;  // of the checkpoint
  DiskFeed feed_;
  std::shared_ptr<Progress> progress_;
};

OffloadStore::Impl::~Impl() {
  bool drained = true;
  if (copies_.has_value()) {
    drained =
        TryTwice([&] { return driver_->SynchronizeStream(*copies_); }).ok();
    const absl::Status destroyed =
        TryTwice([&] { return driver_->DestroyStream(*copies_); });
    drained = drained || destroyed.ok();
  }
  // It keeps what it must, and a destructor has nobody to tell.
  drained = feed_.Close().ok() && drained;
  for (Slot& slot : slots_) {
    if (slot.released.has_value())
      TryTwice([&] {
        return driver_->DestroyEvent(*slot.released);
      }).IgnoreError();
  }
  for (OffloadUnit& unit : units_) {
    if (unit.loaded.has_value())
      TryTwice([&] {
        return driver_->DestroyEvent(*unit.loaded);
      }).IgnoreError();
    if (unit.range != nullptr) memory_->ReleaseRange(unit.range, Fence());
  }
  // A device that may still be copying, or reading, keeps what it copies from,
  // for good.
  if (!drained) {
    (void)new std::vector<OffloadUnit>(std::move(units_));
    for (auto& [file, open] : files_) (void)open.release();
  }
}

absl::Status OffloadStore::Impl::Open() {
  const auto ring =
      options_.buffers > 0
          ? CheckedMultiply(options_.buffer_size,
                            static_cast<uint64_t>(options_.buffers))
          : std::nullopt;
  if (!ring || ring->zero() || *ring > kMaxStagingBytes)
    return absl::InvalidArgumentError(
        absl::StrCat("a ring of ", options_.buffers, " buffers of ",
                     options_.buffer_size.value(), " bytes: it takes 1 to ",
                     kMaxStagingBytes.value(), " bytes in all"));
  if (options_.slots == 0)
    return absl::InvalidArgumentError("offloaded weights need a slot to run");
  QUIRE_ASSIGN_OR_RETURN(copies_, driver_->CreateStream(memory_->device()));
  for (Slot& slot : slots_) {
    QUIRE_ASSIGN_OR_RETURN(slot.released,
                           driver_->CreateEvent(memory_->device()));
  }
  return absl::OkStatus();
}

// ---- Filling ----------------------------------------------------------------

absl::StatusOr<size_t> OffloadStore::Impl::Begin(std::string name,
                                                 MemoryTier tier,
                                                 Bytes max_size) {
  const size_t index = units_.size();
  OffloadUnit unit;
  unit.name = std::move(name);
  unit.tier = tier;
  unit.slot = index % slots_.size();
  const PageCount pages = PagesFor(max_size, memory_->page_size());
  QUIRE_ASSIGN_OR_RETURN(
      unit.range, memory_->ReserveRange(std::max(pages, PageCount(1)), owner_));
  unit.base = unit.range->address();
  units_.push_back(std::move(unit));
  slots_[units_.back().slot].holds = kNoUnit;
  QUIRE_ASSIGN_OR_RETURN(units_.back().loaded,
                         driver_->CreateEvent(memory_->device()));
  return index;
}

absl::StatusOr<DeviceAddress> OffloadStore::Impl::Allocate(Bytes size) {
  OffloadUnit& unit = units_.back();
  const auto begin = CheckedAlignUp(unit.used, kDefaultAlignment.value());
  const auto end = begin ? CheckedAdd(*begin, size.value()) : std::nullopt;
  const uint64_t page = memory_->page_size().value();
  const uint64_t room = unit.range->pages().value() * page;
  if (!end || *end > room)
    return absl::ResourceExhaustedError(absl::StrCat(
        Printable(unit.name), ": ", size.value(), " bytes beside the ",
        unit.used, " that are used exceed the ", room, " of the unit"));
  Slot& slot = slots_[unit.slot];
  // The pages of the slot first, then new ones.
  while (unit.committed * page < *end) {
    const PageCount at(unit.committed);
    if (unit.committed < slot.pages.size()) {
      const uint64_t count =
          std::min<uint64_t>(slot.pages.size(), (*end + page - 1) / page) -
          unit.committed;
      QUIRE_RETURN_IF_ERROR(memory_->CommitPages(
          unit.range, at,
          std::span(slot.pages).subspan(unit.committed, count)));
      unit.committed += count;
      continue;
    }
    QUIRE_RETURN_IF_ERROR(memory_->Commit(unit.range, at, PageCount(1)));
    slot.pages.push_back(memory_->PageAt(unit.range, at));
    ++unit.committed;
  }
  unit.used = *end;
  return DeviceAddress(unit.range->address().value() + *begin);
}

absl::Status OffloadStore::Impl::Finish(
    const Checkpoint& checkpoint, std::span<const TensorPlacement> tensors,
    const std::unordered_map<std::string, uint32_t>& checksums) {
  OffloadUnit& unit = units_.back();
  if (unit.tier == MemoryTier::kHost) {
    QUIRE_RETURN_IF_ERROR(KeepOnHost(&unit));
  } else if (!options_.folder.empty()) {
    QUIRE_RETURN_IF_ERROR(KeepInFolder(&unit));
  } else {
    QUIRE_RETURN_IF_ERROR(
        KeepInCheckpoint(&unit, checkpoint, tensors, checksums));
  }
  unit.finished = true;
  slots_[unit.slot].holds = units_.size() - 1;
  return absl::OkStatus();
}

absl::Status OffloadStore::Impl::KeepOnHost(OffloadUnit* unit) {
  if (unit->used == 0) return absl::OkStatus();
  const Bytes size(unit->used);
  QUIRE_ASSIGN_OR_RETURN(HostBlock block, HostBlock::Create(size));
  unit->block.emplace(std::move(block));
  QUIRE_RETURN_IF_ERROR(driver_->CopyToHost(
      unit->block->data(), unit->range->address(), size, *copies_));
  return driver_->SynchronizeStream(*copies_);
}

absl::Status OffloadStore::Impl::KeepInFolder(OffloadUnit* unit) {
  QUIRE_ASSIGN_OR_RETURN(unit->scratch, ScratchFile::Create(options_.folder));
  QUIRE_RETURN_IF_ERROR(ReadBack(unit->range->address(), Bytes(unit->used),
                                 [&](std::span<const std::byte> bytes) {
                                   return unit->scratch->Append(bytes);
                                 }));
  unit->pieces = {{unit->scratch.get(), 0, unit->used, unit->range->address()}};
  return absl::OkStatus();
}

absl::Status OffloadStore::Impl::KeepInCheckpoint(
    OffloadUnit* unit, const Checkpoint& checkpoint,
    std::span<const TensorPlacement> tensors,
    const std::unordered_map<std::string, uint32_t>& checksums) {
  std::vector<TensorPlacement> in_order(tensors.begin(), tensors.end());
  std::sort(in_order.begin(), in_order.end(), [](const auto& a, const auto& b) {
    return a.destination < b.destination;
  });
  const uint64_t base = unit->range->address().value();
  uint64_t end = 0;  // of what is kept so far
  for (const TensorPlacement& placement : in_order) {
    const TensorInfo& tensor = *placement.tensor;
    // What was changed after it was read is not in the file: rows that were
    // put in another order, say.
    QUIRE_ASSIGN_OR_RETURN(
        const uint32_t now,
        ChecksumOnDevice(placement.destination, tensor.size));
    const auto loaded = checksums.find(tensor.name);
    if (loaded == checksums.end() || loaded->second != now)
      return absl::FailedPreconditionError(absl::StrCat(
          Printable(unit->name), " on disk: ", Printable(tensor.name),
          " does not run as it is in the checkpoint; an offload folder is "
          "needed to keep it in"));
    const uint64_t at = placement.destination.value() - base;
    QUIRE_RETURN_IF_ERROR(KeepPatch(unit, end, at));
    QUIRE_ASSIGN_OR_RETURN(const RandomAccessFile* const file,
                           OpenFileOf(checkpoint, tensor.file));
    unit->pieces.push_back(
        {file, tensor.offset, tensor.size.value(), placement.destination});
    end = at + tensor.size.value();
  }
  return KeepPatch(unit, end, unit->used);
}

absl::StatusOr<uint32_t> OffloadStore::Impl::ChecksumOnDevice(
    DeviceAddress from, Bytes size) {
  uLong crc = crc32_z(0, nullptr, 0);
  QUIRE_RETURN_IF_ERROR(
      ReadBack(from, size, [&](std::span<const std::byte> bytes) {
        crc = crc32_z(crc, reinterpret_cast<const Bytef*>(bytes.data()),
                      bytes.size());
        return absl::OkStatus();
      }));
  return static_cast<uint32_t>(crc);
}

absl::Status OffloadStore::Impl::KeepPatch(OffloadUnit* unit, uint64_t begin,
                                           uint64_t end) {
  // Before an allocation there is padding, and after it another may begin.
  begin = CheckedAlignUp(begin, kDefaultAlignment.value()).value_or(end);
  if (begin >= end) return absl::OkStatus();
  uint64_t total = end - begin;
  for (const HostPatch& patch : unit->patches) total += patch.bytes.size();
  if (total > kMaxDiskPatch.value())
    return absl::FailedPreconditionError(absl::StrCat(
        Printable(unit->name), " on disk: ", total,
        " bytes of it are not in the checkpoint; an offload folder is needed "
        "to keep them in"));
  HostPatch patch{begin, {}};
  QUIRE_RETURN_IF_ERROR(ReadBack(
      DeviceAddress(unit->range->address().value() + begin), Bytes(end - begin),
      [&](std::span<const std::byte> bytes) {
        patch.bytes.insert(patch.bytes.end(), bytes.begin(), bytes.end());
        return absl::OkStatus();
      }));
  unit->patches.push_back(std::move(patch));
  return absl::OkStatus();
}

absl::StatusOr<const RandomAccessFile*> OffloadStore::Impl::OpenFileOf(
    const Checkpoint& checkpoint, uint32_t file) {
  std::unique_ptr<PosixFile>& open = files_[file];
  if (open == nullptr) {
    QUIRE_ASSIGN_OR_RETURN(open, OpenUnchanged(checkpoint.files()[file]));
    open->ReadNothingAhead();
  }
  return open.get();
}

absl::Status OffloadStore::Impl::ReadBack(
    DeviceAddress from, Bytes size,
    const std::function<absl::Status(std::span<const std::byte>)>& sink) {
  QUIRE_ASSIGN_OR_RETURN(const std::span<std::byte> buffer, feed_.Borrow());
  for (uint64_t done = 0; done < size.value();) {
    const uint64_t step =
        std::min<uint64_t>(buffer.size(), size.value() - done);
    QUIRE_RETURN_IF_ERROR(
        driver_->CopyToHost(buffer.data(), DeviceAddress(from.value() + done),
                            Bytes(step), *copies_));
    QUIRE_RETURN_IF_ERROR(driver_->SynchronizeStream(*copies_));
    QUIRE_RETURN_IF_ERROR(sink(buffer.first(step)));
    done += step;
  }
  return absl::OkStatus();
}

void OffloadStore::Impl::SetSchedule(std::vector<size_t> visits) {
  visits_ = std::move(visits);
  progress_ = std::make_shared<Progress>(units_.size());
  std::vector<bool> runs(units_.size());
  for (const size_t unit : visits_) runs[unit] = true;
  std::vector<size_t> pages(slots_.size());  // of the largest that is left
  for (size_t i = 0; i < units_.size(); ++i) {
    OffloadUnit& unit = units_[i];
    if (!runs[i] && unit.range != nullptr) {
      if (slots_[unit.slot].holds == i) slots_[unit.slot].holds = kNoUnit;
      // What was copied from it is elsewhere, and nothing else used it.
      memory_->ReleaseRange(std::exchange(unit.range, nullptr), Fence());
      unit.committed = 0;
    }
    pages[unit.slot] = std::max<size_t>(pages[unit.slot], unit.committed);
  }
  for (size_t slot = 0; slot < slots_.size(); ++slot)
    slots_[slot].pages.resize(pages[slot]);
}

const void* OffloadStore::Impl::HostPointer(size_t unit,
                                            DeviceAddress address) const {
  const OffloadUnit& kept = units_[unit];
  return kept.block->data() + (address.value() - kept.base.value());
}

absl::Status OffloadStore::Impl::ReadFromDisk(size_t unit, DeviceAddress from,
                                              std::span<std::byte> out) const {
  for (const DiskPiece& piece : units_[unit].pieces) {
    const uint64_t at = from.value() - piece.to.value();
    if (from < piece.to || at >= piece.size) continue;
    if (out.size() > piece.size - at) break;
    return piece.file->Read(piece.offset + at, out);
  }
  return absl::InvalidArgumentError(
      absl::StrCat(Printable(units_[unit].name), " has no ", out.size(),
                   " bytes of one tensor at address ", from.value()));
}

// ---- Running ----------------------------------------------------------------

absl::Status OffloadStore::Impl::PinBeforeFirstCopy(OffloadUnit* unit) {
  if (unit->was_copied) return absl::OkStatus();
  const Bytes pinned = SaturatingAdd(pinned_, unit->block->size());
  if (pinned <= options_.pinned_limit) {
    const absl::Status status = unit->block->Pin(driver_);
    if (status.ok()) {
      pinned_ = pinned;
    } else if (!absl::IsResourceExhausted(status) &&
               !absl::IsUnimplemented(status)) {
      return status;
    }
  }
  unit->was_copied = true;
  return absl::OkStatus();
}

absl::Status OffloadStore::Impl::QueueBytes(OffloadUnit* unit) {
  if (unit->block.has_value()) {
    QUIRE_RETURN_IF_ERROR(PinBeforeFirstCopy(unit));
    return driver_->CopyToDevice(unit->range->address(), unit->block->data(),
                                 Bytes(unit->used), *copies_);
  }
  for (const HostPatch& patch : unit->patches) {
    QUIRE_RETURN_IF_ERROR(driver_->CopyToDevice(
        DeviceAddress(unit->range->address().value() + patch.offset),
        patch.bytes.data(), Bytes(patch.bytes.size()), *copies_));
  }
  return feed_.Queue(unit->pieces, *copies_);
}

absl::Status OffloadStore::Impl::QueueLoad(size_t index) {
  OffloadUnit& unit = units_[index];
  Slot& slot = slots_[unit.slot];
  slot.holds = kNoUnit;
  QUIRE_RETURN_IF_ERROR(driver_->WaitEvent(*copies_, *slot.released));
  QUIRE_RETURN_IF_ERROR(QueueBytes(&unit));
  const uint64_t load = unit.loads + 1;
  QUIRE_RETURN_IF_ERROR(driver_->LaunchHostFunction(
      *copies_, [progress = progress_, index, load] {
        progress->loaded[index].store(load, std::memory_order_release);
      }));
  QUIRE_RETURN_IF_ERROR(driver_->RecordEvent(*unit.loaded, *copies_));
  unit.loads = load;
  slot.holds = index;
  streamed_ = SaturatingAdd(streamed_, Bytes(unit.used));
  return absl::OkStatus();
}

absl::Status OffloadStore::Impl::Acquire(size_t visit, StreamId stream) {
  const size_t index = visits_[visit];
  if (slots_[units_[index].slot].holds != index)
    QUIRE_RETURN_IF_ERROR(QueueLoad(index));
  const OffloadUnit& unit = units_[index];
  QUIRE_RETURN_IF_ERROR(driver_->LaunchHostFunction(
      stream, [progress = progress_, index, load = unit.loads] {
        progress->acquired.fetch_add(1, std::memory_order_relaxed);
        const bool hit =
            progress->loaded[index].load(std::memory_order_acquire) >= load;
        if (hit) progress->hits.fetch_add(1, std::memory_order_relaxed);
        progress->missed_at.store(hit ? 0 : Now(), std::memory_order_relaxed);
      }));
  QUIRE_RETURN_IF_ERROR(driver_->WaitEvent(stream, *unit.loaded));
  return driver_->LaunchHostFunction(stream, [progress = progress_] {
    const int64_t missed = progress->missed_at.load(std::memory_order_relaxed);
    if (missed != 0)
      progress->stall_nanoseconds.fetch_add(Now() - missed,
                                            std::memory_order_relaxed);
  });
}

absl::Status OffloadStore::Impl::Release(size_t visit, StreamId stream) {
  const size_t slot = units_[visits_[visit]].slot;
  QUIRE_RETURN_IF_ERROR(driver_->RecordEvent(*slots_[slot].released, stream));
  // The next one that needs the slot comes at once: in this pass or the next.
  for (size_t i = 1; i <= visits_.size(); ++i) {
    const size_t next = visits_[(visit + i) % visits_.size()];
    if (units_[next].slot != slot) continue;
    return slots_[slot].holds == next ? absl::OkStatus() : QueueLoad(next);
  }
  return absl::OkStatus();
}

absl::Status OffloadStore::Impl::EndPass(bool completed) {
  absl::Status failure = feed_.TakeFailure();
  if (completed && failure.ok()) return failure;
  // What is under way is of no use: a read that failed, or an event that is not
  // recorded where it should be. Once it is over, all is fetched anew.
  const absl::Status drained =
      TryTwice([&] { return driver_->SynchronizeStream(*copies_); });
  for (Slot& slot : slots_) slot.holds = kNoUnit;
  failure.Update(feed_.TakeFailure());
  failure.Update(drained);
  return failure;
}

OffloadStatistics OffloadStore::Impl::GetStatistics() const {
  OffloadStatistics statistics;
  if (progress_ != nullptr) {
    statistics.acquired = progress_->acquired.load(std::memory_order_relaxed);
    statistics.hits = progress_->hits.load(std::memory_order_relaxed);
    statistics.stall_seconds =
        static_cast<double>(
            progress_->stall_nanoseconds.load(std::memory_order_relaxed)) *
        1e-9;
  }
  statistics.streamed = streamed_;
  for (const Slot& slot : slots_)
    statistics.device = SaturatingAdd(
        statistics.device,
        CheckedBytes(PageCount(slot.pages.size()), memory_->page_size())
            .value_or(Bytes(UINT64_MAX)));
  for (const OffloadUnit& unit : units_) {
    if (!unit.finished) continue;
    Bytes& total =
        unit.tier == MemoryTier::kHost ? statistics.host : statistics.disk;
    total = SaturatingAdd(total, Bytes(unit.used));
  }
  statistics.pinned = SaturatingAdd(pinned_, feed_.pinned());
  return statistics;
}

// ---- OffloadStore -----------------------------------------------------------

absl::StatusOr<std::unique_ptr<OffloadStore>> OffloadStore::Create(
    DeviceMemory* memory, OwnerId owner, const OffloadOptions& options) {
  auto impl = std::make_unique<Impl>(memory, owner, options);
  QUIRE_RETURN_IF_ERROR(impl->Open());
  return std::unique_ptr<OffloadStore>(new OffloadStore(std::move(impl)));
}

OffloadStore::OffloadStore(std::unique_ptr<Impl> impl)
    : impl_(std::move(impl)) {}
OffloadStore::~OffloadStore() = default;

absl::StatusOr<size_t> OffloadStore::Begin(std::string name, MemoryTier tier,
                                           Bytes max_size) {
  return impl_->Begin(std::move(name), tier, max_size);
}
absl::StatusOr<DeviceAddress> OffloadStore::Allocate(Bytes size) {
  return impl_->Allocate(size);
}
absl::Status OffloadStore::Finish(
    const Checkpoint& checkpoint, std::span<const TensorPlacement> tensors,
    const std::unordered_map<std::string, uint32_t>& checksums) {
  return impl_->Finish(checkpoint, tensors, checksums);
}
void OffloadStore::SetSchedule(std::vector<size_t> visits) {
  impl_->SetSchedule(std::move(visits));
}
DeviceAddress OffloadStore::address(size_t unit) const {
  return impl_->address(unit);
}
const void* OffloadStore::HostPointer(size_t unit,
                                      DeviceAddress address) const {
  return impl_->HostPointer(unit, address);
}
absl::Status OffloadStore::ReadFromDisk(size_t unit, DeviceAddress from,
                                        std::span<std::byte> out) const {
  return impl_->ReadFromDisk(unit, from, out);
}
absl::Status OffloadStore::Acquire(size_t visit, StreamId stream) {
  return impl_->Acquire(visit, stream);
}
absl::Status OffloadStore::Release(size_t visit, StreamId stream) {
  return impl_->Release(visit, stream);
}
absl::Status OffloadStore::EndPass(bool completed) {
  return impl_->EndPass(completed);
}
OffloadStatistics OffloadStore::GetStatistics() const {
  return impl_->GetStatistics();
}

}  // namespace quire
