// The rules of stream capture: each is broken here, and the result is the one
// that docs/driver_rules.md gives with its reason.

#include <gtest/gtest.h>

#include <thread>

#include "alloc/testing/fake_cuda_fixture.h"

namespace quire {
namespace {

class FakeCudaCaptureTest : public FakeCudaFixture {
 protected:
  ~FakeCudaCaptureTest() override {
    ExchangeMode(CU_STREAM_CAPTURE_MODE_GLOBAL);
  }

  void Begin(CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL) {
    ASSERT_EQ(cuda_->streams().BeginCapture(captured_, mode), CUDA_SUCCESS);
  }
  CUresult End() { return cuda_->streams().EndCapture(captured_, &nodes_); }
  CUstreamCaptureStatus Status() {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    EXPECT_EQ(cuda_->streams().GetCaptureStatus(captured_, &status),
              CUDA_SUCCESS);
    return status;
  }
  CUstreamCaptureMode ExchangeMode(CUstreamCaptureMode mode) {
    EXPECT_EQ(cu_.ThreadExchangeStreamCaptureMode(&mode), CUDA_SUCCESS);
    return mode;
  }
  CUresult TryReserve() {
    CUdeviceptr address = 0;
    return cu_.MemAddressReserve(&address, kGranule, 0, 0, 0);
  }
  template <typename Function>
  static void OnAnotherThread(Function function) {
    std::thread(function).join();
  }

  const CUstream captured_ = MakeStream();
  const CUevent event_ = MakeEvent();
  size_t nodes_ = 0;
};

TEST_F(FakeCudaCaptureTest, AStreamIsCapturedOnce) {
  const auto mode = static_cast<CUstreamCaptureMode>(3);
  EXPECT_EQ(cuda_->streams().BeginCapture(captured_, mode),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(
      cuda_->streams().BeginCapture(nullptr, CU_STREAM_CAPTURE_MODE_GLOBAL),
      CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(End(), CUDA_ERROR_INVALID_VALUE);
  Begin();
  EXPECT_EQ(
      cuda_->streams().BeginCapture(captured_, CU_STREAM_CAPTURE_MODE_GLOBAL),
      CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Status(), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  EXPECT_EQ(End(), CUDA_SUCCESS);
  EXPECT_EQ(Status(), CU_STREAM_CAPTURE_STATUS_NONE);
}

TEST_F(FakeCudaCaptureTest, CapturedWorkIsNotExecuted) {
  const CUdeviceptr address = MakeMemory(1);
  auto* const byte = reinterpret_cast<volatile uint8_t*>(address);
  *byte = 1;
  Begin();
  ASSERT_EQ(cu_.MemsetD8Async(address, 2, 1, captured_), CUDA_SUCCESS);
  ASSERT_EQ(cu_.EventRecord(event_, captured_), CUDA_SUCCESS);
  ASSERT_EQ(cu_.StreamWaitEvent(captured_, event_, 0), CUDA_SUCCESS);
  ASSERT_EQ(End(), CUDA_SUCCESS);
  EXPECT_EQ(nodes_, 3u);
  ASSERT_EQ(cu_.StreamSynchronize(captured_), CUDA_SUCCESS);
  EXPECT_EQ(*byte, 1);
}

TEST_F(FakeCudaCaptureTest, ACaptureEndsOnTheThreadThatBeganIt) {
  Begin();
  OnAnotherThread(
      [this] { EXPECT_EQ(End(), CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD); });
  EXPECT_EQ(End(), CUDA_SUCCESS);
  Begin(CU_STREAM_CAPTURE_MODE_RELAXED);
  OnAnotherThread([this] { EXPECT_EQ(End(), CUDA_SUCCESS); });
}

TEST_F(FakeCudaCaptureTest, ACapturingStreamCannotBeWaitedFor) {
  Begin(CU_STREAM_CAPTURE_MODE_RELAXED);
  EXPECT_EQ(cu_.StreamSynchronize(captured_),
            CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  // And that broke the capture: nothing but its end is left to do.
  EXPECT_EQ(Status(), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
  EXPECT_EQ(cu_.EventRecord(event_, captured_),
            CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EXPECT_EQ(End(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EXPECT_EQ(nodes_, 0u);
  EXPECT_EQ(cu_.StreamSynchronize(captured_), CUDA_SUCCESS);
}

TEST_F(FakeCudaCaptureTest, ACapturedEventCannotBeWaitedFor) {
  Begin(CU_STREAM_CAPTURE_MODE_RELAXED);
  ASSERT_EQ(cu_.EventRecord(event_, captured_), CUDA_SUCCESS);
  EXPECT_EQ(cu_.EventQuery(event_), CUDA_ERROR_CAPTURED_EVENT);
  EXPECT_EQ(cu_.EventSynchronize(event_), CUDA_ERROR_CAPTURED_EVENT);
  ASSERT_EQ(End(), CUDA_SUCCESS);
  EXPECT_EQ(cu_.EventQuery(event_), CUDA_ERROR_CAPTURED_EVENT);
  ASSERT_EQ(cu_.EventRecord(event_, captured_), CUDA_SUCCESS);
  EXPECT_EQ(cu_.EventSynchronize(event_), CUDA_SUCCESS);
}

TEST_F(FakeCudaCaptureTest, NoDependencyCrossesTheCapture) {
  const CUstream other = MakeStream();
  ASSERT_EQ(cu_.EventRecord(event_, other), CUDA_SUCCESS);
  Begin(CU_STREAM_CAPTURE_MODE_RELAXED);
  EXPECT_EQ(cu_.StreamWaitEvent(captured_, event_, 0),
            CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
  EXPECT_EQ(End(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_F(FakeCudaCaptureTest, AGlobalCaptureHoldsBackEveryThread) {
  for (const bool elsewhere : {false, true}) {
    Begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
    const auto call = [this] {
      EXPECT_EQ(TryReserve(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    };
    elsewhere ? OnAnotherThread(call) : call();
    EXPECT_EQ(End(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  }
  // Each of the calls that a capture would not see.
  const CUmemAllocationProp properties = Properties();
  const CUmemAccessDesc access = Access(0);
  const CUdeviceptr memory = MakeMemory(1);
  const CUmemGenericAllocationHandle handle = Create(1);
  const CUstream other = MakeStream();
  CUmemGenericAllocationHandle created = 0;
  void* pinned = nullptr;
  const std::function<CUresult()> calls[] = {
      [&] { return cu_.MemAddressFree(memory, kGranule); },
      [&] { return cu_.MemCreate(&created, kGranule, &properties, 0); },
      [&] { return cu_.MemRelease(handle); },
      [&] { return Map(memory, 1, handle); },
      [&] { return Unmap(memory, 1); },
      [&] { return cu_.MemSetAccess(memory, kGranule, &access, 1); },
      [&] { return cu_.MemHostAlloc(&pinned, 4096, 0); },
      [&] { return cu_.MemFreeHost(nullptr); },
      [&] { return cu_.MemHostRegister(&pinned, 4096, 0); },
      [&] { return cu_.MemHostUnregister(&pinned); },
      [&] { return cu_.StreamSynchronize(other); },
      [&] { return cu_.EventQuery(event_); },
      [&] { return cu_.EventSynchronize(event_); },
  };
  for (const auto& call : calls) {
    Begin();
    EXPECT_EQ(call(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    EXPECT_EQ(End(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  }
}

TEST_F(FakeCudaCaptureTest, AThreadLocalCaptureHoldsBackItsThread) {
  Begin(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  OnAnotherThread([this] { EXPECT_EQ(TryReserve(), CUDA_SUCCESS); });
  EXPECT_EQ(Status(), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  EXPECT_EQ(TryReserve(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(End(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  // A thread that is so minded ignores captures of others, and not its own.
  Begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
  OnAnotherThread([this] {
    ExchangeMode(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    EXPECT_EQ(TryReserve(), CUDA_SUCCESS);
    ExchangeMode(CU_STREAM_CAPTURE_MODE_GLOBAL);
  });
  ExchangeMode(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  EXPECT_EQ(TryReserve(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(End(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_F(FakeCudaCaptureTest, ARelaxedThreadIsNotHeldBack) {
  Begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
  EXPECT_EQ(ExchangeMode(CU_STREAM_CAPTURE_MODE_RELAXED),
            CU_STREAM_CAPTURE_MODE_GLOBAL);
  EXPECT_EQ(TryReserve(), CUDA_SUCCESS);
  EXPECT_EQ(cu_.EventQuery(event_), CUDA_SUCCESS);
  EXPECT_EQ(ExchangeMode(CU_STREAM_CAPTURE_MODE_GLOBAL),
            CU_STREAM_CAPTURE_MODE_RELAXED);
  EXPECT_EQ(End(), CUDA_SUCCESS);
  auto mode = static_cast<CUstreamCaptureMode>(3);
  EXPECT_EQ(cu_.ThreadExchangeStreamCaptureMode(&mode),
            CUDA_ERROR_INVALID_VALUE);
}

}  // namespace
}  // namespace quire
