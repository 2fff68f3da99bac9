// Cuts placements into chunks: the file bytes that are read into one buffer.
//
// Chunks come in the order of the files, or in that of the placements. A chunk
// is at most one staging buffer. Tensors that lie side by side in a file share
// chunks, and a tensor larger than a buffer takes several; bytes that nobody
// placed are in no chunk. Chunks end at multiples of their size in the file:
// the kernel drops a page from its cache whole or not at all, and pages of the
// cache, which are up to 2 MiB large, are aligned as well. A page that lay in
// two chunks would never be dropped. A slice of several runs has chunks of its
// own, in which its runs lie one behind the other. Chunks come one at a time,
// so that the plan of a large checkpoint takes no memory of its own.

#ifndef QUIRE_LOADER_CHUNK_PLAN_H_
#define QUIRE_LOADER_CHUNK_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "quire/alloc/units.h"
#include "quire/loader/checkpoint.h"
#include "quire/loader/streaming_loader.h"

namespace quire {

// The part of one tensor that lies in a chunk.
struct ChunkPiece {
  const TensorInfo* tensor = nullptr;
  size_t offset_in_chunk = 0;
  size_t size = 0;
  DeviceAddress destination;  // of this part
};

struct Chunk {
  uint64_t index = 0;  // 0, 1, ... in the order of reading
  uint32_t file = 0;
  uint64_t offset = 0;  // in the file, of the first byte
  size_t size = 0;
  // So many bytes lie at `offset`; the others, where there are any, in further
  // runs of `run` bytes, `stride` from end to end.
  uint64_t first_run = 0;
  uint64_t run = 0;
  uint64_t stride = 0;
  // Nothing of this file comes after.
  bool last_of_file = false;
  // So many of the first placements end here or before, of those in the order
  // given.
  size_t placements_done = 0;
  std::vector<ChunkPiece> pieces;  // side by side, in file order
};

// Calls visit(offset in the file, offset in the chunk, size) for each run.
template <class Visit>
void ForEachRun(const Chunk& chunk, const Visit& visit) {
  uint64_t end = chunk.offset + chunk.first_run;
  uint64_t size = chunk.first_run;
  for (size_t done = 0; done < chunk.size;) {
    visit(end - size, done, size);
    done += size;
    end += chunk.stride;
    if (chunk.size - done < chunk.run) {
      // A run that is cut ends before its end.
      end -= chunk.run - (chunk.size - done);
      size = chunk.size - done;
    } else {
      size = chunk.run;
    }
  }
}

class ChunkPlan {
 public:
  ChunkPlan(ChunkPlan&&) = default;
  ChunkPlan& operator=(ChunkPlan&&) = delete;

  // REQUIRES: chunk_size > 0. Errors: a placement that lies in no file, exceeds
  // its file, or has no destination. The checkpoint must outlive the plan.
  static absl::StatusOr<ChunkPlan> Create(
      const Checkpoint& checkpoint, std::span<const TensorPlacement> placements,
      Bytes chunk_size, LoadOrder order = LoadOrder::kFile);
  static absl::StatusOr<ChunkPlan> Create(
      const Checkpoint& checkpoint, std::span<const SlicePlacement> placements,
      Bytes chunk_size, LoadOrder order = LoadOrder::kFile);

  Bytes total() const { return total_; }
  // The next chunk; nullopt after the last one.
  std::optional<Chunk> Next();
  // The first chunk is the next one again.
  void Rewind();

 private:
  class Builder;
  struct Step {
    SlicePlacement placement;  // of one run, where runs are side by side
    size_t number;             // in the order given

    const TensorSlice& slice() const { return placement.slice; }
    // In the file.
    uint64_t begin() const { return slice().tensor->offset + slice().offset; }
  };

  ChunkPlan(std::vector<Step> steps, std::vector<size_t> steps_in_file,
            size_t placements, Bytes chunk_size, Bytes total);

  // Fill in the chunk that begins at the current step: of a slice whose runs
  // are apart, or of as much as lies side by side.
  void TakeRuns(Chunk* chunk);
  void TakeSideBySide(Chunk* chunk);
  void FinishStep();

  // None empty, in the order of reading. Not const: it moves with the plan,
  // and a copy for each move would be most of what a load keeps of a tensor.
  std::vector<Step> steps_;
  std::vector<size_t> steps_in_file_;  // that are left, by file
  const size_t placements_;            // that were given
  const uint64_t chunk_size_;
  const Bytes total_;
  size_t step_ = 0;               // that the next chunk begins with
  uint64_t offset_in_slice_ = 0;  // where it begins in it
  uint64_t chunks_ = 0;
};

}  // namespace quire

#endif  // QUIRE_LOADER_CHUNK_PLAN_H_
