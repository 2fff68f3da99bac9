#include "alloc/thread_cache.h"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <thread>
#include <utility>

namespace quire {
namespace {

// The first miss of a class brings slots for so many bytes, few of the large
// ones, since another class may want their pages; each further one twice as
// many, up to the second figure.
constexpr uint64_t kFirstRefillBytes = 256 << 10;
constexpr uint32_t kFirstRefillSlots = 32;
constexpr uint32_t kMostRefillSlots = 64;
// Slots of one class in one cache.
constexpr uint32_t kFirstCapacity = 64;
constexpr uint32_t kLargestCapacity = 1 << 16;

int Membarrier(int command) {
  return static_cast<int>(syscall(SYS_membarrier, command, 0, 0));
}

}  // namespace

const bool ThreadCache::barriers_are_asymmetric_ =
    Membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) == 0;

ThreadCache::ThreadCache(OwnerHeap* heap, StreamId stream,
                         uint32_t stream_index, int size_classes,
                         uint64_t byte_limit)
    : stream_index_(stream_index),
      byte_limit_(byte_limit),
      bins_(size_classes),
      heap_(heap),
      stream_(stream) {}

uint32_t ThreadCache::RefillCount(int size_class, uint64_t slot_size) {
  Bin& bin = bins_[size_class];
  if (bin.refill == 0) {
    bin.refill = static_cast<uint32_t>(std::clamp<uint64_t>(
        kFirstRefillBytes / slot_size, 1, kFirstRefillSlots));
  }
  const uint32_t refill = bin.refill;
  bin.refill = std::min(bin.refill * 2, kMostRefillSlots);
  const uint64_t room = byte_limit_ - std::min(byte_limit_, cached_bytes());
  return static_cast<uint32_t>(std::min<uint64_t>(refill, room / slot_size));
}

void ThreadCache::SetCapacity(Bin* bin, uint32_t capacity) {
  auto storage = std::make_unique<CachedSlot[]>(capacity);
  std::copy(bin->slots, bin->slots + bin->size(), storage.get());
  bin->storage = std::move(storage);
  bin->slots = bin->storage.get();
  room_ += capacity - bin->capacity;
  bin->capacity = capacity;
}

bool ThreadCache::Grow(int size_class, uint64_t slot_size) {
  Bin& bin = bins_[size_class];
  if (!HasRoomFor(slot_size)) return false;
  if (bin.size() < bin.capacity) return true;
  if (bin.capacity >= kLargestCapacity) return false;
  SetCapacity(&bin, std::max(bin.capacity * 2, kFirstCapacity));
  return true;
}

void ThreadCache::Push(int size_class, uint64_t slot_size, CachedSlot slot) {
  Bin& bin = bins_[size_class];
  const uint32_t count = bin.size();
  if (count == bin.capacity) {
    SetCapacity(&bin, std::max(bin.capacity * 2, kFirstCapacity));
  }
  bin.slots[count] = slot;
  bin.set_size(count + 1);
  AddCached(slot_size);
}

void ThreadCache::Drain(bool half, std::vector<CachedSlot>* slots,
                        const std::vector<uint64_t>& slot_sizes) {
  for (int i = 0; i < static_cast<int>(bins_.size()); ++i) {
    const uint32_t count = CountOf(i);
    DrainClass(i, slot_sizes[i], half ? (count + 1) / 2 : count, slots);
  }
}

void ThreadCache::DrainClass(int size_class, uint64_t slot_size,
                             uint32_t leaving, std::vector<CachedSlot>* slots) {
  Bin& bin = bins_[size_class];
  const uint32_t count = bin.size();
  slots->insert(slots->end(), bin.slots, bin.slots + leaving);
  std::copy(bin.slots + leaving, bin.slots + count, bin.slots);
  bin.set_size(count - leaving);
  AddCached(-(leaving * slot_size));
}

template <typename Caches>
void StopAll(const Caches& caches) {
  for (const auto& cache : caches) cache->RequestStop();
  if (ThreadCache::barriers_are_asymmetric_) {
    Membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED);
  }
  for (const auto& cache : caches) {
    while (cache->inside()) std::this_thread::yield();
  }
}

void StopCaches(const std::vector<std::unique_ptr<ThreadCache>>& caches) {
  StopAll(caches);
}
void StopCaches(const std::vector<ThreadCache*>& caches) { StopAll(caches); }

void ResumeCaches(const std::vector<std::unique_ptr<ThreadCache>>& caches) {
  for (const auto& cache : caches) cache->Resume();
}
void ResumeCaches(const std::vector<ThreadCache*>& caches) {
  for (ThreadCache* const cache : caches) cache->Resume();
}

}  // namespace quire
