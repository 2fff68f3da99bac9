#include "alloc/span_table.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

// For so many bytes of a slot its record may take one byte of the host, up to a
// cache line: 0.4 % of the memory. It takes four bytes at least, and two where
// the slot is so short that these can say how much of it is unused.
constexpr uint64_t kSlotBytesPerRecordByte = 256;
constexpr uint64_t kMostRecordBytes = 64;
constexpr uint64_t kLongRecordBytes = 4;
constexpr uint64_t kShortRecordBytes = 2;
constexpr uint64_t kShortRecordSlot = SlotRecord::kMaxShortWaste;

constexpr uint64_t kBitsPerWord = 64;

uint64_t WordsFor(uint64_t bits) {
  return (bits + kBitsPerWord - 1) / kBitsPerWord;
}

// Zeros, which the system backs where they are written.
absl::StatusOr<void*> MapZeros(uint64_t bytes) {
  void* const mapped =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, /*fd=*/-1, 0);
  if (mapped != MAP_FAILED) return mapped;
  const int error = errno;
  return absl::ResourceExhaustedError(
      absl::StrCat("cannot map a table of spans of ", bytes,
                   " bytes: ", std::strerror(error)));
}

bool HasShortRecord(uint64_t slot_size) {
  return slot_size <= kShortRecordSlot;
}

uint32_t RecordShift(uint64_t slot_size) {
  const uint64_t bytes = HasShortRecord(slot_size)
                             ? kShortRecordBytes
                             : std::clamp(slot_size / kSlotBytesPerRecordByte,
                                          kLongRecordBytes, kMostRecordBytes);
  return static_cast<uint32_t>(std::bit_width(bytes) - 1);
}

// For the one slot that a span may have.
void UseLargeRecord(Span* span) {
  span->records = SlotRecordPlace::Long(&span->large_record);
  span->record_shift =
      static_cast<uint32_t>(std::bit_width(kLongRecordBytes) - 1);
}

}  // namespace

absl::StatusOr<std::unique_ptr<SpanTable>> SpanTable::Create(DeviceAddress base,
                                                             Bytes size,
                                                             Bytes page_size) {
  // All-zero bytes are a table of null pointers, and loads take no lock.
  static_assert(Entry::is_always_lock_free);
  static_assert(sizeof(Entry) == sizeof(Span*));
  const int shift = std::countr_zero(page_size.value());
  const uint64_t pages = size.value() >> shift;
  std::unique_ptr<SpanTable> spans(new SpanTable(base.value(), pages, shift));
  QUIRE_ASSIGN_OR_RETURN(void* const table, MapZeros(pages * sizeof(Entry)));
  spans->table_ = static_cast<Entry*>(table);
  QUIRE_ASSIGN_OR_RETURN(void* const used,
                         MapZeros(WordsFor(pages) * sizeof(uint64_t)));
  spans->used_ = static_cast<uint64_t*>(used);
  return spans;
}

SpanTable::~SpanTable() {
  if (table_ != nullptr) munmap(table_, pages_ * sizeof(Entry));
  if (used_ != nullptr) munmap(used_, WordsFor(pages_) * sizeof(uint64_t));
}

void SpanTable::Publish(DeviceAddress address, PageCount pages, Span* span) {
  const uint64_t first = (address.value() - base_) >> page_shift_;
  for (uint64_t i = 0; i < pages.value(); ++i) {
    table_[first + i].store(span, std::memory_order_release);
  }
}

void SpanTable::NoteUse(DeviceAddress address, PageCount pages) {
  const uint64_t first = (address.value() - base_) >> page_shift_;
  for (uint64_t page = first; page < first + pages.value(); ++page) {
    used_[page / kBitsPerWord] |= uint64_t{1} << page % kBitsPerWord;
  }
}

bool SpanTable::WasUsed(DeviceAddress address) const {
  const uint64_t page = (address.value() - base_) >> page_shift_;
  return page < pages_ &&
         (used_[page / kBitsPerWord] >> page % kBitsPerWord & 1) != 0;
}

Span* SpanTable::TakeUnused() {
  if (unused_.empty()) {
    storage_.emplace_back();
    metadata_bytes_ += sizeof(Span);
    return &storage_.back();
  }
  Span* const span = unused_.back();
  unused_.pop_back();
  return span;
}

Span* SpanTable::AddMarker(OwnerHeap* heap, OwnerId owner) {
  if (unused_markers_.empty()) {
    storage_.emplace_back();
    metadata_bytes_ += sizeof(Span);
    unused_markers_.push_back(&storage_.back());
  }
  Span* const marker = unused_markers_.back();
  unused_markers_.pop_back();
  marker->marker = true;
  marker->owner = owner;
  marker->heap = heap;
  return marker;
}

Span* SpanTable::Add() {
  Span* const span = TakeUnused();
  if (unused_indices_.empty()) {
    unused_indices_.push_back(spans_.size());
    spans_.push_back(nullptr);
  }
  span->index = unused_indices_.back();
  unused_indices_.pop_back();
  spans_[span->index] = span;
  span->size_class = kLargeClass;
  span->pieces.clear();
  span->detour = nullptr;
  span->cooling = 0;
  span->host = nullptr;
  span->guests = 0;
  span->list_position = SIZE_MAX;
  UseLargeRecord(span);
  span->records.store(SlotRecord());
  return span;
}

size_t SpanTable::RecordPower(uint32_t slots, uint32_t shift) {
  return static_cast<size_t>(std::bit_width(slots - 1)) + shift;
}

void SpanTable::SetRecords(Span* span, uint32_t slots, uint64_t slot_size) {
  ReturnRecords(span);
  if (slots == 1) {
    UseLargeRecord(span);
  } else {
    span->record_shift = RecordShift(slot_size);
    const size_t power = RecordPower(slots, span->record_shift);
    if (unused_records_.size() <= power) unused_records_.resize(power + 1);
    auto& unused = unused_records_[power];
    if (unused.empty()) {
      const size_t blocks =
          ((size_t{1} << power) + kSharingBytes - 1) / kSharingBytes;
      record_storage_.push_back(std::make_unique<RecordBlock[]>(blocks));
      metadata_bytes_ += blocks * sizeof(RecordBlock);
      unused.push_back(record_storage_.back()[0].bytes);
    }
    span->records = HasShortRecord(slot_size)
                        ? SlotRecordPlace::Short(unused.back())
                        : SlotRecordPlace::Long(unused.back());
    unused.pop_back();
  }
  for (uint32_t i = 0; i < slots; ++i) span->record(i).store(SlotRecord());
}

void SpanTable::ReturnRecords(Span* span) {
  if (span->records.address() == &span->large_record) return;
  // slot_count is still that of these records.
  unused_records_[RecordPower(span->slot_count, span->record_shift)].push_back(
      static_cast<std::byte*>(span->records.address()));
  UseLargeRecord(span);
}

void SpanTable::Remove(Span* span) {
  ReturnRecords(span);
  spans_[span->index] = nullptr;
  unused_indices_.push_back(span->index);
  unused_.push_back(span);
}

}  // namespace quire
