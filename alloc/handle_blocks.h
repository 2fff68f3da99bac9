// Something for each page that is held, by its handle.
//
// Drivers number handles one after another, so things lie in blocks by number:
// to find one takes a look at a few blocks, and no hash of its own. What lies
// here stays where it is until it is removed. Memory is that of the blocks that
// hold anything. Not thread-safe. All operations are O(log blocks).

#ifndef QUIRE_ALLOC_HANDLE_BLOCKS_H_
#define QUIRE_ALLOC_HANDLE_BLOCKS_H_

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "absl/container/btree_map.h"
#include "quire/alloc/units.h"

namespace quire {

template <typename T>
class HandleBlocks {
 public:
  // REQUIRES: nothing is there for this handle.
  template <typename... Arguments>
  T* Add(PageHandle handle, Arguments&&... arguments) {
    std::unique_ptr<Block>& block = blocks_[handle.value() / kThings];
    if (block == nullptr) block = std::make_unique<Block>();
    ++block->held;
    ++size_;
    return &block->things[handle.value() % kThings].emplace(
        std::forward<Arguments>(arguments)...);
  }
  // Null where there is nothing.
  T* Find(PageHandle handle) const {
    const auto block = blocks_.find(handle.value() / kThings);
    if (block == blocks_.end()) return nullptr;
    auto& thing = block->second->things[handle.value() % kThings];
    return thing ? &*thing : nullptr;
  }
  // REQUIRES: something is there.
  void Remove(PageHandle handle) {
    const auto block = blocks_.find(handle.value() / kThings);
    block->second->things[handle.value() % kThings].reset();
    --size_;
    if (--block->second->held == 0) blocks_.erase(block);
  }
  uint64_t size() const { return size_; }
  // Calls function(thing) for each, by handle.
  template <typename Function>
  void ForEach(Function function) const {
    for (const auto& [number, block] : blocks_) {
      for (const std::optional<T>& thing : block->things) {
        if (thing) function(*thing);
      }
    }
  }

 private:
  static constexpr uint64_t kThings = 128;
  struct Block {
    std::array<std::optional<T>, kThings> things;
    uint64_t held = 0;
  };

  absl::btree_map<uint64_t, std::unique_ptr<Block>> blocks_;  // by number
  uint64_t size_ = 0;
};

}  // namespace quire

#endif  // QUIRE_ALLOC_HANDLE_BLOCKS_H_
