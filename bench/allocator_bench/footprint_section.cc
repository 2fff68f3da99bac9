// Physical memory that is held, after Trim, against what is live: cases in
// which other allocators were reported to hold more and more.

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "bench/allocator_bench/sections.h"
#include "bench/allocator_bench/workload.h"
#include "bench/bench_device.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr double kBar = 1.02;

// A device and what is live on it.
class Case {
 public:
  static absl::StatusOr<Case> Create(Bytes memory) {
    QUIRE_ASSIGN_OR_RETURN(auto device, BenchDevice::Create(memory));
    return Case(std::move(device));
  }

  // Gives the number to free it by.
  absl::StatusOr<size_t> Allocate(uint64_t size) {
    QUIRE_ASSIGN_OR_RETURN(const DeviceAddress address,
                           device_->allocator()->Allocate(Bytes(size)));
    allocations_.push_back({address, size});
    live_bytes_ += size;
    peak_live_bytes_ = std::max(peak_live_bytes_, live_bytes_);
    return allocations_.size() - 1;
  }
  absl::Status Free(size_t allocation) {
    live_bytes_ -= allocations_[allocation].second;
    return device_->allocator()->Free(allocations_[allocation].first);
  }

  // Physical memory in use / live bytes rounded to pages, after Trim.
  double TrimmedFootprint() {
    device_->memory()->Trim(PageCount(0));
    return Ratio(device_->memory()->GetStatistics().in_use, live_bytes_);
  }
  double PeakFootprint() const {
    return Ratio(device_->memory()->GetStatistics().peak_in_use,
                 peak_live_bytes_);
  }

 private:
  explicit Case(std::unique_ptr<BenchDevice> device)
      : device_(std::move(device)) {}

  double Ratio(Bytes physical, uint64_t live) const {
    const Bytes page = device_->memory()->page_size();
    return static_cast<double>(physical.value()) /
           static_cast<double>(PagesFor(Bytes(live), page).value() *
                               page.value());
  }

  std::unique_ptr<BenchDevice> device_;
  std::vector<std::pair<DeviceAddress, uint64_t>> allocations_;
  uint64_t live_bytes_ = 0;
  uint64_t peak_live_bytes_ = 0;
};

void Add(Section* section, const std::string& name, double value,
         std::optional<double> bar = kBar) {
  section->figures.push_back(
      {.name = name, .unit = "x", .value = value, .bar = bar});
}

// pytorch#193400, pytorch#123548: reserved memory climbed with every cycle.
absl::Status HundredCycles(Section* section) {
  QUIRE_ASSIGN_OR_RETURN(Case state, Case::Create(GiB(16)));
  for (int i = 0; i < 100; ++i) {
    QUIRE_ASSIGN_OR_RETURN(const size_t large, state.Allocate(91 * kMiB));
    QUIRE_ASSIGN_OR_RETURN(const size_t half, state.Allocate(91 * kMiB / 2));
    QUIRE_RETURN_IF_ERROR(state.Allocate(2 * kMiB).status());  // kept
    QUIRE_RETURN_IF_ERROR(state.Free(large));
    QUIRE_RETURN_IF_ERROR(state.Free(half));
  }
  Add(section, "100 cycles of 91, 45.5 and 2 MiB, the last kept",
      state.TrimmedFootprint());
  Add(section, "the same, peak held / peak live", state.PeakFootprint());
  return absl::OkStatus();
}

// Each allocation lives for a random time, so frees come in another order than
// allocations; a few dozen are left at the end.
absl::Status StaggeredFrees(SizeRange sizes, const char* name,
                            std::optional<double> bar, uint64_t seed,
                            Section* section) {
  constexpr size_t kSteps = 4000;
  constexpr size_t kLongestLife = 64;
  QUIRE_ASSIGN_OR_RETURN(Case state, Case::Create(GiB(64)));
  std::mt19937_64 random(seed);
  std::vector<std::vector<size_t>> ends(kSteps + kLongestLife + 1);
  for (size_t step = 0; step < kSteps; ++step) {
    QUIRE_ASSIGN_OR_RETURN(const size_t allocation,
                           state.Allocate(LogUniform(sizes, &random)));
    ends[step + 1 + random() % kLongestLife].push_back(allocation);
    for (const size_t ended : ends[step]) {
      QUIRE_RETURN_IF_ERROR(state.Free(ended));
    }
  }
  Add(section, name, state.TrimmedFootprint(), bar);
  return absl::OkStatus();
}

// OffsetAllocator#14: a free range of 699,050 units refused 664,908 of them.
absl::Status AlmostAll(Section* section) {
  constexpr uint64_t kUnit = 256;
  const uint64_t page = 2 * kMiB;
  const uint64_t pages = PagesFor(Bytes(699'050 * kUnit), Bytes(page)).value();
  QUIRE_ASSIGN_OR_RETURN(Case state, Case::Create(Bytes(pages * page)));
  QUIRE_ASSIGN_OR_RETURN(const size_t all, state.Allocate(699'050 * kUnit));
  QUIRE_RETURN_IF_ERROR(state.Free(all));
  QUIRE_RETURN_IF_ERROR(state.Allocate(664'908 * kUnit).status());
  Add(section, "664,908 units of 256 B where 699,050 were free",
      state.TrimmedFootprint());
  return absl::OkStatus();
}

// VulkanMemoryAllocator#231, on a device that has room for just what is live.
absl::Status FreeFirstThenLarger(Section* section) {
  QUIRE_ASSIGN_OR_RETURN(Case state, Case::Create(MiB(648 + 720)));
  QUIRE_ASSIGN_OR_RETURN(const size_t first, state.Allocate(576 * kMiB));
  QUIRE_RETURN_IF_ERROR(state.Allocate(648 * kMiB).status());
  QUIRE_RETURN_IF_ERROR(state.Free(first));
  QUIRE_RETURN_IF_ERROR(state.Allocate(720 * kMiB).status());
  Add(section, "576 and 648 MiB, the first freed, 720 MiB",
      state.TrimmedFootprint());
  return absl::OkStatus();
}

// Every other allocation of full slabs is freed, and as many are made again.
absl::Status HalfFreedSlabs(uint64_t size, Section* section) {
  constexpr uint64_t kFilled = 128 * kMiB;
  QUIRE_ASSIGN_OR_RETURN(Case state, Case::Create(GiB(16)));
  const size_t count = kFilled / size;
  for (size_t i = 0; i < count; ++i) {
    QUIRE_RETURN_IF_ERROR(state.Allocate(size).status());
  }
  for (size_t i = 0; i < count; i += 2) {
    QUIRE_RETURN_IF_ERROR(state.Free(i));
  }
  Add(section, absl::StrFormat("half-freed slabs of %u KiB", size >> 10),
      state.TrimmedFootprint(), std::nullopt);
  for (size_t i = 0; i < count; i += 2) {
    QUIRE_RETURN_IF_ERROR(state.Allocate(size).status());
  }
  Add(section, "the same, filled again", state.TrimmedFootprint());
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Section> MeasureFootprint(const BenchOptions& options) {
  Section section;
  section.name = "footprint";
  section.title =
      "physical memory held after Trim / live bytes rounded to pages";
  section.method =
      "exact, whatever the machine. Half-freed slabs keep their pages until "
      "they are meshed, which Trim does not do: those have no bar here";
  QUIRE_RETURN_IF_ERROR(HundredCycles(&section));
  QUIRE_RETURN_IF_ERROR(StaggeredFrees({1 << 20, 64 << 20},
                                       "staggered frees, 1 to 64 MiB", kBar,
                                       options.seed, &section));
  QUIRE_RETURN_IF_ERROR(AlmostAll(&section));
  QUIRE_RETURN_IF_ERROR(FreeFirstThenLarger(&section));
  for (const uint64_t size : {4 << 10, 64 << 10, 1 << 20}) {
    QUIRE_RETURN_IF_ERROR(HalfFreedSlabs(size, &section));
  }
  return section;
}

}  // namespace quire
