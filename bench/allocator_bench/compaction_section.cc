// Nine tenths of what fills 64 slabs die at random. What mesh makes of the rest
// is held against first fit over slabs sorted by what is live in them, on the
// very same slabs; what a relocation pass makes of it, against what is live.

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "bench/allocator_bench/sections.h"
#include "bench/bench_device.h"
#include "quire/alloc/quiescent.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

constexpr uint64_t kPage = uint64_t{2} << 20;
constexpr int kSlabs = 64;
constexpr int kSlotsPerSlab[] = {2, 8, 16, 32, 64};
constexpr double kMeshBar = 1.05;  // of first fit
constexpr double kRelocationBar = 1.05;

struct Survivors {
  std::vector<DeviceAddress> addresses;
  uint64_t bytes = 0;
  // By slab: bit i is slot i.
  std::map<uint64_t, uint64_t> masks;
};

// Fills kSlabs slabs of a class and frees nine tenths of it.
absl::Status MakeSurvivors(DeviceAllocator* allocator, int slots, bool movable,
                           std::mt19937_64* random, Survivors* survivors) {
  const uint64_t size = kPage / static_cast<uint64_t>(slots);
  AllocateOptions options;
  options.movable = movable;
  const auto allocate = [&](size_t count,
                            std::vector<DeviceAddress>* addresses) {
    for (size_t i = 0; i < count; ++i) {
      const auto address = allocator->Allocate(Bytes(size), options);
      if (!address.ok()) return address.status();
      addresses->push_back(*address);
    }
    return absl::OkStatus();
  };
  // The first slab of a class is less than a page: it is filled and set aside.
  std::vector<DeviceAddress> aside;
  const uint64_t first = std::max(uint64_t{64} << 10, 4 * size);
  if (first <= kPage / 4) {
    QUIRE_RETURN_IF_ERROR(allocate(first / size, &aside));
  }
  std::vector<DeviceAddress> all;
  QUIRE_RETURN_IF_ERROR(
      allocate(static_cast<size_t>(kSlabs) * static_cast<size_t>(slots), &all));
  std::shuffle(all.begin(), all.end(), *random);
  const size_t living = all.size() / 10;
  for (size_t i = 0; i < all.size(); ++i) {
    if (i >= living) {
      QUIRE_RETURN_IF_ERROR(allocator->Free(all[i]));
      continue;
    }
    const uint64_t slab = all[i].value() / kPage;
    survivors->masks[slab] |= uint64_t{1} << (all[i].value() % kPage / size);
    survivors->addresses.push_back(all[i]);
    survivors->bytes += size;
  }
  for (const DeviceAddress address : aside) {
    QUIRE_RETURN_IF_ERROR(allocator->Free(address));
  }
  return absl::OkStatus();
}

// Pages after first fit, any number of slabs to a page.
size_t FirstFitDecreasing(const std::map<uint64_t, uint64_t>& masks) {
  std::vector<uint64_t> order;
  for (const auto& [slab, mask] : masks) order.push_back(mask);
  std::stable_sort(order.begin(), order.end(), [](uint64_t a, uint64_t b) {
    return std::popcount(a) > std::popcount(b);
  });
  std::vector<uint64_t> pages;
  for (const uint64_t mask : order) {
    const auto page =
        std::find_if(pages.begin(), pages.end(),
                     [mask](uint64_t taken) { return (taken & mask) == 0; });
    if (page == pages.end()) {
      pages.push_back(mask);
    } else {
      *page |= mask;
    }
  }
  return pages.size();
}

double PerLive(BenchDevice* device, uint64_t live) {
  device->memory()->Trim(PageCount(0));
  return static_cast<double>(device->memory()->GetStatistics().in_use.value()) /
         static_cast<double>(live);
}

absl::Status MeasureMesh(int slots, uint64_t seed, Section* section) {
  QUIRE_ASSIGN_OR_RETURN(const auto device, BenchDevice::Create(GiB(8)));
  std::mt19937_64 random(seed);
  Survivors survivors;
  QUIRE_RETURN_IF_ERROR(MakeSurvivors(device->allocator(), slots,
                                      /*movable=*/false, &random, &survivors));
  const double before = PerLive(device.get(), survivors.bytes);
  const double first_fit =
      static_cast<double>(FirstFitDecreasing(survivors.masks) * kPage) /
      static_cast<double>(survivors.bytes);
  {
    QUIRE_ASSIGN_OR_RETURN(const QuiescentSection quiet,
                           QuiescentSection::Begin(device->memory(), {}));
    QUIRE_RETURN_IF_ERROR(device->allocator()->Mesh(quiet).status());
  }
  const double after = PerLive(device.get(), survivors.bytes);
  const std::string name = absl::StrFormat("%d slots a slab", slots);
  section->figures.push_back(
      {.name = name + ", empty slabs freed", .unit = "x", .value = before});
  section->figures.push_back({.name = name + ", first fit on the same slabs",
                              .unit = "x",
                              .value = first_fit});
  section->figures.push_back({.name = name + ", meshed",
                              .unit = "x",
                              .value = after,
                              .bar = kMeshBar * first_fit,
                              .aim = first_fit});
  return absl::OkStatus();
}

absl::Status MeasureRelocation(uint64_t seed, Section* section) {
  QUIRE_ASSIGN_OR_RETURN(const auto device, BenchDevice::Create(GiB(16)));
  std::mt19937_64 random(seed);
  Survivors survivors;
  for (const int slots : kSlotsPerSlab) {
    QUIRE_RETURN_IF_ERROR(MakeSurvivors(device->allocator(), slots,
                                        /*movable=*/true, &random, &survivors));
  }
  QUIRE_ASSIGN_OR_RETURN(const QuiescentSection quiet,
                         QuiescentSection::Begin(device->memory(), {}));
  QUIRE_RETURN_IF_ERROR(device->allocator()->Mesh(quiet).status());
  section->figures.push_back({.name = "all of these together, meshed",
                              .unit = "x",
                              .value = PerLive(device.get(), survivors.bytes)});
  QUIRE_ASSIGN_OR_RETURN(RelocationPass pass,
                         device->allocator()->BeginRelocation(quiet));
  QUIRE_RETURN_IF_ERROR(pass.Copy());
  const CompactionReport report = pass.End();
  section->figures.push_back({.name = "the same, and one relocation pass",
                              .unit = "x",
                              .value = PerLive(device.get(), survivors.bytes),
                              .bar = kRelocationBar});
  section->figures.push_back(
      {.name = "moved by the pass / live",
       .unit = "x",
       .value = static_cast<double>(report.bytes_moved.value()) /
                static_cast<double>(survivors.bytes)});
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Section> MeasureCompaction(const BenchOptions& options) {
  Section section;
  section.name = "compaction";
  section.title =
      "physical memory / live bytes where nine tenths of 64 slabs of a class "
      "died at random";
  section.method = "exact, whatever the machine. No pointer changes in a mesh";
  for (const int slots : kSlotsPerSlab) {
    QUIRE_RETURN_IF_ERROR(MeasureMesh(slots, options.seed, &section));
  }
  QUIRE_RETURN_IF_ERROR(MeasureRelocation(options.seed, &section));
  return section;
}

}  // namespace quire
