#include "model/cli/offload_bound.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>

#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

using Clock = std::chrono::steady_clock;

// More than caches hold, and of the size of a layer.
constexpr Bytes kBlock = MiB(64);
constexpr int kRuns = 8;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Adds up words in as many streams as hardware reads ahead of.
uint64_t SumOf(const uint64_t* words, size_t count) {
  constexpr size_t kStreams = 8;
  constexpr size_t kLine = 8;  // words
  const size_t length = count / kStreams;
  uint64_t sum = 0;
  for (size_t i = 0; i < length; i += kLine)
    for (size_t stream = 0; stream < kStreams; ++stream)
      for (size_t j = 0; j < kLine; ++j) sum += words[stream * length + i + j];
  return sum;
}

// Blocks of both sides, for as long as this lives.
class Blocks {
 public:
  explicit Blocks(Session* session)
      : session_(session),
        driver_(session->runtime().driver()),
        stream_(session->decoder().stream()) {}
  ~Blocks() { Free().IgnoreError(); }
  Blocks(const Blocks&) = delete;
  Blocks& operator=(const Blocks&) = delete;

  absl::Status Allocate() {
    QUIRE_ASSIGN_OR_RETURN(host_, driver_->AllocatePinned(kBlock));
    std::memset(host_, 1, kBlock.value());
    QUIRE_ASSIGN_OR_RETURN(device_,
                           session_->runtime().allocator()->Allocate(kBlock));
    return absl::OkStatus();
  }

  absl::Status Free() {
    absl::Status status;
    if (!device_.null())
      status.Update(session_->runtime().allocator()->Free(device_));
    if (host_ != nullptr) status.Update(driver_->FreePinned(host_));
    device_ = DeviceAddress();
    host_ = nullptr;
    return status;
  }

  // Seconds in which `streamed` bytes are copied to the device, and `read`
  // bytes read by the threads of the session.
  absl::StatusOr<double> Move(Bytes streamed, Bytes read) {
    const Clock::time_point start = Clock::now();
    for (uint64_t done = 0; done < streamed.value(); done += kBlock.value())
      QUIRE_RETURN_IF_ERROR(driver_->CopyToDevice(
          device_, host_, std::min(kBlock, Bytes(streamed.value() - done)),
          stream_));
    for (uint64_t done = 0; done < read.value(); done += kBlock.value())
      Read(std::min(kBlock.value(), read.value() - done));
    QUIRE_RETURN_IF_ERROR(driver_->SynchronizeStream(stream_));
    return SecondsSince(start);
  }

 private:
  // Of the host's block, which nobody writes.
  void Read(uint64_t bytes) {
    constexpr size_t kGrain = size_t{1} << 17;  // words: 1 MiB
    const auto* const words = static_cast<const uint64_t*>(host_);
    session_->pool().ParallelFor(
        bytes / sizeof(uint64_t), kGrain, [&](size_t begin, size_t end) {
          sum_.fetch_add(SumOf(words + begin, end - begin),
                         std::memory_order_relaxed);
        });
  }

  Session* const session_;
  Driver* const driver_;
  const StreamId stream_;
  void* host_ = nullptr;
  DeviceAddress device_;
  std::atomic<uint64_t> sum_{0};  // so that no read is left out
};

absl::StatusOr<double> BestOf(Blocks* blocks, Bytes streamed, Bytes read) {
  QUIRE_ASSIGN_OR_RETURN(double best, blocks->Move(streamed, read));
  for (int run = 1; run < kRuns; ++run) {
    QUIRE_ASSIGN_OR_RETURN(const double seconds, blocks->Move(streamed, read));
    best = std::min(best, seconds);
  }
  return best;
}

}  // namespace

absl::StatusOr<OffloadBound> MeasureOffloadBound(Session* session,
                                                 Bytes read_per_step,
                                                 Bytes streamed_per_step) {
  Blocks blocks(session);
  QUIRE_RETURN_IF_ERROR(blocks.Allocate());
  OffloadBound bound;
  QUIRE_ASSIGN_OR_RETURN(const double copy, BestOf(&blocks, kBlock, Bytes(0)));
  bound.copy_bytes_per_second = static_cast<double>(kBlock.value()) / copy;
  QUIRE_ASSIGN_OR_RETURN(bound.seconds_per_step,
                         BestOf(&blocks, streamed_per_step, read_per_step));
  QUIRE_RETURN_IF_ERROR(blocks.Free());
  return bound;
}

}  // namespace quire
