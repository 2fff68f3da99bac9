// What is measured: things that allocate and free. Not an interface, so that no
// contender pays for a virtual call: sections are templates over them.
//
//   uint64_t Allocate(uint64_t size);   0 where there is no memory
//   bool Free(uint64_t address);

#ifndef QUIRE_BENCH_ALLOCATOR_BENCH_CONTENDER_H_
#define QUIRE_BENCH_ALLOCATOR_BENCH_CONTENDER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "bench/allocator_bench/timing.h"
#include "bench/allocator_bench/workload.h"
#include "quire/alloc/allocator.h"

namespace quire {

class QuireContender {
 public:
  // `stream` may be StreamId(): memory that no stream is using.
  QuireContender(DeviceAllocator* allocator, StreamId stream)
      : allocator_(allocator) {
    options_.stream = stream;
  }

  uint64_t Allocate(uint64_t size) {
    const auto address = allocator_->Allocate(Bytes(size), options_);
    return address.ok() ? address->value() : 0;
  }
  bool Free(uint64_t address) {
    return allocator_->Free(DeviceAddress(address), options_.stream).ok();
  }

 private:
  DeviceAllocator* const allocator_;
  AllocateOptions options_;
};

// mimalloc, loaded when the program runs: linked to, it would take the place of
// malloc for Quire's own bookkeeping. Its memory is not touched, but for what
// it writes there itself.
class Mimalloc {
 public:
  // Loads the library at the first call. Null where there is none.
  static const Mimalloc* Get();
  // "2.0.9", or what is missing.
  static std::string Version();

  uint64_t Allocate(uint64_t size) const {
    return reinterpret_cast<uint64_t>(malloc_(size));
  }
  bool Free(uint64_t address) const {
    free_(reinterpret_cast<void*>(address));
    return true;
  }

 private:
  Mimalloc() = default;

  void* (*malloc_)(size_t) = nullptr;
  void (*free_)(void*) = nullptr;
  int (*version_)() = nullptr;
};

// mimalloc with every page of every allocation touched: for warming up.
// mimalloc writes into what it has free, and the faults of pages that the
// system has not given yet are no cost of an allocator.
class FaultingMimalloc {
 public:
  explicit FaultingMimalloc(const Mimalloc* mimalloc) : mimalloc_(mimalloc) {}

  uint64_t Allocate(uint64_t size) {
    constexpr uint64_t kHostPage = 4096;
    const uint64_t address = mimalloc_->Allocate(size);
    if (address == 0) return 0;
    auto* const bytes = reinterpret_cast<volatile char*>(address);
    for (uint64_t i = 0; i < size; i += kHostPage) bytes[i] = 0;
    return address;
  }
  bool Free(uint64_t address) { return mimalloc_->Free(address); }

 private:
  const Mimalloc* const mimalloc_;
};

// Runs the operations on a table of addresses. False where one failed.
template <typename Contender>
bool RunOperations(Contender& contender,
                   const std::vector<Operation>& operations,
                   std::vector<uint64_t>* table) {
  bool ok = true;
  uint64_t* const addresses = table->data();
  for (const Operation operation : operations) {
    uint64_t& address = addresses[operation.slot];
    if (operation.size != 0) {
      address = contender.Allocate(operation.size);
      ok &= address != 0;
    } else {
      ok &= contender.Free(address);
    }
  }
  return ok;
}

// Runs them and gives the nanoseconds of one, of this thread's processor time.
// Nullopt where one failed.
template <typename Contender>
std::optional<double> TimeOperations(Contender& contender,
                                     const std::vector<Operation>& operations,
                                     std::vector<uint64_t>* table) {
  const uint64_t start = ThreadNanoseconds();
  const bool ok = RunOperations(contender, operations, table);
  const uint64_t end = ThreadNanoseconds();
  if (!ok) return std::nullopt;
  return static_cast<double>(end - start) /
         static_cast<double>(operations.size());
}

}  // namespace quire

#endif  // QUIRE_BENCH_ALLOCATOR_BENCH_CONTENDER_H_
