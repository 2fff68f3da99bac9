#include "bench/fragmentation_stress/workload_order.h"

#include <algorithm>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"

namespace quire {
namespace {

constexpr size_t kPhases = 32;
constexpr size_t kRequests = 16;

void KeepLast(size_t count, std::vector<std::string>* list) {
  if (list->size() <= count) return;
  list->erase(list->begin(), list->end() - static_cast<ptrdiff_t>(count));
}

std::string DescribeRequest(const AllocationEvent& event, Bytes size) {
  return absl::StrCat(
      AllocationActionName(event.action), " ", FormatBytes(size),
      event.stream == 0 ? "" : absl::StrCat(" on stream ", event.stream));
}

}  // namespace

WorkloadOrder DescribeWorkloadOrder(const AllocationTrace& trace,
                                    uint64_t event) {
  WorkloadOrder order;
  absl::flat_hash_map<uint64_t, Bytes> sizes;  // frees need not say them
  const uint64_t end = std::min<uint64_t>(event + 1, trace.events.size());
  for (uint64_t i = 0; i < end; ++i) {
    const AllocationEvent& now = trace.events[i];
    switch (now.action) {
      case AllocationAction::kMark: {
        const std::string& label = trace.labels[now.label];
        std::string phase = label.substr(0, label.find(' '));
        if (order.phases.empty() || order.phases.back() != phase) {
          order.phases.push_back(std::move(phase));
        }
        break;
      }
      case AllocationAction::kLive:
      case AllocationAction::kAllocate:
        sizes[now.allocation] = now.size;
        break;
      default:
        break;
    }
  }
  for (uint64_t i = end; i-- > 0 && order.requests.size() < kRequests;) {
    const AllocationEvent& now = trace.events[i];
    if (now.action == AllocationAction::kAllocate ||
        now.action == AllocationAction::kFree) {
      order.requests.push_back(DescribeRequest(now, sizes[now.allocation]));
    }
  }
  std::reverse(order.requests.begin(), order.requests.end());
  KeepLast(kPhases, &order.phases);
  return order;
}

}  // namespace quire
