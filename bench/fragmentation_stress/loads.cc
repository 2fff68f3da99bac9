#include "bench/fragmentation_stress/loads.h"

#include <algorithm>
#include <array>
#include <deque>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/fragmentation_stress/adversaries.h"
#include "bench/fragmentation_stress/trace_maker.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

constexpr uint64_t kKiB = uint64_t{1} << 10;
constexpr uint64_t kMiB = uint64_t{1} << 20;

// Sizes of tensors: from what a scalar takes to what a large activation does,
// and never more than an eighth of what is to be live.
uint64_t TensorSize(TraceMaker& trace, uint64_t live) {
  return std::min(trace.RandomSize(512, 256 * kMiB),
                  std::max<uint64_t>(live / 8, 1));
}

void Churn(TraceMaker& trace, uint64_t live) {
  std::vector<TracePiece> pieces;
  while (!trace.full()) {
    if (trace.live() < live) {
      pieces.push_back(trace.Allocate(TensorSize(trace, live)));
    } else {
      trace.FreeRandom(&pieces);
    }
  }
}

void RandomDeath(TraceMaker& trace, uint64_t live) {
  std::vector<TracePiece> pieces;
  while (!trace.full()) {
    // Each generation has sizes of its own, so that holes do not fit.
    const uint64_t size = trace.RandomSize(64 * kKiB, 64 * kMiB);
    while (trace.live() < live) {
      pieces.push_back(trace.Allocate(size + trace.Random(size / 4)));
    }
    while (trace.live() > live / 2) trace.FreeRandom(&pieces);
  }
}

void Lifo(TraceMaker& trace, uint64_t live) {
  std::vector<TracePiece> stack;
  while (!trace.full()) {
    const uint64_t top = live / 2 + trace.Random(live / 2 + 1);
    while (trace.live() < top) {
      stack.push_back(trace.Allocate(TensorSize(trace, live)));
    }
    const uint64_t bottom = trace.Random(live / 2 + 1);
    while (trace.live() > bottom) {
      trace.Free(stack.back());
      stack.pop_back();
    }
  }
}

void Fifo(TraceMaker& trace, uint64_t live) {
  std::deque<TracePiece> queue;
  while (!trace.full()) {
    queue.push_back(trace.Allocate(TensorSize(trace, live)));
    while (trace.live() > live) {
      trace.Free(queue.front());
      queue.pop_front();
    }
  }
}

// Weights that stay for long, activations that go in reverse, and what dies at
// any time, one among the other.
void Mixed(TraceMaker& trace, uint64_t live) {
  std::deque<TracePiece> lasting;
  std::vector<TracePiece> stack;
  std::vector<TracePiece> others;
  while (!trace.full()) {
    const TracePiece piece = trace.Allocate(TensorSize(trace, live));
    const uint64_t kind = trace.Random(10);
    if (kind == 0) {
      lasting.push_back(piece);
    } else if (kind < 7) {
      stack.push_back(piece);
    } else {
      others.push_back(piece);
    }
    while (trace.live() > live) {
      if (!stack.empty() && trace.Random(4) != 0) {
        trace.Free(stack.back());
        stack.pop_back();
      } else if (!others.empty()) {
        trace.FreeRandom(&others);
      } else if (!lasting.empty()) {
        trace.Free(lasting.front());
        lasting.pop_front();
      }
    }
  }
}

// Batches of different sizes, each of which allocates the same layers at its
// own scale and frees all of it; what a batch returns stays for some batches.
void Sawtooth(TraceMaker& trace, uint64_t live) {
  std::deque<TracePiece> results;
  std::vector<TracePiece> batch;
  while (!trace.full()) {
    const uint64_t rows = 1 + trace.Random(64);
    const uint64_t top = live / 4 + live / 64 * rows * 3 / 4;
    for (uint64_t layer = 0; trace.live() < top; ++layer) {
      const uint64_t width = (layer % 4 + 1) * 96 * kKiB;
      batch.push_back(trace.Allocate(rows * width));
    }
    trace.FreeAll(&batch);
    results.push_back(trace.Allocate(rows * 10 * kKiB));
    if (results.size() > 50) {
      trace.Free(results.front());
      results.pop_front();
    }
  }
}

// KV caches as most Python models have them: each step allocates keys and
// values of each layer anew, one token longer, and frees the old ones.
void KvConcatenation(TraceMaker& trace, uint64_t live) {
  constexpr uint64_t kRow = 2 * kKiB;  // of one layer's keys: 8 heads of 128
  constexpr size_t kTensors = 16;      // 8 layers
  struct Sequence {
    uint64_t tokens = 0;
    std::vector<TracePiece> tensors;
  };
  std::vector<Sequence> sequences;
  const auto begin = [&] {
    Sequence& sequence = sequences.emplace_back();
    sequence.tokens = trace.RandomSize(64, 4096);
    for (size_t i = 0; i < kTensors; ++i) {
      sequence.tensors.push_back(trace.Allocate(sequence.tokens * kRow));
    }
  };
  while (!trace.full()) {
    while (trace.live() < live * 3 / 4) begin();
    if (trace.Random(8) == 0) begin();
    for (Sequence& sequence : sequences) {
      ++sequence.tokens;
      for (TracePiece& tensor : sequence.tensors) {
        const TracePiece longer = trace.Allocate(sequence.tokens * kRow);
        trace.Free(tensor);
        tensor = longer;
      }
    }
    while (trace.live() > live) {
      std::swap(sequences[trace.Random(sequences.size())], sequences.back());
      trace.FreeAll(&sequences.back().tensors);
      sequences.pop_back();
    }
  }
}

// Four streams that take turns: one has most of the memory, then the next one.
void MultiStream(TraceMaker& trace, uint64_t live) {
  constexpr uint64_t kStreams = 4;
  constexpr int kStepsPerTurn = 500;
  std::array<std::vector<TracePiece>, kStreams> pieces;
  for (uint64_t turn = 0; !trace.full(); turn = (turn + 1) % kStreams) {
    for (int step = 0; step < kStepsPerTurn && !trace.full(); ++step) {
      pieces[turn].push_back(trace.Allocate(TensorSize(trace, live), turn));
      while (trace.live() > live) {
        // What the others hold goes first.
        uint64_t victim = (turn + 1 + trace.Random(kStreams - 1)) % kStreams;
        for (uint64_t i = 0; i < kStreams && pieces[victim].empty(); ++i) {
          victim = (victim + 1) % kStreams;
        }
        trace.FreeRandom(&pieces[victim]);
      }
    }
  }
}

struct Load {
  const char* name;
  const char* about;
  void (*make)(TraceMaker& trace, uint64_t live);
};

constexpr Load kLoads[] = {
    {"churn", "log-uniform sizes, random deaths, always full", Churn},
    {"random-death", "fill, free a random half, fill with other sizes",
     RandomDeath},
    {"lifo", "a stack that grows and shrinks", Lifo},
    {"fifo", "the oldest goes first", Fifo},
    {"mixed", "weights, a stack of activations and random deaths", Mixed},
    {"sawtooth", "batches of many sizes, each freed as a whole", Sawtooth},
    {"kv-concat", "KV caches that grow by concatenation", KvConcatenation},
    {"multi-stream", "four streams that take turns in having the memory",
     MultiStream},
    {"against-quire",
     "survivors in every slab of a size, one size after another", AgainstQuire},
    {"against-pytorch",
     "each large block is larger than the last, and a survivor sits in each",
     AgainstPyTorch},
    {"against-pytorch-expandable",
     "large blocks, fenced off from the end by survivors (pytorch#193400)",
     AgainstPyTorchExpandable},
    {"against-rmm-pool", "blocks that no growth of the pool suits",
     AgainstRmmPool},
    {"against-bfc", "requests just too large to be split off", AgainstBfc},
    {"against-cuda-pool", "one survivor for each growth of the pool",
     AgainstCudaPool},
    {"against-gmlake",
     "small tensors, then sizes that are never the same again", AgainstGmlake},
    {"against-cudamalloc", "requests just above a page, again and again",
     AgainstCudaMalloc},
};

absl::StatusOr<const Load*> FindLoad(std::string_view name) {
  for (const Load& load : kLoads) {
    if (name == load.name) return &load;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("there is no load \"", std::string(name), "\"; there are ",
                   KnownLoads()));
}

}  // namespace

absl::Status CheckLoad(std::string_view name) {
  return FindLoad(name).status();
}

absl::StatusOr<AllocationTrace> MakeLoad(std::string_view name,
                                         const LoadOptions& options) {
  QUIRE_ASSIGN_OR_RETURN(const Load* const load, FindLoad(name));
  TraceMaker trace(options.seed, options.events);
  load->make(trace, options.live.value());
  return trace.Take();
}

std::string KnownLoads() {
  std::string names;
  for (const Load& load : kLoads) {
    absl::StrAppend(&names, names.empty() ? "" : ", ", load.name);
  }
  return names;
}

std::string DescribeLoads() {
  std::string lines;
  for (const Load& load : kLoads) {
    absl::StrAppendFormat(&lines, "%-27s %s\n", load.name, load.about);
  }
  return lines;
}

}  // namespace quire
