// The physical pages of one device: what exists, what is cached, what is lost.
//
// A page is created once and then goes back and forth between the cache of
// unmapped pages and whoever mapped it; making pages (slow) is thereby apart
// from mapping them (fast). The pool knows nothing of addresses. It owns the
// record of every page, at one place from its creation to its release.
//
// Invariant: in_use = taken + cached + quarantined handles, and never grows
// beyond the limit. A handle that the driver will not take back is quarantined:
// it still costs memory, so it still counts, and is offered again by Trim.
//
// Not thread-safe.

#ifndef QUIRE_ALLOC_PAGE_POOL_H_
#define QUIRE_ALLOC_PAGE_POOL_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "alloc/handle_blocks.h"
#include "alloc/page_record.h"
#include "quire/alloc/driver.h"
#include "quire/alloc/units.h"

namespace quire {

// All counts are pages.
struct PagePoolOptions {
  DeviceId device;
  Bytes page_size;
  uint64_t limit = 0;
  // Unmapped pages beyond this many go back to the driver when they come in.
  uint64_t cache_limit = UINT64_MAX;
  // Left free on the device, as the driver reports it: no page is created that
  // would take of it.
  Bytes headroom;
};

class PagePool {
 public:
  PagePool(Driver* driver, const PagePoolOptions& options)
      : driver_(driver), options_(options), limit_(options.limit) {}
  // Gives what is cached or quarantined back. REQUIRES: nothing is taken.
  ~PagePool();
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  // Appends `count` pages: cached ones, most recently used first, then new
  // ones. Where they cannot be had, nothing is appended, pages created on the
  // way stay cached, and the error is kResourceExhausted for the limit and the
  // headroom, or the driver's own. *created grows by the pages created in
  // either case.
  absl::Status Take(uint64_t count, std::vector<PageRecord*>* pages,
                    uint64_t* created);
  // The page of that handle, or null.
  PageRecord* Find(PageHandle page) const { return records_.Find(page); }
  // Takes back a page that nothing maps any more.
  void Put(PageRecord* page);
  // The same for a page that may be wanted again at once: kept whatever the
  // cache limit is, until the next Trim.
  void PutBack(PageRecord* page);
  // Creates pages until `count` are cached. *created as in Take.
  absl::Status Prepare(uint64_t count, uint64_t* created);
  // Gives cached pages back to the driver, least recently used first, until at
  // most `keep` are left. Returns how many the driver took.
  uint64_t Trim(uint64_t keep);

  // Offers the quarantined pages to the driver again. Returns how many it took.
  uint64_t ReleaseQuarantined();

  // A limit below what is in use gives back what is cached, as far as that
  // helps, and then pages as they come in.
  void SetLimit(uint64_t limit);
  uint64_t limit() const { return limit_; }
  uint64_t in_use() const { return in_use_; }
  uint64_t growable() const { return SaturatingSubtract(limit_, in_use_); }
  uint64_t cached() const { return cached_.size(); }
  uint64_t quarantined() const { return quarantined_.size(); }
  uint64_t peak_in_use() const { return peak_in_use_; }
  uint64_t created() const { return created_; }
  uint64_t released() const { return released_; }
  // The first refusal to take a page back that is still in quarantine, or OK.
  const absl::Status& release_error() const { return release_error_; }
  // Checks the equation, and that what is cached or quarantined is in no slot.
  // REQUIRES: `taken` pages are mapped.
  absl::Status CheckInvariants(uint64_t taken) const;

 private:
  bool Release(PageRecord* page);
  bool over_limit() const { return in_use_ > limit_; }
  // OK where the device has `pages` more, and the headroom.
  absl::Status CheckHeadroom(uint64_t pages) const;

  Driver* const driver_;
  const PagePoolOptions options_;
  uint64_t limit_;

  HandleBlocks<PageRecord> records_;
  std::vector<PageRecord*> cached_;  // most recently used last
  std::vector<PageRecord*> quarantined_;
  uint64_t in_use_ = 0;
  uint64_t peak_in_use_ = 0;
  uint64_t created_ = 0;
  uint64_t released_ = 0;
  absl::Status release_error_;
};

}  // namespace quire

#endif  // QUIRE_ALLOC_PAGE_POOL_H_
