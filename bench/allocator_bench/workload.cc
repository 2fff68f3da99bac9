#include "bench/allocator_bench/workload.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace quire {
namespace {

// std::uniform_int_distribution is another one in every library; a sequence has
// to be the same everywhere. The bias of the remainder is below 2^-32.
uint32_t Below(uint32_t bound, std::mt19937_64* random) {
  return static_cast<uint32_t>((*random)() % bound);
}

// Frees of all of `slots`, in random order.
std::vector<Operation> FreeAll(std::vector<uint32_t> slots,
                               std::mt19937_64* random) {
  for (uint32_t i = static_cast<uint32_t>(slots.size()); i > 1; --i) {
    std::swap(slots[i - 1], slots[Below(i, random)]);
  }
  std::vector<Operation> operations;
  operations.reserve(slots.size());
  for (const uint32_t slot : slots) operations.push_back({slot, 0});
  return operations;
}

}  // namespace

uint32_t LogUniform(SizeRange range, std::mt19937_64* random) {
  const double unit = static_cast<double>((*random)() >> 11) * 0x1p-53;
  const double ratio = static_cast<double>(range.most) / range.least;
  const double size = range.least * std::pow(ratio, unit);
  return std::clamp(static_cast<uint32_t>(size), range.least, range.most);
}

PhasedWorkload MakePhasedWorkload(uint32_t allocations, uint32_t mixed,
                                  SizeRange sizes, uint64_t seed) {
  std::mt19937_64 random(seed);
  PhasedWorkload workload;
  std::vector<uint32_t> live;
  std::vector<uint32_t> spare;  // slots that are empty
  const auto allocate = [&](std::vector<Operation>* operations) {
    uint32_t slot = workload.slots;
    if (spare.empty()) {
      ++workload.slots;
    } else {
      slot = spare.back();
      spare.pop_back();
    }
    live.push_back(slot);
    operations->push_back({slot, LogUniform(sizes, &random)});
  };
  for (uint32_t i = 0; i < allocations; ++i) allocate(&workload.allocate);
  for (uint32_t i = 0; i < mixed; ++i) {
    if (live.empty() || Below(2, &random) == 0) {
      allocate(&workload.mixed);
      continue;
    }
    std::swap(live[Below(static_cast<uint32_t>(live.size()), &random)],
              live.back());
    workload.mixed.push_back({live.back(), 0});
    spare.push_back(live.back());
    live.pop_back();
  }
  workload.free = FreeAll(std::move(live), &random);
  return workload;
}

PhasedWorkload MakeHitWorkload(uint32_t divisor, uint64_t seed) {
  return MakePhasedWorkload(7200 / divisor, 14400 / divisor, {256, 1 << 20},
                            seed);
}

ChurnWorkload MakeChurnWorkload(uint32_t live, uint32_t pairs, SizeRange sizes,
                                uint64_t seed) {
  std::mt19937_64 random(seed);
  ChurnWorkload workload;
  workload.slots = live;
  for (uint32_t slot = 0; slot < live; ++slot) {
    workload.fill.push_back({slot, LogUniform(sizes, &random)});
  }
  for (uint32_t i = 0; i < pairs; ++i) {
    const uint32_t slot = Below(live, &random);
    workload.churn.push_back({slot, 0});
    workload.churn.push_back({slot, LogUniform(sizes, &random)});
  }
  std::vector<uint32_t> slots(live);
  std::iota(slots.begin(), slots.end(), 0u);
  workload.drain = FreeAll(std::move(slots), &random);
  return workload;
}

}  // namespace quire
