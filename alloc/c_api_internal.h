// What the functions of c_api.h share: handles, errors, structs with a size.
//
// The body of every function runs in Call, the border that no exception passes
// and where a status becomes a number and a message.

#ifndef QUIRE_ALLOC_C_API_INTERNAL_H_
#define QUIRE_ALLOC_C_API_INTERNAL_H_

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <exception>
#include <initializer_list>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "alloc/fork_guard.h"
#include "quire/alloc/c_api.h"
#include "quire/alloc/compaction.h"
#include "quire/alloc/leak_report.h"
#include "quire/alloc/memory_hooks.h"
#include "quire/alloc/quiescent.h"
#include "quire/alloc/runtime.h"
#include "quire/alloc/status_macros.h"
#include "quire/alloc/units.h"
#include "quire/alloc/verdict.h"

// Handles share what they stand on: each pointer keeps all below its object,
// the runtime at the bottom.
struct quire_runtime {
  std::shared_ptr<quire::Runtime> runtime;
  quire::ForkGuard guard{};
};

struct quire_memory {
  std::shared_ptr<quire::DeviceMemory> memory;
  quire::ForkGuard guard{};
};

struct quire_allocator {
  std::shared_ptr<quire::DeviceAllocator> allocator;
  quire::ForkGuard guard{};
};

struct quire_quiescent_section {
  std::shared_ptr<const quire::QuiescentSection> section;
  quire::ForkGuard guard{};
};

namespace quire::c_api {

// Keep what quire_last_error and quire_last_shortage give to this thread, and
// return its number. They cannot fail: where there is no memory for a message,
// the number stays.
quire_status KeepError(const absl::Status& status) noexcept;
quire_status KeepOutOfHostMemory() noexcept;
quire_status KeepException(const char* what) noexcept;

// Runs `body`, which returns an absl::Status.
template <typename Body>
quire_status Call(Body body) noexcept {
  try {
    const absl::Status status = body();
    return status.ok() ? QUIRE_OK : KeepError(status);
  } catch (const std::bad_alloc&) {
    return KeepOutOfHostMemory();
  } catch (const std::length_error&) {  // more than any container can have
    return KeepOutOfHostMemory();
  } catch (const std::exception& exception) {
    return KeepException(exception.what());
  } catch (...) {
    return KeepException("an exception of unknown type");
  }
}

// A pointer argument that has to be there.
struct Argument {
  Argument(const char* its_name, const void* argument)
      : name(its_name), pointer(argument) {}
  template <typename Handle>
  requires requires(const Handle& handle) { handle.guard.Check(); }
  Argument(const char* its_name, const Handle* handle)
      : name(its_name),
        pointer(handle),
        guard(handle == nullptr ? nullptr : &handle->guard) {}

  const char* name;
  const void* pointer;
  const ForkGuard* guard = nullptr;  // of handles
};
// kFailedPrecondition for handles of the process that this one was forked from.
absl::Status CheckArguments(std::initializer_list<Argument> arguments);
absl::Status CheckDevice(const Runtime& runtime, int32_t device);

// The size of a struct in its first version, which callers may still have. The
// default is right until a field is added: then
//   template <> inline constexpr size_t kFirstSize<quire_x> =
//       offsetof(quire_x, first_new_field);
template <typename T>
inline constexpr size_t kFirstSize = sizeof(T);
template <>
inline constexpr size_t kFirstSize<quire_memory_statistics> =
    offsetof(quire_memory_statistics, over_limit);
template <>
inline constexpr size_t kFirstSize<quire_owner_statistics> =
    offsetof(quire_owner_statistics, asleep);
template <>
inline constexpr size_t kFirstSize<quire_runtime_options> =
    offsetof(quire_runtime_options, headroom);
template <>
inline constexpr size_t kFirstSize<quire_allocator_options> =
    offsetof(quire_allocator_options, listener);
template <>
inline constexpr size_t kFirstSize<quire_sleep_options> =
    offsetof(quire_sleep_options, section);
template <>
inline constexpr size_t kFirstSize<quire_shortage> = offsetof(quire_shortage,
                                                              mesh_frees);
template <>
inline constexpr size_t kFirstSize<quire_compaction_thresholds> =
    offsetof(quire_compaction_thresholds, idle_seconds);
template <>
inline constexpr size_t kFirstSize<quire_allocator_statistics> =
    offsetof(quire_allocator_statistics, asleep_bytes);

// Sizes above this are no struct of a later version but an uninitialised one.
inline constexpr size_t kMaxStructSize = 4096;

// `size`, of the struct type `name`, is one that some version may have.
absl::Status CheckStructSize(const char* name, size_t size, size_t first_size);
absl::Status UnknownField(const char* name, size_t offset);
// Whether the caller's fields that this library does not know are all zero.
absl::Status CheckUnknownFields(const char* name, const void* from, size_t size,
                                size_t known_size);

// The caller's options in this library's version of them: fields that the
// caller does not know are zero. All zeros for NULL.
template <typename T>
absl::StatusOr<T> ReadOptions(const char* name, const T* from) {
  T options{};
  if (from == nullptr) return options;
  const size_t size = from->size;
  QUIRE_RETURN_IF_ERROR(CheckStructSize(name, size, kFirstSize<T>));
  QUIRE_RETURN_IF_ERROR(CheckUnknownFields(name, from, size, sizeof(T)));
  std::memcpy(&options, from, std::min(size, sizeof(T)));
  // A field of a later version may come to lie there.
  if constexpr (requires { options.padding; }) {
    if (options.padding != 0) return UnknownField(name, offsetof(T, padding));
  }
  return options;
}

// Fills as much of `result` as its owner knows, and zeros the rest; `size`
// stays.
template <typename T>
absl::Status WriteResult(const char* name, T values, T* result) {
  const size_t size = result->size;
  QUIRE_RETURN_IF_ERROR(CheckStructSize(name, size, kFirstSize<T>));
  values.size = size;
  std::memcpy(result, &values, std::min(size, sizeof(T)));
  if (size > sizeof(T)) {
    std::memset(reinterpret_cast<char*>(result) + sizeof(T), 0,
                size - sizeof(T));
  }
  return absl::OkStatus();
}

// Results that nobody needs to ask for. They are checked before what gives
// them is done: that is not to be undone for want of a report.
template <typename T>
absl::Status CheckOptionalResult(const char* name, const T* result) {
  if (result == nullptr) return absl::OkStatus();
  return CheckStructSize(name, result->size, kFirstSize<T>);
}
template <typename T>
absl::Status WriteOptionalResult(const char* name, const T& values, T* result) {
  if (result == nullptr) return absl::OkStatus();
  return WriteResult(name, values, result);
}

// `streams` may be NULL where there are none.
absl::StatusOr<std::vector<StreamId>> ReadStreams(const uint64_t* streams,
                                                  uint64_t count);

// What quire_runtime_create makes, on this driver instead of the one that the
// options name.
absl::StatusOr<std::unique_ptr<quire_runtime>> CreateRuntime(
    const quire_runtime_options& options, std::unique_ptr<Driver> driver);

quire_shortage ShortageOf(const OutOfMemoryVerdict& verdict);
quire_pressure_level PressureOf(PressureLevel level);
quire_compaction_report ReportOf(const CompactionReport& report);

quire_leak_totals TotalsOf(const std::vector<LeakReport>& leaks);

// A copy that quire_string_free frees. Zeros inside end the text early.
absl::Status WriteText(std::string_view text, char** result);

}  // namespace quire::c_api

#endif  // QUIRE_ALLOC_C_API_INTERNAL_H_
