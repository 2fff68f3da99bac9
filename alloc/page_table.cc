#include "alloc/page_table.h"

#include "absl/strings/str_format.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

absl::Status UnknownPage(PageHandle handle) {
  return absl::NotFoundError(absl::StrFormat(
      "page %d does not exist or was released", handle.value()));
}

}  // namespace

PageHandle PageTable::Add(DeviceId device, uint64_t size, uint64_t backing) {
  const PageHandle handle(++last_handle_);
  entries_[handle] = {{handle, device, size, backing}};
  return handle;
}

absl::StatusOr<PhysicalPage> PageTable::Find(PageHandle handle) const {
  const auto entry = entries_.find(handle);
  if (entry == entries_.end() || entry->second.released) {
    return UnknownPage(handle);
  }
  return entry->second.page;
}

absl::StatusOr<std::vector<PhysicalPage>> PageTable::FindRun(
    std::span<const PageHandle> handles) const {
  if (handles.empty()) {
    return absl::InvalidArgumentError("Map: no pages were given");
  }
  std::vector<PhysicalPage> run;
  run.reserve(handles.size());
  for (const PageHandle handle : handles) {
    QUIRE_ASSIGN_OR_RETURN(const PhysicalPage page, Find(handle));
    if (!run.empty() && page.device != run.front().device) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "Map: page %d is memory of device %d, page %d of device %d",
          run.front().handle.value(), run.front().device.value(),
          handle.value(), page.device.value()));
    }
    run.push_back(page);
  }
  return run;
}

uint64_t PageTable::MappingCount(PageHandle handle) const {
  return entries_.find(handle)->second.mappings;
}

absl::StatusOr<std::optional<PhysicalPage>> PageTable::Release(
    PageHandle handle) {
  const auto entry = entries_.find(handle);
  if (entry == entries_.end() || entry->second.released) {
    return UnknownPage(handle);
  }
  entry->second.released = true;
  if (entry->second.mappings > 0) return std::optional<PhysicalPage>();
  const PhysicalPage page = entry->second.page;
  entries_.erase(entry);
  return std::optional(page);
}

void PageTable::AddMapping(PageHandle handle) {
  ++entries_.find(handle)->second.mappings;
}

std::optional<PhysicalPage> PageTable::DropMapping(PageHandle handle) {
  const auto entry = entries_.find(handle);
  if (--entry->second.mappings > 0 || !entry->second.released) {
    return std::nullopt;
  }
  const PhysicalPage page = entry->second.page;
  entries_.erase(entry);
  return page;
}

}  // namespace quire
