// A cache that holds one range and gives its pages, from the end, when asked.

#ifndef QUIRE_ALLOC_TESTING_FAKE_RECLAIMER_H_
#define QUIRE_ALLOC_TESTING_FAKE_RECLAIMER_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "quire/alloc/device_memory.h"
#include "quire/alloc/fence.h"

namespace quire {

class FakeReclaimer : public PageReclaimer {
 public:
  // REQUIRES: all of `range` is live.
  FakeReclaimer(DeviceMemory* memory, AddressRange* range)
      : memory_(memory), range_(range), left_(range->pages()) {}

  PageCount Reclaim(PageCount wanted) override {
    asked_.push_back(wanted.value());
    return Give(wanted);
  }
  PageCount ReclaimFrom(OwnerId owner, PageCount wanted,
                        bool cooling) override {
    if (cooling) return PageCount(0);
    asked_for_.emplace_back(owner, wanted.value());
    return memory_->owners()->IsWithin(range_->owner(), owner) ? Give(wanted)
                                                               : PageCount(0);
  }
  PageCount Reclaimable() const override { return left_; }
  std::string ReclaimerName() const override { return "fake"; }

  Fence fence_;
  std::vector<uint64_t> asked_;
  std::vector<std::pair<OwnerId, uint64_t>> asked_for_;

 private:
  PageCount Give(PageCount wanted) {
    const PageCount given = std::min(wanted, left_);
    const PageCount first(left_.value() - given.value());
    EXPECT_TRUE(memory_->Decommit(range_, first, given, fence_).ok());
    left_ = first;
    return given;
  }

  DeviceMemory* const memory_;
  AddressRange* const range_;
  PageCount left_;
};

}  // namespace quire

#endif  // QUIRE_ALLOC_TESTING_FAKE_RECLAIMER_H_
