#include "alloc/saved_pages.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"

namespace quire {

template <typename Function>
void SavedPages::ForChain(OwnerId owner, Function function) {
  for (std::optional<OwnerId> id = owner; id; id = registry_->Parent(*id)) {
    if (id->value() >= counts_.size()) {
      counts_.resize(size_t{id->value()} + 1);
    }
    function(counts_[id->value()]);
  }
}

void SavedPages::Add(std::unique_ptr<SavedPage> page) {
  ForChain(page->owner, [](uint64_t& count) { ++count; });
  page->index = pages_.size();
  pages_.push_back(std::move(page));
}

std::unique_ptr<SavedPage> SavedPages::Remove(const SavedPage* page) {
  ForChain(page->owner, [](uint64_t& count) { --count; });
  const size_t index = page->index;
  std::swap(pages_[index], pages_.back());
  pages_[index]->index = index;
  std::unique_ptr<SavedPage> removed = std::move(pages_.back());
  pages_.pop_back();
  return removed;
}

absl::Status SavedPages::CheckInvariants() const {
  SavedPages counted(registry_);
  for (size_t i = 0; i < pages_.size(); ++i) {
    if (pages_[i]->index != i) {
      return absl::InternalError(absl::StrCat(
          "sleeping page ", i, " says it is number ", pages_[i]->index));
    }
    if (pages_[i]->slots == 0 && pages_[i]->page == nullptr) {
      return absl::InternalError(absl::StrCat("sleeping page ", i, " of owner ",
                                              pages_[i]->owner.value(),
                                              " has no slots"));
    }
    counted.ForChain(pages_[i]->owner, [](uint64_t& count) { ++count; });
  }
  for (size_t id = 0; id < counts_.size(); ++id) {
    const uint64_t found = counted.CountOf(OwnerId(static_cast<uint32_t>(id)));
    if (counts_[id] == found) continue;
    return absl::InternalError(absl::StrCat("owner ", id, " counts ",
                                            counts_[id],
                                            " sleeping pages and has ", found));
  }
  return absl::OkStatus();
}

}  // namespace quire
