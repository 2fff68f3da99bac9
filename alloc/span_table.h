// The spans of one allocator: their records, and the way from an address to
// one.
//
// One pointer per page of the device's addresses, in memory that the system
// backs when it is first touched, so that a span is found by one load and no
// hash. Find may run beside anything; all else needs the allocator's lock.
// Beside it a bit per page tells addresses that memory was ever handed out at,
// so that a free of what was given back since is known from a stranger's.
//
// Spans and slot records are used again and never given back before the end: a
// thread that asks about an address which is not live (any more) reads a
// record, whatever happens meanwhile.

#ifndef QUIRE_ALLOC_SPAN_TABLE_H_
#define QUIRE_ALLOC_SPAN_TABLE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "alloc/span.h"
#include "quire/alloc/units.h"

namespace quire {

class SpanTable {
 public:
  // For addresses from `base` on. REQUIRES: page_size is a power of two. An
  // error of Create is kResourceExhausted: no room for the table.
  static absl::StatusOr<std::unique_ptr<SpanTable>> Create(DeviceAddress base,
                                                           Bytes size,
                                                           Bytes page_size);
  ~SpanTable();
  SpanTable(const SpanTable&) = delete;
  SpanTable& operator=(const SpanTable&) = delete;

  // What the page of `address` leads to, or null. Lock-free.
  Span* Find(DeviceAddress address) const {
    const uint64_t page = (address.value() - base_) >> page_shift_;
    if (page >= pages_) return nullptr;
    return table_[page].load(std::memory_order_acquire);
  }

  // A span with a record for one slot, found by no address yet.
  Span* Add();
  // One to stand for the addresses of a heap, an owner's, in no list of spans.
  Span* AddMarker(OwnerHeap* heap, OwnerId owner);
  void RemoveMarker(Span* marker) { unused_markers_.push_back(marker); }
  // The pages from `address` on lead to `span` from here on, or nowhere where
  // it is null.
  void Publish(DeviceAddress address, PageCount pages, Span* span);
  // Memory is handed out at these addresses from here on, or was.
  void NoteUse(DeviceAddress address, PageCount pages);
  bool WasUsed(DeviceAddress address) const;
  // Gives the span records for `slots` slots of `slot_size` bytes, all unused.
  // REQUIRES: none is live.
  void SetRecords(Span* span, uint32_t slots, uint64_t slot_size);
  // The span may be used again. REQUIRES: no address leads to it.
  void Remove(Span* span);

  // Every span; null where an index is not used.
  const std::vector<Span*>& spans() const { return spans_; }
  // Memory of the host that describes memory of the device.
  uint64_t metadata_bytes() const { return metadata_bytes_; }

 private:
  using Entry = std::atomic<Span*>;

  SpanTable(uint64_t base, uint64_t pages, int page_shift)
      : base_(base), pages_(pages), page_shift_(page_shift) {}
  Span* TakeUnused();
  void ReturnRecords(Span* span);
  // Bytes of records with what lies between them, which two spans may have in
  // turn: the power of two that they are no more than.
  static size_t RecordPower(uint32_t slots, uint32_t shift);

  const uint64_t base_;
  const uint64_t pages_;
  const int page_shift_;
  // Both are null until Create has room for them.
  Entry* table_ = nullptr;    // pages_ entries
  uint64_t* used_ = nullptr;  // pages_ bits

  std::deque<Span> storage_;
  std::vector<Span*> unused_;
  std::vector<Span*> unused_markers_;
  std::vector<Span*> spans_;
  std::vector<size_t> unused_indices_;
  // Arrays of records by the power of two of their bytes.
  std::vector<std::vector<std::byte*>> unused_records_;
  // Whole blocks, so that threads which work in different slabs do not write to
  // the same one.
  struct alignas(kSharingBytes) RecordBlock {
    std::byte bytes[kSharingBytes];
  };
  std::vector<std::unique_ptr<RecordBlock[]>> record_storage_;
  uint64_t metadata_bytes_ = 0;
};

}  // namespace quire

#endif  // QUIRE_ALLOC_SPAN_TABLE_H_
