// What a load leaves behind when something goes wrong, and that no buffer of
// the ring is touched while a copy out of it runs.

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "loader/read_faults.h"
#include "loader/streaming_test_util.h"
#include "quire/alloc/faulty_driver.h"
#include "quire/loader/streaming_loader.h"

namespace quire {
namespace {

using ::testing::HasSubstr;

constexpr int kBuffers = 3;
constexpr Bytes kBufferSize{1000};

// Counts the pinned memory that a load holds, and lets a test act in the middle
// of it.
class WatchedDriver : public FaultyDriver {
 public:
  explicit WatchedDriver(Driver* base) : FaultyDriver(base), base_(base) {}

  // Called before copy 0, 1, ... to the device, by the thread that queues it.
  std::function<void(int copy)> before_copy;
  // Each copy starts late, on the stream: a buffer that is filled too early is
  // copied with the wrong bytes, and one that is freed too early is a fault.
  bool copies_are_late = false;

  Bytes pinned() const {
    MutexLock lock(&mutex_);
    return PinnedLocked();
  }
  Bytes pinned_peak() const {
    MutexLock lock(&mutex_);
    return pinned_peak_;
  }
  // Destroys the stream that a load left, faults or not, and frees what it
  // kept, in this order: copies may be in flight.
  void GiveBackAll() {
    MutexLock lock(&mutex_);
    EXPECT_TRUE(base_->DestroyStream(stream_).ok());
    for (const auto& [memory, size] : pinned_)
      EXPECT_TRUE(base_->FreePinned(memory).ok());
    pinned_.clear();
  }

  absl::StatusOr<StreamId> CreateStream(DeviceId device) override {
    const auto stream = FaultyDriver::CreateStream(device);
    MutexLock lock(&mutex_);
    if (stream.ok()) stream_ = *stream;
    return stream;
  }
  absl::Status CopyToDevice(DeviceAddress to, const void* from, Bytes size,
                            StreamId stream) override {
    if (before_copy) before_copy(copies_++);
    if (copies_are_late) {
      EXPECT_TRUE(base_
                      ->LaunchHostFunction(stream,
                                           [] {
                                             std::this_thread::sleep_for(
                                                 std::chrono::milliseconds(2));
                                           })
                      .ok());
    }
    return FaultyDriver::CopyToDevice(to, from, size, stream);
  }
  absl::StatusOr<void*> AllocatePinned(Bytes size) override {
    const auto memory = FaultyDriver::AllocatePinned(size);
    MutexLock lock(&mutex_);
    if (memory.ok()) pinned_[*memory] = size;
    pinned_peak_ = std::max(pinned_peak_, PinnedLocked());
    return memory;
  }
  absl::Status FreePinned(void* memory) override {
    absl::Status status = FaultyDriver::FreePinned(memory);
    MutexLock lock(&mutex_);
    if (status.ok()) pinned_.erase(memory);
    return status;
  }

 private:
  Bytes PinnedLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    uint64_t sum = 0;
    for (const auto& [memory, size] : pinned_) sum += size.value();
    return Bytes(sum);
  }

  Driver* const base_;
  int copies_ = 0;  // of the thread that loads
  mutable Mutex mutex_;
  StreamId stream_ ABSL_GUARDED_BY(mutex_);
  std::map<void*, Bytes> pinned_ ABSL_GUARDED_BY(mutex_);
  Bytes pinned_peak_ ABSL_GUARDED_BY(mutex_);
};

class StreamingFaultTest : public ::testing::Test {
 protected:
  StreamingFaultTest() : target_(KiB(128)) {
    for (uint32_t i = 0; i < 6; ++i) {
      shards_[i / 3].push_back(
          {absl::StrCat("tensor", i), PseudoRandomBytes(1 + 2500 * i, i + 1)});
      tensors_.push_back(shards_[i / 3].back());
    }
    WriteNaiveShards(folder_, {shards_[0], shards_[1]});
    checkpoint_ = Checkpoint::Open(folder_.path()).value();
    placements_ = target_.PlaceAll(*checkpoint_);
    options_.buffers = kBuffers;
    options_.buffer_size = kBufferSize;
    options_.checksum = true;
  }

  // Loads, and checks that the load took no more than the ring, gave everything
  // back and, where it says so, brought every byte.
  absl::StatusOr<LoadReport> Load(WatchedDriver* driver) {
    auto report =
        StreamTensors(driver, DeviceId(0), *checkpoint_, placements_, options_);
    EXPECT_LE(driver->pinned_peak().value(), kBuffers * kBufferSize.value());
    EXPECT_EQ(driver->pinned(), Bytes(0));
    if (report.ok()) {
      EXPECT_EQ(report->staging_peak, driver->pinned_peak());
      target_.ExpectHolds(placements_, tensors_);
    }
    return report;
  }
  absl::Status LoadPlainly() {
    WatchedDriver driver(target_.driver());
    return Load(&driver).status();
  }
  // Runs `disturb` before copy number `copy`.
  absl::Status LoadDisturbed(int copy, const std::function<void()>& disturb) {
    WatchedDriver driver(target_.driver());
    driver.before_copy = [&](int number) {
      if (number == copy) disturb();
    };
    return Load(&driver).status();
  }
  std::string SecondShard() const {
    return folder_.File("model-2.safetensors");
  }

  std::vector<KnownTensor> shards_[2];
  std::vector<KnownTensor> tensors_;
  TemporaryFolder folder_;
  LoadTarget target_;
  std::unique_ptr<Checkpoint> checkpoint_;
  std::vector<TensorPlacement> placements_;
  StreamingOptions options_;
};

TEST_F(StreamingFaultTest, ReusesNoBufferWhileACopyOutOfItRuns) {
  for (const int buffers : {1, 2, kBuffers}) {
    options_.buffers = buffers;
    WatchedDriver driver(target_.driver());
    driver.copies_are_late = true;
    const auto report = Load(&driver);
    EXPECT_TRUE(report.ok()) << report.status();
  }
}

TEST_F(StreamingFaultTest, GivesEverythingBackWhicheverDriverCallFails) {
  WatchedDriver driver(target_.driver());
  ASSERT_TRUE(Load(&driver).ok());
  const uint64_t calls = driver.calls();
  ASSERT_GT(calls, 100u);
  // What gives memory back is tried again: the stream is drained and closed,
  // and each buffer has an event and memory.
  const uint64_t closing_calls = 2 + 2 * kBuffers;
  for (uint64_t n = 1; n <= calls; ++n) {
    driver.FailCall(n, absl::StatusCode::kUnavailable);
    const auto report = Load(&driver);
    EXPECT_EQ(driver.faults_fired(), n);
    if (n > calls - closing_calls) {
      EXPECT_TRUE(report.ok()) << n << ": " << report.status();
    } else {
      EXPECT_EQ(report.status().code(), absl::StatusCode::kUnavailable) << n;
    }
  }
}

TEST_F(StreamingFaultTest, WaitsForTheCopiesInFlightWhenACallFails) {
  for (const DriverCall call :
       {DriverCall::kCreateEvent, DriverCall::kAllocatePinned,
        DriverCall::kCopyToDevice, DriverCall::kRecordEvent,
        DriverCall::kSynchronizeEvent}) {
    for (uint64_t n = 1; n <= 12; ++n) {
      WatchedDriver driver(target_.driver());
      driver.copies_are_late = true;
      driver.FailCallsFrom(call, n, absl::StatusCode::kInternal);
      const auto report = Load(&driver);
      if (driver.faults_fired() == 0) break;  // one a buffer
      EXPECT_EQ(report.status().code(), absl::StatusCode::kInternal);
    }
  }
}

TEST_F(StreamingFaultTest, KeepsTheRingWhereTheStreamCannotBeDrained) {
  WatchedDriver driver(target_.driver());
  for (const DriverCall call :
       {DriverCall::kSynchronizeStream, DriverCall::kDestroyStream})
    driver.FailCallsFrom(call, 1, absl::StatusCode::kUnavailable);
  const auto report =
      StreamTensors(&driver, DeviceId(0), *checkpoint_, placements_, options_);
  EXPECT_EQ(report.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(report.status().message()),
              HasSubstr("2.93 KiB of staging memory stay pinned"));
  EXPECT_EQ(driver.pinned(), Bytes(kBuffers * kBufferSize.value()));
  driver.GiveBackAll();
}

TEST_F(StreamingFaultTest, GivesTheRingBackWhereOnlyDestroyingDrains) {
  WatchedDriver driver(target_.driver());
  driver.FailCallsFrom(DriverCall::kSynchronizeStream, 1,
                       absl::StatusCode::kUnavailable);
  EXPECT_EQ(Load(&driver).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(StreamingFaultTest, StopsAtAnyPointWhenCancelled) {
  std::atomic<bool> cancelled{true};
  options_.cancelled = &cancelled;
  WatchedDriver untouched(target_.driver());
  EXPECT_EQ(Load(&untouched).status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(untouched.calls(), 0u);
  cancelled = false;
  int last_copy = 0;
  WatchedDriver counting(target_.driver());
  counting.before_copy = [&](int number) { last_copy = number; };
  ASSERT_TRUE(Load(&counting).ok());
  ASSERT_GT(last_copy, 30);
  for (int copy = 0; copy <= last_copy; ++copy) {
    cancelled = false;
    const absl::Status status = LoadDisturbed(copy, [&] { cancelled = true; });
    if (copy == last_copy) {
      EXPECT_TRUE(status.ok()) << "nothing was left to stop, " << status;
      break;
    }
    EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(absl::StrCat("of ", checkpoint_->total_size().value(),
                                       " bytes")));
  }
}

TEST_F(StreamingFaultTest, FindsAFileThatBecameShorterSinceItsIndexWasRead) {
  ASSERT_EQ(truncate(SecondShard().c_str(), 9000), 0);
  const absl::Status status = LoadPlainly();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()),
              testing::AllOf(HasSubstr(SecondShard()), HasSubstr("9000")));
}

TEST_F(StreamingFaultTest, FindsAFileThatBecomesShorterAsTheLoadBegins) {
  bool first = true;
  options_.progress = [&](const LoadProgress&) {
    if (std::exchange(first, false)) {
      EXPECT_EQ(truncate(SecondShard().c_str(), 20000), 0);
    }
  };
  const absl::Status status = LoadPlainly();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr(SecondShard()));
}

TEST_F(StreamingFaultTest, NamesTensorAndOffsetWhereAFileShrinksWhileItIsRead) {
  const uint64_t end = checkpoint_->Find("tensor5")->offset + 10000;
  // The second shard is open by then, and the ring far from its last tensor.
  const absl::Status status = LoadDisturbed(11, [&] {
    EXPECT_EQ(truncate(SecondShard().c_str(), static_cast<off_t>(end)), 0);
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()),
              testing::AllOf(HasSubstr(SecondShard()), HasSubstr("tensor5"),
                             HasSubstr(absl::StrCat("ends at byte ", end))));
}

TEST_F(StreamingFaultTest, FindsAFileThatWasWrittenTo) {
  const absl::Status status = LoadDisturbed(20, [&] {
    const struct timespec times[2] = {{1, 0}, {1, 0}};
    EXPECT_EQ(utimensat(AT_FDCWD, SecondShard().c_str(), times, 0), 0);
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()),
              testing::AllOf(HasSubstr(SecondShard()), HasSubstr("written")));
}

TEST_F(StreamingFaultTest, FindsAFileThatWasReplaced) {
  const absl::Status status = LoadDisturbed(20, [&] {
    std::filesystem::copy_file(SecondShard(), folder_.File("new"));
    std::filesystem::rename(folder_.File("new"), SecondShard());
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()),
              testing::AllOf(HasSubstr(SecondShard()), HasSubstr("replaced")));
}

TEST_F(StreamingFaultTest, FindsAFileThatWasRemoved) {
  const absl::Status status =
      LoadDisturbed(20, [&] { std::filesystem::remove(SecondShard()); });
  EXPECT_THAT(std::string(status.message()), HasSubstr(SecondShard()));
  EXPECT_FALSE(status.ok());
}

// As long as it is not always the same read.
TEST_F(StreamingFaultTest, ReadsAgainWhatFailsInPassing) {
  uint64_t reads = 0;
  {
    const ReadFaults counting([](uint64_t) { return 0; });
    ASSERT_TRUE(LoadPlainly().ok());
    reads = counting.reads();
  }
  ASSERT_GT(reads, 20u);
  for (const int error : {EIO, EAGAIN, ETIMEDOUT}) {
    const ReadFaults faults(
        [&](uint64_t read) { return read % 7 == 3 ? error : 0; });
    WatchedDriver driver(target_.driver());
    const auto report = Load(&driver);
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_EQ(faults.reads(), reads + report->read_retries);
    EXPECT_GE(report->read_retries, reads / 7);
  }
}

TEST_F(StreamingFaultTest, GivesUpOnWhatFailsAgainAndAgain) {
  uint64_t failed = 0;
  const ReadFaults faults([&](uint64_t read) {
    if (read <= 5) return 0;
    ++failed;
    return EIO;
  });
  const absl::Status status = LoadPlainly();
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()),
              testing::AllOf(HasSubstr(".safetensors: cannot read"),
                             HasSubstr("at offset"), HasSubstr("tensor")));
  EXPECT_GE(failed, 4u);
}

// Whichever read fails for good: an error that says where, and nothing left.
TEST_F(StreamingFaultTest, GivesEverythingBackWhicheverReadFails) {
  for (uint64_t n = 1;; ++n) {
    const ReadFaults faults(
        [n](uint64_t read) { return read == n ? ENXIO : 0; });
    const absl::Status status = LoadPlainly();
    if (faults.reads() < n) {
      EXPECT_TRUE(status.ok()) << status;
      break;
    }
    EXPECT_THAT(std::string(status.message()), HasSubstr(".safetensors"));
    EXPECT_FALSE(status.ok()) << n;
  }
}

TEST_F(StreamingFaultTest, FindsAFileThatWasWrittenToSinceItsIndexWasRead) {
  const struct timespec times[2] = {{1, 0}, {1, 0}};
  ASSERT_EQ(utimensat(AT_FDCWD, SecondShard().c_str(), times, 0), 0);
  const absl::Status status = LoadPlainly();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(
      std::string(status.message()),
      testing::AllOf(HasSubstr(SecondShard()), HasSubstr("written to since")));
}

TEST_F(StreamingFaultTest, NamesAFileThatIsMissing) {
  std::filesystem::remove(SecondShard());
  const absl::Status status = LoadPlainly();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr(SecondShard()));
}

}  // namespace
}  // namespace quire
