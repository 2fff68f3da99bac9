#include "alloc/allocation_trace_builder.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace quire {

uint32_t AllocationTraceBuilder::Label(std::string_view text) {
  const auto [found, added] = label_numbers_.emplace(
      std::string(text), static_cast<uint32_t>(labels_.size()));
  if (added) labels_.emplace_back(text);
  return found->second;
}

absl::Status AllocationTraceBuilder::Begin(uint64_t key,
                                           AllocationEvent event) {
  if (!live_.emplace(key, next_).second) {
    return absl::InvalidArgumentError(
        absl::StrCat("allocation ", key, " is live already"));
  }
  event.allocation = next_++;
  (event.action == AllocationAction::kLive ? older_ : recorded_)
      .push_back(event);
  return absl::OkStatus();
}

absl::Status AllocationTraceBuilder::Continue(uint64_t key,
                                              AllocationEvent event) {
  const auto found = live_.find(key);
  if (found == live_.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("allocation ", key, " is not live"));
  }
  event.allocation = found->second;
  if (event.action == AllocationAction::kFree) live_.erase(found);
  recorded_.push_back(event);
  return absl::OkStatus();
}

void AllocationTraceBuilder::ContinueOlder(uint64_t key,
                                           AllocationEvent event) {
  if (!IsLive(key)) {
    AllocationEvent older = event;
    older.action = AllocationAction::kLive;
    older.nanoseconds = 0;
    older.label = 0;
    (void)Begin(key, older);
  }
  (void)Continue(key, event);
}

AllocationTrace AllocationTraceBuilder::Finish() {
  AllocationTrace trace;
  trace.events = std::move(older_);
  trace.events.insert(trace.events.end(), recorded_.begin(), recorded_.end());
  trace.labels = std::move(labels_);
  *this = AllocationTraceBuilder();
  return trace;
}

}  // namespace quire
