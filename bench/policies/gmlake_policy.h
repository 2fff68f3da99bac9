// GMLake: stitching of scattered memory under new addresses.
//
// From 2 MiB on, requests are rounded up to 2 MiB and served, in this order, by
// a primitive or stitched block of exactly that size; by the smallest primitive
// block that is larger, which is split in two, and stays as what is stitched of
// both; by free primitive blocks that are enough together, the largest first,
// the last one split; by all of these and a new one for the rest. Whoever is
// not one primitive block gets a stitched one: the same physical pages mapped
// again, side by side. Stitched blocks are kept for requests of their size;
// beyond twice the device of them, those used longest ago are unmapped.
// Physical memory is 2 MiB pages, created one by one, and never given back.
// Smaller requests go to PyTorch's allocator, which GMLake is a patch of.
//
// After the paper (ASPLOS 2024, section 4). Its figures are of training runs
// that were not published as traces, so that nothing here is checked against
// them.

#ifndef QUIRE_BENCH_POLICIES_GMLAKE_POLICY_H_
#define QUIRE_BENCH_POLICIES_GMLAKE_POLICY_H_

#include <compare>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "bench/policies/policy.h"
#include "bench/policies/pytorch_policy.h"
#include "bench/policies/simulated_device.h"

namespace quire {

class GmlakePolicy : public AllocatorPolicy {
 public:
  explicit GmlakePolicy(SimulatedDevice* device)
      : device_(device), small_(device) {}

  absl::StatusOr<DeviceAddress> Allocate(Bytes size, StreamId stream) override;
  absl::Status Free(DeviceAddress address, StreamId stream) override;
  PolicyUse GetUse() const override;
  Bytes CalculateLargest(StreamId stream) const override;

 private:
  struct Stitched;
  // Pages at addresses of their own; in use or not, as a whole.
  struct Primitive {
    uint64_t address = 0;
    std::vector<PageHandle> pages;
    std::vector<uint32_t> in;  // numbers of what it is a part of, each once
  };
  // The pages of several primitive blocks, mapped once more.
  struct Stitched {
    uint64_t address = 0;
    uint64_t size = 0;
    std::vector<Primitive*> parts;
    uint64_t last_use = 0;
    uint32_t number = 0;
  };
  // Free blocks in order of size and address: what decides is in the set
  // itself, since blocks that are looked at there are many and scattered.
  template <typename Block>
  struct Entry {
    uint64_t size;
    uint64_t address;
    Block* block;
    friend auto operator<=>(const Entry&, const Entry&) = default;
  };
  template <typename Block>
  using FreeSet = absl::btree_set<Entry<Block>>;
  static Entry<Primitive> EntryOf(Primitive* block) {
    return {block->pages.size(), block->address, block};
  }
  static Entry<Stitched> EntryOf(Stitched* block) {
    return {block->size, block->address, block};
  }

  // What was handed out: one of the two.
  struct Handed {
    Primitive* primitive = nullptr;
    Stitched* stitched = nullptr;
    uint64_t size = 0;
  };

  absl::StatusOr<Handed> Find(uint64_t pages);
  // Null where none that nobody uses has this size.
  Stitched* FindStitched(uint64_t size) const;
  absl::StatusOr<Primitive*> NewPrimitive(uint64_t pages);
  // Cuts the first `pages` off; the whole stays as a stitched block. Returns
  // the first part.
  absl::StatusOr<Primitive*> Split(Primitive* block, uint64_t pages);
  absl::StatusOr<Stitched*> Stitch(std::vector<Primitive*> parts);
  // REQUIRES: its address, size and parts are set, and all of them are free.
  Stitched* AddStitched(std::unique_ptr<Stitched> stitched);
  absl::Status LimitStitched();

  void SetInUse(Primitive* block, bool in_use);
  void SetInUse(const Handed& handed, bool in_use);
  absl::StatusOr<uint64_t> MapPages(const std::vector<PageHandle>& pages);
  absl::Status UnmapPages(uint64_t address, uint64_t size);
  uint64_t FreePages() const;

  SimulatedDevice* const device_;
  PyTorchPolicy small_;
  std::vector<std::unique_ptr<Primitive>> primitives_;
  // By number. How many of its parts are in use is apart from all else: each
  // time a part comes or goes, all that it is in are counted.
  std::vector<std::unique_ptr<Stitched>> stitched_;
  std::vector<uint32_t> parts_in_use_;
  std::vector<uint32_t> unused_numbers_;
  FreeSet<Primitive> free_;  // sizes are pages
  FreeSet<Stitched> free_stitched_;
  absl::flat_hash_map<uint64_t, Handed> handed_;  // by address
  uint64_t uses_ = 0;
  uint64_t stitched_bytes_ = 0;
  uint64_t allocated_ = 0;
  uint64_t reserved_ = 0;
};

}  // namespace quire

#endif  // QUIRE_BENCH_POLICIES_GMLAKE_POLICY_H_
