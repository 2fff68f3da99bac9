#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_format.h"
#include "alloc/mesh_planner.h"
#include "alloc/owner_heap.h"
#include "quire/alloc/status_macros.h"

namespace quire {

absl::Status OwnerHeap::Mesh(Bytes smallest_slot, StreamId stream,
                             const std::function<bool(Block)>& is_pinned,
                             CompactionReport* report) {
  const std::vector<std::vector<HostSlab>> slabs = FindSettledSlabs();
  for (int i = 0; i < classes_.count(); ++i) {
    if (classes_.slot_size(i) < smallest_slot) continue;
    const std::vector<const HostSlab*> members =
        FindMeshMembers(i, slabs[i], is_pinned);
    for (const std::vector<uint32_t>& plan :
         PlanMesh(MasksOf(members), order_.Next())) {
      std::vector<const HostSlab*> group;
      for (const uint32_t index : plan) group.push_back(members[index]);
      QUIRE_RETURN_IF_ERROR(MeshGroup(group, stream, report));
    }
  }
  return absl::OkStatus();
}

std::vector<std::vector<OwnerHeap::HostSlab>> OwnerHeap::FindSettledSlabs()
    const {
  std::vector<std::vector<HostSlab>> slabs(states_.size());
  absl::flat_hash_map<const Span*, std::vector<Span*>> guests;
  for (Span* const span : spans_->spans()) {
    if (span == nullptr || span->heap != this || span->large()) continue;
    if (span->host != nullptr) {
      guests[span->host].push_back(span);
    } else if (span->detour == nullptr && span->cooling == 0 &&
               span->out() > 0) {
      slabs[span->size_class].push_back({span, {}});
    }
  }
  for (std::vector<HostSlab>& of_class : slabs) {
    for (HostSlab& slab : of_class) {
      if (slab.span->guests > 0) slab.guests = std::move(guests[slab.span]);
    }
    // So that plans do not depend on where records lie.
    std::sort(of_class.begin(), of_class.end(),
              [](const HostSlab& a, const HostSlab& b) {
                return a.span->base < b.span->base;
              });
  }
  return slabs;
}

bool OwnerHeap::AllLive(const HostSlab& slab,
                        const std::function<bool(Block)>& wanted,
                        uint64_t* live) {
  *live = 0;
  // A host's map has the slots of its guests as taken; their records are the
  // guests'.
  const auto holds_in = [&](Span* span) {
    return span->free_slots.AllTaken([&](uint32_t slot) {
      const Block block = {span, slot};
      if (block.record().load().use() != SlotUse::kLive) return true;
      ++*live;
      return wanted(block);
    });
  };
  return holds_in(slab.span) &&
         std::all_of(slab.guests.begin(), slab.guests.end(), holds_in);
}

std::vector<const OwnerHeap::HostSlab*> OwnerHeap::FindMeshMembers(
    int size_class, const std::vector<HostSlab>& slabs,
    const std::function<bool(Block)>& is_pinned) const {
  std::vector<const HostSlab*> members;
  for (const HostSlab& slab : slabs) {
    uint64_t live = 0;
    if (slab.span->free_slots.free_count() > 0 &&
        slab.span->slot_count == classes_.slots_per_slab(size_class) &&
        AllLive(slab, std::not_fn(is_pinned), &live)) {
      members.push_back(&slab);
    }
  }
  return members;
}

std::vector<LiveMask> OwnerHeap::MasksOf(
    const std::vector<const HostSlab*>& members) {
  std::vector<LiveMask> masks;
  for (const HostSlab* const member : members) {
    const SlotMap& slots = member->span->free_slots;
    LiveMask& mask = masks.emplace_back(slots.word_count());
    for (size_t i = 0; i < mask.size(); ++i) mask[i] = slots.TakenOf(i);
  }
  return masks;
}

absl::Status OwnerHeap::MeshGroup(const std::vector<const HostSlab*>& group,
                                  StreamId stream, CompactionReport* report) {
  // The one with the most to copy stays where it is.
  const HostSlab* const host = *std::max_element(
      group.begin(), group.end(), [](const HostSlab* a, const HostSlab* b) {
        return a->span->out() < b->span->out();
      });
  // Nothing is changed until everything has been copied.
  for (const HostSlab* const member : group) {
    if (member == host) continue;
    QUIRE_RETURN_IF_ERROR(CopyLive(*member->span, *host->span, stream, report));
  }
  QUIRE_RETURN_IF_ERROR(memory_->driver()->SynchronizeStream(stream));
  for (const HostSlab* const member : group) {
    if (member == host) continue;
    QUIRE_RETURN_IF_ERROR(RemapMember(*member, *host->span));
    report->pages_freed =
        PageCount(report->pages_freed.value() + PagesOf(*member->span));
    BecomeGuest(*member, host->span);
  }
  return absl::OkStatus();
}

absl::Status OwnerHeap::RemapMember(const HostSlab& member, const Span& to) {
  const auto pages_of = [this](const Span& span) {
    std::vector<PageHandle> pages;
    const Piece& home = span.pieces.front();
    for (uint64_t at = home.begin; at < home.end(); at += page_bytes_) {
      pages.push_back(arena_.PageAt(at));
    }
    return pages;
  };
  // The slab last: while it has its pages they are to be had again.
  std::vector<Span*> spans = member.guests;
  spans.push_back(member.span);
  const std::vector<PageHandle> from_pages = pages_of(*member.span);
  const std::vector<PageHandle> to_pages = pages_of(to);
  for (size_t i = 0; i < spans.size(); ++i) {
    const absl::Status status =
        arena_.Remap(spans[i]->pieces.front(), to_pages);
    if (status.ok()) continue;
    for (size_t done = 0; done < i; ++done) {
      QUIRE_RETURN_IF_ERROR(
          arena_.Remap(spans[done]->pieces.front(), from_pages));
    }
    return status;
  }
  return absl::OkStatus();
}

// Whatever of the slots of `from` is not free, guests included: they lie on its
// pages.
absl::Status OwnerHeap::CopyLive(const Span& from, const Span& to,
                                 StreamId stream,
                                 CompactionReport* report) const {
  for (uint32_t i = 0; i < from.slot_count; ++i) {
    if (from.free_slots.IsFree(i)) continue;
    const uint64_t offset = i * from.slot_size;
    QUIRE_RETURN_IF_ERROR(memory_->driver()->CopyOnDevice(
        DeviceAddress(to.base + offset), DeviceAddress(from.base + offset),
        Bytes(from.slot_size), stream));
    ++report->moves;
    report->bytes_moved = Bytes(report->bytes_moved.value() + from.slot_size);
  }
  return absl::OkStatus();
}

void OwnerHeap::BecomeGuest(const HostSlab& member, Span* host) {
  Span* const slab = member.span;
  ClassState& state = states_[slab->size_class];
  const uint64_t slot_size = slab->slot_size;
  span_bytes_ -= slab->capacity();
  free_bytes_ -= slab->free_slots.free_count() * slot_size;
  slab_slack_bytes_ -= RoomOf(*slab) - slab->capacity();
  state.idle_slots -= slab->free_slots.free_count();
  --slabs_;
  --state.slabs;
  RemovePartial(slab);
  arena_.Lend(slab->pieces.front());

  for (uint32_t i = 0; i < slab->slot_count; ++i) {
    if (!slab->free_slots.IsFree(i)) host->free_slots.TakeThis(i);
  }
  free_bytes_ -= slab->out() * slot_size;
  state.idle_slots -= slab->out();
  if (host->free_slots.free_count() == 0) RemovePartial(host);

  for (Span* const guest : member.guests) {
    for (uint32_t i = 0; i < guest->slot_count; ++i) {
      if (!guest->free_slots.IsFree(i)) slab->free_slots.Put(i);
    }
    guest->host = host;
    ++host->guests;
  }
  slab->guests = 0;
  slab->host = host;
  ++host->guests;
  // It may have had nothing but guests.
  if (slab->out() == 0) DropGuest(slab, Fence());
}

void OwnerHeap::DropGuest(Span* guest, const Fence& fence) {
  const Piece home = guest->pieces.front();
  --guest->host->guests;
  guest->host = nullptr;
  RemoveSpan(guest);
  arena_.TakeHome(home, fence);
}

absl::Status OwnerHeap::CheckGuest(const Span& span) const {
  const auto broken = [&span](const char* what) {
    return absl::InternalError(
        absl::StrFormat("guest at %#x: %s", span.base, what));
  };
  const Span& host = *span.host;
  if (host.host != nullptr || host.guests == 0 || host.heap != this ||
      host.slot_count != span.slot_count || host.slot_size != span.slot_size) {
    return broken("its host is none");
  }
  if (span.out() == 0 || span.cooling > 0 || span.detour != nullptr ||
      span.list_position != SIZE_MAX) {
    return broken("has nothing, or what only a host has");
  }
  for (uint32_t i = 0; i < span.slot_count; ++i) {
    const bool held = !span.free_slots.IsFree(i);
    if (held && host.free_slots.IsFree(i)) {
      return broken("holds a slot that is free in its host");
    }
    if (!held && span.record(i).load().use() == SlotUse::kLive) {
      return broken("a slot is live that it does not hold");
    }
  }
  if (arena_.PageAt(span.base) != arena_.PageAt(host.base)) {
    return broken("lies on other pages than its host");
  }
  return absl::OkStatus();
}

}  // namespace quire
