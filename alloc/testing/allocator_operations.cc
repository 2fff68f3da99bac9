#include "alloc/testing/allocator_operations.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "alloc/testing/contradiction.h"
#include "quire/alloc/status_macros.h"
#include "quire/alloc/verdict.h"

namespace quire {
namespace {

constexpr uint64_t kDevicePages = 64;
constexpr uint64_t kAddressPages = 4096;
constexpr int kReEntriesPerStep = 3;

}  // namespace

HostDriverOptions AllocatorOperations::DriverOptions(Bytes page) {
  HostDriverOptions options;
  options.granularity = page;
  options.memory_per_device = Bytes(kDevicePages * page.value());
  return options;
}

AllocatorOperations::AllocatorOperations(Driver* driver,
                                         std::span<const uint8_t> bytes,
                                         Bytes page)
    : driver_(driver), bytes_(bytes), page_(page) {
  owner_ids_ = {kUnnamedOwner, owners_.Register("model"),
                owners_.Register("model/kv"), owners_.Register("other")};
}

AllocatorOperations::~AllocatorOperations() {
  EndLags();
  for (const StreamId stream : streams_) {
    (void)driver_->SynchronizeStream(stream);
  }
  if (memory_ != nullptr) memory_->RemoveHooks(this);
  for (const auto& [stream, pool] : captures_) {
    (void)allocator_->EndGraphCapture(stream);
  }
  other_.reset();
  allocator_.reset();
  memory_.reset();
  for (const StreamId stream : streams_) (void)driver_->DestroyStream(stream);
}

absl::Status AllocatorOperations::Run() {
  DeviceMemoryOptions options;
  options.page_size = page_;
  options.limit = Bytes(kLimitPages * page_.value());
  options.address_space = Bytes(kAddressPages * page_.value());
  const uint64_t setting = Next();
  capacity_ = options.limit;
  if (setting % 4 == 0) {
    // Less than the limit is left of the device.
    capacity_ = Bytes((kLimitPages - 4) * page_.value());
    options.headroom = Bytes(kDevicePages * page_.value() - capacity_.value());
  }
  if (setting / 4 % 2 == 0) options.trace = &trace_;
  prepares_ahead_ = setting / 32 % 4 == 0;
  if (prepares_ahead_) options.prepare_ahead = PageCount(2);
  QUIRE_ASSIGN_OR_RETURN(memory_,
                         DeviceMemory::Create(driver_, &owners_, options));
  DeviceAllocatorOptions allocator_options;
  const uint64_t choice = Next();
  allocator_options.seed = choice;
  // Every free under a fence of its own, or many under one.
  if (choice % 4 == 0) allocator_options.fence_batch = Bytes(0);
  if (choice % 4 == 1) allocator_options.fence_batch = KiB(32);
  if (choice % 8 == 2) allocator_options.thread_cache = Bytes(0);
  if (choice % 8 == 6) allocator_options.thread_cache = KiB(16);
  allocator_options.trace = options.trace;
  allocator_options.listener = this;
  if (setting / 8 % 4 == 0) allocator_options.sample_interval = KiB(8);
  allocator_ = DeviceAllocator::Create(memory_.get(), allocator_options);
  other_ = DeviceAllocator::Create(memory_.get());
  memory_->AddHooks(this);
  for (int i = 0; i < 3; ++i) {
    QUIRE_ASSIGN_OR_RETURN(const StreamId stream,
                           driver_->CreateStream(DeviceId(0)));
    streams_.push_back(stream);
  }
  while (!AtEnd()) {
    QUIRE_RETURN_IF_ERROR(Step());
    QUIRE_RETURN_IF_ERROR(Check());
    if (open_compactions_ != 0) {
      return Contradiction("the listener was told of %d compactions that go on",
                           open_compactions_);
    }
  }
  QUIRE_RETURN_IF_ERROR(CheckLiveAllocations());
  while (!captures_.empty()) QUIRE_RETURN_IF_ERROR(EndCapture());
  if (choice % 16 == 7) return absl::OkStatus();  // destroyed with what lives
  return FreeEverything();
}

uint64_t AllocatorOperations::Next() {
  return AtEnd() ? 0 : bytes_[position_++];
}

uint64_t AllocatorOperations::NextSize() {
  const uint64_t kind = Next();
  switch (kind % 16) {
    case 0:
      return 0;
    case 1:
      return Below(8) * page_.value();
    case 2:
    case 3:
    case 4:
      return (Next() << 8 | Next()) * 6;
    case 5:
      return kind / 16 == 0 ? UINT64_MAX - Next() : Next() << 12;
    case 6:
    case 7:  // what is meshed
      return page_.value() >> (1 + Below(5));
    default:  // as likely to be of any magnitude
      return (Next() << 8 | Next()) >> Below(16);
  }
}

// ---- Steps ------------------------------------------------------------------

absl::Status AllocatorOperations::Step() {
  re_entries_left_ = kReEntriesPerStep;
  const uint64_t operation = Next();
  // Between nearly empty and full.
  const bool growing = position_ / 1024 % 2 == 0;
  if (operation < 176) {
    return operation % 16 < (growing ? 10 : 6) ? Allocate() : FreeSome();
  }
  const bool rarely = operation >= 236;
  switch ((operation - 176) % 20) {
    case 0:
      return ChangeStreams();
    case 1:
      return Record();
    case 2:
    case 3:
      return PinOrUnpin();
    case 4:
      return Trim();
    case 5:
      return Refuse();
    case 6:
      return rarely ? ChangeSoftLimit() : ChangeLimits();
    case 7:
      return UsePoolDirectly();
    case 8:
    case 9:
      return Compact();
    case 10:
      return OnAnotherThread();
    case 11:
      hooks_re_enter_ = Below(2) == 0;
      hooks_give_ = Below(2) == 0;
      return absl::OkStatus();
    case 12:
      return rarely ? Harvest() : CheckLiveAllocations();
    case 13:
      EndLags();
      return absl::OkStatus();
    case 14:
      return Sleep();
    case 15:
      return Wake(SomeOwner());
    case 16:
    case 17:
      return UseGraphs();
    case 18:
      return UseAnotherAllocator();
    default:
      return HoldUp(SomeStream());
  }
}

absl::Status AllocatorOperations::OnAnotherThread() {
  if (on_another_thread_) return absl::OkStatus();
  on_another_thread_ = true;
  absl::Status status;
  const uint64_t steps = Below(16);
  std::thread thread([&] {
    for (uint64_t i = 0; i < steps && !AtEnd() && status.ok(); ++i) {
      status = Step();
      if (status.ok()) status = Check();
    }
  });
  thread.join();
  on_another_thread_ = false;
  return status;
}

absl::Status AllocatorOperations::FreeEverything() {
  EndLags();
  while (!model_.empty()) {
    Live& live = model_.begin()->second;
    for (; live.pins > 0; --live.pins) {
      QUIRE_RETURN_IF_ERROR(allocator_->Unpin(live.pattern.address));
    }
    QUIRE_RETURN_IF_ERROR(Free(model_.begin(), frees_));
  }
  if (neighbour_ != nullptr) {
    memory_->ReleaseRange(std::exchange(neighbour_, nullptr), Fence());
  }
  for (const OwnerId owner : owner_ids_) {
    QUIRE_RETURN_IF_ERROR(memory_->SetOwnerLimits(owner, OwnerLimits()));
  }
  QUIRE_RETURN_IF_ERROR(memory_->SetLimit(Bytes(kLimitPages * page_.value())));
  while (!graph_pools_.empty()) QUIRE_RETURN_IF_ERROR(ReleaseGraphPool());
  while (!others_.empty()) QUIRE_RETURN_IF_ERROR(UseAnotherAllocator());
  other_.reset();
  for (const OwnerId owner : owner_ids_) QUIRE_RETURN_IF_ERROR(Wake(owner));
  QUIRE_RETURN_IF_ERROR(Check());
  if (allocator_->GetLargestPossible() != capacity_) {
    return Contradiction("nothing lives, and %u bytes of %u are to be had",
                         allocator_->GetLargestPossible().value(),
                         capacity_.value());
  }
  QUIRE_ASSIGN_OR_RETURN(const DeviceAddress address,
                         allocator_->Allocate(capacity_));
  return allocator_->Free(address);
}

// ---- Hooks ------------------------------------------------------------------

void AllocatorOperations::OnPressure(const PressureChange& /*change*/) {
  ReEnter();
}

void AllocatorOperations::OnPagesMapped(const MappingChange& /*change*/) {
  ReEnter();
}

void AllocatorOperations::OnPagesUnmapped(const MappingChange& /*change*/) {
  ReEnter();
}

void AllocatorOperations::BeforeCompaction(CompactionLevel /*level*/) {
  ++open_compactions_;
  ReEnter();
}

void AllocatorOperations::AfterCompaction(CompactionLevel /*level*/,
                                          const CompactionReport& /*report*/) {
  --open_compactions_;
  ReEnter();
}

void AllocatorOperations::BeforeMove(const RelocationMove& /*move*/) {
  ReEnter();
}

void AllocatorOperations::AfterMove(const RelocationMove& /*move*/,
                                    MoveAction /*action*/) {
  ReEnter();
}

void AllocatorOperations::ReEnter() {
  if (!hooks_re_enter_ || inside_hook_ || re_entries_left_ == 0) return;
  // What this causes is told to the hooks in turn.
  --re_entries_left_;
  inside_hook_ = true;
  hook_error_.Update(allocator_->CheckInvariants());
  if (const auto address = allocator_->Allocate(Bytes(700)); address.ok()) {
    ++allocations_;
    ++frees_;
    hook_error_.Update(allocator_->Free(*address));
  }
  inside_hook_ = false;
}

Bytes AllocatorOperations::OnOutOfMemory(
    const OutOfMemoryVerdict& /*verdict*/) {
  if (!hooks_give_ || inside_hook_) return Bytes(0);
  const auto victim =
      std::find_if(model_.begin(), model_.end(), [](const auto& entry) {
        return entry.second.pins == 0 && !entry.second.moving;
      });
  if (victim == model_.end()) return Bytes(0);
  const Bytes size(victim->second.allocated);
  hook_error_.Update(Free(victim, generation_));
  return size;
}

}  // namespace quire
