#include "quire/alloc/memory_limits.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace quire {

absl::StatusOr<Bytes> LimitFromUtilization(const DeviceMemoryInfo& info,
                                           double fraction, Bytes headroom,
                                           Bytes held) {
  // Written so that NaN, which compares with nothing, is refused.
  if (!(fraction > 0.0 && fraction <= 1.0)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a memory utilization of ", fraction, " is not above 0 and at most 1"));
  }
  const auto total = static_cast<double>(info.total.value());
  const double share = fraction * total;
  // A total near 2^64 rounds up to what an integer does not hold.
  const Bytes wanted =
      share >= total ? info.total : Bytes(static_cast<uint64_t>(share));
  const Bytes spare =
      SaturatingSubtract(SaturatingAdd(info.free, held), headroom);
  const Bytes limit = std::min(wanted, spare);
  if (limit.zero()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "a utilization of ", fraction, " leaves nothing: of ",
        FormatBytes(info.total), " on the device, ", FormatBytes(info.free),
        " are free, and ", FormatBytes(headroom), " are to be left"));
  }
  return limit;
}

}  // namespace quire
