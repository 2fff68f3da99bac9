// The hidden states of the calibration tokens, kept off the device between
// layers.
//
// A batch is one calibration sequence. All batches lie in ordinary host memory.
// The one that is about to be used is copied into a pinned buffer, and from
// there to the device, while the one before it is computed with; what a layer
// makes of it comes back the same way. So two batches are pinned and two are on
// the device, while a pass runs and no longer, however many sequences there
// are.
//
// Not thread-safe.

#ifndef QUIRE_MODEL_QUANTIZER_ACTIVATION_CACHE_H_
#define QUIRE_MODEL_QUANTIZER_ACTIVATION_CACHE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/decoder/layer_runner.h"
#include "quire/alloc/runtime.h"
#include "quire/alloc/units.h"
#include "quire/model/tokenizer.h"

namespace quire {

// Host memory that a cache of sequences of so many tokens together, and in the
// longest one, takes, pinned buffers included; what exceeds 64 bits is
// UINT64_MAX.
Bytes ActivationCacheBytes(uint64_t tokens, uint64_t longest, uint64_t columns);
// kResourceExhausted, with both, where `limit` is not enough for that.
absl::Status CheckActivationCache(Bytes needed, Bytes limit);

class ActivationCache {
 public:
  enum class Access : uint8_t {
    kFill,    // the body writes every row; nothing is brought
    kRead,    // what the body does to the rows is lost
    kUpdate,  // what it does to them is kept
  };
  // `rows` is [tokens of the batch, columns], on the device.
  using Body = std::function<absl::Status(size_t batch, float* rows)>;

  // One batch for each of `sequences`, none of them empty; of each only the
  // length counts. `runtime` must outlive the cache. Errors: `limit` is not
  // enough.
  static absl::StatusOr<std::unique_ptr<ActivationCache>> Create(
      Runtime* runtime, std::span<const std::vector<TokenId>> sequences,
      uint64_t columns, Bytes limit);
  ~ActivationCache();
  ActivationCache(const ActivationCache&) = delete;
  ActivationCache& operator=(const ActivationCache&) = delete;

  // Calls `body` for every batch in order. After an error, the first of the
  // body's or the driver's, the contents are undefined.
  absl::Status ForEach(Access access, const Body& body);

  // Host memory that a pass takes.
  Bytes host_bytes() const { return host_bytes_; }

 private:
  static constexpr size_t kSlots = 2;
  struct Batch {
    size_t begin;  // in store_
    size_t size;   // elements
  };
  struct Slot {
    float* pinned = nullptr;
    ActivationBuffer device;
    std::optional<EventId> arrived;
  };

  ActivationCache(Runtime* runtime, uint64_t columns);
  absl::Status Initialize(std::span<const std::vector<TokenId>> sequences,
                          Bytes limit);
  absl::Status PinBuffers();
  absl::Status RunPass(Access access, const Body& body);
  // Queue the batch's way to the device, and back.
  absl::Status QueueBring(size_t batch);
  absl::Status QueueKeep(size_t batch);
  // What was queued is over, and buffers are pinned no more.
  absl::Status EndPass();
  Slot& SlotOf(size_t batch) { return slots_[batch % kSlots]; }

  Driver* const driver_;
  const uint64_t columns_;
  Workspace workspace_;
  size_t longest_ = 0;  // elements of the largest batch
  Bytes host_bytes_;
  std::vector<Batch> batches_;
  std::unique_ptr<float[]> store_;
  std::array<Slot, kSlots> slots_;
  // Of all copies, in both directions: so a slot is never filled before what
  // was in it has left.
  std::optional<StreamId> copies_;
};

}  // namespace quire

#endif  // QUIRE_MODEL_QUANTIZER_ACTIVATION_CACHE_H_
