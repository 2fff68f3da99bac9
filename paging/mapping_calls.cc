#include "quire/paging/mapping_calls.h"

namespace quire {

uint64_t CountMappingCalls(const Driver& driver) {
  const DriverCallStatistics calls = driver.GetCallStatistics();
  uint64_t count = 0;
  for (const char* name : {"ReserveAddress", "ReleaseAddress", "CreatePage",
                           "ReleasePage", "Map", "Unmap"})
    count += calls.CountOf(name);
  return count;
}

}  // namespace quire
