// Slots that one thread may hand out on one stream without a lock.
//
// A cache belongs to a thread, a stream and a heap (an owner's memory). It
// holds slots that the stream may use at once: free ones, and those which this
// thread freed on that very stream. To allocate is to pop, to free is to push;
// both write the slot's record and the cache's own counters, and nothing else.
//
// Others need the slots when memory is short, so the allocator can take any
// cache away from its thread for a while (*stop* it). The thread pays for that
// with two plain stores and a load per operation, no locked instruction: it
// says that it is inside, then looks whether it has been stopped; the allocator
// says stop, makes every running thread of the process pass a memory barrier (a
// system call), and waits until the thread is not inside. Where the kernel has
// no such call, threads pay for sequential consistency.
//
// Locking: Enter/Leave, and what is REQUIRED to be inside, are the thread's.
// All else needs the allocator's lock and the cache stopped, or the thread
// itself with the allocator's lock.

#ifndef QUIRE_ALLOC_THREAD_CACHE_H_
#define QUIRE_ALLOC_THREAD_CACHE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "alloc/slot_record.h"
#include "quire/alloc/units.h"

namespace quire {

class OwnerHeap;

// A slot that is in a cache. Bit 0 of the tagged address says that it is free
// for every stream, not for that of the cache alone.
struct CachedSlot {
  SlotRecordPlace record;
  uint64_t tagged_address;

  uint64_t address() const { return tagged_address & ~uint64_t{1}; }
  bool free_for_all() const { return (tagged_address & 1) != 0; }
};

// Counts of what went through a cache: written by its thread only, read by any.
struct CacheCounters {
  std::atomic<int64_t> requested_bytes{0};  // may be below 0: freed elsewhere
  std::atomic<int64_t> live_bytes{0};
  std::atomic<uint64_t> allocations{0};
  std::atomic<uint64_t> frees{0};
  // The largest requested_bytes since it was last reset.
  std::atomic<int64_t> peak_requested_bytes{0};
};

// Apart from what others write: its thread writes to it all the time.
class alignas(kSharingBytes) ThreadCache {
 public:
  // `byte_limit`: slots beyond it go back to the heap.
  ThreadCache(OwnerHeap* heap, StreamId stream, uint32_t stream_index,
              int size_classes, uint64_t byte_limit);

  OwnerHeap* heap() const { return heap_; }
  StreamId stream() const { return stream_; }
  uint32_t stream_index() const { return stream_index_; }
  const CacheCounters& counters() const { return counters_; }
  uint64_t cached_bytes() const {
    return cached_bytes_.load(std::memory_order_relaxed);
  }

  // Of the host, for the slots that there is room for. With the allocator's
  // lock.
  uint64_t metadata_bytes() const { return room_ * sizeof(CachedSlot); }

  // Slots of one class. Not exact while the thread is at work.
  uint32_t CountOf(int size_class) const { return bins_[size_class].size(); }

  bool HasRoomFor(uint64_t slot_size) const {
    return cached_bytes() + slot_size <= byte_limit_;
  }

  // ---- The thread ----
  // False where the cache is stopped: the slow path will do.
  bool Enter() {
    if (barriers_are_asymmetric_) [[likely]] {
      inside_.store(true, std::memory_order_relaxed);
      std::atomic_signal_fence(std::memory_order_seq_cst);
    } else {
      // With the loads and stores of whoever stops in one order.
      inside_.store(true, std::memory_order_seq_cst);
    }
    if (stopped_.load(std::memory_order_seq_cst)) [[unlikely]] {
      Leave();
      return false;
    }
    return true;
  }
  void Leave() { inside_.store(false, std::memory_order_release); }

  // A slot of the class becomes live; 0 where the cache has none. REQUIRES:
  // inside; size <= slot_size.
  uint64_t Allocate(int size_class, uint64_t slot_size, uint64_t size) {
    Bin& bin = bins_[size_class];
    const uint32_t count = bin.size();
    if (count == 0) return 0;
    const CachedSlot slot = bin.slots[count - 1];
    bin.set_size(count - 1);
    // The next one's record, which nobody may have looked at for long.
    if (count > 1) {
      __builtin_prefetch(bin.slots[count - 2].record.address(), 1);
    }
    slot.record.store(SlotRecord::Live(static_cast<uint32_t>(slot_size - size),
                                       stream_index_, !slot.free_for_all()));
    AddCached(-slot_size);
    CountAllocation(slot_size, size);
    return slot.address();
  }
  // A live slot, whose record is `was`, becomes free for the stream. False
  // where the cache is full. REQUIRES: inside.
  bool Free(int size_class, uint64_t slot_size, CachedSlot slot,
            SlotRecord was) {
    Bin& bin = bins_[size_class];
    const uint32_t count = bin.size();
    if (count == bin.capacity || !HasRoomFor(slot_size)) [[unlikely]] {
      return false;
    }
    slot.record.store(was.Freed());
    bin.slots[count] = slot;
    bin.set_size(count + 1);
    AddCached(slot_size);
    CountFree(slot_size, slot_size - was.waste());
    return true;
  }

  // ---- With the allocator's lock ----
  // Counts what was allocated or freed for this cache without it.
  void CountAllocation(uint64_t allocated, uint64_t requested) {
    Add(&counters_.live_bytes, static_cast<int64_t>(allocated));
    const int64_t now =
        Add(&counters_.requested_bytes, static_cast<int64_t>(requested));
    if (now > counters_.peak_requested_bytes.load(std::memory_order_relaxed)) {
      counters_.peak_requested_bytes.store(now, std::memory_order_relaxed);
    }
    Add(&counters_.allocations, uint64_t{1});
  }
  void CountFree(uint64_t allocated, uint64_t requested) {
    Add(&counters_.live_bytes, -static_cast<int64_t>(allocated));
    Add(&counters_.requested_bytes, -static_cast<int64_t>(requested));
    Add(&counters_.frees, uint64_t{1});
  }
  void ResetPeak() {
    counters_.peak_requested_bytes.store(
        counters_.requested_bytes.load(std::memory_order_relaxed),
        std::memory_order_relaxed);
  }
  // How many slots of the class a miss should bring: more with each.
  uint32_t RefillCount(int size_class, uint64_t slot_size);
  // Adds a slot that the stream may use. Makes room at need.
  void Push(int size_class, uint64_t slot_size, CachedSlot slot);
  // Takes all slots of all classes (or the older half of each) out.
  void Drain(bool half, std::vector<CachedSlot>* slots,
             const std::vector<uint64_t>& slot_sizes);
  // Takes the `leaving` oldest slots of one class out.
  void DrainClass(int size_class, uint64_t slot_size, uint32_t leaving,
                  std::vector<CachedSlot>* slots);
  // Makes room for another slot of the class, where there may be more.
  // Returns false where slots have to leave first.
  bool Grow(int size_class, uint64_t slot_size);

  // Keeps the thread out from the next Enter on. See StopCaches.
  void RequestStop() { stopped_.store(true, std::memory_order_seq_cst); }
  bool inside() const { return inside_.load(std::memory_order_seq_cst); }
  void Resume() {
    if (!kept_stopped_) stopped_.store(false, std::memory_order_release);
  }
  // REQUIRES: the cache is stopped.
  void set_stream_index(uint32_t index) { stream_index_ = index; }
  // It stays stopped, whoever resumes it, until that is taken back.
  void set_kept_stopped(bool kept_stopped) {
    kept_stopped_ = kept_stopped;
    if (kept_stopped) RequestStop();
  }

 private:
  struct Bin {
    uint32_t size() const { return count.load(std::memory_order_relaxed); }
    void set_size(uint32_t size) {
      count.store(size, std::memory_order_relaxed);
    }

    CachedSlot* slots = nullptr;
    std::atomic<uint32_t> count{0};
    uint32_t capacity = 0;
    uint32_t refill = 0;  // what the next miss brings; 0: none yet
    std::unique_ptr<CachedSlot[]> storage;
  };

  // Only one thread writes, so that it need not be atomic as a whole.
  template <typename T>
  static T Add(std::atomic<T>* counter, T n) {
    const T sum = counter->load(std::memory_order_relaxed) + n;
    counter->store(sum, std::memory_order_relaxed);
    return sum;
  }
  void AddCached(uint64_t n) { Add(&cached_bytes_, n); }
  void SetCapacity(Bin* bin, uint32_t capacity);

  // Whether StopCaches can rely on the kernel for the threads' barriers.
  static const bool barriers_are_asymmetric_;
  template <typename Caches>
  friend void StopAll(const Caches& caches);

  std::atomic<bool> inside_{false};
  std::atomic<bool> stopped_{false};
  bool kept_stopped_ = false;
  uint32_t stream_index_;
  const uint64_t byte_limit_;
  std::atomic<uint64_t> cached_bytes_{0};
  std::vector<Bin> bins_;
  uint64_t room_ = 0;  // slots, in all bins
  CacheCounters counters_;
  OwnerHeap* const heap_;
  const StreamId stream_;
};

// Returns when no thread is inside any of the caches; until ResumeCaches none
// will be. Waits for a few instructions of each at most.
void StopCaches(const std::vector<std::unique_ptr<ThreadCache>>& caches);
void StopCaches(const std::vector<ThreadCache*>& caches);
void ResumeCaches(const std::vector<std::unique_ptr<ThreadCache>>& caches);
void ResumeCaches(const std::vector<ThreadCache*>& caches);

}  // namespace quire

#endif  // QUIRE_ALLOC_THREAD_CACHE_H_
