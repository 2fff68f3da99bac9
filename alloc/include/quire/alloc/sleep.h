// What an owner's pages become while it sleeps, and what that cost.
//
// See DeviceMemory::Sleep.

#ifndef QUIRE_ALLOC_SLEEP_H_
#define QUIRE_ALLOC_SLEEP_H_

#include <string>

#include "quire/alloc/compaction.h"
#include "quire/alloc/units.h"

namespace quire {

enum class SleepTarget {
  // Pinned memory of the process, so that the device copies from and to where
  // the contents stay. It goes back to the system as its pages wake up or are
  // freed, in pieces of at most 32 MiB.
  kHost,
  // A file without a name in SleepOptions::folder. Passes through 32 MiB of
  // pinned memory, and stays out of the page cache.
  kDisk,
  // Nowhere: the contents are lost.
  kDrop,
};

struct SleepOptions {
  SleepTarget target = SleepTarget::kHost;
  // For kDisk: an existing folder. The file takes one page of it for each page
  // that sleeps, is gone when the last of them is, or with the process.
  std::string folder;
};

struct WakeOptions {
  // What was dropped reads as zeros; otherwise as anything.
  bool zero_dropped = false;
};

// Sleep waits for the streams that memory of the owner was freed on, where that
// lies in pages beside live memory.
//
// Of one Sleep or Wake: bytes_moved are those copied to or from the target. By
// Sleep, pages_freed are fewer than `pages` where freed slots of theirs still
// cool; by Wake there are none.
struct SleepReport : CompactionReport {
  // Pages that were put to sleep or woken up, each once.
  PageCount pages;
};

}  // namespace quire

#endif  // QUIRE_ALLOC_SLEEP_H_
