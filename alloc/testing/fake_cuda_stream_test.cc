// The rules of streams, events and the work on them: each is broken here, and
// the result is the one that docs/driver_rules.md gives with its reason. Work
// is held back by gates, not by time.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <thread>
#include <vector>

#include "alloc/testing/fake_cuda_fixture.h"

namespace quire {
namespace {

class FakeCudaStreamTest : public FakeCudaFixture {
 protected:
  static void CUDA_CB Count(void* count) { ++*static_cast<int*>(count); }

  CUresult Fill(CUdeviceptr address, uint8_t value, CUstream stream) {
    return cu_.MemsetD8Async(address, value, kGranule, stream);
  }
  uint8_t Read(CUdeviceptr address, CUstream stream) {
    uint8_t value = 0;
    EXPECT_EQ(cu_.MemcpyDtoHAsync(&value, address, 1, stream), CUDA_SUCCESS);
    EXPECT_EQ(cu_.StreamSynchronize(stream), CUDA_SUCCESS);
    return value;
  }

  // The work before the event does not get done while it is looked at.
  void ExpectStaysIncomplete(CUevent event) {
    for (int i = 0; i < 1000; ++i) {
      ASSERT_EQ(cu_.EventQuery(event), CUDA_ERROR_NOT_READY);
      std::this_thread::yield();
    }
  }

  CUstream stream_ = MakeStream();
  CUevent event_ = MakeEvent();
};

// ---- Streams ----------------------------------------------------------------

TEST_F(FakeCudaStreamTest, StreamsAreMadeWithKnownFlags) {
  CUstream stream = nullptr;
  EXPECT_EQ(cu_.StreamCreate(&stream, 2), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu_.StreamCreate(nullptr, CU_STREAM_NON_BLOCKING),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(FakeCudaStreamTest, NothingMayDependOnTheNullStream) {
  CUstream stream = nullptr;
  EXPECT_EQ(cu_.StreamCreate(&stream, CU_STREAM_DEFAULT),
            CUDA_ERROR_NOT_SUPPORTED);
  for (const CUstream null :
       {CUstream(nullptr), CU_STREAM_LEGACY, CU_STREAM_PER_THREAD}) {
    EXPECT_EQ(cu_.StreamSynchronize(null), CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_EQ(cu_.EventRecord(event_, null), CUDA_ERROR_NOT_SUPPORTED);
  }
}

TEST_F(FakeCudaStreamTest, ADestroyedStreamIsNoHandle) {
  const CUdeviceptr address = MakeMemory(2);
  ASSERT_EQ(cu_.StreamDestroy(stream_), CUDA_SUCCESS);
  int count = 0;
  uint8_t byte = 0;
  EXPECT_EQ(cu_.StreamDestroy(stream_), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cu_.StreamSynchronize(stream_), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cu_.StreamWaitEvent(stream_, event_, 0), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cu_.EventRecord(event_, stream_), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cu_.LaunchHostFunc(stream_, &Count, &count),
            CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(Fill(address, 1, stream_), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cu_.MemcpyHtoDAsync(address, &byte, 1, stream_),
            CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cu_.MemcpyDtoHAsync(&byte, address, 1, stream_),
            CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cu_.MemcpyDtoDAsync(address, address + kGranule, 1, stream_),
            CUDA_ERROR_INVALID_HANDLE);
  EXPECT_NE(MakeStream(), stream_) << "a stale handle must stay one";
}

TEST_F(FakeCudaStreamTest, WorkIsDoneInTheContextOfItsStream) {
  const CUdeviceptr address = MakeMemory(2);
  Enter(1);
  int count = 0;
  uint8_t byte = 0;
  EXPECT_EQ(Fill(address, 1, stream_), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(cu_.LaunchHostFunc(stream_, &Count, &count),
            CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(cu_.MemcpyHtoDAsync(address, &byte, 1, stream_),
            CUDA_ERROR_INVALID_CONTEXT);
  // Waiting for it needs no more than some context.
  EXPECT_EQ(cu_.StreamSynchronize(stream_), CUDA_SUCCESS);
  Leave();
  EXPECT_EQ(Fill(address, 1, stream_), CUDA_SUCCESS);
}

TEST_F(FakeCudaStreamTest, SynchronizeWaitsForAllWorkOfTheStream) {
  const CUdeviceptr address = MakeMemory(1);
  int count = 0;
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(Fill(address, i, stream_), CUDA_SUCCESS);
    ASSERT_EQ(cu_.LaunchHostFunc(stream_, &Count, &count), CUDA_SUCCESS);
  }
  ASSERT_EQ(cu_.StreamSynchronize(stream_), CUDA_SUCCESS);
  EXPECT_EQ(count, 100);
  EXPECT_EQ(*reinterpret_cast<volatile uint8_t*>(address), 99);
}

TEST_F(FakeCudaStreamTest, WorkIsNotDoneWhenTheCallReturns) {
  const CUdeviceptr address = MakeMemory(1);
  ASSERT_EQ(Fill(address, 1, stream_), CUDA_SUCCESS);
  ASSERT_EQ(cu_.StreamSynchronize(stream_), CUDA_SUCCESS);
  Gate gate(cu_, stream_);
  uint8_t byte = 2;
  ASSERT_EQ(cu_.MemcpyHtoDAsync(address, &byte, 1, stream_), CUDA_SUCCESS);
  byte = 3;
  const CUstream other = MakeStream();
  EXPECT_EQ(Read(address, other), 1) << "streams run beside each other";
  gate.Open();
  // The host memory is read in stream order too.
  EXPECT_EQ(Read(address, stream_), 3);
}

TEST_F(FakeCudaStreamTest, DestroyingAStreamDoesNotWaitAndItsWorkIsDone) {
  Gate gate(cu_, stream_);
  int count = 0;
  ASSERT_EQ(cu_.LaunchHostFunc(stream_, &Count, &count), CUDA_SUCCESS);
  ASSERT_EQ(cu_.EventRecord(event_, stream_), CUDA_SUCCESS);
  ASSERT_EQ(cu_.StreamDestroy(stream_), CUDA_SUCCESS);
  EXPECT_EQ(cu_.EventQuery(event_), CUDA_ERROR_NOT_READY);
  gate.Open();
  ASSERT_EQ(cu_.EventSynchronize(event_), CUDA_SUCCESS);
  EXPECT_EQ(count, 1);
}

// ---- Events -----------------------------------------------------------------

TEST_F(FakeCudaStreamTest, EventsAreMadeWithKnownFlags) {
  CUevent event = nullptr;
  EXPECT_EQ(cu_.EventCreate(&event, 8), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu_.EventCreate(nullptr, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu_.EventCreate(&event, CU_EVENT_INTERPROCESS),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(
      cu_.EventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING),
      CUDA_SUCCESS);
}

TEST_F(FakeCudaStreamTest, ADestroyedEventIsNoHandle) {
  ASSERT_EQ(cu_.EventDestroy(event_), CUDA_SUCCESS);
  EXPECT_EQ(cu_.EventDestroy(event_), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cu_.EventRecord(event_, stream_), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cu_.EventQuery(event_), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cu_.EventSynchronize(event_), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cu_.StreamWaitEvent(stream_, event_, 0), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cu_.EventQuery(nullptr), CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(FakeCudaStreamTest, EventAndStreamAreOfOneContext) {
  Enter(1);
  const CUevent elsewhere = MakeEvent();
  EXPECT_EQ(cu_.EventRecord(elsewhere, stream_), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cu_.EventRecord(event_, stream_), CUDA_SUCCESS);
}

TEST_F(FakeCudaStreamTest, AnEventNeverRecordedIsComplete) {
  EXPECT_EQ(cu_.EventQuery(event_), CUDA_SUCCESS);
  EXPECT_EQ(cu_.EventSynchronize(event_), CUDA_SUCCESS);
  EXPECT_EQ(cu_.StreamWaitEvent(stream_, event_, 0), CUDA_SUCCESS);
  EXPECT_EQ(cu_.StreamSynchronize(stream_), CUDA_SUCCESS);
}

TEST_F(FakeCudaStreamTest, AnEventCompletesWithTheWorkBeforeIt) {
  Gate gate(cu_, stream_);
  int count = 0;
  ASSERT_EQ(cu_.LaunchHostFunc(stream_, &Count, &count), CUDA_SUCCESS);
  ASSERT_EQ(cu_.EventRecord(event_, stream_), CUDA_SUCCESS);
  EXPECT_EQ(cu_.EventQuery(event_), CUDA_ERROR_NOT_READY);
  gate.Open();
  ASSERT_EQ(cu_.EventSynchronize(event_), CUDA_SUCCESS);
  EXPECT_EQ(count, 1);
  EXPECT_EQ(cu_.EventQuery(event_), CUDA_SUCCESS);
}

TEST_F(FakeCudaStreamTest, RecordingAgainMovesTheEvent) {
  ASSERT_EQ(cu_.EventRecord(event_, stream_), CUDA_SUCCESS);
  ASSERT_EQ(cu_.EventSynchronize(event_), CUDA_SUCCESS);
  Gate gate(cu_, stream_);
  ASSERT_EQ(cu_.EventRecord(event_, stream_), CUDA_SUCCESS);
  EXPECT_EQ(cu_.EventQuery(event_), CUDA_ERROR_NOT_READY);
}

TEST_F(FakeCudaStreamTest, DestroyingAnEventDoesNotWait) {
  Gate gate(cu_, stream_);
  ASSERT_EQ(cu_.EventRecord(event_, stream_), CUDA_SUCCESS);
  const CUstream other = MakeStream();
  ASSERT_EQ(cu_.StreamWaitEvent(other, event_, 0), CUDA_SUCCESS);
  const CUevent passed = MakeEvent();
  ASSERT_EQ(cu_.EventRecord(passed, other), CUDA_SUCCESS);
  ASSERT_EQ(cu_.EventDestroy(event_), CUDA_SUCCESS);
  // Whoever waits for it still does.
  ExpectStaysIncomplete(passed);
  gate.Open();
  EXPECT_EQ(cu_.EventSynchronize(passed), CUDA_SUCCESS);
}

TEST_F(FakeCudaStreamTest, AWaitIsForTheMostRecentRecord) {
  const CUstream other = MakeStream();
  ASSERT_EQ(cu_.EventRecord(event_, stream_), CUDA_SUCCESS);
  ASSERT_EQ(cu_.StreamWaitEvent(other, event_, 0), CUDA_SUCCESS);
  Gate gate(cu_, stream_);
  ASSERT_EQ(cu_.EventRecord(event_, stream_), CUDA_SUCCESS);
  // The wait is for the first record, which is complete.
  EXPECT_EQ(cu_.StreamSynchronize(other), CUDA_SUCCESS);
}

TEST_F(FakeCudaStreamTest, AWaitMayBeForAnotherDevice) {
  const CUdeviceptr address = MakeMemory(1);
  ASSERT_EQ(Grant(address, 1, Access(1)), CUDA_SUCCESS);
  Gate gate(cu_, stream_);
  ASSERT_EQ(Fill(address, 9, stream_), CUDA_SUCCESS);
  ASSERT_EQ(cu_.EventRecord(event_, stream_), CUDA_SUCCESS);
  Enter(1);
  const CUstream remote = MakeStream();
  ASSERT_EQ(cu_.StreamWaitEvent(remote, event_, 0), CUDA_SUCCESS);
  const CUevent passed = MakeEvent();
  ASSERT_EQ(cu_.EventRecord(passed, remote), CUDA_SUCCESS);
  ExpectStaysIncomplete(passed);
  gate.Open();
  EXPECT_EQ(Read(address, remote), 9);
}

TEST_F(FakeCudaStreamTest, AWaitTakesNoFlagsOutsideOfCapture) {
  EXPECT_EQ(cu_.StreamWaitEvent(stream_, event_, CU_EVENT_WAIT_EXTERNAL),
            CUDA_ERROR_INVALID_VALUE);
}

// ---- Host functions ---------------------------------------------------------

TEST_F(FakeCudaStreamTest, AHostFunctionRunsInItsPlace) {
  struct Places {
    volatile uint8_t* byte;
    uint8_t seen = 0;
  };
  const CUdeviceptr address = MakeMemory(1);
  Places places = {reinterpret_cast<volatile uint8_t*>(address)};
  const CUhostFn look = [](void* data) {
    auto* const at = static_cast<Places*>(data);
    at->seen = *at->byte;
    *at->byte = 3;
  };
  ASSERT_EQ(Fill(address, 1, stream_), CUDA_SUCCESS);
  ASSERT_EQ(Fill(address, 2, stream_), CUDA_SUCCESS);
  ASSERT_EQ(cu_.LaunchHostFunc(stream_, look, &places), CUDA_SUCCESS);
  EXPECT_EQ(Read(address, stream_), 3);
  EXPECT_EQ(places.seen, 2);
  EXPECT_EQ(cu_.LaunchHostFunc(stream_, nullptr, &places),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(FakeCudaStreamTest, AHostFunctionMayNotCallTheDriver) {
  struct Calls {
    const CudaFunctionTable* cu;
    std::vector<CUresult> results;
  };
  Calls calls = {&cu_, {}};
  ASSERT_EQ(cu_.LaunchHostFunc(
                stream_,
                [](void* data) {
                  auto* const at = static_cast<Calls*>(data);
                  int count = 0;
                  size_t free = 0;
                  CUdeviceptr address = 0;
                  at->results = {
                      at->cu->DeviceGetCount(&count),
                      at->cu->MemGetInfo(&free, &free),
                      at->cu->MemAddressReserve(&address, kGranule, 0, 0, 0),
                      at->cu->EventQuery(nullptr)};
                },
                &calls),
            CUDA_SUCCESS);
  ASSERT_EQ(cu_.StreamSynchronize(stream_), CUDA_SUCCESS);
  EXPECT_THAT(calls.results, ::testing::SizeIs(4));
  EXPECT_THAT(calls.results, ::testing::Each(CUDA_ERROR_NOT_PERMITTED));
}

// ---- What work may touch ----------------------------------------------------

TEST_F(FakeCudaStreamTest, AddressesAreCheckedWhenWorkIsSubmitted) {
  const CUdeviceptr address = Reserve(3);
  ASSERT_EQ(Map(address + kGranule, 1, Create(1)), CUDA_SUCCESS);
  ASSERT_EQ(Grant(address + kGranule, 1, Access(0)), CUDA_SUCCESS);
  const CUdeviceptr middle = address + kGranule;
  uint8_t host[2];
  struct Range {
    CUdeviceptr start;
    size_t size;
  };
  for (const Range range :
       {Range{middle - 1, 2}, Range{middle + kGranule - 1, 2}, Range{0, 1},
        Range{address, 1}, Range{middle, SIZE_MAX}}) {
    EXPECT_EQ(cu_.MemcpyHtoDAsync(range.start, host, range.size, stream_),
              CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cu_.MemcpyDtoHAsync(host, range.start, range.size, stream_),
              CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cu_.MemcpyDtoDAsync(range.start, middle, range.size, stream_),
              CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cu_.MemcpyDtoDAsync(middle, range.start, range.size, stream_),
              CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cu_.MemsetD8Async(range.start, 0, range.size, stream_),
              CUDA_ERROR_INVALID_VALUE);
  }
  EXPECT_EQ(cu_.MemcpyHtoDAsync(middle, nullptr, 1, stream_),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu_.MemcpyDtoHAsync(nullptr, middle, 1, stream_),
            CUDA_ERROR_INVALID_VALUE);
  // Refused arguments are not work that failed.
  EXPECT_EQ(cu_.StreamSynchronize(stream_), CUDA_SUCCESS);
}

TEST_F(FakeCudaStreamTest, MemoryWithoutAccessFaults) {
  const CUdeviceptr address = Reserve(1);
  ASSERT_EQ(Map(address, 1, Create(1)), CUDA_SUCCESS);
  ASSERT_EQ(Fill(address, 1, stream_), CUDA_SUCCESS);
  EXPECT_EQ(cu_.StreamSynchronize(stream_), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_F(FakeCudaStreamTest, APeerWithoutAccessFaults) {
  const CUdeviceptr address = MakeMemory(1);
  Enter(1);
  const CUstream remote = MakeStream();
  ASSERT_EQ(Fill(address, 1, remote), CUDA_SUCCESS);
  EXPECT_EQ(cu_.StreamSynchronize(remote), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_F(FakeCudaStreamTest, MemoryToBeReadOnlyMayBeRead) {
  const CUdeviceptr address = MakeMemory(1);
  ASSERT_EQ(Fill(address, 4, stream_), CUDA_SUCCESS);
  ASSERT_EQ(cu_.StreamSynchronize(stream_), CUDA_SUCCESS);
  ASSERT_EQ(Grant(address, 1, Access(0, CU_MEM_ACCESS_FLAGS_PROT_READ)),
            CUDA_SUCCESS);
  EXPECT_EQ(Read(address, stream_), 4);
  ASSERT_EQ(Fill(address, 5, stream_), CUDA_SUCCESS);
  EXPECT_EQ(cu_.StreamSynchronize(stream_), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(*reinterpret_cast<volatile uint8_t*>(address), 4);
}

TEST_F(FakeCudaStreamTest, UnmappingIsNotStreamOrdered) {
  const CUdeviceptr address = MakeMemory(1);
  Gate gate(cu_, stream_);
  ASSERT_EQ(Fill(address, 1, stream_), CUDA_SUCCESS);
  ASSERT_EQ(Unmap(address, 1), CUDA_SUCCESS);
  gate.Open();
  EXPECT_EQ(cu_.StreamSynchronize(stream_), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_F(FakeCudaStreamTest, AFailureStaysForAllWork) {
  const CUdeviceptr address = MakeMemory(1);
  const CUdeviceptr faulty = Reserve(1);
  ASSERT_EQ(Map(faulty, 1, Create(1)), CUDA_SUCCESS);
  const CUstream other = MakeStream();
  int count = 0;
  Gate gate(cu_, stream_);
  ASSERT_EQ(Fill(faulty, 1, stream_), CUDA_SUCCESS);
  // Behind the failure, on the same stream and on others.
  ASSERT_EQ(cu_.LaunchHostFunc(stream_, &Count, &count), CUDA_SUCCESS);
  ASSERT_EQ(cu_.EventRecord(event_, stream_), CUDA_SUCCESS);
  ASSERT_EQ(cu_.StreamWaitEvent(other, event_, 0), CUDA_SUCCESS);
  ASSERT_EQ(cu_.LaunchHostFunc(other, &Count, &count), CUDA_SUCCESS);
  gate.Open();
  EXPECT_EQ(cu_.StreamSynchronize(other), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(count, 0) << "a host function of a context in error";
  EXPECT_EQ(cu_.EventQuery(event_), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(cu_.EventSynchronize(event_), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(Fill(address, 1, other), CUDA_ERROR_ILLEGAL_ADDRESS);
  CUdeviceptr reserved = 0;
  EXPECT_EQ(cu_.MemAddressReserve(&reserved, kGranule, 0, 0, 0),
            CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(Unmap(address, 1), CUDA_ERROR_ILLEGAL_ADDRESS);
  // What is no work still answers.
  int devices = 0;
  EXPECT_EQ(cu_.DeviceGetCount(&devices), CUDA_SUCCESS);
}

TEST_F(FakeCudaStreamTest, ARefusedCallDoesNotStay) {
  EXPECT_EQ(Map(kGranule, 1, 12345), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu_.EventQuery(nullptr), CUDA_ERROR_INVALID_HANDLE);
  const CUdeviceptr address = MakeMemory(1);
  ASSERT_EQ(Fill(address, 6, stream_), CUDA_SUCCESS);
  EXPECT_EQ(Read(address, stream_), 6);
}

TEST_F(FakeCudaStreamTest, CopiesMoveBytesThroughAliasesAndSteps) {
  // Longer than a step, so that every step lands where it should.
  FakeCudaOptions options = Options();
  options.memory_per_device = 64 * kGranule;
  Start(options);
  Enter(0);
  const CUstream stream = MakeStream();
  const CUdeviceptr first = MakeMemory(24);
  const CUdeviceptr second = MakeMemory(24);
  std::vector<uint32_t> from(20 * kGranule / sizeof(uint32_t));
  for (size_t i = 0; i < from.size(); ++i) from[i] = i * 2654435761u;
  std::vector<uint32_t> to(from.size());
  const size_t bytes = 20 * kGranule;
  ASSERT_EQ(cu_.MemcpyHtoDAsync(first + 64, from.data(), bytes, stream),
            CUDA_SUCCESS);
  ASSERT_EQ(cu_.MemcpyDtoDAsync(second, first + 64, bytes, stream),
            CUDA_SUCCESS);
  ASSERT_EQ(cu_.MemcpyDtoHAsync(to.data(), second, bytes, stream),
            CUDA_SUCCESS);
  ASSERT_EQ(cu_.StreamSynchronize(stream), CUDA_SUCCESS);
  EXPECT_EQ(to, from);
}

TEST_F(FakeCudaStreamTest, WithoutBackingReadsGiveZeros) {
  FakeCudaOptions options = Options();
  options.memory_per_device = size_t{1} << 46;
  options.granularity = size_t{1} << 21;
  options.backing = false;
  Start(options);
  Enter(0);
  const CUstream stream = MakeStream();
  const CUdeviceptr address = MakeMemory(size_t{32} << 10);
  std::vector<uint8_t> data(100, 7);
  ASSERT_EQ(Fill(address, 1, stream), CUDA_SUCCESS);
  ASSERT_EQ(cu_.MemcpyHtoDAsync(address, data.data(), 100, stream),
            CUDA_SUCCESS);
  ASSERT_EQ(cu_.MemcpyDtoHAsync(data.data(), address, 100, stream),
            CUDA_SUCCESS);
  ASSERT_EQ(cu_.StreamSynchronize(stream), CUDA_SUCCESS);
  EXPECT_THAT(data, ::testing::Each(0));
}

}  // namespace
}  // namespace quire
