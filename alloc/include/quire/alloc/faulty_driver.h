// A driver that fails, delays or limits on demand: for tests of error paths.
//
// Wraps another driver. A call that is made to fail does not reach the driver
// underneath, so it changes nothing, as driver.h promises of failed calls. The
// usual test fails the first call of an operation, then the second, and so on,
// until the operation gets through:
//
//   FaultyDriver driver(host_driver.get());
//   for (uint64_t n = 1;; ++n) {
//     driver.FailCall(n, absl::StatusCode::kResourceExhausted);
//     const absl::Status status = Operation(&driver);
//     if (driver.faults_fired() < n) {  // the operation makes fewer calls
//       driver.ClearFaults();
//       EXPECT_TRUE(status.ok());
//       break;
//     }
//     EXPECT_FALSE(status.ok());
//     EXPECT_THAT(host_driver->Leaks(), IsEmpty());
//   }
//
// Thread-safe, as far as the driver underneath is. Faults count the calls of
// all threads.

#ifndef QUIRE_ALLOC_FAULTY_DRIVER_H_
#define QUIRE_ALLOC_FAULTY_DRIVER_H_

#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "quire/alloc/driver.h"
#include "quire/alloc/driver_call.h"
#include "quire/alloc/mutex.h"

namespace quire {

class FaultyDriver : public Driver {
 public:
  // `driver` must outlive this object.
  explicit FaultyDriver(Driver* driver) : driver_(driver) {}
  explicit FaultyDriver(std::unique_ptr<Driver> driver)
      : owned_(std::move(driver)), driver_(owned_.get()) {}

  // ---- Faults ----
  // The n-th call from now on, the next one being the first, fails once.
  // REQUIRES: n > 0; code is not kOk.
  void FailCall(uint64_t n, absl::StatusCode code);
  // The same among calls of one kind.
  void FailCall(DriverCall call, uint64_t n, absl::StatusCode code);
  // Every call of one kind fails, from the n-th from now on.
  void FailCallsFrom(DriverCall call, uint64_t n, absl::StatusCode code);
  // Every call of one kind takes at least so long, in real time.
  void DelayCalls(DriverCall call, std::chrono::nanoseconds delay);
  // The device seems to have no more memory than `limit`: CreatePage stops
  // there and both queries report it. A limit below what is in use now only
  // stops further pages.
  void LimitMemory(DeviceId device, Bytes limit);
  // Forgets faults and delays that are set; limits and counts stay.
  void ClearFaults();

  // Calls seen, and calls made to fail by the Fail functions.
  uint64_t calls() const;
  uint64_t faults_fired() const;

  // ---- Driver ----
  std::string name() const override { return driver_->name(); }
  bool device_memory_is_host_memory() const override {
    return driver_->device_memory_is_host_memory();
  }
  int device_count() const override { return driver_->device_count(); }
  absl::StatusOr<DeviceInfo> GetDeviceInfo(DeviceId device) override;
  absl::StatusOr<DeviceMemoryInfo> GetMemoryInfo(DeviceId device) override;
  absl::StatusOr<DeviceAddress> ReserveAddress(Bytes size,
                                               Bytes alignment) override;
  absl::Status ReleaseAddress(DeviceAddress address, Bytes size) override;
  absl::StatusOr<PageHandle> CreatePage(DeviceId device, Bytes size) override;
  absl::Status ReleasePage(PageHandle page) override;
  absl::Status Map(DeviceAddress address,
                   std::span<const PageHandle> pages) override;
  absl::Status Unmap(DeviceAddress address, Bytes size) override;
  absl::StatusOr<StreamId> CreateStream(DeviceId device) override;
  absl::StatusOr<StreamId> AdoptStream(DeviceId device, void* stream) override;
  absl::Status DestroyStream(StreamId stream) override;
  absl::Status SynchronizeStream(StreamId stream) override;
  absl::StatusOr<EventId> CreateEvent(DeviceId device) override;
  absl::Status DestroyEvent(EventId event) override;
  absl::Status RecordEvent(EventId event, StreamId stream) override;
  absl::StatusOr<bool> QueryEvent(EventId event) override;
  absl::Status SynchronizeEvent(EventId event) override;
  absl::Status WaitEvent(StreamId stream, EventId event) override;
  absl::Status CopyToDevice(DeviceAddress to, const void* from, Bytes size,
                            StreamId stream) override;
  absl::Status CopyToHost(void* to, DeviceAddress from, Bytes size,
                          StreamId stream) override;
  absl::Status CopyOnDevice(DeviceAddress to, DeviceAddress from, Bytes size,
                            StreamId stream) override;
  absl::Status Fill(DeviceAddress to, uint8_t value, Bytes size,
                    StreamId stream) override;
  absl::Status LaunchHostFunction(StreamId stream,
                                  std::function<void()> function) override;
  absl::StatusOr<void*> AllocatePinned(Bytes size) override;
  absl::Status FreePinned(void* memory) override;
  absl::Status PinMemory(void* memory, Bytes size) override;
  absl::Status UnpinMemory(void* memory) override;
  // Of the driver underneath: calls made to fail are not among them.
  DriverCallStatistics GetCallStatistics() const override {
    return driver_->GetCallStatistics();
  }

 private:
  struct Fault {
    std::optional<DriverCall> call;  // any, where there is none
    uint64_t calls_left;             // fires at 1
    absl::StatusCode code;
    bool once;
  };

  // Waits the delay; the error where a fault fires.
  absl::Status BeforeCall(DriverCall call);
  template <typename Function>
  auto Forward(DriverCall call, Function function) -> decltype(function());
  absl::StatusOr<PageHandle> CreatePageWithinLimit(DeviceId device, Bytes size);
  std::optional<Bytes> FindLimit(DeviceId device) const;

  const std::unique_ptr<Driver> owned_;
  Driver* const driver_;

  // Held over CreatePage under a limit, so that two threads cannot both take
  // the last page.
  Mutex create_mutex_;
  mutable Mutex mutex_;
  std::vector<Fault> faults_ ABSL_GUARDED_BY(mutex_);
  std::array<std::chrono::nanoseconds, kDriverCallCount> delays_
      ABSL_GUARDED_BY(mutex_){};
  std::map<DeviceId, Bytes> limits_ ABSL_GUARDED_BY(mutex_);
  uint64_t calls_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t faults_fired_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace quire

#endif  // QUIRE_ALLOC_FAULTY_DRIVER_H_
