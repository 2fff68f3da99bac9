#include "quire/alloc/memory_limits.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>

namespace quire {
namespace {

DeviceMemoryInfo Device(Bytes free, Bytes total) { return {free, total}; }

TEST(LimitFromUtilizationTest, IsAShareOfTheTotalAsFarAsThatIsFree) {
  const DeviceMemoryInfo idle = Device(GiB(24), GiB(24));
  EXPECT_EQ(*LimitFromUtilization(idle, 0.5), GiB(12));
  EXPECT_EQ(*LimitFromUtilization(idle, 1.0), GiB(24));
  // Of the total, whatever others use, while it does not reach into that.
  const DeviceMemoryInfo shared = Device(GiB(14), GiB(24));
  EXPECT_EQ(*LimitFromUtilization(shared, 0.5), GiB(12));
  EXPECT_EQ(*LimitFromUtilization(shared, 0.75), GiB(14));
  EXPECT_EQ(*LimitFromUtilization(shared, 0.75, GiB(4)), GiB(10));
  EXPECT_EQ(*LimitFromUtilization(shared, 0.25, GiB(4)), GiB(6));
  // What it has itself is its own to keep.
  EXPECT_EQ(*LimitFromUtilization(shared, 0.75, GiB(4), GiB(3)), GiB(13));
  EXPECT_EQ(*LimitFromUtilization(shared, 0.5, GiB(1), GiB(10)), GiB(12));
}

TEST(LimitFromUtilizationTest, RefusesFractionsThatAreNone) {
  const DeviceMemoryInfo device = Device(GiB(8), GiB(8));
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double fraction :
       {0.0, -0.0, -0.5, 1.0000001, 90.0, std::nan(""), infinity, -infinity}) {
    EXPECT_EQ(LimitFromUtilization(device, fraction).status().code(),
              absl::StatusCode::kInvalidArgument)
        << fraction;
  }
}

TEST(LimitFromUtilizationTest, NothingLeftIsAnErrorAndNeverAWrap) {
  for (const Bytes headroom : {GiB(8), GiB(9), Bytes(UINT64_MAX)}) {
    EXPECT_EQ(LimitFromUtilization(Device(GiB(8), GiB(16)), 1.0, headroom)
                  .status()
                  .code(),
              absl::StatusCode::kResourceExhausted);
  }
  EXPECT_EQ(
      LimitFromUtilization(Device(Bytes(0), Bytes(0)), 0.9).status().code(),
      absl::StatusCode::kResourceExhausted);
  // A denormal fraction of a small device is less than a byte.
  EXPECT_FALSE(LimitFromUtilization(Device(MiB(1), MiB(1)), 5e-324).ok());
  const Bytes most(UINT64_MAX);
  EXPECT_EQ(*LimitFromUtilization(Device(most, most), 1.0), most);
}

}  // namespace
}  // namespace quire
