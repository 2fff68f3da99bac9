// Random calls to a driver beside a plain model of what CUDA says must
// happen: which calls succeed, what is free, and what every byte reads, through
// every alias. The model knows nothing of the driver's tables: it keeps page
// slots in a flat array and asks each question by walking it.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "alloc/testing/test_driver.h"

namespace quire {
namespace {

constexpr uint64_t kUnit = 4096;
constexpr int kSlotsPerRange = 24;
constexpr uint64_t kDeviceUnits = 40;

// The byte that all of a unit reads; nullopt where it was never written.
using Content = std::optional<uint8_t>;

// One page: its size, whether its handle is released, and what its units hold.
struct ModelPage {
  PageHandle handle;
  int units;
  bool released = false;
  std::vector<Content> contents;
};

struct Slot {
  int page = -1;  // index into pages, -1: nothing mapped
  int unit = 0;   // which unit of the page
};

struct ModelRange {
  DeviceAddress address;
  std::array<Slot, kSlotsPerRange> slots;
};

class Model {
 public:
  std::vector<ModelPage> pages;  // never shrinks: indices stay valid
  std::vector<ModelRange> ranges;

  bool Mapped(int page) const {
    for (const ModelRange& range : ranges) {
      for (const Slot& slot : range.slots) {
        if (slot.page == page) return true;
      }
    }
    return false;
  }
  uint64_t UsedUnits() const {
    uint64_t used = 0;
    for (size_t i = 0; i < pages.size(); ++i) {
      if (!pages[i].released || Mapped(i)) used += pages[i].units;
    }
    return used;
  }
  // Whole pages without gaps, as Unmap wants it.
  bool MayUnmap(const ModelRange& range, int first, int count) const {
    if (count == 0 || first + count > kSlotsPerRange) return false;
    for (int i = first; i < first + count; ++i) {
      if (range.slots[i].page < 0) return false;
    }
    const Slot& last = range.slots[first + count - 1];
    return range.slots[first].unit == 0 &&
           last.unit == pages[last.page].units - 1;
  }
};

class DriverModelTest : public ::testing::TestWithParam<int> {
 protected:
  DriverModelTest() : random_(GetParam()) {
    HostDriverOptions options;
    options.memory_per_device = Bytes(kDeviceUnits * kUnit);
    options.granularity = Bytes(kUnit);
    driver_ = *TestDriver::Create(options);
    stream_ = *driver_->CreateStream(DeviceId(0));
  }

  int Random(int below) {
    return std::uniform_int_distribution<int>(0, below - 1)(random_);
  }
  static DeviceAddress SlotAddress(const ModelRange& range, int slot) {
    return *CheckedAdd(range.address, Bytes(slot * kUnit));
  }

  void ReserveOrRelease() {
    if (model_.ranges.size() < 4) {
      const auto address =
          driver_->ReserveAddress(Bytes(kSlotsPerRange * kUnit), Bytes(0));
      ASSERT_TRUE(address.ok()) << address.status();
      model_.ranges.push_back({*address, {}});
      return;
    }
    const int index = Random(model_.ranges.size());
    ModelRange& range = model_.ranges[index];
    if (Random(4) == 0) UnmapAll(range);
    bool empty = true;
    for (const Slot& slot : range.slots) empty = empty && slot.page < 0;
    const absl::Status status =
        driver_->ReleaseAddress(range.address, Bytes(kSlotsPerRange * kUnit));
    ASSERT_EQ(status.ok(), empty) << status;
    if (empty) model_.ranges.erase(model_.ranges.begin() + index);
  }

  // Run by run, since Unmap takes no gaps.
  void UnmapAll(ModelRange& range) {
    for (int first = 0; first < kSlotsPerRange; ++first) {
      int count = 0;
      while (first + count < kSlotsPerRange &&
             range.slots[first + count].page >= 0) {
        range.slots[first + count++] = Slot();
      }
      if (count == 0) continue;
      ASSERT_TRUE(
          driver_->Unmap(SlotAddress(range, first), Bytes(count * kUnit)).ok());
    }
  }

  void CreatePage() {
    const int units = 1 + Random(3);
    const bool fits = model_.UsedUnits() + units <= kDeviceUnits;
    const auto page = driver_->CreatePage(DeviceId(0), Bytes(units * kUnit));
    ASSERT_EQ(page.ok(), fits) << page.status();
    if (!fits) return;
    // Unspecified in CUDA; HostDriver promises zeros.
    const Content content =
        driver_->name() == "host" ? Content(0) : std::nullopt;
    model_.pages.push_back(
        {*page, units, false, std::vector<Content>(units, content)});
  }

  void ReleasePage() {
    if (model_.pages.empty()) return;
    ModelPage& page = model_.pages[Random(model_.pages.size())];
    const absl::Status status = driver_->ReleasePage(page.handle);
    ASSERT_EQ(status.ok(), !page.released) << status;
    page.released = true;
  }

  void Map() {
    if (model_.pages.empty() || model_.ranges.empty()) return;
    ModelRange& range = model_.ranges[Random(model_.ranges.size())];
    const int first = Random(kSlotsPerRange);
    std::vector<int> chosen;
    std::vector<PageHandle> handles;
    bool allowed = true;
    int end = first;
    for (int i = Random(4); i >= 0; --i) {
      // Mostly recent pages: old ones are mostly released.
      const int newest = model_.pages.size();
      const int page = newest - 1 - Random(std::min(newest, 12));
      chosen.push_back(page);
      handles.push_back(model_.pages[page].handle);
      allowed = allowed && !model_.pages[page].released;
      end += model_.pages[page].units;
    }
    allowed = allowed && end <= kSlotsPerRange;
    for (int i = first; allowed && i < end; ++i) {
      allowed = range.slots[i].page < 0;
    }
    const absl::Status status =
        driver_->Map(SlotAddress(range, first), handles);
    ASSERT_EQ(status.ok(), allowed) << status;
    if (!allowed) return;
    int slot = first;
    for (const int page : chosen) {
      for (int unit = 0; unit < model_.pages[page].units; ++unit) {
        range.slots[slot++] = {page, unit};
      }
    }
  }

  void Unmap() {
    if (model_.ranges.empty()) return;
    ModelRange& range = model_.ranges[Random(model_.ranges.size())];
    int first = Random(kSlotsPerRange);
    int count = Random(6);
    // Half the time whole runs, which are too rare by chance.
    if (Random(2) == 0) {
      while (first > 0 && range.slots[first - 1].page >= 0) --first;
      count = 0;
      while (first + count < kSlotsPerRange &&
             range.slots[first + count].page >= 0) {
        ++count;
      }
    }
    const bool allowed = model_.MayUnmap(range, first, count);
    const absl::Status status =
        driver_->Unmap(SlotAddress(range, first), Bytes(count * kUnit));
    ASSERT_EQ(status.ok(), allowed) << status;
    if (!allowed) return;
    for (int i = first; i < first + count; ++i) range.slots[i] = Slot();
  }

  // A slot anywhere, or nothing where there is no range.
  struct Place {
    ModelRange* range;
    int slot;
  };
  std::optional<Place> RandomPlace() {
    if (model_.ranges.empty()) return std::nullopt;
    Place place{};
    // Mostly mapped ones, which are the rarer kind.
    for (int tries = 0; tries < 4; ++tries) {
      place = {&model_.ranges[Random(model_.ranges.size())],
               Random(kSlotsPerRange)};
      if (Contents(place) != nullptr) break;
    }
    return place;
  }
  Content* Contents(const Place& place) {
    const Slot& slot = place.range->slots[place.slot];
    return slot.page < 0 ? nullptr
                         : &model_.pages[slot.page].contents[slot.unit];
  }

  void Fill() {
    const auto place = RandomPlace();
    if (!place) return;
    const int count = 1 + Random(std::min(3, kSlotsPerRange - place->slot));
    bool allowed = true;
    for (int i = 0; i < count; ++i) {
      allowed = allowed && Contents({place->range, place->slot + i}) != nullptr;
    }
    const uint8_t value = Random(256);
    const absl::Status status =
        driver_->Fill(SlotAddress(*place->range, place->slot), value,
                      Bytes(count * kUnit), stream_);
    ASSERT_EQ(status.ok(), allowed) << status;
    if (!allowed) return;
    for (int i = 0; i < count; ++i) {
      *Contents({place->range, place->slot + i}) = value;
    }
  }

  void Copy() {
    const auto to = RandomPlace();
    const auto from = RandomPlace();
    if (!to) return;
    const Content* const source = Contents(*from);
    Content* const target = Contents(*to);
    const DeviceAddress to_address = SlotAddress(*to->range, to->slot);
    const DeviceAddress from_address = SlotAddress(*from->range, from->slot);
    const bool allowed =
        source != nullptr && target != nullptr && to_address != from_address;
    // Through an alias both are one memory, which memcpy may not be given.
    if (allowed && source == target) return;
    const absl::Status status =
        driver_->CopyOnDevice(to_address, from_address, Bytes(kUnit), stream_);
    ASSERT_EQ(status.ok(), allowed) << status;
    if (allowed) *target = *source;
  }

  void Write() {
    const auto place = RandomPlace();
    if (!place) return;
    const std::vector<uint8_t> data(kUnit, Random(256));
    Content* const target = Contents(*place);
    const absl::Status status =
        driver_->CopyToDevice(SlotAddress(*place->range, place->slot),
                              data.data(), Bytes(kUnit), stream_);
    ASSERT_EQ(status.ok(), target != nullptr) << status;
    if (target != nullptr) *target = data[0];
    ASSERT_TRUE(driver_->SynchronizeStream(stream_).ok());
  }

  void RandomCall() {
    switch (Random(12)) {
      case 0:
        return ReserveOrRelease();
      case 1:
      case 2:
        return CreatePage();
      case 3:
        return ReleasePage();
      case 4:
      case 5:
      case 6:
        return Map();
      case 7:
      case 8:
        return Unmap();
      case 9:
        return Fill();
      case 10:
        return Copy();
      default:
        return Write();
    }
  }

  // Every mapped unit through every one of its addresses, at both ends.
  void CheckEverything() {
    ASSERT_TRUE(driver_->SynchronizeStream(stream_).ok());
    ASSERT_EQ(driver_->GetMemoryInfo(DeviceId(0))->free,
              Bytes((kDeviceUnits - model_.UsedUnits()) * kUnit));
    for (ModelRange& range : model_.ranges) {
      for (int slot = 0; slot < kSlotsPerRange; ++slot) {
        const Content* const expected = Contents({&range, slot});
        if (expected == nullptr || !*expected) continue;
        const auto* const bytes =
            SlotAddress(range, slot).host_pointer<volatile uint8_t>();
        ASSERT_EQ(bytes[0], **expected) << "slot " << slot;
        ASSERT_EQ(bytes[kUnit - 1], **expected) << "slot " << slot;
      }
    }
  }

  std::mt19937 random_;
  Model model_;
  std::unique_ptr<TestDriver> driver_;
  StreamId stream_;
};

TEST_P(DriverModelTest, BehavesAsTheModel) {
  for (int step = 0; step < 5000; ++step) {
    // Unmapping is not stream-ordered: queued work must be over before.
    ASSERT_TRUE(driver_->SynchronizeStream(stream_).ok());
    RandomCall();
    ASSERT_FALSE(HasFatalFailure()) << "step " << step;
    CheckEverything();
    ASSERT_FALSE(HasFatalFailure()) << "step " << step;
  }
  // The walk met both outcomes of every call often enough to mean something.
  for (const auto& call : driver_->GetCallStatistics().calls) {
    if (call.failed == 0) continue;
    EXPECT_GT(call.failed, 20u) << call.name;
    EXPECT_GT(call.count - call.failed, 20u) << call.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, DriverModelTest, ::testing::Range(1, 7));

}  // namespace
}  // namespace quire
