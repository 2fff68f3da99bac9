// Random programs against a plain model of every slot and every owner.
//
// The model knows what each slot must be, which slots have one page, and what
// must be in it; it knows nothing of handles, batches or runs. Streams are held
// up by gates, so that the model knows which fences are complete.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <vector>

#include "alloc/owner_accounts.h"
#include "alloc/testing/device_memory_fixture.h"
#include "alloc/testing/owner_model.h"

namespace quire {
namespace {

constexpr size_t kStreams = 3;
// "weights", a part of it, and another owner beside.
constexpr uint32_t kOwners[] = {1, 2, 3};

class DeviceMemoryModelTest : public DeviceMemoryFixture {
 protected:
  struct Slot {
    enum class State { kUnbacked, kLive, kCooling };
    State state = State::kUnbacked;
    // Slots with one page have one content, and no two pages have the same.
    uint64_t content = 0;
    size_t stream = 0;  // of the fence, while cooling
  };
  struct Range {
    AddressRange* handle;  // null once released
    DeviceAddress address;
    OwnerId owner;
    std::vector<Slot> slots;
  };

  void HoldUp(size_t stream) {
    gates_[stream] = std::make_unique<Gate>(driver_.get(), streams_[stream]);
  }

  std::vector<const Slot*> SlotsIn(Slot::State state) const {
    std::vector<const Slot*> slots;
    for (const Range& range : ranges_) {
      for (const Slot& slot : range.slots) {
        if (slot.state == state) slots.push_back(&slot);
      }
    }
    return slots;
  }
  // Pages by content; one that is live under any slot is not cooling.
  std::set<uint64_t> Live() const {
    std::set<uint64_t> pages;
    for (const Slot* slot : SlotsIn(Slot::State::kLive)) {
      pages.insert(slot->content);
    }
    return pages;
  }
  std::set<uint64_t> Cooling() const {
    const std::set<uint64_t> live = Live();
    std::set<uint64_t> pages;
    for (const Slot* slot : SlotsIn(Slot::State::kCooling)) {
      if (live.count(slot->content) == 0) pages.insert(slot->content);
    }
    return pages;
  }

  void Step() {
    switch (random_() % 15) {
      case 0:
        return ReserveOne();
      case 1:
        return ReleaseOne();
      case 2:
      case 3:
      case 4:
      case 5:
        return CommitSome();
      case 6:
      case 7:
        return DecommitSome();
      case 8:
        return PassAFence();
      case 9:
      case 10:
        return CommitChosenPages();
      case 11:
        return RemapSome();
      case 12:
        return ChangeOwner();
      case 13:
        return ChangeLimits();
      default:
        if (random_() % 2 == 0) {
          memory_->Trim(PageCount(random_() % 8));
        } else {
          ASSERT_TRUE(memory_->Prepare(PageCount(random_() % 8)).ok());
        }
    }
  }

  void ReserveOne() {
    const uint64_t pages = 1 + random_() % 20;
    uint64_t reserved = 0;
    for (const Range& range : ranges_) reserved += range.slots.size();
    // Half of the addresses at most, so that fragmentation cannot refuse it.
    if (reserved + pages > kAddressPages / 4) return;
    const Bytes alignment(kPageBytes << (random_() % 3));
    const OwnerId owner(kOwners[random_() % 3]);
    const auto range =
        memory_->ReserveRange(PageCount(pages), owner, alignment);
    ASSERT_TRUE(range.ok()) << range.status();
    ranges_.push_back(
        {*range, (*range)->address(), owner, std::vector<Slot>(pages)});
  }

  Range* AnyRange() {
    std::vector<Range*> held;
    for (Range& range : ranges_) {
      if (range.handle != nullptr) held.push_back(&range);
    }
    return held.empty() ? nullptr : held[random_() % held.size()];
  }

  // A fence that is complete (nullopt) or one on a stream that is held up.
  std::optional<size_t> AnyStream() {
    const size_t stream = random_() % (kStreams + 1);
    return stream < kStreams ? std::optional(stream) : std::nullopt;
  }
  Fence FenceFor(std::optional<size_t> stream) {
    return stream ? FenceOn(streams_[*stream]) : Fence();
  }
  static void Give(Slot* slot, std::optional<size_t> stream) {
    if (slot->state != Slot::State::kLive) return;
    slot->state = stream ? Slot::State::kCooling : Slot::State::kUnbacked;
    slot->stream = stream.value_or(0);
  }

  void ReleaseOne() {
    Range* const range = AnyRange();
    if (range == nullptr) return;
    const auto stream = AnyStream();
    memory_->ReleaseRange(range->handle, FenceFor(stream));
    range->handle = nullptr;
    for (Slot& slot : range->slots) Give(&slot, stream);
  }

  bool HasRoomFor(uint64_t pages) const {
    return Live().size() + Cooling().size() + pages <= limit_;
  }

  // A live slot of some range of `owner`, or null.
  struct Source {
    Range* range = nullptr;
    uint64_t slot = 0;
  };
  Source AnySource(OwnerId owner) {
    std::vector<Source> sources;
    for (Range& range : ranges_) {
      if (range.handle == nullptr || range.owner != owner) continue;
      for (uint64_t i = 0; i < range.slots.size(); ++i) {
        if (range.slots[i].state == Slot::State::kLive) {
          sources.push_back({&range, i});
        }
      }
    }
    return sources.empty() ? Source() : sources[random_() % sources.size()];
  }
  static PageHandle PageOf(DeviceMemory* memory, const Source& source) {
    return memory->PageAt(source.range->handle, PageCount(source.slot));
  }

  // New and shared pages side by side, in the first gap behind a random slot.
  void CommitChosenPages() {
    Range* const range = AnyRange();
    if (range == nullptr) return;
    uint64_t first = random_() % range->slots.size();
    const uint64_t most = 1 + random_() % 6;
    std::vector<Slot>& slots = range->slots;
    while (first < slots.size() &&
           slots[first].state != Slot::State::kUnbacked) {
      ++first;
    }
    std::vector<PageHandle> pages;
    std::vector<uint64_t> contents;  // 0: a new page
    uint64_t wanted = 0;
    for (uint64_t i = first; i < slots.size() && pages.size() < most &&
                             slots[i].state == Slot::State::kUnbacked;
         ++i) {
      const Source source =
          random_() % 3 == 0 ? Source() : AnySource(range->owner);
      wanted += source.range == nullptr;
      pages.push_back(source.range == nullptr ? PageHandle()
                                              : PageOf(memory_.get(), source));
      contents.push_back(source.range == nullptr
                             ? 0
                             : source.range->slots[source.slot].content);
    }
    if (pages.empty()) return;
    if (!Allows(range->owner, wanted)) {
      ++refusals_;
      ASSERT_EQ(
          memory_->CommitPages(range->handle, PageCount(first), pages).code(),
          absl::StatusCode::kResourceExhausted);
      return;
    }
    if (!HasRoomFor(wanted)) return;
    ASSERT_EQ(memory_->CommitPages(range->handle, PageCount(first), pages),
              absl::OkStatus());
    for (uint64_t i = 0; i < pages.size(); ++i) {
      Slot& slot = slots[first + i];
      slot.state = Slot::State::kLive;
      slot.content = contents[i];
      if (contents[i] != 0) continue;
      slot.content = ++last_content_;
      Write(range->handle, first + i, slot.content);
    }
  }

  void RemapSome() {
    Range* const range = AnyRange();
    if (range == nullptr) return;
    uint64_t first = random_() % range->slots.size();
    const uint64_t most = 1 + random_() % 4;
    std::vector<PageHandle> pages;
    std::vector<uint64_t> contents;
    for (uint64_t i = first; i < range->slots.size() && pages.size() < most &&
                             range->slots[i].state == Slot::State::kLive;
         ++i) {
      const Source source = AnySource(range->owner);
      pages.push_back(PageOf(memory_.get(), source));
      contents.push_back(source.range->slots[source.slot].content);
    }
    ASSERT_EQ(memory_->Remap(range->handle, PageCount(first), pages),
              absl::OkStatus());
    for (uint64_t i = 0; i < pages.size(); ++i) {
      range->slots[first + i].content = contents[i];
    }
  }

  void ChangeOwner() {
    Range* const range = AnyRange();
    if (range == nullptr) return;
    const auto pages_of = [](const Range& from) {
      std::set<uint64_t> pages;
      for (const Slot& slot : from.slots) {
        if (slot.state != Slot::State::kUnbacked) pages.insert(slot.content);
      }
      return pages;
    };
    const std::set<uint64_t> own = pages_of(*range);
    bool shares = false;
    for (const Range& other : ranges_) {
      if (&other == range) continue;
      for (const uint64_t page : pages_of(other)) {
        shares = shares || own.count(page) > 0;
      }
    }
    const OwnerId owner(kOwners[random_() % 3]);
    std::set<uint64_t> moved;
    for (const Slot& slot : range->slots) {
      if (slot.state == Slot::State::kLive) moved.insert(slot.content);
    }
    absl::StatusCode expected = absl::StatusCode::kOk;
    if (owner != range->owner) {
      if (shares) {
        expected = absl::StatusCode::kFailedPrecondition;
      } else if (!CountOwners().AllowsMove(range->owner.value(), owner.value(),
                                           moved.size(), limit_)) {
        expected = absl::StatusCode::kResourceExhausted;
      }
    }
    ASSERT_EQ(memory_->SetOwner(range->handle, owner).code(), expected);
    if (expected == absl::StatusCode::kOk) range->owner = owner;
  }

  void ChangeLimits() {
    const auto bytes = [](uint64_t pages) { return Bytes(pages * kPageBytes); };
    if (random_() % 3 == 0) {
      limit_ = kLimitPages - random_() % 20;
      ASSERT_EQ(memory_->SetLimit(bytes(limit_)), absl::OkStatus());
      return;
    }
    const uint32_t owner = kOwners[random_() % 3];
    OwnerPageLimits limits;
    if (random_() % 2 == 0) limits.hard = 1 + random_() % 24;
    if (random_() % 2 == 0) limits.reserved = random_() % 12;
    limits.reserved = std::min(limits.reserved, limits.hard);
    OwnerModel owners = CountOwners();
    const bool fits = owners.SetLimits(owner, limits, limit_);
    const absl::Status status = memory_->SetOwnerLimits(
        OwnerId(owner),
        {.hard = limits.hard == kNoPageLimit ? Bytes(0) : bytes(limits.hard),
         .reserved_minimum = bytes(limits.reserved)});
    ASSERT_EQ(status.code(), fits ? absl::StatusCode::kOk
                                  : absl::StatusCode::kFailedPrecondition);
    if (fits) limits_[owner] = limits;
  }

  // What owners use now, under the limits that they have.
  OwnerModel CountOwners() const {
    OwnerModel model;
    model.owners.resize(4);
    model.owners[2].parent = 1;
    std::set<uint64_t> seen;
    for (const Range& range : ranges_) {
      for (const Slot& slot : range.slots) {
        if (slot.state != Slot::State::kLive) continue;
        if (!seen.insert(slot.content).second) continue;
        ++model.owners[range.owner.value()].own;
      }
    }
    for (const auto& [owner, limits] : limits_) {
      model.owners[owner].limits = limits;
    }
    return model;
  }
  bool Allows(OwnerId owner, uint64_t pages) const {
    return CountOwners().Allows(owner.value(), pages, limit_);
  }

  void CommitSome() {
    Range* const range = AnyRange();
    if (range == nullptr) return;
    const uint64_t first = random_() % range->slots.size();
    const uint64_t count = 1 + random_() % (range->slots.size() - first);
    uint64_t wanted = 0;
    for (uint64_t i = first; i < first + count; ++i) {
      wanted += range->slots[i].state == Slot::State::kUnbacked;
    }
    // What needs a gate to open would wait for this very thread.
    const std::set<uint64_t> live = Live();
    std::set<uint64_t> revived;
    for (uint64_t i = first; i < first + count; ++i) {
      const Slot& slot = range->slots[i];
      if (slot.state != Slot::State::kCooling) continue;
      if (live.count(slot.content) == 0) revived.insert(slot.content);
    }
    if (!Allows(range->owner, wanted + revived.size())) {
      ++refusals_;
      ASSERT_EQ(Commit(range->handle, first, count).code(),
                absl::StatusCode::kResourceExhausted);
      return;
    }
    if (!HasRoomFor(wanted)) return;
    ASSERT_EQ(Commit(range->handle, first, count), absl::OkStatus());
    for (uint64_t i = first; i < first + count; ++i) {
      Slot& slot = range->slots[i];
      if (slot.state == Slot::State::kUnbacked) {
        slot.content = ++last_content_;
        Write(range->handle, i, slot.content);
      }
      slot.state = Slot::State::kLive;
    }
  }

  void DecommitSome() {
    Range* const range = AnyRange();
    if (range == nullptr) return;
    const uint64_t first = random_() % range->slots.size();
    const uint64_t count = 1 + random_() % (range->slots.size() - first);
    const auto stream = AnyStream();
    ASSERT_EQ(Decommit(range->handle, first, count, FenceFor(stream)),
              absl::OkStatus());
    for (uint64_t i = first; i < first + count; ++i) {
      Give(&range->slots[i], stream);
    }
  }

  void PassAFence() {
    const size_t stream = random_() % kStreams;
    gates_[stream]->Open();
    ASSERT_TRUE(driver_->SynchronizeStream(streams_[stream]).ok());
    HoldUp(stream);
    // Gives nothing back, but unmaps what has cooled.
    ASSERT_EQ(memory_->Trim(PageCount(UINT64_MAX)).pages_freed, PageCount(0));
    for (Range& range : ranges_) {
      for (Slot& slot : range.slots) {
        if (slot.state == Slot::State::kCooling && slot.stream == stream) {
          slot.state = Slot::State::kUnbacked;
        }
      }
    }
  }

  // A released range is gone once none of its slots cools.
  void ForgetDrained() {
    std::erase_if(ranges_, [](const Range& range) {
      if (range.handle != nullptr) return false;
      for (const Slot& slot : range.slots) {
        if (slot.state != Slot::State::kUnbacked) return false;
      }
      return true;
    });
  }

  void CompareOwners() {
    const OwnerModel model = CountOwners();
    const std::vector<Bytes> live = memory_->GetLiveByOwner();
    for (uint32_t id = 0; id < model.owners.size(); ++id) {
      const OwnerStatistics owner = memory_->GetOwnerStatistics(OwnerId(id));
      ASSERT_EQ(owner.own_live.value(), model.owners[id].own * kPageBytes);
      ASSERT_EQ(owner.live.value(), model.Live(id) * kPageBytes);
      ASSERT_EQ(id < live.size() ? live[id] : Bytes(0), owner.own_live);
      const uint64_t allowance = owner.allowance.value() / kPageBytes;
      ASSERT_TRUE(allowance == 0 || Allows(OwnerId(id), allowance));
    }
  }

  void Compare() {
    ForgetDrained();
    std::map<uint64_t, bool> expected;  // address to cooling
    uint64_t reserved = 0;
    for (const Range& range : ranges_) {
      reserved += range.slots.size();
      for (uint64_t i = 0; i < range.slots.size(); ++i) {
        const Slot& slot = range.slots[i];
        const DeviceAddress address(range.address.value() + i * kPageBytes);
        ASSERT_EQ(memory_->Find(address), range.handle);
        if (slot.state == Slot::State::kUnbacked) continue;
        expected[address.value()] = slot.state == Slot::State::kCooling;
        // Queued work may still read what cools.
        ASSERT_EQ(*address.host_pointer<volatile uint64_t>(), slot.content);
      }
    }
    std::map<uint64_t, bool> found;
    for (const auto& entry : memory_->CalculatePageMap()) {
      found[entry.address.value()] = entry.cooling;
    }
    ASSERT_EQ(found, expected);
    const DeviceMemoryStatistics statistics = memory_->GetStatistics();
    const uint64_t live = Live().size();
    const uint64_t cooling = Cooling().size();
    const uint64_t mapped = expected.size();
    ASSERT_EQ(statistics.live.value(), live * kPageBytes);
    ASSERT_EQ(memory_->live_bytes(), statistics.live);
    ASSERT_EQ(statistics.cooling.value(), cooling * kPageBytes);
    ASSERT_EQ(statistics.reserved.value(), reserved * kPageBytes);
    ASSERT_EQ(statistics.mapped.value(), mapped * kPageBytes);
    ASSERT_EQ(statistics.unmapped.value(), (reserved - mapped) * kPageBytes);
    ASSERT_EQ(statistics.shared.value(),
              (mapped - live - cooling) * kPageBytes);
    ASSERT_EQ(statistics.in_use.value(),
              statistics.cached.value() + (live + cooling) * kPageBytes);
    ASSERT_EQ(statistics.limit.value(), limit_ * kPageBytes);
    ASSERT_EQ(
        statistics.over_limit.value(),
        CheckedSubtract(statistics.in_use.value(), statistics.limit.value())
            .value_or(0));
    most_shared_ = std::max(most_shared_, mapped - live - cooling);
    CompareOwners();
    // The driver's own books agree on what exists.
    ASSERT_EQ(driver_->GetMemoryInfo(DeviceId(0))->free.value(),
              kDevicePages * kPageBytes - statistics.in_use.value());
    ASSERT_EQ(memory_->CheckInvariants(), absl::OkStatus());
  }

  std::mt19937 random_;
  std::vector<Range> ranges_;
  std::vector<std::unique_ptr<Gate>> gates_;
  uint64_t last_content_ = 0;
  uint64_t limit_ = kLimitPages;
  std::map<uint32_t, OwnerPageLimits> limits_;  // by owner
  uint64_t most_shared_ = 0;
  uint64_t refusals_ = 0;
};

TEST_F(DeviceMemoryModelTest, RandomProgramsAgreeWithTheModel) {
  for (size_t i = 0; i < kStreams; ++i) MakeStream();
  ASSERT_EQ(owners_.Register("part", kOwner), OwnerId(2));
  ASSERT_EQ(owners_.Register("other"), OwnerId(3));
  for (uint32_t seed = 0; seed < 12; ++seed) {
    SCOPED_TRACE(seed);
    DeviceMemoryOptions options = Options();
    // A cache that overflows, one that never does, and none.
    options.cache_limit = PageCount(seed % 3 == 0   ? UINT64_MAX
                                    : seed % 3 == 1 ? 4
                                                    : 0);
    MakeMemory(options);
    random_.seed(seed);
    gates_.resize(kStreams);
    for (size_t i = 0; i < kStreams; ++i) HoldUp(i);
    for (int step = 0; step < 600; ++step) {
      ASSERT_NO_FATAL_FAILURE(Step()) << step;
      ASSERT_NO_FATAL_FAILURE(Compare()) << step;
    }
    gates_.clear();
    ranges_.clear();
    limits_.clear();
    limit_ = kLimitPages;
  }
  EXPECT_GT(refusals_, 100u);
  EXPECT_GT(most_shared_, 10u);
  memory_.reset();
}

}  // namespace
}  // namespace quire
