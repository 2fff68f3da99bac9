#include "quire/alloc/driver.h"

#include "quire/alloc/driver_call.h"

namespace quire {

uint64_t DriverCallStatistics::total_count() const {
  uint64_t total = 0;
  for (const Call& call : calls) total += call.count;
  return total;
}

uint64_t DriverCallStatistics::total_nanoseconds() const {
  uint64_t total = 0;
  for (const Call& call : calls) total += call.nanoseconds;
  return total;
}

uint64_t DriverCallStatistics::CountOf(std::string_view name) const {
  for (const Call& call : calls) {
    if (call.name == name) return call.count;
  }
  return 0;
}

const char* DriverCallName(DriverCall call) {
  switch (call) {
#define QUIRE_NAME_DRIVER_CALL(name) \
  case DriverCall::k##name:          \
    return #name;
    QUIRE_DRIVER_CALLS(QUIRE_NAME_DRIVER_CALL)
#undef QUIRE_NAME_DRIVER_CALL
  }
  return "unknown";
}

}  // namespace quire
