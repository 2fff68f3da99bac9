// Each driver call of each function of the C interface fails once: a number and
// a message come of it, and the same call succeeds then.

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "alloc/testing/c_api_fixture.h"
#include "alloc/testing/fault_sweep.h"
#include "quire/alloc/c_api.h"
#include "quire/alloc/c_api_compaction.h"
#include "quire/alloc/c_api_graph.h"

namespace {

class CApiFaultTest : public quire::CApiFixture {
 protected:
  static constexpr uint64_t kSlot = 64 << 10;

  CApiFaultTest() {
    EXPECT_EQ(quire_stream_create(runtime_, 0, &stream_), QUIRE_OK);
    EXPECT_EQ(quire_owner_register(runtime_, "model", &owner_), QUIRE_OK);
  }
  ~CApiFaultTest() override {
    EXPECT_EQ(quire_stream_destroy(runtime_, stream_), QUIRE_OK);
  }

  // The slots of a few slabs, of which every eighth stays, and a range of pages
  // with what was freed of one.
  void Prepare() {
    quire_allocator_destroy(allocator_);
    allocator_ = nullptr;
    EXPECT_EQ(quire_memory_trim(memory_, 0, nullptr), QUIRE_OK);
    EXPECT_EQ(quire_allocator_create(memory_, nullptr, &allocator_), QUIRE_OK);
    quire_allocate_options options = QUIRE_ALLOCATE_OPTIONS_INIT;
    options.owner = owner_;
    options.movable = 1;
    std::vector<uint64_t> slots;
    for (int i = 0; i < 160; ++i) slots.push_back(Allocate(kSlot, &options));
    for (size_t i = 0; i < slots.size(); ++i) {
      if (i % 8 != 3) Free(slots[i]);
    }
    address_ = AllocateOn(stream_, 3 * kPage);
    Free(AllocateOn(stream_, 2 * kPage), stream_);
  }
  void Free(uint64_t address, uint64_t stream = 0) {
    EXPECT_EQ(quire_allocator_free(allocator_, address, stream), QUIRE_OK)
        << quire_last_error();
  }

  void Sweep(const std::function<quire_status()>& call) {
    const auto operation = [&] {
      return call() == QUIRE_OK ? absl::OkStatus()
                                : absl::InternalError(quire_last_error());
    };
    quire::FailEachDriverCall(
        driver_, absl::StatusCode::kUnavailable, [&] { Prepare(); }, operation,
        [&](const absl::Status& status, bool /*failed*/) {
          EXPECT_EQ(quire_allocator_check_invariants(allocator_), QUIRE_OK)
              << quire_last_error();
          if (status.ok()) return;
          EXPECT_NE(status.message(), "");
          EXPECT_EQ(operation(), absl::OkStatus()) << "after " << status;
        });
  }
  // Inside of a quiescent section, which is a part of the call.
  void SweepInSection(
      const std::function<quire_status(quire_quiescent_section*)>& call) {
    Sweep([&] {
      quire_quiescent_section* section = nullptr;
      quire_status status =
          quire_quiescent_section_begin(memory_, &stream_, 1, &section);
      if (status != QUIRE_OK) return status;
      status = call(section);
      quire_quiescent_section_end(section);
      return status;
    });
  }

  uint64_t stream_ = 0;
  uint32_t owner_ = 0;
  uint64_t address_ = 0;  // a live allocation
};

TEST_F(CApiFaultTest, AllocatingAndFreeing) {
  for (const uint64_t bytes : {uint64_t{700}, 5 * kPage, 12 * kPage}) {
    Sweep([&] {
      uint64_t address = 0;
      return quire_allocator_allocate(allocator_, bytes, nullptr, &address);
    });
  }
  Sweep([&] {
    return quire_allocator_record_stream(allocator_, address_, stream_);
  });
  Sweep([&] { return quire_allocator_free(allocator_, address_, stream_); });
  Sweep([&] { return quire_allocator_trim(allocator_, 0, nullptr); });
}

TEST_F(CApiFaultTest, TheMemoryUnderIt) {
  Sweep([&] { return quire_memory_prepare(memory_, 8); });
  Sweep([&] { return quire_memory_trim(memory_, 0, nullptr); });
  Sweep([&] {
    uint64_t limit = 0;
    return quire_memory_limit_from_utilization(memory_, 0.5, 0, &limit);
  });
}

TEST_F(CApiFaultTest, Compaction) {
  SweepInSection([&](quire_quiescent_section* section) {
    return quire_allocator_mesh(allocator_, section, nullptr, nullptr);
  });
  SweepInSection([&](quire_quiescent_section* section) {
    quire_compaction_thresholds thresholds = QUIRE_COMPACTION_THRESHOLDS_INIT;
    thresholds.pool_in_use = 0.01;
    thresholds.pinned = 0.01;
    return quire_allocator_compact(allocator_, section, &thresholds, nullptr);
  });
  SweepInSection([&](quire_quiescent_section* section) {
    quire_relocation_pass* pass = nullptr;
    quire_status status =
        quire_relocation_pass_begin(allocator_, section, nullptr, &pass);
    if (status != QUIRE_OK) return status;
    status = quire_relocation_pass_copy(pass);
    if (status == QUIRE_OK)
      status = quire_relocation_pass_finish(pass, nullptr);
    quire_relocation_pass_destroy(pass);
    return status;
  });
}

TEST_F(CApiFaultTest, SleepingAndWaking) {
  Sweep([&] {
    return quire_allocator_sleep(allocator_, owner_, nullptr, nullptr);
  });
  // A wake that fails leaves it asleep, so the sleep before it is nothing then.
  Sweep([&] {
    const quire_status status =
        quire_allocator_sleep(allocator_, owner_, nullptr, nullptr);
    if (status != QUIRE_OK) return status;
    return quire_allocator_wake(allocator_, owner_, 0, nullptr);
  });
}

TEST_F(CApiFaultTest, GraphPools) {
  Sweep([&] {
    uint64_t pool = 0;
    quire_status status =
        quire_allocator_create_graph_pool(allocator_, owner_, &pool);
    if (status != QUIRE_OK) return status;
    status = quire_allocator_begin_graph_capture(allocator_, pool, stream_);
    if (status == QUIRE_OK) {
      uint64_t address = 0;
      quire_allocate_options options = QUIRE_ALLOCATE_OPTIONS_INIT;
      options.stream = stream_;
      status = quire_allocator_allocate(allocator_, 3000, &options, &address);
      if (status == QUIRE_OK) Free(address, stream_);
      EXPECT_EQ(quire_allocator_end_graph_capture(allocator_, stream_),
                QUIRE_OK);
    }
    // Where this fails the pool stays, and the next run has one of its own.
    const quire_status released =
        quire_allocator_release_graph_pool(allocator_, pool, &stream_, 1);
    return status == QUIRE_OK ? released : status;
  });
}

}  // namespace
