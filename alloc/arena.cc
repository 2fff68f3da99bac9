#include "alloc/arena.h"

#include <bit>
#include <iterator>
#include <utility>

#include "absl/strings/str_format.h"
#include "alloc/stream_free_list.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

// The first reservation of addresses; each later one is as long as all before,
// so that their number stays small whatever the heap grows to. No more than a
// part of all addresses, though, where a request does not need it.
constexpr uint64_t kFirstChunkPages = 16;
constexpr uint64_t kMostOfAddresses = 64;

}  // namespace

Arena::Arena(OwnerId owner, DeviceMemory* memory, SpanTable* spans,
             MappedTotal* total, Span* marker)
    : owner_(owner),
      memory_(memory),
      spans_(spans),
      total_(total),
      marker_(marker),
      page_bytes_(memory->page_size().value()),
      page_shift_(std::countr_zero(page_bytes_)) {}

// ---- Accounts ---------------------------------------------------------------

const Arena::Chunk& Arena::ChunkAt(uint64_t address) const {
  return std::prev(chunks_.upper_bound(address))->second;
}

Arena::Chunk& Arena::ChunkAt(uint64_t address) {
  return std::prev(chunks_.upper_bound(address))->second;
}

// Calls function(page, bytes) with the address of each page at home that the
// piece has bytes in, and their number.
template <typename Function>
void Arena::ForEachPage(const Piece& piece, Function function) const {
  for (uint64_t at = piece.begin; at < piece.end();) {
    const uint64_t page = at & ~(page_bytes_ - 1);
    const uint64_t end = std::min(page + page_bytes_, piece.end());
    function(page, end - at);
    at = end;
  }
}

void Arena::Count(const Piece& piece, uint32_t HomePage::*bytes, bool add) {
  uint64_t& whole = bytes == &HomePage::idle ? idle_pages_ : free_pages_;
  Chunk& chunk = ChunkAt(piece.begin);
  const uint64_t base = chunk.range->address().value();
  const auto count_part = [&](uint64_t at, uint64_t length) {
    uint32_t& counted = chunk.pages[(at - base) >> page_shift_].*bytes;
    const auto part = static_cast<uint32_t>(length);
    whole -= counted == page_bytes_ ? 1 : 0;
    counted = add ? counted + part : counted - part;
    whole += counted == page_bytes_ ? 1 : 0;
  };
  const uint64_t first = (piece.begin + page_bytes_ - 1) >> page_shift_;
  const uint64_t last = piece.end() >> page_shift_;
  if (last < first) {
    count_part(piece.begin, piece.length);
    return;
  }
  const uint64_t first_border = first << page_shift_;
  const uint64_t last_border = last << page_shift_;
  if (piece.begin < first_border) {
    count_part(piece.begin, first_border - piece.begin);
  }
  // Of a whole page nobody else has a byte.
  const uint32_t counted = add ? static_cast<uint32_t>(page_bytes_) : 0;
  HomePage* const pages = chunk.pages.data();
  for (uint64_t i = (first_border - base) >> page_shift_,
                end = (last_border - base) >> page_shift_;
       i < end; ++i) {
    pages[i].*bytes = counted;
  }
  whole = add ? whole + (last - first) : whole - (last - first);
  if (piece.end() > last_border) {
    count_part(last_border, piece.end() - last_border);
  }
}

void Arena::InsertFree(const Piece& piece) {
  BecomeFree(piece);
  free_.Insert({piece.begin, piece.length, 0});
}

void Arena::TakeFree(const Piece& piece) {
  BecomeUsed(piece);
  free_.Take(piece.begin, piece.length);
}

// ---- Pages ------------------------------------------------------------------

void Arena::SetState(const Piece& pages, PageState state) {
  Chunk& chunk = ChunkAt(pages.begin);
  ForEachPage(pages, [&](uint64_t address, uint64_t /*bytes*/) {
    HomePage& page = PageOf(chunk, address);
    if (page.state == PageState::kHole) ++chunk.in_use;
    if (state == PageState::kHole) --chunk.in_use;
    page.state = state;
  });
}

absl::Status Arena::AddChunk(uint64_t pages, Bytes alignment) {
  const uint64_t most = memory_->GetStatistics().address_space.value() /
                        page_bytes_ / kMostOfAddresses;
  const uint64_t ample =
      std::min(std::max(kFirstChunkPages, chunk_pages_), most);
  // One more, the last, which is never used.
  uint64_t wanted = std::max(pages, ample) + 1;
  absl::StatusOr<AddressRange*> range =
      memory_->TryReserveRange(PageCount(wanted), owner_, alignment);
  if (!range.ok() && wanted > pages + 1) {
    wanted = pages + 1;
    range = memory_->TryReserveRange(PageCount(wanted), owner_, alignment);
  }
  QUIRE_RETURN_IF_ERROR(range.status());
  const uint64_t base = (*range)->address().value();
  chunks_[base] = {*range, std::vector<HomePage>(wanted), 0};
  chunk_pages_ += wanted - 1;
  holes_.Insert({base, (wanted - 1) * page_bytes_, 0});
  spans_->Publish((*range)->address(), PageCount(wanted), marker_);
  return absl::OkStatus();
}

void Arena::DropEmptyChunks() {
  for (auto chunk = chunks_.begin(); chunk != chunks_.end();) {
    if (chunk->second.in_use > 0) {
      ++chunk;
      continue;
    }
    const uint64_t pages = chunk->second.pages.size();
    holes_.Take(chunk->first, (pages - 1) * page_bytes_);
    chunk_pages_ -= pages - 1;
    AddressRange* const range = chunk->second.range;
    spans_->Publish(range->address(), PageCount(pages), nullptr);
    chunk = chunks_.erase(chunk);
    memory_->ReleaseRange(range, Fence());
  }
}

bool Arena::CanGrowAt(uint64_t address, uint64_t pages) const {
  return holes_.FindAround(address, pages * page_bytes_).has_value();
}

absl::StatusOr<uint64_t> Arena::Grow(uint64_t pages, Bytes alignment,
                                     uint64_t address) {
  const uint64_t bytes = pages * page_bytes_;
  if (address == 0) {
    const Bytes grain = std::max(alignment, Bytes(page_bytes_));
    std::optional<uint64_t> hole = holes_.FindFit(bytes, grain);
    if (!hole) {
      QUIRE_RETURN_IF_ERROR(AddChunk(pages, grain));
      hole = holes_.FindFit(bytes, grain);
    }
    address = *hole;
  }
  const absl::Status backed = Back({address, bytes});
  if (!backed.ok()) DropEmptyChunks();
  QUIRE_RETURN_IF_ERROR(backed);
  return address;
}

absl::Status Arena::Back(const Piece& pages) {
  PageCount slot;
  AddressRange* const range = RangeAt(pages.begin, &slot);
  const uint64_t count = pages.length / page_bytes_;
  const absl::Status status =
      memory_->TryBackSlots(range, slot, PageCount(count));
  if (absl::IsDataLoss(status)) {
    // The driver has lost track of these addresses, and others will do.
    holes_.Take(pages.begin, pages.length);
    SetState(pages, PageState::kLost);
    return absl::AbortedError(status.message());
  }
  QUIRE_RETURN_IF_ERROR(status);
  holes_.Take(pages.begin, pages.length);
  SetState(pages, PageState::kBacked);
  spans_->NoteUse(DeviceAddress(pages.begin), PageCount(count));
  backed_pages_ += count;
  total_->bytes += pages.length;
  total_->made_bytes += pages.length;
  BecomeIdle(pages);
  InsertFree(pages);
  return absl::OkStatus();
}

void Arena::Leave(const Piece& pages, const Fence& fence) {
  PageCount slot;
  AddressRange* const range = RangeAt(pages.begin, &slot);
  const PageCount count(pages.length / page_bytes_);
  const absl::Status given = memory_->Decommit(range, slot, count, fence);
  if (!given.ok()) {
    // The driver keeps the pages: their addresses are of no use any more.
    SetState(pages, PageState::kLost);
    return;
  }
  SetState(pages, PageState::kLeaving);
  leaving_.push_back({fence, pages});
}

void Arena::Give(const Piece& pages, const Fence& fence) {
  DropDetoursOver(pages, fence);
  BecomeBusy(pages);
  backed_pages_ -= pages.length / page_bytes_;
  total_->bytes -= pages.length;
  Leave(pages, fence);
  Poll();
}

void Arena::GiveUp(const Piece& piece, const Fence& fence) {
  const auto end_with = [&](const Piece& part) {
    if (part.length == 0) return;
    endings_.push_back({fence, part});
    ending_bytes_ += part.length;
  };
  const Piece pages = WholePages(piece, page_bytes_);
  if (pages.length == 0) {
    end_with(piece);
  } else {
    Give(pages, fence);
    end_with({piece.begin, pages.begin - piece.begin});
    end_with({pages.end(), piece.end() - pages.end()});
  }
  Poll();
}

void Arena::Poll() {
  const auto complete = [](const Ending& ending) {
    return ending.fence.IsComplete().value_or(false);
  };
  std::erase_if(endings_, [&](const Ending& ending) {
    if (!complete(ending)) return false;
    ending_bytes_ -= ending.piece.length;
    InsertFree(ending.piece);
    return true;
  });
  const bool left = std::erase_if(leaving_, [&](const Ending& ending) {
                      if (!complete(ending)) return false;
                      SetState(ending.piece, PageState::kHole);
                      holes_.Insert({ending.piece.begin, ending.piece.length});
                      return true;
                    }) > 0;
  if (left) DropEmptyChunks();
}

bool Arena::IsEnding() const {
  return std::any_of(
      endings_.begin(), endings_.end(),
      [](const Ending& ending) { return ending.fence.IsComplete().ok(); });
}

AddressRange* Arena::RangeAt(uint64_t address, PageCount* slot) const {
  const Chunk& chunk = ChunkAt(address);
  *slot = PageCount((address - chunk.range->address().value()) / page_bytes_);
  return chunk.range;
}

PageHandle Arena::PageAt(uint64_t address) const {
  PageCount slot;
  AddressRange* const range = RangeAt(address, &slot);
  return memory_->PageAt(range, slot);
}

absl::Status Arena::Remap(const Piece& pages, std::span<const PageHandle> to) {
  // A detour would keep the pages from the pool.
  DropDetoursOver(pages, Fence());
  PageCount slot;
  AddressRange* const range = RangeAt(pages.begin, &slot);
  return memory_->Remap(range, slot, to);
}

void Arena::Lend(const Piece& pages) {
  SetState(pages, PageState::kLent);
  backed_pages_ -= pages.length / page_bytes_;
  total_->bytes -= pages.length;
}

void Arena::TakeHome(const Piece& pages, const Fence& fence) {
  Leave(pages, fence);
  Poll();
}

void Arena::Publish(const Piece& pages, Span* span) {
  spans_->Publish(DeviceAddress(pages.begin),
                  PageCount(pages.length / page_bytes_), span);
}

// ---- Detours ----------------------------------------------------------------

absl::StatusOr<Detour*> Arena::MakeDetour(Pieces pieces, Bytes alignment) {
  auto detour = std::make_unique<Detour>();
  made_of_.clear();
  for (const Piece& piece : pieces) {
    detour->bytes += piece.length;
    PageCount slot;
    AddressRange* const home = RangeAt(piece.begin, &slot);
    const uint64_t last = (piece.end() - 1) >> page_shift_;
    const PageCount count(last - (piece.begin >> page_shift_) + 1);
    memory_->AppendPages(home, slot, count, &made_of_);
  }
  QUIRE_ASSIGN_OR_RETURN(detour->range,
                         memory_->TryMakeRange(owner_, alignment, made_of_));
  detour->base =
      detour->range->address().value() + pieces.front().begin % page_bytes_;
  detour->pieces = std::move(pieces);
  Detour* const made = detour.get();
  for (const Piece& piece : made->pieces) {
    Chunk& chunk = ChunkAt(piece.begin);
    ForEachPage(piece, [&](uint64_t page, uint64_t /*bytes*/) {
      PageOf(chunk, page).detours.push_back(made);
    });
  }
  detours_[made] = std::move(detour);
  FollowUp(made);
  spans_->Publish(made->range->address(), made->range->pages(), marker_);
  spans_->NoteUse(made->range->address(), made->range->pages());
  return made;
}

Detour* Arena::FindDetour(uint64_t bytes, uint64_t excess, Bytes alignment,
                          absl::FunctionRef<bool(const Piece&)> usable) const {
  const auto serves = [&](const Detour& detour) {
    return detour.base % alignment.value() == 0 &&
           std::all_of(detour.pieces.begin(), detour.pieces.end(),
                       [&](const Piece& piece) { return usable(piece); });
  };
  // What a program that repeats itself took for this request before. Any other
  // might be one that it took for a later request, which would have to be made
  // anew.
  Detour* const next =
      last_taken_ == nullptr ? nullptr : last_taken_->successor;
  if (next != nullptr && next->idle && next->bytes >= bytes &&
      next->bytes - bytes <= excess && serves(*next)) {
    return next;
  }
  for (auto it = idle_detours_.lower_bound(bytes);
       it != idle_detours_.end() && (*it)->bytes - bytes <= excess; ++it) {
    if (serves(**it)) return *it;
  }
  return nullptr;
}

void Arena::TakeDetour(Detour* detour) {
  LeaveIdle(detour);
  FollowUp(detour);
}

void Arena::FollowUp(Detour* taken) {
  Detour* const last = std::exchange(last_taken_, taken);
  if (last == nullptr || last == taken) return;
  if (last->successor != nullptr) last->successor->predecessor = nullptr;
  if (taken->predecessor != nullptr) taken->predecessor->successor = nullptr;
  last->successor = taken;
  taken->predecessor = last;
}

void Arena::Unlink(Detour* detour) {
  if (detour->successor != nullptr) detour->successor->predecessor = nullptr;
  if (detour->predecessor != nullptr) detour->predecessor->successor = nullptr;
  if (last_taken_ == detour) last_taken_ = nullptr;
}

void Arena::LeaveIdle(Detour* detour) {
  idle_detours_.erase(detour);
  idle_by_number_.erase(detour->number);
  idle_detour_pages_ -= detour->range->pages().value();
  detour->idle = false;
}

void Arena::LeaveDetour(Detour* detour, StreamId stream) {
  detour->idle = true;
  detour->last_stream = stream;
  detour->number = ++detours_left_;
  idle_detours_.insert(detour);
  idle_by_number_.emplace_hint(idle_by_number_.end(), detour->number, detour);
  idle_detour_pages_ += detour->range->pages().value();
  spans_->Publish(detour->range->address(), detour->range->pages(), marker_);
}

void Arena::DropDetour(Detour* detour, const Fence& fence) {
  LeaveIdle(detour);
  Unlink(detour);
  for (const Piece& piece : detour->pieces) {
    Chunk& chunk = ChunkAt(piece.begin);
    ForEachPage(piece, [&](uint64_t page, uint64_t /*bytes*/) {
      auto& over = PageOf(chunk, page).detours;
      over.erase(std::remove(over.begin(), over.end(), detour), over.end());
    });
  }
  AddressRange* const range = detour->range;
  spans_->Publish(range->address(), range->pages(), nullptr);
  detours_.erase(detour);
  memory_->ReleaseRange(range, fence);
}

void Arena::DropDetoursOver(const Piece& pages, const Fence& fence) {
  if (detours_.empty()) return;
  Chunk& chunk = ChunkAt(pages.begin);
  ForEachPage(pages, [&](uint64_t page, uint64_t /*bytes*/) {
    const auto& over = PageOf(chunk, page).detours;
    while (!over.empty()) DropDetour(over.back(), fence);
  });
}

uint64_t Arena::TrimDetours(uint64_t keep,
                            absl::FunctionRef<bool(StreamId)> may_record) {
  if (idle_detour_pages_ <= keep) return 0;
  std::vector<Detour*> dropped;
  std::vector<StreamId> streams;
  uint64_t left = idle_detour_pages_;
  for (const auto& [number, detour] : idle_by_number_) {
    if (left <= keep) break;
    const StreamId stream = detour->last_stream;
    if (stream != StreamId()) {
      if (!may_record(stream)) continue;
      streams.push_back(stream);
    }
    left -= detour->range->pages().value();
    dropped.push_back(detour);
  }
  std::sort(streams.begin(), streams.end());
  streams.erase(std::unique(streams.begin(), streams.end()), streams.end());
  Fence fence;
  if (!streams.empty()) {
    absl::StatusOr<Fence> recorded =
        RecordOnLiveStreams(memory_->driver(), memory_->device(), streams);
    if (!recorded.ok()) return 0;
    fence = *std::move(recorded);
  }
  for (Detour* const detour : dropped) DropDetour(detour, fence);
  return dropped.size();
}

void Arena::AppendStreams(std::vector<StreamId>* streams) const {
  for (const Detour* const detour : idle_detours_) {
    streams->push_back(detour->last_stream);
  }
}

void Arena::ReleaseAll(const Fence& fence) {
  const auto release = [&](AddressRange* range) {
    spans_->Publish(range->address(), range->pages(), nullptr);
    memory_->ReleaseRange(range, fence);
  };
  for (const auto& [detour, owned] : detours_) release(detour->range);
  for (const auto& [address, chunk] : chunks_) release(chunk.range);
}

// ---- Checks -----------------------------------------------------------------

absl::Status Arena::CheckInvariants(uint64_t cooling_runs,
                                    uint64_t held) const {
  QUIRE_RETURN_IF_ERROR(free_.CheckInvariants());
  QUIRE_RETURN_IF_ERROR(holes_.CheckInvariants());
  uint64_t backed = 0;
  uint64_t idle = 0;
  uint64_t free = 0;
  uint64_t holes = 0;
  for (const auto& [address, chunk] : chunks_) {
    uint64_t in_use = 0;
    for (const HomePage& page : chunk.pages) {
      in_use += page.state == PageState::kHole ? 0 : 1;
      backed += page.state == PageState::kBacked ? 1 : 0;
      if (page.state != PageState::kBacked &&
          (page.idle > 0 || page.free > 0)) {
        return absl::InternalError("bytes of a page that is not there");
      }
      if (page.free > page.idle || page.idle > page_bytes_) {
        return absl::InternalError(absl::StrFormat(
            "a page of %u idle and %u free bytes", page.idle, page.free));
      }
      idle += page.idle == page_bytes_ ? 1 : 0;
      free += page.free == page_bytes_ ? 1 : 0;
    }
    if (in_use != chunk.in_use) {
      return absl::InternalError("pages of a chunk miscounted");
    }
    holes += chunk.pages.size() - 1 - in_use;
  }
  if (backed != backed_pages_ || idle != idle_pages_ || free != free_pages_ ||
      holes * page_bytes_ != holes_.bytes()) {
    return absl::InternalError(absl::StrFormat(
        "pages by walking and by the accounts: %u and %u backed, %u and %u "
        "idle, %u and %u free, %u and %u holes",
        backed, backed_pages_, idle, idle_pages_, free, free_pages_, holes,
        holes_.bytes() / page_bytes_));
  }
  const uint64_t bytes = free_.bytes() + cooling_runs + ending_bytes_ + held;
  if (bytes != backed_pages_ * page_bytes_) {
    return absl::InternalError(absl::StrFormat(
        "%u bytes of pages, but %u free, %u cooling, %u ending, %u held",
        backed_pages_ * page_bytes_, free_.bytes(), cooling_runs, ending_bytes_,
        held));
  }
  uint64_t idle_detour_pages = 0;
  for (const auto& [detour, owned] : detours_) {
    if (detour->idle != idle_detours_.contains(owned.get())) {
      return absl::InternalError("a detour is not listed where it should be");
    }
    if (detour->idle) idle_detour_pages += detour->range->pages().value();
  }
  if (idle_detour_pages != idle_detour_pages_ ||
      idle_by_number_.size() != idle_detours_.size()) {
    return absl::InternalError("pages under idle detours miscounted");
  }
  return absl::OkStatus();
}

absl::Status Arena::CheckBacking() const {
  for (const auto& [address, chunk] : chunks_) {
    for (size_t i = 0; i < chunk.pages.size(); ++i) {
      const PageState state = chunk.pages[i].state;
      const bool live = memory_->CommittedPages(chunk.range, PageCount(i),
                                                PageCount(1)) == PageCount(1);
      if (live != (state == PageState::kBacked || state == PageState::kLent)) {
        return absl::InternalError(
            absl::StrFormat("page %u of the chunk at %#x is %s", i, address,
                            live ? "there, and should not be" : "not there"));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace quire
