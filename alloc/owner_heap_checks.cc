// What the accounts of a heap say is what a walk over its spans finds.

#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "alloc/owner_heap.h"
#include "quire/alloc/status_macros.h"

namespace quire {

absl::Status OwnerHeap::CheckSpan(const Span& span, Sums* sums) const {
  const auto broken = [&span](const std::string& what) {
    return absl::InternalError(absl::StrFormat(
        "span of %u bytes at %#x: %s", span.capacity(), span.base, what));
  };
  const Span* const found = spans_->Find(span.address());
  if (found != (span.large() ? arena_.marker() : &span)) {
    return broken("not found by its address");
  }
  if (span.host != nullptr) {
    ++sums->guests;
    return CheckGuest(span);
  }
  sums->hosted += span.guests;
  sums->span_bytes += span.capacity();
  sums->cooling += span.cooling * span.slot_size;
  const uint64_t room = RoomOf(span);
  sums->rooms += room;
  if (span.large()) {
    ++sums->live_large;
    sums->large_bytes += span.capacity();
    if (span.slot_count != 1 || span.slot_size != room) {
      return broken("its pieces are of another length");
    }
    if (FindLarge(span.address()) != &span) return broken("is not listed");
    if (span.cooling > 1) return broken("cools more than once");
    return absl::OkStatus();
  }
  if (span.capacity() > room) return broken("its slots do not fit");
  if (span.free_slots.CalculateFree() != span.free_slots.free_count() ||
      span.free_slots.size() != span.slot_count) {
    return broken("its free slots are miscounted");
  }
  sums->slack += room - span.capacity();
  sums->free += span.free_slots.free_count() * span.slot_size;
  ++sums->slabs;
  for (uint32_t i = 0; i < span.slot_count; ++i) {
    if (span.free_slots.IsFree(i) &&
        span.record(i).load().use() == SlotUse::kLive) {
      return broken(absl::StrFormat("slot %u is free and live", i));
    }
  }
  const std::vector<Span*>& partial = states_[span.size_class].partial;
  const bool listed = span.list_position != SIZE_MAX;
  if (listed != (span.free_slots.free_count() > 0) ||
      (listed && (span.list_position >= partial.size() ||
                  partial[span.list_position] != &span))) {
    return broken("its place in the list of its class is wrong");
  }
  sums->idle_slots[span.size_class] +=
      span.free_slots.free_count() + span.cooling;
  sums->empty_slabs[span.size_class] += span.out() == 0 ? 1 : 0;
  ++sums->slabs_of[span.size_class];
  return absl::OkStatus();
}

absl::Status OwnerHeap::CheckInvariants() const {
  Sums sums;
  sums.idle_slots.resize(states_.size());
  sums.empty_slabs.resize(states_.size());
  sums.slabs_of.resize(states_.size());
  for (const Span* const span : spans_->spans()) {
    if (span == nullptr || span->heap != this) continue;
    QUIRE_RETURN_IF_ERROR(CheckSpan(*span, &sums));
  }
  for (const auto& [what, walked, kept] :
       {std::tuple{"bytes of spans", sums.span_bytes, span_bytes_},
        {"large allocations", sums.live_large, uint64_t{large_.size()}},
        {"bytes of large allocations", sums.large_bytes, large_bytes_},
        {"free bytes", sums.free, free_bytes_},
        {"cooling bytes", sums.cooling, cooling_bytes_},
        {"slack at the ends of slabs", sums.slack, slab_slack_bytes_},
        {"slabs", sums.slabs, slabs_},
        {"guests of slabs", sums.guests, sums.hosted}}) {
    if (walked == kept) continue;
    return absl::InternalError(absl::StrFormat(
        "heap of owner %u: %s is %u by walking the spans, %u by the accounts",
        owner_.value(), what, walked, kept));
  }
  uint64_t run_bytes = 0;
  for (const auto& list : free_lists_) run_bytes += list->runs().bytes();
  if (run_bytes != run_bytes_) {
    return absl::InternalError("bytes in the lists of streams miscounted");
  }
  QUIRE_RETURN_IF_ERROR(arena_.CheckInvariants(run_bytes_, sums.rooms));
  if (!asleep_) QUIRE_RETURN_IF_ERROR(arena_.CheckBacking());
  for (size_t i = 0; i < states_.size(); ++i) {
    const ClassState& state = states_[i];
    if (sums.idle_slots[i] != state.idle_slots ||
        sums.slabs_of[i] != state.slabs ||
        sums.empty_slabs[i] != state.empty_slabs || state.empty_slabs > 1 ||
        (state.empty_slabs == 1 && state.partial.front()->out() > 0)) {
      return absl::InternalError(absl::StrFormat(
          "heap of owner %u, class %u: %u idle slots (%u walked), %u empty "
          "slabs (%u walked), or the empty one is not the first",
          owner_.value(), i, state.idle_slots, sums.idle_slots[i],
          state.empty_slabs, sums.empty_slabs[i]));
    }
  }
  return absl::OkStatus();
}

}  // namespace quire
