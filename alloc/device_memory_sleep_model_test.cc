// Random programs of sleep, wake and everything else against a plain model:
// what each slot is, what is in it, and which slots are one page.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <vector>

#include "alloc/testing/sleep_fixture.h"

namespace quire {
namespace {

class DeviceMemorySleepModelTest : public SleepFixture {
 protected:
  // Slots with the same page number are one page, live or asleep.
  struct Slot {
    enum class State { kUnbacked, kLive, kAsleep };
    State state = State::kUnbacked;
    uint64_t page = 0;
  };
  struct Range {
    AddressRange* handle;
    OwnerId owner;
    std::vector<Slot> slots;
  };
  struct Page {
    std::optional<uint64_t> content;  // none: dropped
  };

  bool IsWithin(OwnerId owner, OwnerId ancestor) const {
    return owner == ancestor ||
           (ancestor == model_ && (owner == weights_ || owner == kv_));
  }
  std::set<uint64_t> PagesOf(OwnerId owner, Slot::State state) const {
    std::set<uint64_t> pages;
    for (const Range& range : ranges_) {
      if (!IsWithin(range.owner, owner)) continue;
      for (const Slot& slot : range.slots) {
        if (slot.state == state) pages.insert(slot.page);
      }
    }
    return pages;
  }
  OwnerId AnOwner() {
    const OwnerId owners[] = {model_, weights_, kv_, other_};
    return owners[random_() % 4];
  }
  uint64_t NewPage(AddressRange* range, uint64_t slot) {
    WriteAll(range, slot, ++contents_);
    pages_[++last_page_].content = contents_;
    return last_page_;
  }

  void Step() {
    switch (random_() % 10) {
      case 0:
        return ReserveOne();
      case 1:
        return ReleaseOne();
      case 2:
      case 3:
        return CommitSome();
      case 4:
        return DecommitSome();
      case 5:
        return ShareSome();
      case 6:
        return WriteSome();
      case 7:
        return SleepSome();
      case 8:
        return WakeSome();
      default:
        memory_->Trim(PageCount(random_() % 4));
    }
  }

  void ReserveOne() {
    if (ranges_.size() >= 10) return;
    const OwnerId owner = AnOwner();
    const uint64_t pages = 1 + random_() % 6;
    ranges_.push_back({Reserve(owner, pages), owner, std::vector<Slot>(pages)});
  }
  void ReleaseOne() {
    if (ranges_.empty()) return;
    const size_t i = random_() % ranges_.size();
    memory_->ReleaseRange(ranges_[i].handle, Fence());
    ranges_.erase(ranges_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  struct Part {
    Range* range;
    uint64_t first;
    uint64_t count;
  };
  std::optional<Part> APart() {
    if (ranges_.empty()) return std::nullopt;
    Range& range = ranges_[random_() % ranges_.size()];
    const uint64_t first = random_() % range.slots.size();
    return Part{&range, first, 1 + random_() % (range.slots.size() - first)};
  }
  void CommitSome() {
    const auto part = APart();
    if (!part) return;
    const auto begin =
        part->range->slots.begin() + static_cast<std::ptrdiff_t>(part->first);
    const auto end = begin + static_cast<std::ptrdiff_t>(part->count);
    const bool sleeps = std::any_of(begin, end, [](const Slot& slot) {
      return slot.state == Slot::State::kAsleep;
    });
    const auto wanted =
        static_cast<uint64_t>(std::count_if(begin, end, [](const Slot& slot) {
          return slot.state == Slot::State::kUnbacked;
        }));
    const bool fits = Live() + wanted <= kLimitPages;
    const absl::Status status =
        Commit(part->range->handle, part->first, part->count);
    if (sleeps || !fits) {
      ASSERT_EQ(status.code(), sleeps ? absl::StatusCode::kFailedPrecondition
                                      : absl::StatusCode::kResourceExhausted);
      return;
    }
    ASSERT_EQ(status, absl::OkStatus());
    for (uint64_t i = part->first; i < part->first + part->count; ++i) {
      Slot& slot = part->range->slots[i];
      if (slot.state == Slot::State::kLive) continue;
      slot = {Slot::State::kLive, NewPage(part->range->handle, i)};
    }
  }
  void DecommitSome() {
    const auto part = APart();
    if (!part) return;
    ASSERT_TRUE(Decommit(part->range->handle, part->first, part->count).ok());
    std::fill_n(
        part->range->slots.begin() + static_cast<std::ptrdiff_t>(part->first),
        part->count, Slot());
  }
  // Puts a live page of the same owner under an unbacked slot.
  void ShareSome() {
    const auto to = APart();
    const auto from = APart();
    if (!to || from->range->owner != to->range->owner) return;
    const Slot& source = from->range->slots[from->first];
    Slot& target = to->range->slots[to->first];
    if (source.state != Slot::State::kLive ||
        target.state != Slot::State::kUnbacked) {
      return;
    }
    const std::vector<PageHandle> page = {
        PageAt(from->range->handle, from->first)};
    ASSERT_TRUE(
        memory_->CommitPages(to->range->handle, PageCount(to->first), page)
            .ok());
    target = source;
  }
  void WriteSome() {
    const auto part = APart();
    if (!part || part->range->slots[part->first].state != Slot::State::kLive) {
      return;
    }
    WriteAll(part->range->handle, part->first, ++contents_);
    pages_[part->range->slots[part->first].page].content = contents_;
  }
  void SleepSome() {
    const OwnerId owner = AnOwner();
    const SleepTarget target = kTargets[random_() % 3];
    const std::set<uint64_t> pages = PagesOf(owner, Slot::State::kLive);
    const auto slept = Sleep(owner, target);
    ASSERT_TRUE(slept.ok()) << slept.status();
    ASSERT_EQ(slept->pages.value(), pages.size());
    ASSERT_EQ(slept->pages_freed.value(), pages.size());
    Change(owner, Slot::State::kLive, Slot::State::kAsleep);
    if (target != SleepTarget::kDrop) return;
    for (const uint64_t page : pages) pages_[page].content.reset();
  }
  void WakeSome() {
    const OwnerId owner = AnOwner();
    const std::set<uint64_t> pages = PagesOf(owner, Slot::State::kAsleep);
    const auto woken = memory_->Wake(owner, {.zero_dropped = true});
    if (Live() + pages.size() > kLimitPages) {
      ASSERT_EQ(woken.status().code(), absl::StatusCode::kResourceExhausted);
      return;
    }
    ASSERT_TRUE(woken.ok()) << woken.status();
    ASSERT_EQ(woken->pages.value(), pages.size());
    Change(owner, Slot::State::kAsleep, Slot::State::kLive);
  }
  void Change(OwnerId owner, Slot::State from, Slot::State to) {
    for (Range& range : ranges_) {
      if (!IsWithin(range.owner, owner)) continue;
      for (Slot& slot : range.slots) {
        if (slot.state == from) slot.state = to;
      }
    }
  }
  uint64_t Live() const {
    return PagesOf(model_, Slot::State::kLive).size() +
           PagesOf(other_, Slot::State::kLive).size();
  }

  void Check() {
    ASSERT_EQ(memory_->CheckInvariants(), absl::OkStatus());
    for (const OwnerId owner : {model_, weights_, kv_, other_}) {
      ASSERT_EQ(LivePages(owner), PagesOf(owner, Slot::State::kLive).size());
      ASSERT_EQ(AsleepPages(owner),
                PagesOf(owner, Slot::State::kAsleep).size());
    }
    std::map<uint64_t, PageHandle> handles;
    for (const Range& range : ranges_) {
      for (uint64_t i = 0; i < range.slots.size(); ++i) {
        const Slot& slot = range.slots[i];
        const PageHandle page = PageAt(range.handle, i);
        ASSERT_EQ(page != PageHandle(), slot.state == Slot::State::kLive);
        if (page == PageHandle()) continue;
        ASSERT_EQ(handles.try_emplace(slot.page, page).first->second, page);
        const auto content = pages_[slot.page].content;
        if (content) {
          ASSERT_TRUE(Holds(range.handle, i, *content));
        } else {
          ASSERT_EQ(Read(range.handle, i), 0u);
        }
      }
    }
  }

  std::mt19937_64 random_;
  std::vector<Range> ranges_;
  std::map<uint64_t, Page> pages_;
  uint64_t last_page_ = 0;
  uint64_t contents_ = 0;
};

TEST_F(DeviceMemorySleepModelTest, ContentsAndSharingSurviveWhateverHappens) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    random_.seed(seed);
    ranges_.clear();
    pages_.clear();
    MakeMemory(Options());
    for (int step = 0; step < 120; ++step) {
      ASSERT_NO_FATAL_FAILURE(Step()) << "step " << step;
      ASSERT_NO_FATAL_FAILURE(Check()) << "step " << step;
    }
  }
}

}  // namespace
}  // namespace quire
