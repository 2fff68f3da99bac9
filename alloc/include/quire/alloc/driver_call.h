// The names of the driver's calls: for statistics and for injected faults.

#ifndef QUIRE_ALLOC_DRIVER_CALL_H_
#define QUIRE_ALLOC_DRIVER_CALL_H_

#include <cstddef>

namespace quire {

// Every call of Driver that reaches the device, in the order of driver.h.
#define QUIRE_DRIVER_CALLS(X) \
  X(GetDeviceInfo)            \
  X(GetMemoryInfo)            \
  X(ReserveAddress)           \
  X(ReleaseAddress)           \
  X(CreatePage)               \
  X(ReleasePage)              \
  X(Map)                      \
  X(Unmap)                    \
  X(CreateStream)             \
  X(DestroyStream)            \
  X(SynchronizeStream)        \
  X(CreateEvent)              \
  X(DestroyEvent)             \
  X(RecordEvent)              \
  X(QueryEvent)               \
  X(SynchronizeEvent)         \
  X(WaitEvent)                \
  X(CopyToDevice)             \
  X(CopyToHost)               \
  X(CopyOnDevice)             \
  X(Fill)                     \
  X(LaunchHostFunction)       \
  X(AllocatePinned)           \
  X(FreePinned)               \
  X(PinMemory)                \
  X(UnpinMemory)

enum class DriverCall {
#define QUIRE_DECLARE_DRIVER_CALL(name) k##name,
  QUIRE_DRIVER_CALLS(QUIRE_DECLARE_DRIVER_CALL)
#undef QUIRE_DECLARE_DRIVER_CALL
};

inline constexpr size_t kDriverCallCount =
    static_cast<size_t>(DriverCall::kUnpinMemory) + 1;

// "Map"; static storage.
const char* DriverCallName(DriverCall call);

}  // namespace quire

#endif  // QUIRE_ALLOC_DRIVER_CALL_H_
