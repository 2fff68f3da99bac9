// What the library's own policy decides.

#include <chrono>
#include <cstdint>
#include <vector>

#include "quire/alloc/compaction.h"

namespace quire {

const char* CompactionLevelName(CompactionLevel level) {
  switch (level) {
    case CompactionLevel::kTrim:
      return "trim";
    case CompactionLevel::kMesh:
      return "mesh";
    case CompactionLevel::kRelocation:
      return "relocation";
    case CompactionLevel::kSleep:
      return "sleep";
    case CompactionLevel::kWake:
      return "wake";
  }
  return "unknown";
}

bool ThresholdPolicy::DailyWindow::Contains(
    std::chrono::system_clock::time_point time) const {
  // The clock's epoch is a midnight, UTC, and it knows no leap seconds.
  const auto of_day = time - std::chrono::floor<std::chrono::days>(time);
  const auto now = static_cast<uint32_t>(
      std::chrono::floor<std::chrono::seconds>(of_day).count());
  if (begin <= end) return begin <= now && now < end;
  return begin <= now || now < end;
}

std::vector<CompactionLevel> ThresholdPolicy::Decide(
    const CompactionFacts& facts) {
  const auto beyond = [](Bytes part, double share, Bytes whole) {
    return static_cast<double>(part.value()) >
           share * static_cast<double>(whole.value());
  };
  if (facts.failed_allocations == 0) {
    if (facts.seconds_since_last < thresholds_.least_interval) return {};
    const bool in_nobodys_way = facts.seconds_idle >= thresholds_.idle ||
                                thresholds_.maintenance.Contains(facts.time);
    if (!in_nobodys_way &&
        !beyond(facts.pool_in_use, thresholds_.pool_in_use, facts.pool_limit)) {
      return {};
    }
  }
  // What mesh frees goes to the pool's cache, so it comes first.
  std::vector<CompactionLevel> levels;
  if (beyond(facts.pinned, thresholds_.pinned, facts.mapped)) {
    levels.push_back(CompactionLevel::kMesh);
  }
  levels.push_back(CompactionLevel::kTrim);
  return levels;
}

}  // namespace quire
