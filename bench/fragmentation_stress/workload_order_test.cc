#include "bench/fragmentation_stress/workload_order.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "quire/alloc/trace_formats.h"

namespace quire {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(WorkloadOrderTest, NamesPhasesOnceAndFreesBySize) {
  const auto trace = ReadQuireCsv(
      "phase,op,id,bytes,stream\n"
      "load,mark,0,0,0\n"
      "load,alloc,0,4194304,0\n"
      "run1,mark,0,0,0\n"
      "run1,mark,1,0,0\n"
      "run1,alloc,1,1048576,3\n"
      "run1,free,0,0,0\n"
      "unload,mark,0,0,0\n"
      "unload,free,1,0,0\n");
  ASSERT_TRUE(trace.ok()) << trace.status();
  const WorkloadOrder order = DescribeWorkloadOrder(*trace, 5);
  EXPECT_THAT(order.phases, ElementsAre("load", "run1"));
  EXPECT_THAT(order.requests,
              ElementsAre("allocate 4.00 MiB", "allocate 1.00 MiB on stream 3",
                          "free 4.00 MiB"));
  EXPECT_THAT(DescribeWorkloadOrder(*trace, 100).phases,
              ElementsAre("load", "run1", "unload"));
  EXPECT_THAT(DescribeWorkloadOrder(AllocationTrace(), 3).requests, IsEmpty());
}

TEST(WorkloadOrderTest, KeepsTheLast) {
  std::string rows = "op,id,bytes\n";
  for (int i = 0; i < 20; ++i) {
    rows += "alloc," + std::to_string(i) + "," + std::to_string(i + 1) + "\n";
  }
  const WorkloadOrder order = DescribeWorkloadOrder(*ReadQuireCsv(rows), 19);
  ASSERT_EQ(order.requests.size(), 16u);
  EXPECT_EQ(order.requests.front(), "allocate 5 B");
  EXPECT_EQ(order.requests.back(), "allocate 20 B");
}

}  // namespace
}  // namespace quire
