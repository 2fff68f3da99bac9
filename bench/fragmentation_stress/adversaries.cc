#include "bench/fragmentation_stress/adversaries.h"

#include <algorithm>
#include <vector>

namespace quire {
namespace {

constexpr uint64_t kKiB = uint64_t{1} << 10;
constexpr uint64_t kMiB = uint64_t{1} << 20;

}  // namespace

// Slots of one size fill slabs; one in ten survives, so that nearly every slab
// keeps its pages, 16 to 29 slots in each; then a size of another class does
// the same, as far as there are events for it. Only meshing would get the pages
// back, for which nobody here declares that nothing runs.
void AgainstQuire(TraceMaker& trace, uint64_t live) {
  constexpr uint64_t kGenerations = 4;
  const uint64_t slots = trace.events() / (2 * kGenerations);
  const uint64_t most = std::min(live, slots * 72 * kKiB);
  std::vector<TracePiece> survivors;
  std::vector<TracePiece> generation;
  while (!trace.full()) {
    for (uint64_t i = 0; i < kGenerations && !trace.full(); ++i) {
      const uint64_t size = (72 + 16 * i) * kKiB;
      while (trace.live() < most && !trace.full()) {
        generation.push_back(trace.Allocate(size));
      }
      for (size_t j = 0; j < generation.size(); ++j) {
        if (j % 10 == 0) {
          survivors.push_back(generation[j]);
        } else {
          trace.Free(generation[j]);
        }
      }
      generation.clear();
    }
    trace.FreeAll(&survivors);
  }
}

// A block that is 2 MiB larger each time fits none of those before, and what
// survives in each keeps its segment from going back.
void AgainstPyTorch(TraceMaker& trace, uint64_t live) {
  std::vector<TracePiece> survivors;
  for (uint64_t size = 32 * kMiB; !trace.full(); size += 2 * kMiB) {
    if (size > live / 4) {
      trace.FreeAll(&survivors);
      size = 32 * kMiB;
    }
    trace.Free(trace.Allocate(size));
    survivors.push_back(trace.Allocate(kMiB + kMiB / 2));
  }
}

// The cycle of pytorch#193400.
void AgainstPyTorchExpandable(TraceMaker& trace, uint64_t live) {
  std::vector<TracePiece> survivors;
  while (!trace.full()) {
    const TracePiece a = trace.Allocate(91 * kMiB);
    const TracePiece b = trace.Allocate(91 * kMiB / 2);
    survivors.push_back(trace.Allocate(2 * kMiB));
    trace.Free(a);
    trace.Free(b);
    if (trace.live() > live) trace.FreeAll(&survivors);
  }
}

// Each stream frees every second block of a row, so that holes lie side by side
// in lists of different streams, and asks for twice as much.
void AgainstRmmPool(TraceMaker& trace, uint64_t live) {
  constexpr uint64_t kStreams = 8;
  while (!trace.full()) {
    const uint64_t size = trace.RandomSize(kMiB, 32 * kMiB);
    std::vector<TracePiece> row;
    for (uint64_t i = 0; trace.live() < live; ++i) {
      row.push_back(trace.Allocate(size, i % kStreams));
    }
    std::vector<TracePiece> kept;
    for (size_t i = 0; i < row.size(); ++i) {
      if (i % 3 == 2) {
        kept.push_back(row[i]);
      } else {
        trace.Free(row[i]);
      }
    }
    std::vector<TracePiece> doubled;
    while (trace.live() < live) {
      doubled.push_back(trace.Allocate(2 * size, trace.Random(kStreams)));
    }
    trace.FreeAll(&doubled);
    trace.FreeAll(&kept);
  }
}

// A chunk is not split for what is more than half of it: holes of one size,
// fenced off from each other, are each lost to a request of a little more than
// half, and the rest of these need new regions.
void AgainstBfc(TraceMaker& trace, uint64_t live) {
  std::vector<TracePiece> holes;
  std::vector<TracePiece> fences;
  while (!trace.full()) {
    const uint64_t size = trace.RandomSize(kMiB, 16 * kMiB);
    while (trace.live() < live * 9 / 10) {
      holes.push_back(trace.Allocate(size));
      fences.push_back(trace.Allocate(64 * kKiB));
    }
    trace.FreeAll(&holes);
    while (trace.live() < live) {
      holes.push_back(trace.Allocate(size / 2 + 64 * kKiB));
    }
    trace.FreeAll(&holes);
    trace.FreeAll(&fences);
  }
}

// 32 MiB at a time are filled, and one piece of each stays.
void AgainstCudaPool(TraceMaker& trace, uint64_t live) {
  constexpr uint64_t kPiece = 3 * kMiB / 2;
  std::vector<TracePiece> survivors;
  std::vector<TracePiece> pieces;
  while (!trace.full()) {
    while (trace.live() < live) pieces.push_back(trace.Allocate(kPiece));
    for (size_t i = 0; i < pieces.size(); ++i) {
      if (i % 21 == 0) {
        survivors.push_back(pieces[i]);
      } else {
        trace.Free(pieces[i]);
      }
    }
    pieces.clear();
    while (trace.live() < live) {
      pieces.push_back(trace.Allocate(std::min(40 * kMiB, live)));
    }
    trace.FreeAll(&pieces);
    trace.FreeAll(&survivors);
  }
}

// What was handed out in less than 2 MiB is PyTorch's for good, and serves no
// stitching; what is stitched for one size serves no other.
void AgainstGmlake(TraceMaker& trace, uint64_t live) {
  constexpr int kFills = 100;
  std::vector<TracePiece> pieces;
  uint64_t step = 0;
  while (!trace.full()) {
    while (trace.live() < live && !trace.full()) {
      pieces.push_back(trace.Allocate(3 * kMiB / 2));
    }
    trace.FreeAll(&pieces);
    for (int fill = 0; fill < kFills && !trace.full(); ++fill) {
      while (trace.live() < live) {
        const uint64_t pages = 8 + (step++ * 7) % 509;
        pieces.push_back(trace.Allocate(pages * 2 * kMiB));
      }
      while (trace.live() > live / 2) trace.FreeRandom(&pieces);
    }
    trace.FreeAll(&pieces);
  }
}

void AgainstCudaMalloc(TraceMaker& trace, uint64_t live) {
  std::vector<TracePiece> pieces;
  while (!trace.full()) {
    while (trace.live() < live / 2) {
      pieces.push_back(trace.Allocate(kMiB + 512));
    }
    for (int i = 0; i < 1000 && !trace.full(); ++i) {
      trace.FreeRandom(&pieces);
      pieces.push_back(trace.Allocate(kMiB + 512));
    }
  }
}

}  // namespace quire
