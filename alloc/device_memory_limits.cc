// Limits of DeviceMemory and of its owners, which may change at any time.

#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "alloc/device_memory_impl.h"
#include "quire/alloc/memory_limits.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

absl::StatusOr<uint64_t> LimitInPages(const char* name, Bytes limit,
                                      Bytes page_size) {
  const uint64_t pages = limit.value() / page_size.value();
  if (pages > 0) return pages;
  return absl::InvalidArgumentError(
      absl::StrCat("a ", name, " of ", limit.value(),
                   " bytes does not hold one page of ", page_size.value()));
}

absl::StatusOr<uint64_t> OptionalLimitInPages(const char* name, Bytes limit,
                                              Bytes page_size) {
  if (limit.zero()) return kNoPageLimit;
  return LimitInPages(name, limit, page_size);
}

}  // namespace

absl::Status DeviceMemory::Impl::SetLimit(Bytes limit) {
  QUIRE_ASSIGN_OR_RETURN(const uint64_t pages,
                         LimitInPages("limit", limit, page_size_));
  Section section(this);
  backing_.pool().SetLimit(pages);
  limit_pages_.store(pages, std::memory_order_relaxed);
  SetGauge();
  ++limits_set_;
  RecordLimit(TraceAction::kLimit, LimitBytes(pages));
  FillUp();
  AfterMutation();
  freed_.NotifyAll();
  return absl::OkStatus();
}

absl::Status DeviceMemory::Impl::SetSoftLimit(Bytes limit) {
  QUIRE_ASSIGN_OR_RETURN(const uint64_t pages,
                         OptionalLimitInPages("soft limit", limit, page_size_));
  Section section(this);
  if (pages != soft_limit_) {
    RecordLimit(TraceAction::kSoftLimit, LimitBytes(pages));
  }
  soft_limit_ = pages;
  SetGauge();
  AfterMutation();
  return absl::OkStatus();
}

absl::Status DeviceMemory::Impl::SetOwnerLimits(OwnerId owner,
                                                const OwnerLimits& limits) {
  QUIRE_RETURN_IF_ERROR(CheckOwner(owner));
  OwnerPageLimits pages;
  QUIRE_ASSIGN_OR_RETURN(
      pages.soft, OptionalLimitInPages("soft limit", limits.soft, page_size_));
  QUIRE_ASSIGN_OR_RETURN(
      pages.hard, OptionalLimitInPages("hard limit", limits.hard, page_size_));
  pages.reserved = PagesFor(limits.reserved_minimum, page_size_).value();
  if (!limits.soft.zero() && pages.soft > pages.hard) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a soft limit of ", limits.soft.value(),
        " bytes is above the hard limit of ", limits.hard.value()));
  }
  if (pages.reserved > pages.hard) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a reserved minimum of ", limits.reserved_minimum.value(),
        " bytes is above the hard limit of ", limits.hard.value()));
  }
  Section section(this);
  const OwnerLimits before = StatisticsOf(owner).limits;
  QUIRE_RETURN_IF_ERROR(backing_.SetOwnerLimits(owner, pages));
  const OwnerLimits now = StatisticsOf(owner).limits;
  const struct {
    TraceAction action;
    Bytes was;
    Bytes is;
  } changes[] = {{TraceAction::kOwnerLimit, before.hard, now.hard},
                 {TraceAction::kOwnerSoftLimit, before.soft, now.soft},
                 {TraceAction::kOwnerMinimum, before.reserved_minimum,
                  now.reserved_minimum}};
  for (const auto& [action, was, is] : changes) {
    if (is != was) RecordLimit(action, is, owner);
  }
  ++limits_set_;
  AfterMutation();
  freed_.NotifyAll();
  return absl::OkStatus();
}

void DeviceMemory::Impl::RecordLimit(TraceAction action, Bytes limit,
                                     OwnerId owner) {
  RecordOfDevice(action, limit.value() / page_size_.value(), owner);
}

OwnerStatistics DeviceMemory::Impl::GetOwnerStatistics(OwnerId owner) {
  if (!CheckOwner(owner).ok()) return {.owner = owner};
  MutexLock lock(&mutex_);
  return StatisticsOf(owner);
}

std::vector<OwnerStatistics> DeviceMemory::Impl::GetOwnerStatistics() {
  MutexLock lock(&mutex_);
  std::vector<OwnerStatistics> all;
  const auto& accounts = backing_.accounts().owners().accounts();
  for (uint32_t id = 0; id < accounts.size(); ++id) {
    if (accounts[id].linked) all.push_back(StatisticsOf(OwnerId(id)));
  }
  return all;
}

PageCount DeviceMemory::Impl::CalculateLargestCommit(
    OwnerId owner, std::span<const uint64_t> idle) {
  if (!CheckOwner(owner).ok()) return PageCount(0);
  const uint64_t reclaimable = ReclaimablePages().value();
  // What the device has free is asked where headroom makes it count, as it is
  // when pages are created. None is where the driver does not say.
  uint64_t creatable = UINT64_MAX;
  if (!headroom_.zero()) {
    const Bytes free =
        driver_->GetMemoryInfo(device_).value_or(DeviceMemoryInfo()).free;
    creatable = SaturatingSubtract(free.value(), headroom_.value()) /
                page_size_.value();
  }
  MutexLock lock(&mutex_);
  const PagePool& pool = backing_.pool();
  uint64_t pages = std::min(pool.growable(), creatable);
  for (const uint64_t more :
       {pool.cached(), backing_.accounts().cooling(), reclaimable}) {
    pages = SaturatingAdd(pages, more);
  }
  // After the limit was lowered, what is beyond it has to go first.
  pages = SaturatingSubtract(pages,
                             SaturatingSubtract(pool.in_use(), pool.limit()));
  // What others give up is not theirs again, so long as they have what is
  // reserved for them.
  OwnerAccounts owners = backing_.owners();
  for (uint32_t id = 0; id < idle.size(); ++id) {
    owners.Leave(OwnerId(id), std::min(idle[id], owners.own(OwnerId(id))));
  }
  return PageCount(
      std::min(pages, owners.Allowance(owner, backing_.capacity())));
}

OwnerStatistics DeviceMemory::Impl::StatisticsOf(OwnerId owner) {
  const OwnerAccount& account = backing_.owners().AccountOf(owner);
  const OwnerPageLimits& limits = account.limits;
  const auto beyond = [&](uint64_t limit) {
    return PageBytes(SaturatingSubtract(account.live, limit));
  };
  OwnerStatistics statistics;
  statistics.owner = owner;
  statistics.own_live = PageBytes(account.own);
  statistics.live = PageBytes(account.live);
  statistics.peak_live = PageBytes(account.peak);
  statistics.asleep = PageBytes(backing_.saved().CountOf(owner));
  statistics.limits = {.soft = LimitBytes(limits.soft),
                       .hard = LimitBytes(limits.hard),
                       .reserved_minimum = PageBytes(limits.reserved)};
  statistics.hard_room = PageBytes(backing_.owners().HardRoom(owner));
  statistics.allowance =
      PageBytes(backing_.owners().Allowance(owner, backing_.capacity()));
  statistics.pressure = account.gauge.level();
  statistics.over_soft = beyond(limits.soft);
  statistics.over_hard = beyond(limits.hard);
  return statistics;
}

}  // namespace quire
