// Where the contents of pages are while their owner sleeps.
//
// An archive is written once, as a whole, by one Sleep, and gives its places up
// one by one, as pages wake up or are freed. Place i has the i-th page saved.
//
// Thread-safe: Load and Drop may be called from several threads at once, not
// for the same places.

#ifndef QUIRE_ALLOC_PAGE_ARCHIVE_H_
#define QUIRE_ALLOC_PAGE_ARCHIVE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "quire/alloc/driver.h"
#include "quire/alloc/status_macros.h"
#include "quire/alloc/units.h"

namespace quire {

// What all archives of a device memory hold now, in bytes.
struct ArchiveUse {
  std::atomic<uint64_t> host{0};
  std::atomic<uint64_t> disk{0};
};

// Pointers outlive the archive.
struct ArchiveContext {
  Driver* driver;
  DeviceId device;
  Bytes page_size;
  ArchiveUse* use;
};

// A page to be saved: where it is mapped, and whose it is.
struct ArchivedPage {
  DeviceAddress address;
  OwnerId owner;
};

// A page to be restored: from where, to where it is mapped.
struct ArchivePlacement {
  uint64_t place;
  DeviceAddress address;
};

class PageArchive {
 public:
  virtual ~PageArchive() = default;
  PageArchive(const PageArchive&) = delete;
  PageArchive& operator=(const PageArchive&) = delete;

  // Copies the places to the device, and waits until they are there. In order
  // of place, neighbours are copied together. An error leaves the archive as it
  // is.
  virtual absl::Status Load(std::span<const ArchivePlacement> pages) = 0;
  // The contents of the place are not needed any more.
  virtual void Drop(uint64_t place) = 0;

 protected:
  PageArchive() = default;
};

// Copy the pages, which are in use by nothing, and wait until it is done. Pages
// of one owner should be neighbours. Errors are the driver's, and of the file:
// these name the folder.
absl::StatusOr<std::shared_ptr<PageArchive>> SaveToHost(
    const ArchiveContext& context, std::span<const ArchivedPage> pages);
absl::StatusOr<std::shared_ptr<PageArchive>> SaveToDisk(
    const ArchiveContext& context, std::span<const ArchivedPage> pages,
    const std::string& folder);

// How many pages go into `bytes`, at least one.
inline uint64_t PagesPerPiece(Bytes bytes, Bytes page_size) {
  return bytes < page_size ? 1 : bytes.value() / page_size.value();
}
// The end of the longest run in [begin, end) in which `follows(i)` holds for
// each element but the first.
template <typename Follows>
size_t EndOfRun(size_t begin, size_t end, Follows follows) {
  size_t at = begin + 1;
  while (at < end && follows(at)) ++at;
  return at;
}
// The end of the longest run of pages in [begin, end) at addresses side by
// side.
template <typename Page>
size_t EndOfAddresses(std::span<const Page> pages, size_t begin, size_t end,
                      Bytes page_size) {
  return EndOfRun(begin, end, [&](size_t i) {
    return pages[i].address.value() ==
           pages[i - 1].address.value() + page_size.value();
  });
}

// Queues copies of the pages to `to`, one behind the other there. Those at
// addresses side by side are copied together.
inline absl::Status CopyPagesToHost(const ArchiveContext& context,
                                    std::span<const ArchivedPage> pages,
                                    std::byte* to, StreamId stream) {
  for (size_t at = 0; at < pages.size();) {
    const size_t end =
        EndOfAddresses(pages, at, pages.size(), context.page_size);
    QUIRE_RETURN_IF_ERROR(context.driver->CopyToHost(
        to + at * context.page_size.value(), pages[at].address,
        Bytes((end - at) * context.page_size.value()), stream));
    at = end;
  }
  return absl::OkStatus();
}

}  // namespace quire

#endif  // QUIRE_ALLOC_PAGE_ARCHIVE_H_
