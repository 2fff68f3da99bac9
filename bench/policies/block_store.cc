#include "bench/policies/block_store.h"

#include <iterator>

#include "absl/strings/str_format.h"

namespace quire {

PoolBlock* BlockStore::Add(const PoolBlock& block) {
  PoolBlock* added = nullptr;
  if (unused_.empty()) {
    added = &blocks_.emplace_back();
  } else {
    added = unused_.back();
    unused_.pop_back();
  }
  *added = block;
  return added;
}

PoolBlock* BlockStore::Split(PoolBlock* block, uint64_t size) {
  PoolBlock* const rest = Add(*block);
  rest->address += size;
  rest->size -= size;
  rest->before = block;
  if (rest->behind != nullptr) rest->behind->before = rest;
  block->size = size;
  block->behind = rest;
  return rest;
}

void BlockStore::TakeInNext(PoolBlock* block) {
  block->size += block->behind->size;
  Remove(block->behind);
}

void BlockStore::Remove(PoolBlock* block) {
  if (block->before != nullptr) block->before->behind = block->behind;
  if (block->behind != nullptr) block->behind->before = block->before;
  unused_.push_back(block);
}

PoolBlock* BlockStore::MergeFree(PoolBlock* block, FreeBlocks* free) {
  const auto alike = [&](const PoolBlock* other) {
    return other != nullptr && !other->live && other->stream == block->stream &&
           other->mapped == block->mapped;
  };
  if (alike(block->behind)) {
    free->Erase(block->behind);
    TakeInNext(block);
  }
  if (alike(block->before)) {
    block = block->before;
    free->Erase(block);
    TakeInNext(block);
  }
  return block;
}

void BlockStore::MarkLive(PoolBlock* block) {
  block->live = true;
  live_[block->address] = block;
}

PoolBlock* BlockStore::TakeLive(DeviceAddress address) {
  const auto found = live_.find(address.value());
  if (found == live_.end()) return nullptr;
  PoolBlock* const block = found->second;
  live_.erase(found);
  block->live = false;
  return block;
}

PoolBlock* BlockStore::FindLive(DeviceAddress address) const {
  const auto found = live_.find(address.value());
  return found == live_.end() ? nullptr : found->second;
}

absl::Status NotAllocated(const char* policy, DeviceAddress address) {
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: %#x is not the start of a live allocation", policy,
                      address.value()));
}

void FreeBlocks::Insert(PoolBlock* block) {
  const Entry entry = EntryOf(block);
  set_.insert(entry);
  if (MayGoBack(block)) spare_.insert(entry);
}

void FreeBlocks::Erase(PoolBlock* block) {
  const Entry entry = EntryOf(block);
  set_.erase(entry);
  // Few blocks are whole segments when they go.
  if (MayGoBack(block)) spare_.erase(entry);
}

std::vector<PoolBlock*> FreeBlocks::Spare() const {
  std::vector<PoolBlock*> blocks;
  for (const Entry& entry : spare_) blocks.push_back(entry.block);
  return blocks;
}

PoolBlock* FreeBlocks::BestFit(uint64_t stream, uint64_t size) const {
  const auto found = LowerBound(stream, size);
  if (found == set_.end() || found->stream != stream) return nullptr;
  return found->block;
}

PoolBlock* FreeBlocks::Largest(uint64_t stream) const {
  const auto after =
      set_.upper_bound({stream, UINT64_MAX, UINT64_MAX, nullptr});
  if (after == set_.begin()) return nullptr;
  const auto last = std::prev(after);
  return last->stream == stream ? last->block : nullptr;
}

}  // namespace quire
