// What DeviceMemory does when memory is short: ask the reclaimers, wait for
// what cools, and say why that was not enough.

#include <algorithm>
#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "alloc/device_memory_impl.h"
#include "alloc/poll_interval.h"
#include "quire/alloc/verdict.h"

namespace quire {
namespace {

// There is no driver call that waits for the first of several fences, and to
// wait for one of them would let a slow stream hold up every other: so they are
// asked in turn, at intervals that grow from the first figure to the second.
constexpr std::chrono::microseconds kFirstPollInterval(20);
constexpr std::chrono::microseconds kLastPollInterval(500);

// Events of the trace in a verdict: enough to see what kind of work it was.
constexpr size_t kRecentEvents = 16;

}  // namespace

// ---- Relief -----------------------------------------------------------------

bool DeviceMemory::Impl::Relieve(uint64_t wanted, ReliefState* state) {
  if (!state->asked_reclaimers &&
      AskReclaimers(wanted, /*cooling=*/false, *state)) {
    state->asked_reclaimers = true;
    return true;
  }
  // What reclaimers gave may be cooling: it comes before asking for more.
  if (state->may_wait) {
    AskReclaimers(wanted, /*cooling=*/true, *state);
    if (WaitForCooling(state->freed_before)) {
      state->asked_reclaimers = false;
      return true;
    }
  }
  if (state->asked_reclaimers &&
      AskReclaimers(wanted, /*cooling=*/false, *state)) {
    return true;
  }
  return state->may_wait && AskUntilNoneAwaits([&] {
           return AskReclaimers(wanted, /*cooling=*/false, *state) ||
                  AskReclaimers(wanted, /*cooling=*/true, *state);
         });
}

bool DeviceMemory::Impl::RelieveOwner(const CommitAttempt& attempt,
                                      const ReliefState& state) {
  const auto ask = [&](bool cooling) {
    if (!attempt.limited_by) {
      return AskReclaimers(attempt.missing, cooling, state);
    }
    AskForPagesOf(*attempt.limited_by, attempt.missing, cooling);
    return HasProgressed(state);
  };
  if (!state.may_wait) return ask(/*cooling=*/false);
  // The pool's own pages need no wait: those that cool there are nobody's.
  return AskUntilNoneAwaits(
      [&] { return ask(/*cooling=*/false) || ask(/*cooling=*/true); });
}

bool DeviceMemory::Impl::AskUntilNoneAwaits(absl::FunctionRef<bool()> ask) {
  for (PollInterval interval;; interval.Sleep()) {
    // Before they are asked: a page whose last part is free between the two is
    // given now, and not missed.
    bool awaits = false;
    {
      const HookScope scope(&dispatcher_);
      reclaimers_.ForEach([&awaits](PageReclaimer* reclaimer) {
        awaits = reclaimer->AwaitsPartsOfPages();
        return !awaits;
      });
    }
    if (ask()) return true;
    if (!awaits) return false;
  }
}

bool DeviceMemory::Impl::AskReclaimers(uint64_t wanted, bool cooling,
                                       const ReliefState& state) {
  uint64_t given = 0;
  for (const OwnerExcess& over : OwnersOverSoftLimit()) {
    if (given >= wanted) break;
    given += AskForPagesOf(over.owner, std::min(over.pages, wanted - given),
                           cooling);
  }
  if (given < wanted) {
    AskEach(wanted - given, [&](PageReclaimer* reclaimer, PageCount pages) {
      if (cooling) {
        reclaimer->ReclaimCooling(pages);
      } else {
        reclaimer->Reclaim(pages);
      }
    });
  }
  return HasProgressed(state);
}

uint64_t DeviceMemory::Impl::AskForPagesOf(OwnerId owner, uint64_t wanted,
                                           bool cooling) {
  return AskEach(wanted, [&](PageReclaimer* reclaimer, PageCount pages) {
    reclaimer->ReclaimFrom(owner, pages, cooling);
  });
}

uint64_t DeviceMemory::Impl::AskEach(uint64_t wanted, const Ask& ask) {
  // Counted here and not by what reclaimers say, so that one that promises and
  // does not give cannot keep a commit going round.
  const auto given_up = [this] {
    MutexLock lock(&mutex_);
    return backing_.pages_given_up();
  };
  const uint64_t before = given_up();
  uint64_t given = 0;
  // Reclaimers give up pages under locks of theirs.
  const HookScope scope(&dispatcher_);
  reclaimers_.ForEach([&](PageReclaimer* reclaimer) {
    ask(reclaimer, PageCount(wanted - given));
    given = given_up() - before;
    return given < wanted;
  });
  return given;
}

PageCount DeviceMemory::Impl::ReclaimablePages() {
  uint64_t sum = 0;
  reclaimers_.ForEach([&](PageReclaimer* reclaimer) {
    sum = SaturatingAdd(sum, reclaimer->Reclaimable().value());
    return true;
  });
  return PageCount(sum);
}

bool DeviceMemory::Impl::HasProgressed(const ReliefState& state) const {
  MutexLock lock(&mutex_);
  // A page under several slots comes with the last of them: each slot given up
  // is a step on the way.
  return backing_.slots_given_up() != state.given_up_before ||
         limits_set_ != state.limits_set_before;
}

std::vector<DeviceMemory::Impl::OwnerExcess>
DeviceMemory::Impl::OwnersOverSoftLimit() const {
  std::vector<OwnerExcess> over;
  MutexLock lock(&mutex_);
  const auto& accounts = backing_.accounts().owners().accounts();
  for (uint32_t id = 0; id < accounts.size(); ++id) {
    const uint64_t excess =
        SaturatingSubtract(accounts[id].live, accounts[id].limits.soft);
    if (excess > 0) over.push_back({OwnerId(id), excess});
  }
  return over;
}

bool DeviceMemory::Impl::WaitForCooling(uint64_t freed_before) {
  // What Harvest unmaps ends the wait, so that no news of it waits here.
  Section section(this);
  for (auto interval = kFirstPollInterval;;
       interval = std::min(interval * 2, kLastPollInterval)) {
    HarvestAll();
    if (FreedSoFar() != freed_before) {
      AfterMutation();
      freed_.NotifyAll();
      return true;
    }
    if (!backing_.CanCool()) return false;
    freed_.WaitFor(&mutex_, interval);
  }
}

// ---- Errors -----------------------------------------------------------------

OutOfMemoryVerdict DeviceMemory::Impl::DescribeShortage(PageCount pages,
                                                        OwnerId owner,
                                                        VerdictDetail detail) {
  ShortageFacts facts;
  facts.requested = PageBytes(pages.value());
  facts.reclaimable = PageBytes(ReclaimablePages().value());
  facts.device_total = device_total_;
  facts.headroom = headroom_;
  // Where the driver does not say, the device is taken to have what the pool
  // may still grow by: the verdict then rests on the pool's own numbers.
  const absl::StatusOr<DeviceMemoryInfo> info = driver_->GetMemoryInfo(device_);
  {
    MutexLock lock(&mutex_);
    const PagePool& pool = backing_.pool();
    facts.limit = PageBytes(pool.limit());
    facts.in_use = PageBytes(pool.in_use());
    facts.cached = PageBytes(pool.cached());
    facts.cooling = PageBytes(backing_.accounts().cooling());
    // Less than a page of free memory is none.
    facts.device_free = PageBytes(
        info.ok() ? info->free.value() / page_size_.value() : pool.growable());
    DescribeOwners(pages, owner, &facts);
    DescribeCooling(&facts);
  }
  DescribeCaptures(&facts);
  if (detail == VerdictDetail::kFull) {
    DescribeCompaction(&facts);
    DescribeSleep(owner, &facts);
    DescribeRecentEvents(&facts);
  }
  return DiagnoseShortage(std::move(facts));
}

void DeviceMemory::Impl::DescribeOwners(PageCount pages, OwnerId owner,
                                        ShortageFacts* facts) {
  OwnerAccounts& owners = backing_.owners();
  const uint64_t capacity = backing_.capacity();
  const auto refusal = owners.CheckGrowth(owner, pages.value(), capacity);
  if (refusal && refusal->limited_by) {
    const OwnerAccount& account = owners.AccountOf(*refusal->limited_by);
    facts->owner_limit =
        OwnerShortage{owners_->Name(*refusal->limited_by),
                      PageBytes(account.limits.hard), PageBytes(account.live)};
  }
  facts->allowance = PageBytes(owners.Allowance(owner, capacity));
  facts->reserved_for_others = PageBytes(owners.ReservedForOthers(owner));
  const std::vector<OwnerAccount>& accounts = owners.accounts();
  for (uint32_t id = 0; id < accounts.size(); ++id) {
    if (accounts[id].own == 0) continue;
    facts->owners.emplace_back(owners_->Name(OwnerId(id)),
                               PageBytes(accounts[id].own));
  }
}

void DeviceMemory::Impl::DescribeCooling(ShortageFacts* facts) const {
  for (const auto& [stream, slots] : backing_.CalculateCoolingByStream()) {
    facts->awaited.push_back({stream, PageBytes(slots)});
  }
}

void DeviceMemory::Impl::DescribeCaptures(ShortageFacts* facts) {
  std::map<StreamId, Bytes> awaited;
  for (const AwaitedStream& each : facts->awaited)
    awaited[each.stream] = each.cooling;
  reclaimers_.ForEach([&](PageReclaimer* reclaimer) {
    const PageReclaimer::CapturedPages more = reclaimer->GetCapturedPages();
    facts->captured =
        SaturatingAdd(facts->captured, PageBytes(more.pages.value()));
    for (const auto& [stream, bytes] : more.streams) {
      awaited[stream] = SaturatingAdd(awaited[stream], bytes);
    }
    return true;
  });
  facts->cooling = SaturatingAdd(facts->cooling, facts->captured);
  facts->awaited.clear();
  for (const auto& [stream, bytes] : awaited)
    facts->awaited.push_back({stream, bytes});
}

void DeviceMemory::Impl::DescribeCompaction(ShortageFacts* facts) {
  uint64_t mesh = 0;
  uint64_t relocation = 0;
  reclaimers_.ForEach([&](PageReclaimer* reclaimer) {
    const PageReclaimer::CompactionEstimate estimate =
        reclaimer->EstimateCompaction();
    mesh = SaturatingAdd(mesh, estimate.mesh.value());
    relocation = SaturatingAdd(relocation, estimate.relocation.value());
    return true;
  });
  facts->mesh_frees = PageBytes(mesh);
  facts->relocation_frees = PageBytes(relocation);
}

void DeviceMemory::Impl::DescribeSleep(OwnerId owner, ShortageFacts* facts) {
  std::vector<OwnerExcess> holders;
  {
    MutexLock lock(&mutex_);
    const auto& accounts = backing_.accounts().owners().accounts();
    for (uint32_t id = 0; id < accounts.size(); ++id) {
      if (accounts[id].own == 0) continue;
      // Who asks would sleep as well.
      if (owners_->IsWithin(owner, OwnerId(id))) continue;
      holders.push_back({OwnerId(id), accounts[id].own});
    }
  }
  for (const auto& [holder, pages] : holders) {
    bool can_sleep = true;
    reclaimers_.ForEach([&, id = holder](PageReclaimer* reclaimer) {
      can_sleep = reclaimer->CanSleep(id);
      return can_sleep;
    });
    if (!can_sleep) continue;
    facts->sleep_frees = SaturatingAdd(facts->sleep_frees, PageBytes(pages));
  }
}

void DeviceMemory::Impl::DescribeRecentEvents(ShortageFacts* facts) const {
  if (trace_ == nullptr) return;
  std::vector<TraceEvent> events = trace_->Events();
  // What follows from what the program did says no more about it.
  std::erase_if(events, [](const TraceEvent& event) {
    return event.action == TraceAction::kReserve ||
           event.action == TraceAction::kRelease ||
           event.action == TraceAction::kFreeCompleted;
  });
  const size_t count = std::min(events.size(), kRecentEvents);
  for (size_t i = events.size() - count; i < events.size(); ++i) {
    const TraceEvent& event = events[i];
    const bool is_mark = event.action == TraceAction::kMark;
    facts->recent.push_back(
        {.nanoseconds_before = events.back().nanoseconds - event.nanoseconds,
         .action = TraceActionName(event.action),
         .owner = is_mark ? std::string() : owners_->Name(event.owner),
         .size = event.size,
         .label = event.label});
  }
}

absl::Status DeviceMemory::Impl::OutOfMemory(const Shortage& shortage) {
  const auto& [owner, pages, kind, cause, detail] = shortage;
  OutOfMemoryVerdict verdict =
      DescribeShortage(PageCount(pages), owner, detail);
  if (kind == CommitAttempt::Shortage::kMappings) {
    verdict.kind = ShortageKind::kMappings;
    verdict.advice = absl::StrCat(
        "use larger pages, or allow the process more mappings; the driver "
        "says: ",
        cause.message());
  }
  return verdict.ToStatus();
}

absl::Status DeviceMemory::Impl::OutOfAddresses(PageCount pages, OwnerId owner,
                                                VerdictDetail detail) {
  OutOfMemoryVerdict verdict = DescribeShortage(pages, owner, detail);
  verdict.kind = ShortageKind::kAddressSpace;
  verdict.owner_limit.reset();
  MutexLock lock(&mutex_);
  verdict.limit = PageBytes(addresses_->total_pages());
  verdict.free = PageBytes(addresses_->free_pages());
  verdict.largest_possible = PageBytes(addresses_->largest_free_run());
  verdict.advice =
      "reserve more addresses at start (address_space), or shorter ranges; "
      "this is not lack of memory";
  return verdict.ToStatus();
}

}  // namespace quire
