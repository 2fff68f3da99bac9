// Makes an AllocationTrace from events that name allocations by address or by a
// number that is used again later.
//
// What was live before the recording began may become known only when it is
// freed; the builder puts it first. Not thread-safe. O(1) per event.

#ifndef QUIRE_ALLOC_ALLOCATION_TRACE_BUILDER_H_
#define QUIRE_ALLOC_ALLOCATION_TRACE_BUILDER_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "quire/alloc/allocation_trace.h"

namespace quire {

class AllocationTraceBuilder {
 public:
  // The number of a label; equal texts have one.
  uint32_t Label(std::string_view text);

  // Each takes the event without its `allocation`, and the recording's name of
  // that. kLive, kAllocate: an error where `key` is live.
  absl::Status Begin(uint64_t key, AllocationEvent event);
  // kFree, kRecordStream: an error where `key` is not live.
  absl::Status Continue(uint64_t key, AllocationEvent event);
  // Where `key` is not live, it was before the recording, with the size and
  // stream of `event`.
  void ContinueOlder(uint64_t key, AllocationEvent event);
  // Events that are of no allocation.
  void Add(const AllocationEvent& event) { recorded_.push_back(event); }

  bool IsLive(uint64_t key) const { return live_.contains(key); }
  // Leaves the builder empty.
  AllocationTrace Finish();

 private:
  std::vector<AllocationEvent> older_;
  std::vector<AllocationEvent> recorded_;
  std::vector<std::string> labels_ = {std::string()};
  absl::flat_hash_map<std::string, uint32_t> label_numbers_ = {{"", 0}};
  absl::flat_hash_map<uint64_t, uint64_t> live_;  // key -> allocation
  uint64_t next_ = 0;
};

}  // namespace quire

#endif  // QUIRE_ALLOC_ALLOCATION_TRACE_BUILDER_H_
