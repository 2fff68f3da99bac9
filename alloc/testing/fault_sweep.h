// Makes each driver call of an operation fail, one at a time.

#ifndef QUIRE_ALLOC_TESTING_FAULT_SWEEP_H_
#define QUIRE_ALLOC_TESTING_FAULT_SWEEP_H_

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "quire/alloc/driver_call.h"
#include "quire/alloc/faulty_driver.h"

namespace quire {

// Runs `operation` in a state that `prepare` makes anew each time: once as it
// is, to see which calls it makes, and then once for each of these, which fails
// with `code`. `check` is told what came of each run, without any fault set.
//
// Up to the call that fails an operation does what it did in the first run, so
// calls of other kinds cannot be the first to fail: a sweep of n calls takes
// about n + 1 runs.
inline void FailEachDriverCall(
    FaultyDriver* faulty, absl::StatusCode code,
    const std::function<void()>& prepare,
    const std::function<absl::Status()>& operation,
    const std::function<void(const absl::Status& status, bool failed)>& check) {
  bool fired = false;
  DriverCallStatistics before;
  DriverCallStatistics after;
  const auto run = [&](const std::function<void()>& set_fault) {
    prepare();
    const uint64_t fired_before = faulty->faults_fired();
    before = faulty->GetCallStatistics();
    set_fault();
    const absl::Status status = operation();
    fired = faulty->faults_fired() > fired_before;
    after = faulty->GetCallStatistics();
    faulty->ClearFaults();
    EXPECT_TRUE(fired || status.ok()) << status;
    check(status, fired);
  };
  ASSERT_NO_FATAL_FAILURE(run([] {}));
  const auto was_made = [first_before = before,
                         first_after = after](const char* call) {
    return first_after.CountOf(call) > first_before.CountOf(call);
  };
  for (size_t kind = 0; kind < kDriverCallCount; ++kind) {
    const auto call = static_cast<DriverCall>(kind);
    // An event or stream that the driver will not take back can only be left to
    // it; tests of their own look at that.
    if (call == DriverCall::kDestroyEvent ||
        call == DriverCall::kDestroyStream) {
      continue;
    }
    const char* const name = DriverCallName(call);
    if (!was_made(name)) continue;
    fired = true;
    for (uint64_t n = 1; fired; ++n) {
      SCOPED_TRACE(::testing::Message() << name << " " << n);
      ASSERT_LT(n, 1000u);
      ASSERT_NO_FATAL_FAILURE(run([&] { faulty->FailCall(call, n, code); }));
    }
  }
}

}  // namespace quire

#endif  // QUIRE_ALLOC_TESTING_FAULT_SWEEP_H_
