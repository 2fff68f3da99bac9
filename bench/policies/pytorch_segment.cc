#include "bench/policies/pytorch_segment.h"

#include <span>

#include "quire/alloc/status_macros.h"
#include "quire/alloc/units.h"

namespace quire {

absl::StatusOr<ExpandableSegment> ExpandableSegment::Create(Driver* driver,
                                                            uint64_t size,
                                                            uint64_t granule) {
  const uint64_t count = PagesFor(Bytes(size), Bytes(granule)).value();
  QUIRE_ASSIGN_OR_RETURN(
      const DeviceAddress address,
      driver->ReserveAddress(Bytes(count * granule), Bytes(0)));
  return ExpandableSegment(driver, address, granule, count);
}

absl::StatusOr<ExpandableSegment::Range> ExpandableSegment::Map(Range range) {
  const uint64_t first = (range.address - address()) / granule_;
  const uint64_t last =
      PagesFor(Bytes(range.address + range.size - address()), Bytes(granule_))
          .value();
  if (granules_.size() < last) granules_.resize(last);
  const std::span<PageHandle> granules =
      std::span(granules_).subspan(first, last - first);
  const auto give_up = [&](absl::Status status) {
    for (PageHandle& granule : granules) {
      if (granule == PageHandle()) break;
      status.Update(driver_->ReleasePage(granule));
      granule = PageHandle();
    }
    return status;
  };
  for (PageHandle& granule : granules) {
    const absl::StatusOr<PageHandle> created =
        driver_->CreatePage(DeviceId(0), Bytes(granule_));
    if (!created.ok()) return give_up(created.status());
    granule = *created;
  }
  const Range backed = {address() + first * granule_,
                        granules.size() * granule_};
  if (absl::Status mapped =
          driver_->Map(DeviceAddress(backed.address), granules);
      !mapped.ok()) {
    return give_up(std::move(mapped));
  }
  return backed;
}

ExpandableSegment::Range ExpandableSegment::WholeGranules(Range range) const {
  const uint64_t first =
      PagesFor(Bytes(range.address - address()), Bytes(granule_)).value();
  const uint64_t last = (range.address + range.size - address()) / granule_;
  if (last <= first) return {range.address, 0};
  return {address() + first * granule_, (last - first) * granule_};
}

absl::StatusOr<ExpandableSegment::Range> ExpandableSegment::Unmap(Range range) {
  const Range whole = WholeGranules(range);
  if (whole.size == 0) return whole;
  QUIRE_RETURN_IF_ERROR(
      driver_->Unmap(DeviceAddress(whole.address), Bytes(whole.size)));
  const uint64_t first = (whole.address - address()) / granule_;
  for (uint64_t i = first; i < first + whole.size / granule_; ++i) {
    QUIRE_RETURN_IF_ERROR(driver_->ReleasePage(granules_[i]));
    granules_[i] = PageHandle();
  }
  return whole;
}

}  // namespace quire
