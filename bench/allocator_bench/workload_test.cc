#include "bench/allocator_bench/workload.h"

#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "bench/allocator_bench/report.h"
#include "bench/allocator_bench/timing.h"

namespace quire {
namespace {

// What is live, kept as a caller would keep it.
class Model {
 public:
  void Run(const std::vector<Operation>& operations, SizeRange sizes) {
    for (const Operation operation : operations) {
      if (operation.size == 0) {
        EXPECT_EQ(live_.erase(operation.slot), 1u) << "freed, and not live";
        continue;
      }
      EXPECT_GE(operation.size, sizes.least);
      EXPECT_LE(operation.size, sizes.most);
      EXPECT_TRUE(live_.emplace(operation.slot, operation.size).second)
          << "allocated where something is live";
    }
  }
  size_t live() const { return live_.size(); }
  uint32_t highest_slot() const { return live_.rbegin()->first; }

 private:
  std::map<uint32_t, uint32_t> live_;
};

TEST(PhasedWorkloadTest, FreesWhatIsLiveAndEverythingInTheEnd) {
  const SizeRange sizes = {256, 1 << 20};
  const PhasedWorkload workload = MakePhasedWorkload(500, 3000, sizes, 7);
  Model model;
  model.Run(workload.allocate, sizes);
  EXPECT_EQ(model.live(), 500u);
  model.Run(workload.mixed, sizes);
  EXPECT_LT(model.highest_slot(), workload.slots);
  EXPECT_EQ(workload.mixed.size(), 3000u);
  model.Run(workload.free, sizes);
  EXPECT_EQ(model.live(), 0u);
}

TEST(PhasedWorkloadTest, FreesEverythingWhereMoreIsFreedThanAllocated) {
  const SizeRange sizes = {256, 256};
  const PhasedWorkload workload = MakePhasedWorkload(1, 1000, sizes, 3);
  Model model;
  model.Run(workload.allocate, sizes);
  model.Run(workload.mixed, sizes);
  model.Run(workload.free, sizes);
  EXPECT_EQ(model.live(), 0u);
}

TEST(ChurnWorkloadTest, KeepsTheNumberOfLiveAllocations) {
  const SizeRange sizes = {256, 4096};
  const ChurnWorkload workload = MakeChurnWorkload(100, 1000, sizes, 7);
  Model model;
  model.Run(workload.fill, sizes);
  EXPECT_EQ(model.live(), 100u);
  for (int i = 0; i < 2; ++i) {
    model.Run(workload.churn, sizes);
    EXPECT_EQ(model.live(), 100u);
  }
  model.Run(workload.drain, sizes);
  EXPECT_EQ(model.live(), 0u);
}

TEST(WorkloadTest, IsDecidedByTheSeed) {
  const auto first_slots = [](uint64_t seed) {
    std::vector<uint32_t> slots;
    for (const Operation operation :
         MakePhasedWorkload(50, 0, {256, 4096}, seed).free) {
      slots.push_back(operation.slot);
    }
    return slots;
  };
  EXPECT_EQ(first_slots(1), first_slots(1));
  EXPECT_NE(first_slots(1), first_slots(2));
}

TEST(LogUniformTest, GivesEveryDoublingTheSameShare) {
  std::mt19937_64 random(1);
  std::vector<int> counts(12);
  constexpr int kDraws = 120'000;
  for (int i = 0; i < kDraws; ++i) {
    const uint32_t size = LogUniform({256, 1 << 20}, &random);
    ASSERT_GE(size, 256u);
    ASSERT_LE(size, 1u << 20);
    ++counts[std::min(31 - __builtin_clz(size / 256), 11)];
  }
  // 10,000 of each; the standard deviation is 96.
  for (const int count : counts) EXPECT_NEAR(count, 10'000, 600);
}

TEST(MedianTest, IsTheMiddle) {
  EXPECT_EQ(Median({3}), 3);
  EXPECT_EQ(Median({5, 1, 3}), 3);
  EXPECT_EQ(Median({4, 1, 3, 100}), 3.5);
}

TEST(FigureTest, IsJudgedByAllThatItIsHeldAgainst) {
  Figure figure;
  figure.value = 40;
  EXPECT_EQ(figure.Verdict(), "");
  figure.bar = 50;
  figure.aim = 15;
  EXPECT_EQ(figure.Verdict(), "bar");
  figure.mimalloc_bar = 2;
  EXPECT_EQ(figure.Verdict(), "bar");  // nothing to compare with
  figure.mimalloc = 19;
  EXPECT_EQ(figure.Verdict(), "missed");
  figure.mimalloc = 20;
  EXPECT_EQ(figure.Verdict(), "bar");
  figure.value = 15;
  EXPECT_EQ(figure.Verdict(), "aim");
  figure.value = 51;
  figure.mimalloc = 100;
  EXPECT_EQ(figure.Verdict(), "missed");

  Figure throughput;
  throughput.higher_is_better = true;
  throughput.bar = 1.8;
  throughput.aim = 1.95;
  throughput.value = 1.79;
  EXPECT_EQ(throughput.Verdict(), "missed");
  throughput.value = 1.8;
  EXPECT_EQ(throughput.Verdict(), "bar");
  throughput.value = 1.96;
  EXPECT_EQ(throughput.Verdict(), "aim");
}

}  // namespace
}  // namespace quire
