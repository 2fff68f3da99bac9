#include "alloc/page_table.h"

#include "absl/strings/str_format.h"

namespace quire {
namespace {

absl::Status UnknownPage(PageHandle handle) {
  return absl::NotFoundError(absl::StrFormat(
      "page %d does not exist or was released", handle.value()));
}

}  // namespace

PageHandle PageTable::Add(DeviceId device, uint64_t size, uint64_t backing) {
  const PageHandle handle(++last_handle_);
  entries_.Add(handle, Entry{{handle, device, size, backing}});
  return handle;
}

absl::StatusOr<PhysicalPage> PageTable::Find(PageHandle handle) const {
  const Entry* const entry = FindUnreleased(handle);
  if (entry == nullptr) return UnknownPage(handle);
  return entry->page;
}

absl::Status PageTable::FindRun(std::span<const PageHandle> handles,
                                std::vector<PhysicalPage>* run) const {
  if (handles.empty()) {
    return absl::InvalidArgumentError("Map: no pages were given");
  }
  run->clear();
  run->reserve(handles.size());
  for (const PageHandle handle : handles) {
    const Entry* const entry = FindUnreleased(handle);
    if (entry == nullptr) return UnknownPage(handle);
    const PhysicalPage& page = entry->page;
    if (!run->empty() && page.device != run->front().device) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "Map: page %d is memory of device %d, page %d of device %d",
          run->front().handle.value(), run->front().device.value(),
          handle.value(), page.device.value()));
    }
    run->push_back(page);
  }
  return absl::OkStatus();
}

uint64_t PageTable::MappingCount(PageHandle handle) const {
  return entries_.Find(handle)->mappings;
}

absl::StatusOr<std::optional<PhysicalPage>> PageTable::Release(
    PageHandle handle) {
  Entry* const entry = entries_.Find(handle);
  if (entry == nullptr || entry->released) return UnknownPage(handle);
  entry->released = true;
  if (entry->mappings > 0) return std::optional<PhysicalPage>();
  const PhysicalPage page = entry->page;
  entries_.Remove(handle);
  return std::optional(page);
}

void PageTable::AddMapping(PageHandle handle) {
  ++entries_.Find(handle)->mappings;
}

std::optional<PhysicalPage> PageTable::DropMapping(PageHandle handle) {
  Entry* const entry = entries_.Find(handle);
  if (--entry->mappings > 0 || !entry->released) return std::nullopt;
  const PhysicalPage page = entry->page;
  entries_.Remove(handle);
  return page;
}

}  // namespace quire
