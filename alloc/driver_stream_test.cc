// Stream order, events and copies of every driver. Work is held back by gates,
// not by time: no outcome here depends on how fast anything runs.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "alloc/host_stream.h"
#include "alloc/testing/test_driver.h"

namespace quire {
namespace {

using ::testing::HasSubstr;

constexpr Bytes kPage = KiB(64);

// Holds a stream until it is opened, at the latest at its end.
class Gate {
 public:
  ~Gate() { Open(); }
  void Open() { mark_->Reach(); }
  std::function<void()> Waiter() const {
    return [mark = mark_] { mark->Wait(); };
  }

 private:
  std::shared_ptr<StreamMark> mark_ = std::make_shared<StreamMark>();
};

class DriverStreamTest : public ::testing::Test {
 protected:
  DriverStreamTest() {
    HostDriverOptions options;
    options.device_count = 2;
    options.memory_per_device = MiB(4);
    options.granularity = kPage;
    driver_ = *TestDriver::Create(options);
    for (StreamId* stream : {&stream_, &other_}) {
      *stream = *driver_->CreateStream(DeviceId(0));
    }
    event_ = *driver_->CreateEvent(DeviceId(0));
  }
  DeviceAddress MapPages(int count, DeviceId device = DeviceId(0)) {
    const Bytes size(count * kPage.value());
    const DeviceAddress address = *driver_->ReserveAddress(size, Bytes(0));
    const PageHandle page = *driver_->CreatePage(device, size);
    EXPECT_TRUE(driver_->Map(address, {&page, 1}).ok());
    return address;
  }
  absl::Status Launch(StreamId stream, std::function<void()> function) {
    return driver_->LaunchHostFunction(stream, std::move(function));
  }

  std::unique_ptr<TestDriver> driver_;
  StreamId stream_;
  StreamId other_;
  EventId event_;
};

absl::StatusCode Code(const absl::Status& status) { return status.code(); }

TEST_F(DriverStreamTest, RunsWorkInOrder) {
  std::vector<int> order;
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(Launch(stream_, [&order, i] { order.push_back(i); }).ok());
  }
  ASSERT_TRUE(driver_->SynchronizeStream(stream_).ok());
  ASSERT_EQ(order.size(), 1000u);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(order[i], i);
}

TEST_F(DriverStreamTest, StreamsRunBesideEachOther) {
  Gate gate;
  ASSERT_TRUE(Launch(stream_, gate.Waiter()).ok());
  std::atomic<bool> ran = false;
  ASSERT_TRUE(Launch(other_, [&ran] { ran = true; }).ok());
  ASSERT_TRUE(driver_->SynchronizeStream(other_).ok());
  EXPECT_TRUE(ran);
}

TEST_F(DriverStreamTest, AnEventCompletesWithTheWorkBeforeIt) {
  EXPECT_TRUE(*driver_->QueryEvent(event_)) << "never recorded";
  EXPECT_TRUE(driver_->SynchronizeEvent(event_).ok());
  Gate gate;
  bool ran = false;
  ASSERT_TRUE(Launch(stream_, gate.Waiter()).ok());
  ASSERT_TRUE(Launch(stream_, [&ran] { ran = true; }).ok());
  ASSERT_TRUE(driver_->RecordEvent(event_, stream_).ok());
  EXPECT_FALSE(*driver_->QueryEvent(event_));
  gate.Open();
  ASSERT_TRUE(driver_->SynchronizeEvent(event_).ok());
  EXPECT_TRUE(ran);
  EXPECT_TRUE(*driver_->QueryEvent(event_));
}

TEST_F(DriverStreamTest, RecordingAgainMovesTheEvent) {
  Gate gate;
  ASSERT_TRUE(driver_->RecordEvent(event_, stream_).ok());
  ASSERT_TRUE(driver_->SynchronizeEvent(event_).ok());
  ASSERT_TRUE(Launch(stream_, gate.Waiter()).ok());
  ASSERT_TRUE(driver_->RecordEvent(event_, stream_).ok());
  EXPECT_FALSE(*driver_->QueryEvent(event_));
}

TEST_F(DriverStreamTest, WaitEventOrdersTwoStreams) {
  Gate gate;
  int value = 0;
  ASSERT_TRUE(Launch(stream_, gate.Waiter()).ok());
  ASSERT_TRUE(Launch(stream_, [&value] { value = 1; }).ok());
  ASSERT_TRUE(driver_->RecordEvent(event_, stream_).ok());
  ASSERT_TRUE(driver_->WaitEvent(other_, event_).ok());
  int seen = 0;
  ASSERT_TRUE(Launch(other_, [&] { seen = value; }).ok());
  // The wait holds to the record before it, wherever the event goes, and
  // outlives the event.
  ASSERT_TRUE(driver_->RecordEvent(event_, other_).ok());
  ASSERT_TRUE(driver_->DestroyEvent(event_).ok());
  gate.Open();
  ASSERT_TRUE(driver_->SynchronizeStream(other_).ok());
  EXPECT_EQ(seen, 1);
}

TEST_F(DriverStreamTest, WaitingForAnEventNeverRecordedIsNoWait) {
  ASSERT_TRUE(driver_->WaitEvent(stream_, event_).ok());
  ASSERT_TRUE(driver_->SynchronizeStream(stream_).ok());
}

TEST_F(DriverStreamTest, EventsAndWaitsCrossDevicesAsInCuda) {
  const StreamId remote = *driver_->CreateStream(DeviceId(1));
  EXPECT_EQ(Code(driver_->RecordEvent(event_, remote)),
            absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(driver_->RecordEvent(event_, stream_).ok());
  EXPECT_TRUE(driver_->WaitEvent(remote, event_).ok());
  EXPECT_TRUE(driver_->SynchronizeStream(remote).ok());
}

TEST_F(DriverStreamTest, DestroyStreamWaitsForItsWork) {
  std::atomic<int> ran = 0;
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(Launch(stream_, [&ran] {
                  std::this_thread::yield();
                  ++ran;
                }).ok());
  }
  ASSERT_TRUE(driver_->DestroyStream(stream_).ok());
  EXPECT_EQ(ran, 100);
}

TEST_F(DriverStreamTest, DestroyingTheDriverWaitsForQueuedWork) {
  const DeviceAddress address = MapPages(4);
  std::atomic<int> ran = 0;
  // Two streams that wait for each other in turn, with copies between.
  for (int i = 0; i < 50; ++i) {
    const StreamId stream = i % 2 == 0 ? stream_ : other_;
    ASSERT_TRUE(driver_->WaitEvent(stream, event_).ok());
    ASSERT_TRUE(driver_->Fill(address, i, KiB(256), stream).ok());
    ASSERT_TRUE(Launch(stream, [&ran] { ++ran; }).ok());
    ASSERT_TRUE(driver_->RecordEvent(event_, stream).ok());
  }
  driver_.reset();
  EXPECT_EQ(ran, 50);
}

TEST_F(DriverStreamTest, HostFunctionsMayNotWaitForStreams) {
  std::vector<absl::Status> statuses;
  ASSERT_TRUE(Launch(stream_, [&] {
                statuses.push_back(driver_->SynchronizeStream(stream_));
                statuses.push_back(driver_->SynchronizeEvent(event_));
                statuses.push_back(driver_->DestroyStream(stream_));
              }).ok());
  ASSERT_TRUE(driver_->SynchronizeStream(stream_).ok());
  ASSERT_EQ(statuses.size(), 3u);
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(Code(status), absl::StatusCode::kFailedPrecondition) << status;
  }
}

TEST_F(DriverStreamTest, WhatTheWorkOwnsIsGoneAfterTheWait) {
  auto owned = std::make_shared<int>(1);
  ASSERT_TRUE(Launch(stream_, [copy = owned] {}).ok());
  ASSERT_TRUE(driver_->SynchronizeStream(stream_).ok());
  EXPECT_EQ(owned.use_count(), 1);
}

TEST_F(DriverStreamTest, UnknownStreamsAndEventsAreRefusedByEveryCall) {
  ASSERT_TRUE(driver_->DestroyStream(other_).ok());
  ASSERT_TRUE(driver_->DestroyEvent(event_).ok());
  const DeviceAddress address = MapPages(2);
  uint8_t byte = 0;
  for (const StreamId stream : {StreamId(), StreamId(1234), other_}) {
    const std::vector<absl::Status> statuses = {
        driver_->DestroyStream(stream),
        driver_->SynchronizeStream(stream),
        driver_->WaitEvent(stream, event_),
        driver_->CopyToDevice(address, &byte, Bytes(1), stream),
        driver_->CopyToHost(&byte, address, Bytes(1), stream),
        driver_->CopyOnDevice(address, address, Bytes(0), stream),
        driver_->Fill(address, 0, Bytes(1), stream),
        Launch(stream, [] {}),
    };
    for (const absl::Status& status : statuses) {
      EXPECT_EQ(Code(status), absl::StatusCode::kNotFound) << status;
    }
  }
  for (const EventId event : {EventId(), EventId(1234), event_}) {
    const std::vector<absl::Status> statuses = {
        driver_->DestroyEvent(event),
        driver_->RecordEvent(event, stream_),
        driver_->QueryEvent(event).status(),
        driver_->SynchronizeEvent(event),
        driver_->WaitEvent(stream_, event),
    };
    for (const absl::Status& status : statuses) {
      EXPECT_EQ(Code(status), absl::StatusCode::kNotFound) << status;
    }
  }
  EXPECT_EQ(Code(driver_->CreateStream(DeviceId(2)).status()),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Code(driver_->CreateEvent(DeviceId(2)).status()),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Code(Launch(stream_, nullptr)), absl::StatusCode::kInvalidArgument);
}

// ---- Copies -----------------------------------------------------------------

TEST_F(DriverStreamTest, CopiesMoveBytesInStreamOrder) {
  const DeviceAddress address = MapPages(4);
  const DeviceAddress second = *CheckedAdd(address, KiB(128));
  std::vector<uint8_t> from(kPage.value() + 100);
  for (size_t i = 0; i < from.size(); ++i) from[i] = i * 7;
  std::vector<uint8_t> to(from.size());
  const Bytes size(from.size());
  ASSERT_TRUE(driver_->Fill(address, 0xAA, KiB(256), stream_).ok());
  ASSERT_TRUE(driver_->CopyToDevice(address, from.data(), size, stream_).ok());
  ASSERT_TRUE(driver_->CopyOnDevice(second, address, size, stream_).ok());
  ASSERT_TRUE(driver_->Fill(address, 0, size, stream_).ok());
  ASSERT_TRUE(driver_->CopyToHost(to.data(), second, size, stream_).ok());
  ASSERT_TRUE(driver_->SynchronizeStream(stream_).ok());
  EXPECT_EQ(to, from);
  EXPECT_EQ(*CheckedAdd(second, size)->host_pointer<uint8_t>(), 0xAA);
  EXPECT_EQ(*address.host_pointer<uint8_t>(), 0);
}

TEST_F(DriverStreamTest, CopiesThatTouchUnmappedAddressesAreRefusedAtOnce) {
  const DeviceAddress address = *driver_->ReserveAddress(KiB(256), Bytes(0));
  const PageHandle page = *driver_->CreatePage(DeviceId(0), kPage);
  const DeviceAddress middle = *CheckedAdd(address, kPage);
  ASSERT_TRUE(driver_->Map(middle, {&page, 1}).ok());
  std::vector<uint8_t> host(KiB(256).value());
  const DeviceAddress before(middle.value() - 1);
  const DeviceAddress last(middle.value() + kPage.value() - 1);
  struct Range {
    DeviceAddress start;
    Bytes size;
  };
  for (const Range range :
       {Range{before, Bytes(1)}, Range{before, Bytes(2)}, Range{last, Bytes(2)},
        Range{middle, KiB(128)}, Range{DeviceAddress(), Bytes(1)},
        Range{last, Bytes(UINT64_MAX)},
        Range{DeviceAddress(UINT64_MAX), Bytes(1)}}) {
    const std::vector<absl::Status> statuses = {
        driver_->CopyToDevice(range.start, host.data(), range.size, stream_),
        driver_->CopyToHost(host.data(), range.start, range.size, stream_),
        driver_->Fill(range.start, 0, range.size, stream_),
        driver_->CopyOnDevice(range.start, middle, range.size, stream_),
        driver_->CopyOnDevice(middle, range.start, range.size, stream_),
    };
    for (const absl::Status& status : statuses) {
      EXPECT_EQ(Code(status), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(std::string(status.message()),
                  HasSubstr("nothing is mapped"));
    }
  }
  EXPECT_TRUE(driver_->Fill(last, 1, Bytes(1), stream_).ok());
}

TEST_F(DriverStreamTest, CopiesRefuseNullOverlapAndForeignDevices) {
  const DeviceAddress local = MapPages(2);
  const DeviceAddress remote = MapPages(2, DeviceId(1));
  const StreamId remote_stream = *driver_->CreateStream(DeviceId(1));
  uint8_t byte = 0;
  const std::vector<absl::Status> statuses = {
      driver_->CopyToDevice(local, nullptr, Bytes(1), stream_),
      driver_->CopyToHost(nullptr, local, Bytes(1), stream_),
      driver_->CopyOnDevice(local, local, Bytes(1), stream_),
      driver_->CopyOnDevice(local, *CheckedAdd(local, Bytes(99)), Bytes(100),
                            stream_),
      driver_->CopyToDevice(remote, &byte, Bytes(1), stream_),
      driver_->CopyToHost(&byte, remote, Bytes(1), stream_),
      driver_->Fill(local, 0, Bytes(1), remote_stream),
      driver_->CopyOnDevice(local, *CheckedAdd(local, kPage), Bytes(1),
                            remote_stream),
  };
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(Code(status), absl::StatusCode::kInvalidArgument) << status;
  }
  EXPECT_TRUE(driver_
                  ->CopyOnDevice(local, *CheckedAdd(local, Bytes(100)),
                                 Bytes(100), stream_)
                  .ok());
  // A copy between devices may run on a stream of either.
  ASSERT_TRUE(driver_->Fill(local, 6, kPage, stream_).ok());
  ASSERT_TRUE(driver_->CopyOnDevice(remote, local, kPage, stream_).ok());
  ASSERT_TRUE(driver_->SynchronizeStream(stream_).ok());
  EXPECT_EQ(*remote.host_pointer<uint8_t>(), 6);
}

TEST_F(DriverStreamTest, ThreadsUseTheDriverAtTheSameTime) {
  constexpr int kThreads = 4;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([this, t] {
      const StreamId stream = *driver_->CreateStream(DeviceId(t % 2));
      const EventId event = *driver_->CreateEvent(DeviceId(t % 2));
      for (int i = 0; i < 50; ++i) {
        const DeviceAddress address =
            *driver_->ReserveAddress(KiB(128), Bytes(0));
        const PageHandle page = *driver_->CreatePage(DeviceId(t % 2), kPage);
        const PageHandle pages[] = {page, page};
        ASSERT_TRUE(driver_->Map(address, pages).ok());
        const uint8_t value = t * 50 + i;
        ASSERT_TRUE(driver_->Fill(address, value, kPage, stream).ok());
        std::vector<uint8_t> read(kPage.value());
        ASSERT_TRUE(driver_
                        ->CopyToHost(read.data(), *CheckedAdd(address, kPage),
                                     kPage, stream)
                        .ok());
        ASSERT_TRUE(driver_->RecordEvent(event, stream).ok());
        ASSERT_TRUE(driver_->SynchronizeEvent(event).ok());
        EXPECT_EQ(std::count(read.begin(), read.end(), value),
                  static_cast<int64_t>(read.size()));
        ASSERT_TRUE(driver_->Unmap(address, KiB(128)).ok());
        ASSERT_TRUE(driver_->ReleasePage(page).ok());
        ASSERT_TRUE(driver_->ReleaseAddress(address, KiB(128)).ok());
      }
      ASSERT_TRUE(driver_->DestroyEvent(event).ok());
      ASSERT_TRUE(driver_->DestroyStream(stream).ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(driver_->Leaks(), ::testing::SizeIs(3)) << "the fixture's own";
}

}  // namespace
}  // namespace quire
