// The traces in PyTorch's memory snapshots (torch.cuda.memory._dump_snapshot).
//
// A snapshot is a dict. Of it are read: "device_traces", a list for each device
// of events {action, addr, size, stream, time_us}; and "segments", whose blocks
// {state, size, requested_size, address} say what is live at the end. Where the
// ring of events has lost its beginning, or recording began late, both mention
// allocations that no event makes.

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "alloc/allocation_trace_builder.h"
#include "alloc/pickle_reader.h"
#include "quire/alloc/status_macros.h"
#include "quire/alloc/trace_formats.h"

namespace quire {
namespace {

using Kind = PickleDocument::Kind;
using Value = PickleDocument::Value;

// A value with the path to it, for errors.
class Item {
 public:
  Item(const PickleDocument* document, Value value, std::string path)
      : document_(document), value_(value), path_(std::move(path)) {}

  absl::Status Error(std::string_view what) const {
    return absl::InvalidArgumentError(
        absl::StrCat(path_, " ", std::string(what)));
  }
  bool Has(std::string_view key) const {
    return document_->Find(value_, key).has_value();
  }
  absl::StatusOr<Item> At(std::string_view key) const {
    if (document_->kind(value_) != Kind::kDict) return Error("is no dict");
    const std::optional<Value> value = document_->Find(value_, key);
    if (!value) {
      return Error(absl::StrCat("has no \"", std::string(key), "\""));
    }
    return Item(document_, *value, absl::StrCat(path_, ".", std::string(key)));
  }
  absl::StatusOr<size_t> Size() const {
    if (document_->kind(value_) != Kind::kList) return Error("is no list");
    return document_->items(value_).size();
  }
  absl::StatusOr<std::vector<Item>> Items() const {
    QUIRE_RETURN_IF_ERROR(Size().status());
    const std::vector<Value>& values = document_->items(value_);
    std::vector<Item> items;
    items.reserve(values.size());
    for (size_t i = 0; i < values.size(); ++i) {
      items.emplace_back(document_, values[i],
                         absl::StrCat(path_, "[", i, "]"));
    }
    return items;
  }
  absl::StatusOr<std::string_view> Text(std::string_view key) const {
    QUIRE_ASSIGN_OR_RETURN(const Item item, At(key));
    if (document_->kind(item.value_) != Kind::kString) {
      return item.Error("is no text");
    }
    return document_->text(item.value_);
  }
  absl::StatusOr<uint64_t> Number(std::string_view key) const {
    QUIRE_ASSIGN_OR_RETURN(const Item item, At(key));
    if (document_->kind(item.value_) != Kind::kInteger ||
        document_->integer(item.value_) < 0) {
      return item.Error("is no number from 0 to 2^63 - 1");
    }
    return static_cast<uint64_t>(document_->integer(item.value_));
  }

 private:
  const PickleDocument* document_;
  Value value_;
  std::string path_;
};

class SnapshotReader {
 public:
  explicit SnapshotReader(const Item& snapshot) : snapshot_(snapshot) {}

  absl::StatusOr<AllocationTrace> Read(std::optional<DeviceId> device) {
    QUIRE_ASSIGN_OR_RETURN(const Item traces, snapshot_.At("device_traces"));
    QUIRE_ASSIGN_OR_RETURN(const std::vector<Item> devices, traces.Items());
    QUIRE_ASSIGN_OR_RETURN(const uint64_t index,
                           ChooseDevice(traces, devices, device));
    QUIRE_ASSIGN_OR_RETURN(const std::vector<Item> events,
                           devices[index].Items());
    for (const Item& event : events) {
      QUIRE_RETURN_IF_ERROR(AddEvent(event));
    }
    QUIRE_RETURN_IF_ERROR(AddBlocks(index));
    return trace_.Finish();
  }

 private:
  static absl::StatusOr<uint64_t> ChooseDevice(const Item& traces,
                                               const std::vector<Item>& devices,
                                               std::optional<DeviceId> wanted) {
    std::vector<uint64_t> with_events;
    for (uint64_t i = 0; i < devices.size(); ++i) {
      QUIRE_ASSIGN_OR_RETURN(const size_t events, devices[i].Size());
      if (events > 0) with_events.push_back(i);
    }
    if (with_events.empty()) return traces.Error("has no events");
    const std::string told =
        absl::StrCat(with_events.size() == 1 ? "has events of device "
                                             : "has events of devices ",
                     absl::StrJoin(with_events, ", "));
    if (wanted) {
      for (const uint64_t device : with_events) {
        if (wanted->value() >= 0 &&
            static_cast<uint64_t>(wanted->value()) == device) {
          return device;
        }
      }
      return traces.Error(
          absl::StrCat(told, ", and none of device ", wanted->value()));
    }
    if (with_events.size() > 1) {
      return traces.Error(absl::StrCat(told, ": choose one"));
    }
    return with_events.front();
  }

  absl::Status AddEvent(const Item& item) {
    QUIRE_ASSIGN_OR_RETURN(const std::string_view action, item.Text("action"));
    AllocationEvent event;
    if (action == "alloc") {
      event.action = AllocationAction::kAllocate;
    } else if (action == "free_completed") {
      event.action = AllocationAction::kFree;
    } else if (action == "segment_alloc" || action == "segment_map") {
      event.action = AllocationAction::kReserve;
    } else if (action == "segment_free" || action == "segment_unmap") {
      event.action = AllocationAction::kRelease;
    } else if (action == "oom") {
      event.action = AllocationAction::kFailure;
    } else {
      // free_requested comes before the memory is free; snapshots, annotations
      // and whatever a later version adds allocate nothing.
      return absl::OkStatus();
    }
    QUIRE_ASSIGN_OR_RETURN(const uint64_t size, item.Number("size"));
    event.size = Bytes(size);
    QUIRE_ASSIGN_OR_RETURN(event.stream, item.Number("stream"));
    QUIRE_ASSIGN_OR_RETURN(event.nanoseconds, Time(item));
    // The address of an oom is what was free on the device.
    if (event.action == AllocationAction::kFailure) {
      trace_.Add(event);
      return absl::OkStatus();
    }
    QUIRE_ASSIGN_OR_RETURN(const uint64_t address, item.Number("addr"));
    if (event.action == AllocationAction::kAllocate) {
      if (trace_.IsLive(address)) {
        return item.Error("allocates what is allocated already");
      }
      return trace_.Begin(address, event);
    }
    if (event.action == AllocationAction::kFree) {
      trace_.ContinueOlder(address, event);
    } else {
      trace_.Add(event);
    }
    return absl::OkStatus();
  }

  // Old versions recorded none.
  absl::StatusOr<uint64_t> Time(const Item& item) {
    if (!item.Has("time_us")) return 0;
    QUIRE_ASSIGN_OR_RETURN(const uint64_t us, item.Number("time_us"));
    if (!first_us_) first_us_ = us;
    const auto ns =
        CheckedMultiply(CheckedSubtract(us, *first_us_).value_or(0), 1000);
    if (!ns) return item.Error("is too late");
    return *ns;
  }

  // What is live at the end and was not allocated on the way.
  absl::Status AddBlocks(uint64_t device) {
    if (!snapshot_.Has("segments")) return absl::OkStatus();
    QUIRE_ASSIGN_OR_RETURN(const Item list, snapshot_.At("segments"));
    QUIRE_ASSIGN_OR_RETURN(const std::vector<Item> segments, list.Items());
    for (const Item& segment : segments) {
      if (segment.Has("device")) {
        QUIRE_ASSIGN_OR_RETURN(const uint64_t of, segment.Number("device"));
        if (of != device) continue;
      }
      QUIRE_ASSIGN_OR_RETURN(uint64_t address, segment.Number("address"));
      QUIRE_ASSIGN_OR_RETURN(const uint64_t stream, segment.Number("stream"));
      QUIRE_ASSIGN_OR_RETURN(const Item block_list, segment.At("blocks"));
      QUIRE_ASSIGN_OR_RETURN(const std::vector<Item> blocks,
                             block_list.Items());
      for (const Item& block : blocks) {
        // Blocks follow each other; old versions do not say their addresses.
        QUIRE_ASSIGN_OR_RETURN(const uint64_t size, block.Number("size"));
        QUIRE_RETURN_IF_ERROR(AddBlock(block, address, size, stream));
        const auto next = CheckedAdd(address, size);
        if (!next) return block.Error("ends beyond 2^64");
        address = *next;
      }
    }
    return absl::OkStatus();
  }

  absl::Status AddBlock(const Item& block, uint64_t address, uint64_t size,
                        uint64_t stream) {
    QUIRE_ASSIGN_OR_RETURN(const std::string_view state, block.Text("state"));
    // What waits for a stream to be done with it still holds its memory.
    if (state == "inactive") return absl::OkStatus();
    if (block.Has("address")) {
      QUIRE_ASSIGN_OR_RETURN(address, block.Number("address"));
    }
    if (trace_.IsLive(address)) return absl::OkStatus();
    AllocationEvent event;
    event.action = AllocationAction::kLive;
    event.size = Bytes(size);
    if (block.Has("requested_size")) {
      QUIRE_ASSIGN_OR_RETURN(const uint64_t requested,
                             block.Number("requested_size"));
      event.size = Bytes(requested);
    }
    event.stream = stream;
    return trace_.Begin(address, event);
  }

  const Item snapshot_;
  AllocationTraceBuilder trace_;
  std::optional<uint64_t> first_us_;
};

}  // namespace

absl::StatusOr<AllocationTrace> ReadPyTorchSnapshot(
    std::string_view contents, const PyTorchTraceOptions& options) {
  QUIRE_ASSIGN_OR_RETURN(const PickleDocument document, ReadPickle(contents));
  const Item snapshot(&document, document.root(), "snapshot");
  return SnapshotReader(snapshot).Read(options.device);
}

}  // namespace quire
