// A trace as torch.cuda.memory._dump_snapshot would have written it.
//
// Addresses are made up, each used once. A segment is one block that is live at
// the end: that is what the format has for what is older than its events, and
// what PyTorch's viewer begins at.

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "alloc/pickle_writer.h"
#include "quire/alloc/status_macros.h"
#include "quire/alloc/trace_formats.h"

namespace quire {
namespace {

// PyTorch's own rounding, so that blocks follow each other as its own do.
constexpr uint64_t kBlock = 512;
// Beyond it, readers of numbers with a sign see none.
constexpr uint64_t kMost = INT64_MAX;

struct Block {
  uint64_t address = 0;
  uint64_t size = 0;  // as requested
  uint64_t stream = 0;
  uint64_t rounded() const {
    return std::max((size + kBlock - 1) / kBlock, uint64_t{1}) * kBlock;
  }
};

class TraceWriter {
 public:
  absl::StatusOr<std::string> Write(const AllocationTrace& trace) {
    pickle_.BeginDict();
    pickle_.Text("device_traces");
    pickle_.BeginList();
    pickle_.BeginList();
    for (size_t i = 0; i < trace.events.size(); ++i) {
      const absl::Status added = Add(trace.events[i]);
      if (added.ok()) continue;
      return absl::Status(
          added.code(),
          absl::StrCat("event ", i, " (",
                       AllocationActionName(trace.events[i].action),
                       "): ", std::string(added.message())));
    }
    pickle_.EndList();
    pickle_.EndList();
    WriteSegments();
    pickle_.EndDict();
    return pickle_.Finish();
  }

 private:
  absl::Status Add(const AllocationEvent& event) {
    if (event.size.value() > kMost - kBlock || event.stream > kMost) {
      return absl::InvalidArgumentError(
          "its size or its stream is beyond 2^63, which snapshots of PyTorch "
          "do not have");
    }
    const uint64_t size = event.size.value();
    switch (event.action) {
      case AllocationAction::kLive:
        return Begin(event).status();
      case AllocationAction::kAllocate: {
        QUIRE_ASSIGN_OR_RETURN(const Block block, Begin(event));
        WriteEvent("alloc", block.address, size, event);
        return absl::OkStatus();
      }
      case AllocationAction::kFree: {
        const auto found = live_.find(event.allocation);
        const Block block = found->second;
        live_.erase(found);
        WriteEvent("free_requested", block.address, block.size, event);
        WriteEvent("free_completed", block.address, block.size, event);
        return absl::OkStatus();
      }
      case AllocationAction::kFailure:
        WriteEvent("oom", 0, size, event);
        return absl::OkStatus();
      case AllocationAction::kReserve:
        WriteEvent("segment_alloc", 0, size, event);
        return absl::OkStatus();
      case AllocationAction::kRelease:
        WriteEvent("segment_free", 0, size, event);
        return absl::OkStatus();
      case AllocationAction::kRecordStream:
      case AllocationAction::kMark:
        return absl::OkStatus();
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Block> Begin(const AllocationEvent& event) {
    const Block block{next_, event.size.value(), event.stream};
    if (block.rounded() > kMost - next_) {
      return absl::InvalidArgumentError(
          "all allocations together take more than 2^63 addresses");
    }
    next_ += block.rounded();
    live_[event.allocation] = block;
    return block;
  }

  void WriteFrames() {
    pickle_.Text("frames");
    pickle_.BeginList();
    pickle_.EndList();
  }

  void WriteEvent(const char* action, uint64_t address, uint64_t size,
                  const AllocationEvent& event) {
    pickle_.BeginDict();
    pickle_.Field("action", action);
    if (event.action == AllocationAction::kFailure) {
      pickle_.Field("device_free", 0);
    } else {
      pickle_.Field("addr", address);
    }
    pickle_.Field("size", size);
    pickle_.Field("stream", event.stream);
    pickle_.Field("time_us", event.nanoseconds / 1000);
    WriteFrames();
    pickle_.EndDict();
  }

  void WriteSegments() {
    std::vector<Block> blocks;
    for (const auto& [allocation, block] : live_) blocks.push_back(block);
    std::sort(blocks.begin(), blocks.end(), [](const Block& a, const Block& b) {
      return a.address < b.address;
    });
    pickle_.Text("segments");
    pickle_.BeginList();
    for (const Block& block : blocks) {
      pickle_.BeginDict();
      pickle_.Field("device", 0);
      pickle_.Field("address", block.address);
      pickle_.Field("total_size", block.rounded());
      pickle_.Field("allocated_size", block.rounded());
      pickle_.Field("active_size", block.rounded());
      pickle_.Field("requested_size", block.size);
      pickle_.Field("stream", block.stream);
      pickle_.Field("segment_type", "large");
      pickle_.Text("segment_pool_id");
      pickle_.Pair(0, 0);
      pickle_.Text("is_expandable");
      pickle_.Bool(false);
      WriteFrames();
      pickle_.Text("blocks");
      pickle_.BeginList();
      pickle_.BeginDict();
      pickle_.Field("address", block.address);
      pickle_.Field("size", block.rounded());
      pickle_.Field("requested_size", block.size);
      pickle_.Field("state", "active_allocated");
      WriteFrames();
      pickle_.EndDict();
      pickle_.EndList();
      pickle_.EndDict();
    }
    pickle_.EndList();
  }

  PickleWriter pickle_;
  uint64_t next_ = kBlock;                     // an address
  absl::flat_hash_map<uint64_t, Block> live_;  // by allocation
};

}  // namespace

absl::StatusOr<std::string> WritePyTorchSnapshot(const AllocationTrace& trace) {
  return TraceWriter().Write(trace);
}

}  // namespace quire
