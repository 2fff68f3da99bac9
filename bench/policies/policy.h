// How a system manages device memory, as something that a trace can be played
// against: the allocators of other systems as small models, and Quire itself.
//
// A model follows the documented rules of its system as to sizes, pools, free
// lists, splitting and giving back, and makes the calls of the driver that the
// system would make, on a software device whose pages carry no memory. What it
// holds, what it calls and what that costs on the virtual clock is what is
// compared. It is no allocator to be used: addresses are never touched.
//
// Not thread-safe: a trace is one sequence of events.

#ifndef QUIRE_BENCH_POLICIES_POLICY_H_
#define QUIRE_BENCH_POLICIES_POLICY_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "quire/alloc/units.h"

namespace quire {

// No device has so much. Policies refuse more before they round it, so that no
// sum of theirs wraps.
inline constexpr Bytes kLargestRequest = Bytes(uint64_t{1} << 50);

// What a policy has now. allocated <= mapped <= reserved.
struct PolicyUse {
  Bytes allocated;  // handed out, with the rounding of the policy
  Bytes mapped;     // under addresses: handed out, kept or unusable
  Bytes reserved;   // physical memory taken from the driver
};

// Systems that know whose memory is whose, and can take it away from under its
// addresses: Quire. On others, a model sleeps by freeing what it holds, and
// allocates it again to wake up.
class PolicyOwners {
 public:
  virtual ~PolicyOwners() = default;
  // Whose the allocations are from here on; "": nobody's.
  virtual void Select(const std::string& owner) = 0;
  // All or nothing; the addresses stay. Returns what has to be copied to the
  // host first, or from it afterwards. Errors of Wake: kResourceExhausted.
  virtual absl::StatusOr<Bytes> Sleep(const std::string& owner) = 0;
  virtual absl::StatusOr<Bytes> Wake(const std::string& owner) = 0;
  // So much is kept for the owner: others cannot have what it uses less.
  virtual absl::Status SetMinimum(const std::string& owner, Bytes minimum) = 0;
};

class AllocatorPolicy {
 public:
  AllocatorPolicy() = default;
  virtual ~AllocatorPolicy() = default;
  AllocatorPolicy(const AllocatorPolicy&) = delete;
  AllocatorPolicy& operator=(const AllocatorPolicy&) = delete;

  // Memory for work on `stream`. REQUIRES: size > 0. Errors: kResourceExhausted
  // where the system would report that memory is out; else the driver's.
  virtual absl::StatusOr<DeviceAddress> Allocate(Bytes size,
                                                 StreamId stream) = 0;
  // Frees behind the work of `stream`. Errors: kInvalidArgument for what is not
  // the start of a live allocation.
  virtual absl::Status Free(DeviceAddress address, StreamId stream) = 0;
  // Another stream uses the allocation. Systems without such a call leave the
  // order of frees to their callers.
  virtual absl::Status RecordStream(DeviceAddress /*address*/,
                                    StreamId /*stream*/) {
    return absl::OkStatus();
  }

  // Null where the system knows no owners.
  virtual PolicyOwners* owners() { return nullptr; }

  // O(1).
  virtual PolicyUse GetUse() const = 0;
  // An Allocate of so much on `stream` would succeed now, everything given back
  // first that the policy gives back before it fails. Walks what is free.
  virtual Bytes CalculateLargest(StreamId stream) const = 0;
};

}  // namespace quire

#endif  // QUIRE_BENCH_POLICIES_POLICY_H_
