#include "alloc/page_pool.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "quire/alloc/status_macros.h"

namespace quire {

PagePool::~PagePool() {
  Trim(0);
  ReleaseQuarantined();  // a last try costs nothing
}

absl::Status PagePool::Take(uint64_t count, std::vector<PageRecord*>* pages,
                            uint64_t* created) {
  QUIRE_RETURN_IF_ERROR(Prepare(count, created));
  // In the order in which they came: pages that were made one after the other
  // often lie side by side for the driver as well, and are one mapping then.
  const auto first = cached_.end() - static_cast<std::ptrdiff_t>(count);
  pages->insert(pages->end(), first, cached_.end());
  cached_.erase(first, cached_.end());
  return absl::OkStatus();
}

void PagePool::Put(PageRecord* page) {
  if (cached_.size() < options_.cache_limit && !over_limit()) {
    cached_.push_back(page);
  } else {
    Release(page);
  }
}

void PagePool::PutBack(PageRecord* page) {
  if (over_limit()) {
    Release(page);
  } else {
    cached_.push_back(page);
  }
}

void PagePool::SetLimit(uint64_t limit) {
  limit_ = limit;
  if (over_limit()) Trim(cached() - std::min(cached(), in_use_ - limit_));
}

absl::Status PagePool::CheckHeadroom(uint64_t pages) const {
  if (options_.headroom.zero()) return absl::OkStatus();
  QUIRE_ASSIGN_OR_RETURN(const DeviceMemoryInfo info,
                         driver_->GetMemoryInfo(options_.device));
  const uint64_t spare =
      SaturatingSubtract(info.free.value(), options_.headroom.value());
  if (pages <= spare / options_.page_size.value()) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      pages, " more pages would leave less than ", options_.headroom.value(),
      " bytes of the ", info.free.value(), " that are free on device ",
      options_.device.value()));
}

absl::Status PagePool::Prepare(uint64_t count, uint64_t* created) {
  if (cached_.size() < count) {
    QUIRE_RETURN_IF_ERROR(CheckHeadroom(count - cached_.size()));
  }
  while (cached_.size() < count) {
    if (growable() == 0) {
      return absl::ResourceExhaustedError(
          absl::StrCat(count - cached_.size(), " more pages wanted, and ",
                       in_use_, " of at most ", limit_, " are in use"));
    }
    QUIRE_ASSIGN_OR_RETURN(
        const PageHandle page,
        driver_->CreatePage(options_.device, options_.page_size));
    cached_.push_back(records_.Add(page, page));
    ++in_use_;
    ++created_;
    ++*created;
    peak_in_use_ = std::max(peak_in_use_, in_use_);
  }
  return absl::OkStatus();
}

uint64_t PagePool::Trim(uint64_t keep) {
  const uint64_t late = ReleaseQuarantined();
  if (cached_.size() <= keep) return late;
  const auto end =
      cached_.begin() + static_cast<std::ptrdiff_t>(cached_.size() - keep);
  uint64_t given_back = late;
  for (auto page = cached_.begin(); page != end; ++page) {
    if (Release(*page)) ++given_back;
  }
  cached_.erase(cached_.begin(), end);
  return given_back;
}

uint64_t PagePool::ReleaseQuarantined() {
  const std::vector<PageRecord*> pages = std::exchange(quarantined_, {});
  release_error_ = absl::OkStatus();
  return static_cast<uint64_t>(
      std::count_if(pages.begin(), pages.end(),
                    [this](PageRecord* page) { return Release(page); }));
}

bool PagePool::Release(PageRecord* page) {
  const absl::Status status = driver_->ReleasePage(page->handle);
  if (!status.ok()) {
    quarantined_.push_back(page);
    if (release_error_.ok()) {
      release_error_ = absl::Status(
          status.code(), absl::StrCat("page ", page->handle.value(),
                                      " was not released and is quarantined: ",
                                      status.message()));
    }
    return false;
  }
  records_.Remove(page->handle);
  --in_use_;
  ++released_;
  return true;
}

absl::Status PagePool::CheckInvariants(uint64_t taken) const {
  std::unordered_set<const PageRecord*> idle;
  for (const auto* pages : {&cached_, &quarantined_}) {
    for (const PageRecord* page : *pages) {
      if (page->slots() == 0 && idle.insert(page).second) continue;
      return absl::InternalError(absl::StrCat("page ", page->handle.value(),
                                              " is in the pool and in use"));
    }
  }
  if (in_use_ != taken + idle.size() || in_use_ != records_.size() ||
      in_use_ != created_ - released_) {
    return absl::InternalError(absl::StrCat(
        "in use = live + cooling + cached + quarantined does not hold: ",
        in_use_, " = ", taken, " taken + ", cached_.size(), " + ",
        quarantined_.size(), "; limit ", limit_, ", records ", records_.size(),
        ", created ", created_, ", released ", released_));
  }
  return absl::OkStatus();
}

}  // namespace quire
