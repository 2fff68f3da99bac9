#include "loader/chunk_plan.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "loader/streaming_test_util.h"

namespace quire {
namespace {

// What a plan must do, byte by byte: where in which file each byte comes from,
// for every destination.
using ByteMap = std::map<uint64_t, std::pair<uint32_t, uint64_t>>;

ByteMap WantedBytes(const std::vector<TensorPlacement>& placements) {
  ByteMap bytes;
  for (const TensorPlacement& placement : placements)
    for (uint64_t i = 0; i < placement.tensor->size.value(); ++i)
      bytes[placement.destination.value() + i] = {placement.tensor->file,
                                                  placement.tensor->offset + i};
  return bytes;
}

class ChunkPlanTest : public ::testing::Test {
 protected:
  ChunkPlanTest() {
    std::vector<std::vector<KnownTensor>> shards(3);
    for (uint32_t i = 0; i < 60; ++i)
      shards[i % 3].push_back(
          {absl::StrCat("t", i), PseudoRandomBytes(i * i % 97, i)});
    WriteNaiveShards(folder_, shards);
    checkpoint_ = Checkpoint::Open(folder_.path()).value();
  }
  std::vector<TensorPlacement> RandomPlacements(uint32_t seed) const {
    std::mt19937 random(seed);
    std::vector<TensorPlacement> placements;
    uint64_t next = 1000;
    for (const TensorInfo& tensor : checkpoint_->tensors()) {
      if (random() % 4 == 0) continue;
      placements.push_back({&tensor, DeviceAddress(next)});
      next += tensor.size.value() + random() % 3;
    }
    std::shuffle(placements.begin(), placements.end(), random);
    return placements;
  }

  TemporaryFolder folder_;
  std::unique_ptr<Checkpoint> checkpoint_;
};

TEST_F(ChunkPlanTest, KeepsTheOrderThatIsGiven) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    const auto placements = RandomPlacements(seed);
    // Each placed byte's destination, in order, and where placements end.
    std::vector<uint64_t> wanted;
    std::vector<size_t> ends;
    std::map<uint32_t, size_t> last_byte_of_file;
    for (const TensorPlacement& placement : placements) {
      for (uint64_t i = 0; i < placement.tensor->size.value(); ++i) {
        last_byte_of_file[placement.tensor->file] = wanted.size();
        wanted.push_back(placement.destination.value() + i);
      }
      ends.push_back(wanted.size());
    }
    for (const uint64_t chunk_size : {1, 10, 97, 1000}) {
      auto plan = ChunkPlan::Create(*checkpoint_, placements, Bytes(chunk_size),
                                    LoadOrder::kGiven);
      ASSERT_TRUE(plan.ok()) << plan.status();
      // Into a tensor, and into the next one.
      for (int i = 0; i < 3; ++i) (void)plan->Next();
      plan->Rewind();
      std::vector<uint64_t> planned;
      while (const std::optional<Chunk> chunk = plan->Next()) {
        for (const ChunkPiece& piece : chunk->pieces)
          for (uint64_t i = 0; i < piece.size; ++i)
            planned.push_back(piece.destination.value() + i);
        EXPECT_EQ(chunk->last_of_file,
                  last_byte_of_file[chunk->file] < planned.size());
        // Those of no bytes count with what is before them.
        const auto done =
            std::upper_bound(ends.begin(), ends.end(), planned.size()) -
            ends.begin();
        EXPECT_EQ(chunk->placements_done, static_cast<size_t>(done));
      }
      EXPECT_EQ(planned, wanted);
    }
  }
}

TEST_F(ChunkPlanTest, CoversEachPlacedByteOnceAndNoOther) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    const auto placements = RandomPlacements(seed);
    const ByteMap wanted = WantedBytes(placements);
    for (const uint64_t chunk_size : {1, 2, 10, 96, 97, 1000, 100000}) {
      auto plan =
          ChunkPlan::Create(*checkpoint_, placements, Bytes(chunk_size));
      ASSERT_TRUE(plan.ok()) << plan.status();
      EXPECT_EQ(plan->total(), Bytes(wanted.size()));
      ByteMap planned;
      uint64_t index = 0;
      while (const std::optional<Chunk> chunk = plan->Next()) {
        EXPECT_EQ(chunk->index, index++);
        EXPECT_GT(chunk->size, 0u);
        EXPECT_LE(chunk->size, chunk_size);
        EXPECT_EQ(chunk->offset / chunk_size,
                  (chunk->offset + chunk->size - 1) / chunk_size);
        size_t next_in_chunk = 0;
        for (const ChunkPiece& piece : chunk->pieces) {
          EXPECT_EQ(piece.offset_in_chunk, next_in_chunk);
          next_in_chunk += piece.size;
          for (uint64_t i = 0; i < piece.size; ++i) {
            const auto from = std::pair(
                chunk->file, chunk->offset + piece.offset_in_chunk + i);
            EXPECT_TRUE(
                planned.emplace(piece.destination.value() + i, from).second);
          }
        }
        EXPECT_EQ(next_in_chunk, chunk->size);
      }
      EXPECT_EQ(planned, wanted);
    }
  }
}

TEST_F(ChunkPlanTest, GoesThroughTheFilesInOrderFromBoundaryToBoundary) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    auto plan =
        ChunkPlan::Create(*checkpoint_, RandomPlacements(seed), Bytes(100));
    ASSERT_TRUE(plan.ok()) << plan.status();
    while (plan->Next()) {
    }
    plan->Rewind();
    std::optional<Chunk> previous;
    while (std::optional<Chunk> chunk = plan->Next()) {
      if (previous.has_value()) {
        EXPECT_EQ(previous->last_of_file, previous->file != chunk->file);
        if (previous->file == chunk->file) {
          const uint64_t end = previous->offset + previous->size;
          EXPECT_GE(chunk->offset, end);
          // Only a gap or a boundary ends a chunk.
          if (chunk->offset == end) {
            EXPECT_EQ(end % 100, 0u);
          }
        } else {
          EXPECT_GT(chunk->file, previous->file);
        }
      }
      previous = std::move(chunk);
    }
    EXPECT_TRUE(previous->last_of_file);
  }
}

}  // namespace
}  // namespace quire
