// A memory snapshot as torch.cuda.memory._dump_snapshot would write it.
//
// docs/memory_snapshot.md says what becomes of what. Times are microseconds;
// everything that has an owner has a stack frame that names it, so that
// PyTorch's flame graphs group by owner.

#include <algorithm>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "alloc/memory_snapshot_data.h"
#include "alloc/pickle_writer.h"
#include "alloc/pytorch_history.h"
#include "quire/alloc/utf8.h"

namespace quire {
namespace {

class SnapshotWriter {
 public:
  explicit SnapshotWriter(const MemorySnapshot& snapshot)
      : snapshot_(snapshot), history_(BuildPyTorchHistory(snapshot)) {
    for (const MemorySnapshot::Sample& sample : snapshot.samples) {
      samples_[sample.address] = &sample;
    }
  }

  std::string Write() {
    pickle_.BeginDict();
    pickle_.Text("segments");
    pickle_.BeginList();
    for (const PyTorchSegment& segment : history_.segments) {
      WriteSegment(segment);
    }
    pickle_.EndList();
    // One list per device, up to ours.
    pickle_.Text("device_traces");
    pickle_.BeginList();
    for (uint64_t device = 0; device < DeviceNumber(); ++device) {
      pickle_.BeginList();
      pickle_.EndList();
    }
    WriteEvents();
    pickle_.EndList();
    WriteSettings();
    WriteMarks();
    pickle_.EndDict();
    return pickle_.Finish();
  }

 private:
  // A file may say anything; no machine has more devices.
  uint64_t DeviceNumber() const {
    return std::min<uint64_t>(snapshot_.device.id, 1024);
  }

  // The owner is the outermost frame, whoever made the block.
  void WriteFrames(uint32_t owner,
                   const MemorySnapshot::Sample* sample = nullptr) {
    pickle_.Text("frames");
    pickle_.BeginList();
    if (sample != nullptr) {
      for (const uint64_t caller : sample->callers) {
        WriteFrame(snapshot_.frames[caller]);
      }
    }
    WriteFrame(OwnerName(snapshot_, owner));
    pickle_.EndList();
  }
  void WriteFrame(const std::string& name) {
    pickle_.BeginDict();
    pickle_.Field("filename", "quire");
    pickle_.Field("line", 0);
    pickle_.Field("name", ValidUtf8(name));
    pickle_.EndDict();
  }

  void WriteBlock(uint64_t address, uint64_t size, uint64_t requested,
                  const char* state) {
    pickle_.Field("address", address);
    pickle_.Field("size", size);
    pickle_.Field("requested_size", requested);
    pickle_.Field("state", state);
  }

  void WriteSegment(const PyTorchSegment& segment) {
    uint64_t active = 0;
    uint64_t requested = 0;
    for (const auto& [address, block] : segment.blocks) {
      active += block.size;
      requested += block.requested;
    }
    pickle_.BeginDict();
    pickle_.Field("device", DeviceNumber());
    pickle_.Field("address", segment.address);
    pickle_.Field("total_size", segment.size);
    pickle_.Field("allocated_size", active);
    pickle_.Field("active_size", active);
    pickle_.Field("requested_size", requested);
    // Pages belong to no stream: any may use what is free.
    pickle_.Field("stream", 0);
    pickle_.Field("segment_type", "large");
    pickle_.Text("segment_pool_id");
    pickle_.Pair(0, 0);
    pickle_.Text("is_expandable");
    pickle_.Bool(true);
    pickle_.Text("frames");
    pickle_.BeginList();
    pickle_.EndList();
    pickle_.Text("blocks");
    pickle_.BeginList();
    uint64_t at = segment.address;
    for (const auto& [address, block] : segment.blocks) {
      WriteGap(at, address);
      pickle_.BeginDict();
      WriteBlock(address, block.size, block.requested, "active_allocated");
      const auto sample = samples_.find(address);
      WriteFrames(block.owner,
                  sample == samples_.end() ? nullptr : sample->second);
      pickle_.EndDict();
      at = address + block.size;
    }
    WriteGap(at, segment.address + segment.size);
    pickle_.EndList();
    pickle_.EndDict();
  }

  void WriteGap(uint64_t from, uint64_t to) {
    if (from == to) return;
    pickle_.BeginDict();
    WriteBlock(from, to - from, 0, "inactive");
    pickle_.Text("frames");
    pickle_.BeginList();
    pickle_.EndList();
    pickle_.EndDict();
  }

  void WriteEvents() {
    pickle_.BeginList();
    for (const PyTorchEvent& event : history_.events) {
      pickle_.BeginDict();
      pickle_.Field("action", event.action);
      if (std::string_view(event.action) == "oom") {
        pickle_.Field("device_free",
                      snapshot_.device.free.value_or(Bytes(0)).value());
      } else {
        pickle_.Field("addr", event.address);
      }
      pickle_.Field("size", event.size);
      pickle_.Field("stream", event.stream);
      pickle_.Field("time_us", event.nanoseconds / 1000);
      WriteFrames(event.owner);
      pickle_.EndDict();
    }
    pickle_.EndList();
  }

  void WriteSettings() {
    pickle_.Text("allocator_settings");
    pickle_.BeginDict();
    pickle_.Field("allocator", "quire");
    pickle_.Field("page_size", snapshot_.memory.page_size.value());
    pickle_.Field("limit", snapshot_.memory.limit.value());
    pickle_.EndDict();
  }

  void WriteMarks() {
    pickle_.Text("external_annotations");
    pickle_.BeginList();
    for (const Timeline::Mark& mark : snapshot_.timeline.marks) {
      pickle_.BeginDict();
      pickle_.Field("device", DeviceNumber());
      pickle_.Field("stage", "START");
      pickle_.Field("name", ValidUtf8(mark.label));
      pickle_.Field("time_us", mark.nanoseconds / 1000);
      pickle_.EndDict();
    }
    pickle_.EndList();
  }

  const MemorySnapshot& snapshot_;
  const PyTorchHistory history_;
  std::map<uint64_t, const MemorySnapshot::Sample*> samples_;  // by address
  PickleWriter pickle_;
};

}  // namespace

std::string RenderPyTorch(const MemorySnapshot& snapshot) {
  return SnapshotWriter(snapshot).Write();
}

}  // namespace quire
