// The books of what sleeps: which pages, whose, and where their contents are.
//
// A saved page stands for a physical page that was given up. Its slots are
// asleep and wait for it, so that slots which shared a page share one again.
//
// Invariants: a saved page has slots, all asleep, or is being woken up; the
// counts of an owner include those of the owners below it. Operations are
// O(levels of owners). Not thread-safe.

#ifndef QUIRE_ALLOC_SAVED_PAGES_H_
#define QUIRE_ALLOC_SAVED_PAGES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "alloc/page_archive.h"
#include "quire/alloc/owner.h"
#include "quire/alloc/units.h"

namespace quire {

struct PageRecord;

struct SavedPage {
  explicit SavedPage(OwnerId page_owner) : owner(page_owner) {}
  ~SavedPage() {
    if (archive != nullptr) archive->Drop(place);
  }
  SavedPage(const SavedPage&) = delete;
  SavedPage& operator=(const SavedPage&) = delete;

  const OwnerId owner;
  // Null where the contents were dropped.
  std::shared_ptr<PageArchive> archive;
  uint64_t place = 0;
  // Asleep.
  uint32_t slots = 0;
  // While it is woken up: what takes its place.
  PageRecord* page = nullptr;
  size_t index = 0;  // in the books
};

class SavedPages {
 public:
  // `registry` outlives this object.
  explicit SavedPages(const OwnerRegistry* registry) : registry_(registry) {}

  void Add(std::unique_ptr<SavedPage> page);
  // The page leaves the books; what is left of it to do, such as to give host
  // memory back, is done by whoever destroys it.
  std::unique_ptr<SavedPage> Remove(const SavedPage* page);

  uint64_t count() const { return pages_.size(); }
  // Of the owner and those below it.
  uint64_t CountOf(OwnerId owner) const {
    return owner.value() < counts_.size() ? counts_[owner.value()] : 0;
  }
  const std::vector<std::unique_ptr<SavedPage>>& pages() const {
    return pages_;
  }

  // Counts everything again; what the slots have is not looked at.
  absl::Status CheckInvariants() const;

 private:
  // Calls `function(count)` for the owner and those above it.
  template <typename Function>
  void ForChain(OwnerId owner, Function function);

  const OwnerRegistry* const registry_;
  std::vector<std::unique_ptr<SavedPage>> pages_;
  std::vector<uint64_t> counts_;  // by owner
};

}  // namespace quire

#endif  // QUIRE_ALLOC_SAVED_PAGES_H_
