#include "alloc/testing/allocator_operations.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <iterator>
#include <mutex>
#include <thread>
#include <utility>

#include "alloc/testing/contradiction.h"
#include "quire/alloc/status_macros.h"
#include "quire/alloc/verdict.h"

namespace quire {
namespace {

constexpr uint64_t kDevicePages = 64;
constexpr uint64_t kAddressPages = 4096;
constexpr size_t kMostStreams = 6;
constexpr size_t kMostLive = 400;
constexpr int kReEntriesPerStep = 3;
// Long beside an operation; short beside a test.
constexpr std::chrono::milliseconds kLongestLag(2);

}  // namespace

class AllocatorOperations::Lag {
 public:
  void Wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    opened_.wait_for(lock, kLongestLag, [this] { return open_; });
  }
  void Open() {
    const std::lock_guard<std::mutex> lock(mutex_);
    open_ = true;
    opened_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable opened_;
  bool open_ = false;
};

HostDriverOptions AllocatorOperations::DriverOptions() {
  HostDriverOptions options;
  options.granularity = kPage;
  options.memory_per_device = Bytes(kDevicePages * kPageBytes);
  return options;
}

AllocatorOperations::AllocatorOperations(Driver* driver,
                                         std::span<const uint8_t> bytes)
    : driver_(driver), bytes_(bytes) {
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
  options.page_size = kPage;
  options.limit = Bytes(kLimitPages * kPageBytes);
  options.address_space = Bytes(kAddressPages * kPageBytes);
  const uint64_t setting = Next();
  capacity_ = options.limit;
  if (setting % 4 == 0) {
    // Less than the limit is left of the device.
    capacity_ = Bytes((kLimitPages - 4) * kPageBytes);
    options.headroom = Bytes(kDevicePages * kPageBytes - capacity_.value());
  }
  if (setting / 4 % 2 == 0) options.trace = &trace_;
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
      return Below(8) * kPageBytes;
    case 2:
    case 3:
    case 4:
      return (Next() << 8 | Next()) * 6;
    case 5:
      return kind / 16 == 0 ? UINT64_MAX - Next() : Next() << 12;
    case 6:
    case 7:  // what is meshed
      return kPageBytes >> (1 + Below(5));
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
      return ChangeLimits();
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
      return CheckLiveAllocations();
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
    default: {
      const auto lag = std::make_shared<Lag>();
      lags_.push_back(lag);
      return Launch(SomeStream(), [lag] { lag->Wait(); });
    }
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

absl::Status AllocatorOperations::Allocate() {
  AllocateOptions options;
  const uint64_t how = Next();
  options.stream = how % 8 == 0 ? StreamId() : SomeStream();
  options.owner = owner_ids_[how / 8 % owner_ids_.size()];
  options.movable = how / 32 % 2 == 0;
  if (how / 64 == 0) options.alignment = Bytes(uint64_t{1} << Below(20));
  const uint64_t size = NextSize();
  if (model_.size() >= kMostLive) return absl::OkStatus();
  const uint64_t largest =
      allocator_->GetLargestPossible(options.owner).value();
  const GraphPoolId pool = PoolFor(options.stream);
  const auto address = allocator_->Allocate(Bytes(size), options);
  if (!address.ok() && pool == GraphPoolId() && IsAsleep(options.owner) &&
      absl::IsFailedPrecondition(address.status())) {
    return absl::OkStatus();
  }
  if (!address.ok()) {
    // Alignment is not part of the promise, and what was freed on a captured
    // stream waits for the end of the capture.
    return CheckRefusal(address.status(), size, largest,
                        options.alignment <= kDefaultAlignment &&
                            captures_.empty() && !IsAsleep(options.owner));
  }
  // The pool's is the owner of what it hands out.
  if (pool != GraphPoolId()) options.owner = graph_pools_.at(pool);
  QUIRE_RETURN_IF_ERROR(Enter(*address, size, options));
  const Live& live = model_.at(address->value());
  const uint64_t end = address->value() + live.allocated;
  QUIRE_RETURN_IF_ERROR(CheckKept(address->value(), end, pool));
  if (pool != GraphPoolId()) kept_[address->value()] = {end, pool};
  return absl::OkStatus();
}

absl::Status AllocatorOperations::CheckRefusal(const absl::Status& status,
                                               uint64_t size, uint64_t largest,
                                               bool promised) {
  const auto verdict = OutOfMemoryVerdict::FromStatus(status);
  if (!absl::IsResourceExhausted(status) || !verdict) {
    return Contradiction("%u bytes: %s", size, status.ToString());
  }
  // Room that is left within pages may go with its pages while an owner that is
  // at its limit looks for others.
  if (promised && largest >= kPageBytes && size <= largest &&
      verdict->kind != ShortageKind::kAddressSpace) {
    return Contradiction("%u bytes were promised of %u: %s", largest, size,
                         status.ToString());
  }
  return absl::OkStatus();
}

absl::Status AllocatorOperations::Enter(DeviceAddress address, uint64_t size,
                                        const AllocateOptions& options) {
  ++allocations_;
  const auto info = allocator_->Find(address);
  if (!info || info->requested != Bytes(size) ||
      info->allocated < Bytes(size) || info->owner != options.owner ||
      info->stream != options.stream || info->address != address) {
    return Contradiction("%u bytes at %#x are not found as they are", size,
                         address.value());
  }
  if (address.value() % options.alignment.value() != 0 ||
      address.value() % kDefaultAlignment.value() != 0) {
    return Contradiction("%#x is not aligned to %u", address.value(),
                         options.alignment.value());
  }
  Live live = {{address, size, ++generation_},
               std::max<uint64_t>(info->allocated.value(), 1),
               options.owner,
               options.stream,
               {},
               options.movable};
  const auto next = model_.lower_bound(address.value());
  if ((next != model_.end() &&
       address.value() + live.allocated > next->first) ||
      (next != model_.begin() &&
       std::prev(next)->first + std::prev(next)->second.allocated >
           address.value())) {
    return Contradiction("%u bytes at %#x lie over others", size,
                         address.value());
  }
  const Pattern pattern = live.pattern;
  if (options.stream == StreamId()) {
    pattern.Write();
  } else {
    live.streams.push_back(options.stream);
    QUIRE_RETURN_IF_ERROR(
        Launch(options.stream, [pattern] { pattern.Write(); }));
  }
  model_.emplace(address.value(), std::move(live));
  return absl::OkStatus();
}

absl::Status AllocatorOperations::FreeSome() {
  const auto victim = SomeLive();
  const uint64_t how = Next();
  return victim == model_.end() ? absl::OkStatus() : Free(victim, how);
}

// All earlier uses are brought before a last one, on the stream of the free.
absl::Status AllocatorOperations::Free(Model::iterator victim, uint64_t how) {
  const Live live = victim->second;
  const DeviceAddress address = live.pattern.address;
  if (live.asleep) {
    const StreamId last = how % 2 == 0 ? StreamId() : streams_.front();
    QUIRE_RETURN_IF_ERROR(allocator_->Free(address, last));
    ++frees_;
    model_.erase(victim);
    return absl::OkStatus();
  }
  if (live.pins > 0 || live.moving) {
    return ExpectCode(allocator_->Free(address),
                      absl::StatusCode::kFailedPrecondition,
                      "free of what is pinned or moving");
  }
  const auto check = [this, pattern = live.pattern] {
    if (!pattern.Holds()) ++corrupt_;
  };
  StreamId last;  // everybody is done
  if (how % 4 != 0) {
    last = how % 4 == 1 || live.streams.empty()
               ? streams_[how / 4 % streams_.size()]
               : live.streams.front();
    for (const StreamId stream : live.streams) {
      QUIRE_RETURN_IF_ERROR(Join(stream, last));
    }
    QUIRE_RETURN_IF_ERROR(Launch(last, check));
  } else {
    for (const StreamId stream : live.streams) {
      QUIRE_RETURN_IF_ERROR(driver_->SynchronizeStream(stream));
    }
    check();
  }
  QUIRE_RETURN_IF_ERROR(allocator_->Free(address, last));
  ++frees_;
  model_.erase(victim);
  return absl::OkStatus();
}

absl::Status AllocatorOperations::Record() {
  const auto position = SomeLive();
  const StreamId stream = SomeStream();
  if (position == model_.end()) return absl::OkStatus();
  Live& live = position->second;
  if (live.asleep) {
    return allocator_->RecordStream(live.pattern.address, stream);
  }
  if (!live.streams.empty()) {
    QUIRE_RETURN_IF_ERROR(Join(live.streams.front(), stream));
  }
  QUIRE_RETURN_IF_ERROR(Launch(stream, [this, pattern = live.pattern] {
    if (!pattern.Holds()) ++corrupt_;
  }));
  if (std::find(live.streams.begin(), live.streams.end(), stream) ==
      live.streams.end()) {
    live.streams.push_back(stream);
  }
  return allocator_->RecordStream(live.pattern.address, stream);
}

absl::Status AllocatorOperations::PinOrUnpin() {
  const auto position = SomeLive();
  const bool pin = Below(2) == 0;
  if (position == model_.end()) return absl::OkStatus();
  Live& live = position->second;
  if (pin && !live.moving && !live.asleep) {
    ++live.pins;
    return allocator_->Pin(live.pattern.address);
  }
  if (pin || live.pins == 0) {
    return ExpectCode(pin ? allocator_->Pin(live.pattern.address)
                          : allocator_->Unpin(live.pattern.address),
                      absl::StatusCode::kFailedPrecondition,
                      "pin of what moves or sleeps, or unpin of what is not "
                      "pinned");
  }
  --live.pins;
  return allocator_->Unpin(live.pattern.address);
}

absl::Status AllocatorOperations::Trim() {
  const uint64_t keep = Below(kLimitPages) * kPageBytes;
  const uint64_t how = Below(8);
  if (how == 7) {
    const absl::Status prepared = memory_->Prepare(PageCount(Below(8)));
    return absl::IsResourceExhausted(prepared) ? absl::OkStatus() : prepared;
  }
  if (how < 2) {
    memory_->Trim(PageCount(keep / kPageBytes));
    return absl::OkStatus();
  }
  const uint64_t before = allocator_->GetStatistics().mapped_bytes;
  const uint64_t given =
      allocator_->Trim(Bytes(keep)).pages_freed.value() * kPageBytes;
  const uint64_t after = allocator_->GetStatistics().mapped_bytes;
  // Hooks may have taken some again.
  if (!hooks_re_enter_ && before - after != given) {
    return Contradiction("trim gave %u bytes and said %u", before - after,
                         given);
  }
  return absl::OkStatus();
}

// What must be refused, and change nothing.
absl::Status AllocatorOperations::Refuse() {
  const auto position = SomeLive();
  AllocateOptions options;
  options.alignment = Bytes(Below(3) * 3);  // 0, 3, 6
  QUIRE_RETURN_IF_ERROR(
      ExpectCode(allocator_->Allocate(Bytes(64), options).status(),
                 absl::StatusCode::kInvalidArgument, "alignment"));
  QUIRE_RETURN_IF_ERROR(ExpectCode(allocator_->Free(DeviceAddress(kPageBytes)),
                                   absl::StatusCode::kInvalidArgument,
                                   "free of a foreign address"));
  if (position == model_.end()) return absl::OkStatus();
  const Live& live = position->second;
  if (live.allocated > 1) {
    const absl::Status interior = allocator_->Free(
        DeviceAddress(position->first + 1 + Below(255)), SomeStream());
    if (interior.ok()) return Contradiction("an interior address was freed");
  }
  const StreamId never(UINT64_MAX - 7);
  return ExpectCode(
      allocator_->RecordStream(position->second.pattern.address, never),
      absl::StatusCode::kNotFound, "record of no stream");
}

absl::Status AllocatorOperations::ChangeLimits() {
  const uint64_t which = Below(owner_ids_.size() + 1);
  const uint64_t pages = Below(kLimitPages + 8);
  if (which == owner_ids_.size()) {
    return memory_->SetLimit(
        Bytes(std::max<uint64_t>(pages, kLimitPages / 2) * kPageBytes));
  }
  OwnerLimits limits;
  if (pages < kLimitPages) limits.hard = Bytes((pages + 1) * kPageBytes);
  limits.soft = Bytes(pages / 2 * kPageBytes);
  if (Below(3) == 0) limits.reserved_minimum = Bytes(Below(8) * kPageBytes);
  const absl::Status status =
      memory_->SetOwnerLimits(owner_ids_[which], limits);
  const bool contradicts =
      !limits.hard.zero() && limits.reserved_minimum > limits.hard;
  if (contradicts) {
    return ExpectCode(status, absl::StatusCode::kInvalidArgument,
                      "a minimum above the hard limit");
  }
  // Others may have it already.
  return !limits.reserved_minimum.zero() && absl::IsFailedPrecondition(status)
             ? absl::OkStatus()
             : status;
}

absl::Status AllocatorOperations::ChangeStreams() {
  if (streams_.size() < kMostStreams && Below(2) == 0) {
    QUIRE_ASSIGN_OR_RETURN(const StreamId stream,
                           driver_->CreateStream(DeviceId(0)));
    streams_.push_back(stream);
    return absl::OkStatus();
  }
  if (streams_.size() < 2) return absl::OkStatus();
  // Its work is done from then on.
  const auto victim =
      streams_.begin() + static_cast<std::ptrdiff_t>(Below(streams_.size()));
  const StreamId stream = *victim;
  if (captures_.contains(stream)) return absl::OkStatus();
  streams_.erase(victim);
  for (auto& [address, live] : model_) std::erase(live.streams, stream);
  return driver_->DestroyStream(stream);
}

// Somebody else needs pages for a while.
absl::Status AllocatorOperations::UsePoolDirectly() {
  if (neighbour_ != nullptr && Below(3) == 0) {
    const absl::Status status = memory_->SetOwner(neighbour_, SomeOwner());
    // By its new owner's limits, or because it sleeps.
    return absl::IsResourceExhausted(status) ||
                   absl::IsFailedPrecondition(status)
               ? absl::OkStatus()
               : status;
  }
  if (neighbour_ != nullptr) {
    memory_->ReleaseRange(std::exchange(neighbour_, nullptr), Fence());
    return absl::OkStatus();
  }
  const PageCount pages(1 + Below(8));
  QUIRE_ASSIGN_OR_RETURN(neighbour_, memory_->ReserveRange(pages, SomeOwner()));
  const absl::Status status = memory_->Commit(neighbour_, PageCount(0), pages);
  return absl::IsResourceExhausted(status) ? absl::OkStatus() : status;
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
  QUIRE_RETURN_IF_ERROR(memory_->SetLimit(Bytes(kLimitPages * kPageBytes)));
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

// ---- Streams ----------------------------------------------------------------

bool AllocatorOperations::IsUsed(StreamId stream) const {
  return std::any_of(model_.begin(), model_.end(), [&](const auto& entry) {
    const auto& streams = entry.second.streams;
    return entry.second.allocated_for == stream ||
           std::find(streams.begin(), streams.end(), stream) != streams.end();
  });
}

absl::Status AllocatorOperations::Launch(StreamId stream,
                                         std::function<void()> work) {
  return driver_->LaunchHostFunction(stream, std::move(work));
}

absl::Status AllocatorOperations::Join(StreamId from, StreamId to) {
  if (from == to) return absl::OkStatus();
  QUIRE_ASSIGN_OR_RETURN(const EventId event,
                         driver_->CreateEvent(DeviceId(0)));
  QUIRE_RETURN_IF_ERROR(driver_->RecordEvent(event, from));
  QUIRE_RETURN_IF_ERROR(driver_->WaitEvent(to, event));
  return driver_->DestroyEvent(event);
}

absl::StatusOr<QuiescentSection> AllocatorOperations::Quiesce() {
  const bool all = Below(2) == 0;
  if (all) EndLags();
  // By its stream, or by an event on it.
  std::vector<StreamId> streams;
  std::vector<EventId> events;
  for (const StreamId stream : streams_) {
    if (!all && !IsUsed(stream)) continue;
    if (Below(2) == 0) {
      streams.push_back(stream);
      continue;
    }
    QUIRE_ASSIGN_OR_RETURN(const EventId event,
                           driver_->CreateEvent(DeviceId(0)));
    events.push_back(event);
    QUIRE_RETURN_IF_ERROR(driver_->RecordEvent(event, stream));
  }
  auto section = QuiescentSection::Begin(memory_.get(), streams, events);
  for (const EventId event : events) {
    QUIRE_RETURN_IF_ERROR(driver_->DestroyEvent(event));
  }
  return section;
}

void AllocatorOperations::EndLags() {
  for (const auto& lag : lags_) lag->Open();
  lags_.clear();
}

AllocatorOperations::Model::iterator AllocatorOperations::SomeLive() {
  const uint64_t at = Next() << 8 | Next();
  if (model_.empty()) return model_.end();
  return std::next(model_.begin(),
                   static_cast<std::ptrdiff_t>(at % model_.size()));
}

}  // namespace quire
