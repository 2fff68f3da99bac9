// A software device that knows whether a batch is on its way: to see what an
// engine does while the device computes, and to refuse some of it.

#ifndef QUIRE_TESTS_PHASE_DRIVER_H_
#define QUIRE_TESTS_PHASE_DRIVER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "quire/alloc/driver.h"
#include "quire/alloc/faulty_driver.h"
#include "quire/alloc/mutex.h"

namespace quire {

// A batch is on its way from the launch of its kernels until its stream is
// synchronised.
class PhaseDriver final : public FaultyDriver {
 public:
  explicit PhaseDriver(std::unique_ptr<Driver> driver)
      : FaultyDriver(std::move(driver)) {}

  struct Counts {
    uint64_t mapping = 0;    // calls that change pages or addresses
    uint64_t to_device = 0;  // copies from the host
  };
  // Since the last Reset: while a batch was on its way, and else.
  Counts meanwhile() const;
  Counts otherwise() const;
  void Reset();

  // Kernels begin when they are waited for, and not before.
  void HoldKernels(bool hold);
  // The n-th call while a batch is on its way fails, once. 0: none.
  void RefuseMeanwhile(uint64_t n);
  // Whether it has.
  bool has_refused() const;

  absl::StatusOr<DeviceAddress> ReserveAddress(Bytes size,
                                               Bytes alignment) override;
  absl::Status ReleaseAddress(DeviceAddress address, Bytes size) override;
  absl::StatusOr<PageHandle> CreatePage(DeviceId device, Bytes size) override;
  absl::Status ReleasePage(PageHandle page) override;
  absl::Status Map(DeviceAddress address,
                   std::span<const PageHandle> pages) override;
  absl::Status Unmap(DeviceAddress address, Bytes size) override;
  absl::StatusOr<EventId> CreateEvent(DeviceId device) override;
  absl::Status RecordEvent(EventId event, StreamId stream) override;
  absl::Status WaitEvent(StreamId stream, EventId event) override;
  absl::Status CopyToDevice(DeviceAddress to, const void* from, Bytes size,
                            StreamId stream) override;
  absl::Status CopyOnDevice(DeviceAddress to, DeviceAddress from, Bytes size,
                            StreamId stream) override;
  absl::Status LaunchHostFunction(StreamId stream,
                                  std::function<void()> function) override;
  absl::Status SynchronizeStream(StreamId stream) override;

 private:
  enum class Kind { kMapping, kToDevice, kOther };
  // Counts the call; an error where it is to fail.
  absl::Status Begin(Kind kind);

  mutable Mutex mutex_;
  CondVar begun_;  // kernels may run
  bool queued_ ABSL_GUARDED_BY(mutex_) = false;
  bool hold_ ABSL_GUARDED_BY(mutex_) = false;
  Counts meanwhile_ ABSL_GUARDED_BY(mutex_);
  Counts otherwise_ ABSL_GUARDED_BY(mutex_);
  uint64_t refuse_in_ ABSL_GUARDED_BY(mutex_) = 0;
  bool has_refused_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace quire

#endif  // QUIRE_TESTS_PHASE_DRIVER_H_
