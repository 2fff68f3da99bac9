// Memory that comes and goes among the operations: allocations and frees, what
// is recorded and pinned, trims, wrong calls, limits, and a neighbour who takes
// pages of the pool.

#include <algorithm>
#include <iterator>
#include <utility>

#include "alloc/testing/allocator_operations.h"
#include "alloc/testing/contradiction.h"
#include "quire/alloc/status_macros.h"
#include "quire/alloc/verdict.h"

namespace quire {
namespace {

constexpr size_t kMostLive = 400;

}  // namespace

AllocatorOperations::Model::iterator AllocatorOperations::SomeLive() {
  const uint64_t at = Next() << 8 | Next();
  if (model_.empty()) return model_.end();
  return std::next(model_.begin(),
                   static_cast<std::ptrdiff_t>(at % model_.size()));
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
  const uint64_t before = allocations_;
  const auto address = allocator_->Allocate(Bytes(size), options);
  if (!address.ok() && pool == GraphPoolId() && IsAsleep(options.owner) &&
      absl::IsFailedPrecondition(address.status())) {
    return absl::OkStatus();
  }
  if (!address.ok()) {
    // Alignment is not part of the promise, what was freed on a captured stream
    // waits for the end of the capture, and a hook that the request caused may
    // have taken a page for another owner, whose reservation keeps it.
    return CheckRefusal(address.status(), size, largest,
                        options.alignment <= kDefaultAlignment &&
                            captures_.empty() && !IsAsleep(options.owner) &&
                            allocations_ == before);
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
  if (promised && largest > 0 && size <= largest &&
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
      info->stream != options.stream || info->address != address ||
      allocator_->OwnerOf(address) != options.owner) {
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
  const uint64_t keep = Below(kLimitPages) * page_.value();
  const uint64_t how = Below(8);
  if (how == 7) {
    const absl::Status prepared = memory_->Prepare(PageCount(Below(8)));
    return absl::IsResourceExhausted(prepared) ? absl::OkStatus() : prepared;
  }
  if (how < 2) {
    memory_->Trim(PageCount(keep / page_.value()));
    return absl::OkStatus();
  }
  const uint64_t before = allocator_->GetStatistics().mapped_bytes;
  const uint64_t given =
      allocator_->Trim(Bytes(keep)).pages_freed.value() * page_.value();
  const uint64_t after = allocator_->GetStatistics().mapped_bytes;
  // Hooks may have taken some again.
  if (!hooks_re_enter_ && before - after != given) {
    return Contradiction("trim gave %u bytes and said %u", before - after,
                         given);
  }
  return absl::OkStatus();
}

absl::Status AllocatorOperations::Harvest() {
  const uint64_t harvested = memory_->Harvest().value();
  const DeviceMemoryStatistics now = memory_->GetStatistics();
  // Unless a thread makes some meanwhile.
  if (prepares_ahead_ || now.cached.value() == harvested * page_.value()) {
    return absl::OkStatus();
  }
  return Contradiction("%u pages were harvested, and %u bytes are cached",
                       harvested, now.cached.value());
}

// What must be refused, and change nothing.
absl::Status AllocatorOperations::Refuse() {
  const auto position = SomeLive();
  AllocateOptions options;
  options.alignment = Bytes(Below(3) * 3);  // 0, 3, 6
  QUIRE_RETURN_IF_ERROR(
      ExpectCode(allocator_->Allocate(Bytes(64), options).status(),
                 absl::StatusCode::kInvalidArgument, "alignment"));
  QUIRE_RETURN_IF_ERROR(ExpectCode(
      allocator_->Free(DeviceAddress(page_.value())),
      absl::StatusCode::kInvalidArgument, "free of a foreign address"));
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

// ---- Limits, and others on the same pages -----------------------------------

absl::Status AllocatorOperations::ChangeLimits() {
  const uint64_t which = Below(owner_ids_.size() + 1);
  const uint64_t pages = Below(kLimitPages + 8);
  if (which == owner_ids_.size()) {
    return memory_->SetLimit(
        Bytes(std::max<uint64_t>(pages, kLimitPages / 2) * page_.value()));
  }
  OwnerLimits limits;
  if (pages < kLimitPages) limits.hard = Bytes((pages + 1) * page_.value());
  limits.soft = Bytes(pages / 2 * page_.value());
  if (Below(3) == 0) limits.reserved_minimum = Bytes(Below(8) * page_.value());
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

// Refuses nothing: only the pressure that hooks are told of depends on it.
absl::Status AllocatorOperations::ChangeSoftLimit() {
  const uint64_t pages = Below(kLimitPages);
  QUIRE_RETURN_IF_ERROR(memory_->SetSoftLimit(Bytes(pages * page_.value())));
  const DeviceMemoryStatistics now = memory_->GetStatistics();
  const uint64_t used =
      now.live.value() + now.cooling.value() + now.quarantined.value();
  if (pages > 0 && used > pages * page_.value() &&
      memory_->pressure() < PressureLevel::kHigh) {
    return Contradiction(
        "%u bytes in use above a soft limit of %u pages press "
        "on nobody",
        used, pages);
  }
  return absl::OkStatus();
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

}  // namespace quire
