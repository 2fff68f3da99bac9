#include "bench/policies/gmlake_policy.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <utility>

#include "absl/strings/str_format.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

constexpr uint64_t kPage = SimulatedDevice::kPage.value();

}  // namespace

absl::StatusOr<DeviceAddress> GmlakePolicy::Allocate(Bytes size,
                                                     StreamId stream) {
  if (size.value() < kPage) return small_.Allocate(size, stream);
  absl::StatusOr<Handed> handed = absl::ResourceExhaustedError("");
  if (size <= kLargestRequest) {
    handed = Find(PagesFor(size, SimulatedDevice::kPage).value());
  }
  if (absl::IsResourceExhausted(handed.status())) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "gmlake: tried to allocate %s; of %s reserved, %s are allocated",
        FormatBytes(size), FormatBytes(GetUse().reserved),
        FormatBytes(GetUse().allocated)));
  }
  QUIRE_RETURN_IF_ERROR(handed.status());
  SetInUse(*handed, true);
  allocated_ += handed->size;
  const uint64_t address = handed->primitive != nullptr
                               ? handed->primitive->address
                               : handed->stitched->address;
  handed_[address] = *handed;
  return DeviceAddress(address);
}

absl::StatusOr<GmlakePolicy::Handed> GmlakePolicy::Find(uint64_t pages) {
  const uint64_t size = pages * kPage;
  const auto fit = free_.lower_bound({pages, 0, nullptr});
  if (fit != free_.end() && fit->size == pages) {
    return Handed{fit->block, nullptr, size};
  }
  if (Stitched* const same = FindStitched(size)) {
    return Handed{nullptr, same, size};
  }
  if (fit != free_.end()) {
    QUIRE_ASSIGN_OR_RETURN(Primitive* const part, Split(fit->block, pages));
    return Handed{part, nullptr, size};
  }
  std::vector<Primitive*> parts;
  Primitive* larger = nullptr;  // than what is missing
  uint64_t missing = pages;
  for (auto it = free_.rbegin(); it != free_.rend() && missing > 0; ++it) {
    if (it->size > missing) {
      larger = it->block;
      break;
    }
    parts.push_back(it->block);
    missing -= it->size;
  }
  if (missing > 0) {
    absl::StatusOr<Primitive*> rest =
        larger != nullptr ? Split(larger, missing) : NewPrimitive(missing);
    QUIRE_RETURN_IF_ERROR(rest.status());
    if (parts.empty()) return Handed{*rest, nullptr, size};
    parts.push_back(*rest);
  }
  QUIRE_ASSIGN_OR_RETURN(Stitched* const stitched, Stitch(std::move(parts)));
  return Handed{nullptr, stitched, size};
}

GmlakePolicy::Stitched* GmlakePolicy::FindStitched(uint64_t size) const {
  const auto found = free_stitched_.lower_bound({size, 0, nullptr});
  if (found == free_stitched_.end() || found->size != size) return nullptr;
  return found->block;
}

absl::StatusOr<uint64_t> GmlakePolicy::MapPages(
    const std::vector<PageHandle>& pages) {
  QUIRE_ASSIGN_OR_RETURN(const DeviceAddress address,
                         device_->ReserveAddress(Bytes(pages.size() * kPage)));
  absl::Status mapped = device_->driver()->Map(address, pages);
  if (mapped.ok()) return address.value();
  mapped.Update(device_->ReleaseAddress(address));
  return mapped;
}

absl::Status GmlakePolicy::UnmapPages(uint64_t address, uint64_t size) {
  QUIRE_RETURN_IF_ERROR(
      device_->driver()->Unmap(DeviceAddress(address), Bytes(size)));
  return device_->ReleaseAddress(DeviceAddress(address));
}

absl::StatusOr<GmlakePolicy::Primitive*> GmlakePolicy::NewPrimitive(
    uint64_t pages) {
  auto block = std::make_unique<Primitive>();
  const auto give_up = [&](absl::Status status) {
    for (const PageHandle page : block->pages) {
      status.Update(device_->driver()->ReleasePage(page));
    }
    return status;
  };
  if (pages > device_->memory().value() / kPage) {
    return absl::ResourceExhaustedError("more than the device has");
  }
  while (block->pages.size() < pages) {
    const absl::StatusOr<PageHandle> page =
        device_->driver()->CreatePage(DeviceId(0), SimulatedDevice::kPage);
    if (!page.ok()) return give_up(page.status());
    block->pages.push_back(*page);
  }
  const absl::StatusOr<uint64_t> address = MapPages(block->pages);
  if (!address.ok()) return give_up(address.status());
  block->address = *address;
  reserved_ += pages * kPage;
  free_.insert(EntryOf(block.get()));
  primitives_.push_back(std::move(block));
  return primitives_.back().get();
}

absl::StatusOr<GmlakePolicy::Primitive*> GmlakePolicy::Split(Primitive* block,
                                                             uint64_t pages) {
  auto rest = std::make_unique<Primitive>();
  const auto middle = block->pages.begin() + static_cast<int64_t>(pages);
  rest->pages.assign(middle, block->pages.end());
  const std::vector<PageHandle> first(block->pages.begin(), middle);
  QUIRE_ASSIGN_OR_RETURN(const uint64_t address, MapPages(first));
  const absl::StatusOr<uint64_t> behind = MapPages(rest->pages);
  if (!behind.ok()) {
    absl::Status status = behind.status();
    status.Update(UnmapPages(address, pages * kPage));
    return status;
  }
  rest->address = *behind;

  free_.erase(EntryOf(block));
  for (const uint32_t number : block->in) {
    std::vector<Primitive*>& parts = stitched_[number]->parts;
    const auto place = std::find(parts.begin(), parts.end(), block);
    parts.insert(std::next(place), rest.get());
  }
  rest->in = block->in;
  // The addresses of the whole are those of a stitched block from now on.
  auto whole = std::make_unique<Stitched>();
  whole->address = block->address;
  whole->size = block->pages.size() * kPage;
  whole->parts = {block, rest.get()};
  block->pages = first;
  block->address = address;
  for (Primitive* const part : whole->parts) free_.insert(EntryOf(part));
  AddStitched(std::move(whole));
  primitives_.push_back(std::move(rest));
  return block;
}

absl::StatusOr<GmlakePolicy::Stitched*> GmlakePolicy::Stitch(
    std::vector<Primitive*> parts) {
  std::vector<PageHandle> pages;
  for (const Primitive* const part : parts) {
    pages.insert(pages.end(), part->pages.begin(), part->pages.end());
  }
  auto stitched = std::make_unique<Stitched>();
  QUIRE_ASSIGN_OR_RETURN(stitched->address, MapPages(pages));
  stitched->size = pages.size() * kPage;
  stitched->parts = std::move(parts);
  return AddStitched(std::move(stitched));
}

GmlakePolicy::Stitched* GmlakePolicy::AddStitched(
    std::unique_ptr<Stitched> stitched) {
  Stitched* const added = stitched.get();
  if (unused_numbers_.empty()) {
    unused_numbers_.push_back(static_cast<uint32_t>(stitched_.size()));
    stitched_.emplace_back();
    parts_in_use_.push_back(0);
  }
  added->number = unused_numbers_.back();
  unused_numbers_.pop_back();
  for (Primitive* const part : added->parts) part->in.push_back(added->number);
  free_stitched_.insert(EntryOf(added));
  stitched_bytes_ += added->size;
  stitched_[added->number] = std::move(stitched);
  return added;
}

absl::Status GmlakePolicy::LimitStitched() {
  const uint64_t limit = 2 * device_->memory().value();
  while (stitched_bytes_ > limit && !free_stitched_.empty()) {
    const auto found = std::min_element(
        free_stitched_.begin(), free_stitched_.end(),
        [](const Entry<Stitched>& a, const Entry<Stitched>& b) {
          return a.block->last_use < b.block->last_use;
        });
    Stitched* const oldest = found->block;
    free_stitched_.erase(found);
    for (Primitive* const part : oldest->parts) {
      std::erase(part->in, oldest->number);
    }
    stitched_bytes_ -= oldest->size;
    QUIRE_RETURN_IF_ERROR(UnmapPages(oldest->address, oldest->size));
    unused_numbers_.push_back(oldest->number);
    stitched_[oldest->number].reset();
  }
  return absl::OkStatus();
}

void GmlakePolicy::SetInUse(Primitive* block, bool in_use) {
  if (in_use) {
    free_.erase(EntryOf(block));
  } else {
    free_.insert(EntryOf(block));
  }
  for (const uint32_t number : block->in) {
    if (in_use) {
      if (parts_in_use_[number]++ == 0) {
        free_stitched_.erase(EntryOf(stitched_[number].get()));
      }
    } else if (--parts_in_use_[number] == 0) {
      free_stitched_.insert(EntryOf(stitched_[number].get()));
    }
  }
}

void GmlakePolicy::SetInUse(const Handed& handed, bool in_use) {
  if (handed.primitive != nullptr) {
    SetInUse(handed.primitive, in_use);
    return;
  }
  handed.stitched->last_use = ++uses_;
  for (Primitive* const part : handed.stitched->parts) SetInUse(part, in_use);
}

absl::Status GmlakePolicy::Free(DeviceAddress address, StreamId stream) {
  const auto found = handed_.find(address.value());
  if (found == handed_.end()) return small_.Free(address, stream);
  const Handed handed = found->second;
  handed_.erase(found);
  allocated_ -= handed.size;
  SetInUse(handed, false);
  // Not when memory is handed out: what shares a part with it cannot go then.
  return LimitStitched();
}

PolicyUse GmlakePolicy::GetUse() const {
  const PolicyUse small = small_.GetUse();
  const Bytes reserved = SaturatingAdd(small.reserved, Bytes(reserved_));
  return {SaturatingAdd(small.allocated, Bytes(allocated_)), reserved,
          reserved};
}

uint64_t GmlakePolicy::FreePages() const {
  uint64_t pages = 0;
  for (const Entry<Primitive>& entry : free_) pages += entry.size;
  return pages;
}

Bytes GmlakePolicy::CalculateLargest(StreamId /*stream*/) const {
  const uint64_t unused =
      SaturatingSubtract(device_->memory(), GetUse().reserved).value();
  return Bytes((unused / kPage + FreePages()) * kPage);
}

}  // namespace quire
