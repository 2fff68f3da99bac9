// Slots of the longest length: what serving systems did before PagedAttention,
// as a baseline.
//
// A sequence holds the memory of max_sequence_length tokens from its admission
// on, whatever it has. So no step ever lacks memory or calls the driver, and
// most of what is held is waste. A slot is a region of a KvCache that is backed
// whole; released slots are parked, and the next sequence adopts one. Nothing
// is shared: a fork is a copy.

#ifndef QUIRE_PAGING_STATIC_CACHE_H_
#define QUIRE_PAGING_STATIC_CACHE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "quire/alloc/device_memory.h"
#include "quire/alloc/mutex.h"
#include "quire/paging/kv_cache.h"
#include "quire/paging/sequence_cache.h"

namespace quire {

struct StaticCacheOptions {
  uint64_t max_sequence_length = 0;
  uint32_t max_sequences = 256;
  OwnerId owner = kUnnamedOwner;
  // What attention is to see of each sequence; the slot stays whole.
  KvTokenLimit limit;
  // That the kernels of all sequences run on, where forks are copied.
  // StreamId(): there are none.
  StreamId stream;
};

class StaticCache : public SequenceCache {
 public:
  // `memory` must outlive the cache.
  static absl::StatusOr<std::unique_ptr<StaticCache>> Create(
      DeviceMemory* memory, const KvLayout& layout,
      const StaticCacheOptions& options);

  const KvLayout& layout() const override;
  uint64_t max_sequence_length() const override;
  absl::StatusOr<SequenceId> Admit(
      uint64_t tokens,
      std::optional<KvTokenLimit> limit = std::nullopt) override;
  // Copies all rows to a slot of its own, and waits until that is done.
  absl::StatusOr<SequenceId> Fork(SequenceId parent) override;
  absl::Status Step(std::span<const SequenceStep> steps) override;
  // Gives no memory back: the slot stays whole.
  absl::Status Shrink(SequenceId sequence, uint64_t length,
                      const Fence& fence) override;
  absl::Status Release(SequenceId sequence, const Fence& fence) override;
  absl::StatusOr<uint64_t> Length(SequenceId sequence) const override;
  uint64_t AdmissibleTokens() const override;
  absl::StatusOr<KvLayerView> View(SequenceId sequence,
                                   uint32_t layer) const override;
  CacheUse Use() const override;
  absl::StatusOr<Bytes> FreedByRelease(SequenceId sequence) const override;
  absl::Status CheckInvariants() const override;

 private:
  StaticCache(DeviceMemory* memory, StreamId stream,
              std::unique_ptr<KvCache> slots);
  // Of `tokens` tokens, in every group of layers.
  absl::Status CopyRows(SequenceId from, SequenceId to, uint64_t tokens);

  DeviceMemory* const memory_;
  const StreamId stream_;
  const std::unique_ptr<KvCache> slots_;
  // Whoever is copied from does not end meanwhile.
  Mutex fork_mutex_;
};

}  // namespace quire

#endif  // QUIRE_PAGING_STATIC_CACHE_H_
