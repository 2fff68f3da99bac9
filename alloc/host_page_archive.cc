// Pages in pinned host memory.
//
// The memory comes in pieces of one owner each, and a piece goes back when the
// last of its pages is not needed any more: so a part of what sleeps can wake
// up and give its memory back, and a program with many pages does not make as
// many calls to pin memory.

#include <algorithm>
#include <deque>
#include <utility>

#include "alloc/copy_streams.h"
#include "alloc/page_archive.h"
#include "alloc/pinned_memory.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

constexpr Bytes kPieceSize = MiB(32);

class HostPageArchive final : public PageArchive {
 public:
  explicit HostPageArchive(const ArchiveContext& context) : context_(context) {}
  ~HostPageArchive() override {
    for (Piece& piece : pieces_) {
      if (piece.pages_left > 0) Release(&piece);
    }
  }

  absl::Status Save(std::span<const ArchivedPage> pages);
  absl::Status Load(std::span<const ArchivePlacement> pages) override;
  void Drop(uint64_t place) override {
    Piece& piece = PieceOf(place);
    if (--piece.pages_left == 0) Release(&piece);
  }

 private:
  struct Piece {
    uint64_t first = 0;  // place
    uint64_t count = 0;
    PinnedMemory memory;
    std::atomic<uint64_t> pages_left{0};
  };

  uint64_t page_bytes() const { return context_.page_size.value(); }
  Piece& PieceOf(uint64_t place) {
    const auto behind =
        std::upper_bound(pieces_.begin(), pieces_.end(), place,
                         [](uint64_t wanted, const Piece& piece) {
                           return wanted < piece.first;
                         });
    return *std::prev(behind);
  }
  std::byte* MemoryOf(const Piece& piece, uint64_t place) const {
    return piece.memory.data() + (place - piece.first) * page_bytes();
  }
  void Release(Piece* piece) {
    piece->memory = PinnedMemory();
    context_.use->host -= piece->count * page_bytes();
  }

  const ArchiveContext context_;
  std::deque<Piece> pieces_;  // in order of place
};

absl::Status HostPageArchive::Save(std::span<const ArchivedPage> pages) {
  CopyStreams streams(context_.driver);
  QUIRE_RETURN_IF_ERROR(streams.Open(context_.device));
  const uint64_t piece_pages = PagesPerPiece(kPieceSize, context_.page_size);
  for (size_t first = 0; first < pages.size();) {
    const size_t end = EndOfRun(first, pages.size(), [&](size_t i) {
      return i - first < piece_pages && pages[i].owner == pages[first].owner;
    });
    QUIRE_ASSIGN_OR_RETURN(
        PinnedMemory memory,
        PinnedMemory::Allocate(context_.driver,
                               Bytes((end - first) * page_bytes())));
    Piece& piece = pieces_.emplace_back();
    piece.first = first;
    piece.count = end - first;
    piece.memory = std::move(memory);
    piece.pages_left = piece.count;
    context_.use->host += piece.count * page_bytes();
    QUIRE_RETURN_IF_ERROR(
        CopyPagesToHost(context_, pages.subspan(first, end - first),
                        piece.memory.data(), streams.at(pieces_.size())));
    first = end;
  }
  return streams.Synchronize();
}

absl::Status HostPageArchive::Load(std::span<const ArchivePlacement> pages) {
  CopyStreams streams(context_.driver);
  QUIRE_RETURN_IF_ERROR(streams.Open(context_.device));
  size_t copies = 0;
  for (size_t at = 0; at < pages.size(); ++copies) {
    const Piece& piece = PieceOf(pages[at].place);
    const size_t side_by_side =
        EndOfAddresses(pages, at, pages.size(), context_.page_size);
    const size_t end = EndOfRun(at, side_by_side, [&](size_t i) {
      return pages[i].place == pages[i - 1].place + 1 &&
             pages[i].place < piece.first + piece.count;
    });
    QUIRE_RETURN_IF_ERROR(context_.driver->CopyToDevice(
        pages[at].address, MemoryOf(piece, pages[at].place),
        Bytes((end - at) * page_bytes()), streams.at(copies)));
    at = end;
  }
  return streams.Synchronize();
}

}  // namespace

absl::StatusOr<std::shared_ptr<PageArchive>> SaveToHost(
    const ArchiveContext& context, std::span<const ArchivedPage> pages) {
  auto archive = std::make_shared<HostPageArchive>(context);
  QUIRE_RETURN_IF_ERROR(archive->Save(pages));
  return archive;
}

}  // namespace quire
