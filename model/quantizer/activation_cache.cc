#include "model/quantizer/activation_cache.h"

#include <algorithm>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "quire/alloc/status_macros.h"
#include "quire/alloc/try_twice.h"

namespace quire {
namespace {

DeviceAddress AddressOf(const ActivationBuffer& buffer) {
  return DeviceAddress(reinterpret_cast<uint64_t>(buffer.data));
}

}  // namespace

Bytes ActivationCacheBytes(uint64_t tokens, uint64_t longest,
                           uint64_t columns) {
  // Two pinned buffers beside all of them.
  const uint64_t rows = SaturatingAdd(tokens, SaturatingAdd(longest, longest));
  const auto row = CheckedMultiply(Bytes(sizeof(float)), columns);
  const auto total = row ? CheckedMultiply(*row, rows) : std::nullopt;
  return total.value_or(Bytes(UINT64_MAX));
}

absl::Status CheckActivationCache(Bytes needed, Bytes limit) {
  if (needed <= limit) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "the activations of the calibration tokens take ", needed.value(),
      " bytes, the activation cache has ", limit.value(),
      "; a larger one, or fewer or shorter sequences, would do"));
}

absl::StatusOr<std::unique_ptr<ActivationCache>> ActivationCache::Create(
    Runtime* runtime, std::span<const std::vector<TokenId>> sequences,
    uint64_t columns, Bytes limit) {
  std::unique_ptr<ActivationCache> cache(new ActivationCache(runtime, columns));
  QUIRE_RETURN_IF_ERROR(cache->Initialize(sequences, limit));
  return cache;
}

ActivationCache::ActivationCache(Runtime* runtime, uint64_t columns)
    : driver_(runtime->driver()), columns_(columns), workspace_(runtime) {}

ActivationCache::~ActivationCache() {
  // ForEach has waited for its work.
  for (Slot& slot : slots_) {
    if (slot.arrived.has_value())
      TryTwice([&] {
        return driver_->DestroyEvent(*slot.arrived);
      }).IgnoreError();
  }
  if (copies_.has_value())
    TryTwice([&] { return driver_->DestroyStream(*copies_); }).IgnoreError();
}

absl::Status ActivationCache::Initialize(
    std::span<const std::vector<TokenId>> sequences, Bytes limit) {
  uint64_t tokens = 0;
  uint64_t longest = 0;
  for (const std::vector<TokenId>& sequence : sequences) {
    tokens += sequence.size();
    longest = std::max<uint64_t>(longest, sequence.size());
  }
  host_bytes_ = ActivationCacheBytes(tokens, longest, columns_);
  QUIRE_RETURN_IF_ERROR(CheckActivationCache(host_bytes_, limit));
  longest_ = longest * columns_;
  size_t total = 0;
  for (const std::vector<TokenId>& sequence : sequences) {
    batches_.push_back({total, sequence.size() * columns_});
    total += batches_.back().size;
  }
  store_.reset(new (std::nothrow) float[total]);
  if (store_ == nullptr)
    return absl::ResourceExhaustedError(
        absl::StrCat("the host has no ", total * sizeof(float),
                     " bytes for the activations of calibration"));
  QUIRE_ASSIGN_OR_RETURN(copies_, driver_->CreateStream(DeviceId(0)));
  for (Slot& slot : slots_) {
    QUIRE_ASSIGN_OR_RETURN(slot.arrived, driver_->CreateEvent(DeviceId(0)));
    QUIRE_ASSIGN_OR_RETURN(slot.device,
                           workspace_.Allocate(longest_ / columns_, columns_));
  }
  return absl::OkStatus();
}

absl::Status ActivationCache::ForEach(Access access, const Body& body) {
  absl::Status status = RunPass(access, body);
  status.Update(EndPass());
  return status;
}

absl::Status ActivationCache::RunPass(Access access, const Body& body) {
  QUIRE_RETURN_IF_ERROR(PinBuffers());
  const bool bring = access != Access::kFill;
  if (bring && !batches_.empty()) QUIRE_RETURN_IF_ERROR(QueueBring(0));
  for (size_t i = 0; i < batches_.size(); ++i) {
    // The next one is on its way while this one is computed with.
    if (bring && i + 1 < batches_.size())
      QUIRE_RETURN_IF_ERROR(QueueBring(i + 1));
    // With nothing to bring, the event is of the batch that left the slot.
    QUIRE_RETURN_IF_ERROR(driver_->SynchronizeEvent(*SlotOf(i).arrived));
    QUIRE_RETURN_IF_ERROR(body(i, SlotOf(i).device.data));
    if (access != Access::kRead) QUIRE_RETURN_IF_ERROR(QueueKeep(i));
  }
  return absl::OkStatus();
}

absl::Status ActivationCache::PinBuffers() {
  for (Slot& slot : slots_) {
    QUIRE_ASSIGN_OR_RETURN(
        void* const pinned,
        driver_->AllocatePinned(Bytes(longest_ * sizeof(float))));
    slot.pinned = static_cast<float*>(pinned);
  }
  return absl::OkStatus();
}

absl::Status ActivationCache::QueueBring(size_t batch) {
  const Batch& kept = batches_[batch];
  const Slot& slot = SlotOf(batch);
  QUIRE_RETURN_IF_ERROR(driver_->LaunchHostFunction(
      *copies_, [from = store_.get() + kept.begin, size = kept.size,
                 to = slot.pinned] { std::copy_n(from, size, to); }));
  QUIRE_RETURN_IF_ERROR(
      driver_->CopyToDevice(AddressOf(slot.device), slot.pinned,
                            Bytes(kept.size * sizeof(float)), *copies_));
  return driver_->RecordEvent(*slot.arrived, *copies_);
}

absl::Status ActivationCache::QueueKeep(size_t batch) {
  const Batch& kept = batches_[batch];
  const Slot& slot = SlotOf(batch);
  QUIRE_RETURN_IF_ERROR(driver_->CopyToHost(slot.pinned, AddressOf(slot.device),
                                            Bytes(kept.size * sizeof(float)),
                                            *copies_));
  QUIRE_RETURN_IF_ERROR(driver_->LaunchHostFunction(
      *copies_, [to = store_.get() + kept.begin, size = kept.size,
                 from = slot.pinned] { std::copy_n(from, size, to); }));
  return driver_->RecordEvent(*slot.arrived, *copies_);
}

absl::Status ActivationCache::EndPass() {
  absl::Status status =
      TryTwice([&] { return driver_->SynchronizeStream(*copies_); });
  // A device that may still be copying keeps its buffers, and what they are
  // filled from, for good.
  if (!status.ok()) {
    (void)store_.release();
    for (Slot& slot : slots_) slot.pinned = nullptr;
    return status;
  }
  for (Slot& slot : slots_) {
    if (slot.pinned == nullptr) continue;
    status.Update(TryTwice([&] { return driver_->FreePinned(slot.pinned); }));
    slot.pinned = nullptr;
  }
  return status;
}

}  // namespace quire
