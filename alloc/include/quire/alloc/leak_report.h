// What is still held when its owner ends: a leak, told so that it can be found.

#ifndef QUIRE_ALLOC_LEAK_REPORT_H_
#define QUIRE_ALLOC_LEAK_REPORT_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "quire/alloc/runtime.h"
#include "quire/alloc/units.h"

namespace quire {

// Of one owner on one device.
struct LeakReport {
  // Live allocations of one size on one stream.
  struct Group {
    Bytes size;  // as requested
    StreamId stream;
    uint64_t count = 0;
    Bytes total;
  };
  // Where sampled ones were made (RuntimeOptions::sample_interval).
  struct Site {
    std::vector<std::string> callers;  // innermost first
    uint64_t samples = 0;
    Bytes estimated;  // that all allocations made there come to
  };

  std::string owner;
  DeviceId device;
  uint64_t allocations = 0;
  Bytes requested;
  // Pages that the owner mapped itself and did not give up.
  Bytes pages;
  std::vector<Group> groups;  // largest total first
  std::vector<Site> sites;    // largest estimate first
};

struct LeakOptions {
  // Only this owner and those below it; nullopt: all.
  std::optional<OwnerId> owner;
  // Of each report, the most that are listed.
  size_t groups = 8;
  size_t sites = 4;
};

// One report for each owner that holds anything, in order of device and owner;
// empty where nothing leaks. Call it when the owner should hold nothing. Memory
// that was freed and is kept for re-use is not held. O(pages + allocations).
std::vector<LeakReport> FindLeaks(Runtime& runtime,
                                  const LeakOptions& options = {});

// The same of one allocator alone, which need not be a runtime's: what it has
// handed out. Of pages that owners mapped themselves it knows nothing. Call it
// before the allocator is destroyed. O(allocations).
std::vector<LeakReport> FindLeaks(const DeviceAllocator& allocator,
                                  const LeakOptions& options = {});

// A paragraph for each; empty for none.
std::string FormatLeaks(const std::vector<LeakReport>& leaks);

}  // namespace quire

#endif  // QUIRE_ALLOC_LEAK_REPORT_H_
