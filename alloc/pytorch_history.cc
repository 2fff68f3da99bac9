#include "alloc/pytorch_history.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "quire/alloc/units.h"

namespace quire {
namespace {

// Pages that events may touch in all: a bound on time for files that say
// anything. What is older is left out.
constexpr uint64_t kMostPageChanges = uint64_t{1} << 24;

struct Page {
  uint32_t owner = 0;
  bool managed = false;  // an allocator hands out parts
};

// The memory at one moment, which goes backwards in time.
class Moment {
 public:
  explicit Moment(const MemorySnapshot& snapshot)
      : page_size_(snapshot.memory.page_size.value()) {
    if (page_size_ == 0) return;
    for (const MemorySnapshot::Page& page : snapshot.pages) {
      if (page.managed) allocating_owners_.insert(page.owner);
      if (page.cooling || page.address % page_size_ != 0) continue;
      pages_[page.address] = {page.owner, page.managed};
      if (!page.managed) AddPageBlock(page.address, page.owner);
    }
    for (const AllocationInfo& allocation : snapshot.allocations) {
      allocating_owners_.insert(allocation.owner.value());
      const uint64_t address = allocation.address.value();
      const uint64_t size = allocation.allocated.value();
      const auto missing = MissingPages(address, size);
      if (!missing || !missing->empty()) continue;
      blocks_[address] = {size, allocation.requested.value(),
                          allocation.owner.value()};
    }
  }

  // Undoes an event, latest first, and adds what PyTorch would have recorded to
  // `events`, latest first.
  void Undo(const TraceEvent& event, std::vector<PyTorchEvent>* events) {
    switch (event.action) {
      case TraceAction::kAllocate:
        return UndoAllocate(event, events);
      case TraceAction::kFree:
        return UndoFree(event, events);
      case TraceAction::kFreeCompleted:
        return UndoFreeCompleted(event, events);
      case TraceAction::kCommit:
      case TraceAction::kDecommit:
        return UndoPages(event, events);
      case TraceAction::kOutOfMemory:
        events->push_back(Base("oom", event, 0, event.size.value()));
        return;
      default:
        return;
    }
  }

  std::vector<PyTorchSegment> Segments() const {
    std::vector<PyTorchSegment> segments;
    for (const auto& [address, page] : pages_) {
      if (segments.empty() ||
          segments.back().address + segments.back().size != address) {
        segments.push_back({address, 0, {}});
      }
      segments.back().size += page_size_;
    }
    auto block = blocks_.begin();
    for (PyTorchSegment& segment : segments) {
      while (block != blocks_.end() &&
             block->first - segment.address < segment.size) {
        segment.blocks.insert(*block++);
      }
    }
    return segments;
  }
  bool exhausted() const { return page_changes_ > kMostPageChanges; }

 private:
  static PyTorchEvent Base(const char* action, const TraceEvent& event,
                           uint64_t address, uint64_t size) {
    return {action, event.nanoseconds,    address,
            size,   event.stream.value(), event.owner.value()};
  }
  static void PushFree(const TraceEvent& event, uint64_t address, uint64_t size,
                       std::vector<PyTorchEvent>* events) {
    events->push_back(Base("free_completed", event, address, size));
    events->push_back(Base("free_requested", event, address, size));
  }

  // One event for pages that change side by side.
  void PushSegment(const char* action, const TraceEvent& event, uint64_t page,
                   std::vector<PyTorchEvent>* events) const {
    if (!events->empty()) {
      PyTorchEvent& last = events->back();
      if (std::string_view(last.action) == action &&
          last.nanoseconds == event.nanoseconds &&
          last.address + last.size == page) {
        last.size += page_size_;
        return;
      }
    }
    events->push_back(Base(action, event, page, page_size_));
    events->back().stream = 0;  // pages are of none
  }

  void AddPageBlock(uint64_t address, uint32_t owner) {
    blocks_[address] = {page_size_, page_size_, owner};
  }
  // The pages under a block that are not live. Nullopt where it cannot be
  // there: it overlaps another or lies on pages that their owner uses whole.
  std::optional<std::vector<uint64_t>> MissingPages(uint64_t address,
                                                    uint64_t size) {
    const auto end = CheckedAdd(address, size);
    if (!end || size == 0 || page_size_ == 0) return std::nullopt;
    if (HasBlock(address, size)) return std::nullopt;
    const uint64_t first = address - address % page_size_;
    const uint64_t pages = (*end - 1 - first) / page_size_ + 1;
    page_changes_ += pages;
    if (exhausted()) return std::nullopt;
    std::vector<uint64_t> missing;
    for (uint64_t i = 0; i < pages; ++i) {
      const uint64_t page = first + i * page_size_;
      const auto found = pages_.find(page);
      if (found == pages_.end()) {
        missing.push_back(page);
      } else if (!found->second.managed) {
        return std::nullopt;
      }
    }
    return missing;
  }

  void UndoAllocate(const TraceEvent& event,
                    std::vector<PyTorchEvent>* events) {
    const auto block = blocks_.find(event.address.value());
    if (block == blocks_.end()) return;
    const auto page = pages_.find(block->first - block->first % page_size_);
    if (page == pages_.end() || !page->second.managed) return;
    pending_.erase(block->first);
    blocks_.erase(block);
    events->push_back(
        Base("alloc", event, event.address.value(), event.size.value()));
  }

  // What rounding added to it is not known any more. Where pages are shared,
  // events do not say exactly which addresses came and went: what a block needs
  // was there.
  // False where it cannot have been there.
  bool ReturnBlock(const TraceEvent& event, std::vector<PyTorchEvent>* events) {
    const uint64_t address = event.address.value();
    const uint64_t size = std::max<uint64_t>(event.size.value(), 1);
    const auto missing = MissingPages(address, size);
    if (!missing) return false;
    const uint32_t owner = event.owner.value();
    for (const uint64_t page : *missing) {
      pages_[page] = {owner, true};
      PushSegment("segment_unmap", event, page, events);
    }
    blocks_[address] = {size, event.size.value(), owner};
    return true;
  }
  void UndoFree(const TraceEvent& event, std::vector<PyTorchEvent>* events) {
    const uint64_t address = event.address.value();
    if (pending_.erase(address) > 0) {
      events->push_back(
          Base("free_requested", event, address, event.size.value()));
    } else if (ReturnBlock(event, events)) {
      PushFree(event, address, event.size.value(), events);
    }
  }
  // Back to its free the block is given up, and not free yet.
  void UndoFreeCompleted(const TraceEvent& event,
                         std::vector<PyTorchEvent>* events) {
    if (!ReturnBlock(event, events)) return;
    const uint64_t address = event.address.value();
    pending_.insert(address);
    events->push_back(
        Base("free_completed", event, address, event.size.value()));
  }

  void UndoPages(const TraceEvent& event, std::vector<PyTorchEvent>* events) {
    const uint64_t begin = event.address.value();
    const auto end = CheckedAdd(begin, event.size.value());
    if (page_size_ == 0 || !end || begin % page_size_ != 0 ||
        event.size.value() % page_size_ != 0) {
      return;
    }
    page_changes_ += event.size.value() / page_size_;
    if (exhausted()) return;
    const bool commit = event.action == TraceAction::kCommit;
    // Pages that change side by side are one event of a segment, which comes
    // before that of its blocks where memory appears, and after where it goes.
    std::vector<PyTorchEvent> of_segment;
    std::vector<PyTorchEvent> of_blocks;
    for (uint64_t page = begin; page < *end; page += page_size_) {
      const bool changed = commit ? TakePage(page, event, &of_blocks)
                                  : ReturnPage(page, event, &of_blocks);
      if (!changed) continue;
      PushSegment(commit ? "segment_map" : "segment_unmap", event, page,
                  &of_segment);
    }
    // Latest first.
    of_blocks.insert(commit ? of_blocks.end() : of_blocks.begin(),
                     of_segment.begin(), of_segment.end());
    events->insert(events->end(), of_blocks.begin(), of_blocks.end());
  }

  // Undoes a commit.
  bool TakePage(uint64_t address, const TraceEvent& event,
                std::vector<PyTorchEvent>* blocks) {
    const auto page = pages_.find(address);
    if (page == pages_.end()) return false;
    if (!page->second.managed) {
      blocks_.erase(address);
      blocks->push_back(Base("alloc", event, address, page_size_));
    } else if (HasBlock(address, page_size_)) {
      return false;  // what is on it must be older
    }
    pages_.erase(page);
    return true;
  }
  // Undoes a decommit.
  bool ReturnPage(uint64_t address, const TraceEvent& event,
                  std::vector<PyTorchEvent>* blocks) {
    const uint32_t owner = event.owner.value();
    const bool managed = allocating_owners_.contains(owner);
    if (!pages_.emplace(address, Page{owner, managed}).second) return false;
    if (!managed) {
      AddPageBlock(address, owner);
      PushFree(event, address, page_size_, blocks);
    }
    return true;
  }
  // True if any block has part of the `size` bytes at an address.
  bool HasBlock(uint64_t address, uint64_t size) const {
    const auto next = blocks_.lower_bound(address);
    if (next != blocks_.end() && next->first - address < size) return true;
    if (next == blocks_.begin()) return false;
    const auto& [before, block] = *std::prev(next);
    return before + block.size > address;
  }

  const uint64_t page_size_;
  std::map<uint64_t, Page> pages_;
  std::map<uint64_t, PyTorchBlock> blocks_;
  std::set<uint64_t> pending_;  // of these, those whose free is asked for
  // Those that ask an allocator: what they hold is managed.
  std::set<uint32_t> allocating_owners_;
  uint64_t page_changes_ = 0;
};

}  // namespace

PyTorchHistory BuildPyTorchHistory(const MemorySnapshot& snapshot) {
  PyTorchHistory history;
  Moment moment(snapshot);
  history.segments = moment.Segments();
  for (auto event = snapshot.events.rbegin();
       event != snapshot.events.rend() && !moment.exhausted(); ++event) {
    moment.Undo(*event, &history.events);
  }
  std::reverse(history.events.begin(), history.events.end());
  return history;
}

}  // namespace quire
