// Units of known bytes, kept on the host and on disk, as they are found on the
// device pass after pass.

#include "quire/loader/offload_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "loader/streaming_test_util.h"
#include "quire/alloc/device_memory.h"
#include "quire/alloc/owner.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr Bytes kPage = KiB(64);
constexpr uint64_t kAlignment = 256;

// What a unit is to be made of.
struct UnitPlan {
  std::vector<std::string> tensors;
  std::string table;     // made beside the tensors
  bool changed = false;  // the first tensor's bytes are reversed after the load
  MemoryTier tier = MemoryTier::kHost;
};

uint64_t Aligned(uint64_t n) {
  return (n + kAlignment - 1) / kAlignment * kAlignment;
}

class OffloadStoreTest : public testing::Test {
 protected:
  OffloadStoreTest() {
    // Odd sizes, some larger than a page.
    const std::vector<size_t> sizes = {3000, 70, 250000, 1, 4096, 90001, 12};
    for (size_t i = 0; i < sizes.size(); ++i)
      tensors_.push_back(
          {"t" + std::to_string(i),
           PseudoRandomBytes(sizes[i], static_cast<uint32_t>(i))});
    WriteNaiveCheckpoint(folder_, tensors_);
    checkpoint_ = *Checkpoint::Open(folder_.path());
    HostDriverOptions options;
    options.memory_per_device = MiB(8);
    options.granularity = kPage;
    driver_ = *TestDriver::Create(options);
  }

  // Everything that a run takes from the driver, in the order of its life.
  struct Run {
    OwnerRegistry owners;
    std::unique_ptr<DeviceMemory> memory;
    std::unique_ptr<OffloadStore> store;
    StreamId stream;
    FaultyDriver* driver = nullptr;

    ~Run() {
      if (driver == nullptr) return;
      if (stream != StreamId() && !driver->DestroyStream(stream).ok())
        driver->DestroyStream(stream).IgnoreError();
      store.reset();
      // What the memory does when the driver fails is for its own tests.
      driver->ClearFaults();
      memory.reset();
    }
  };

  const std::string& BytesOf(const std::string& tensor) const {
    for (const KnownTensor& known : tensors_)
      if (known.name == tensor) return known.bytes;
    ADD_FAILURE() << tensor;
    return tensors_.front().bytes;
  }
  // The bytes of a unit by its plan; gaps are not looked at.
  std::map<uint64_t, std::string> Expected(const UnitPlan& plan) const {
    std::map<uint64_t, std::string> expected;
    uint64_t at = 0;
    for (const std::string& tensor : plan.tensors) {
      std::string bytes = BytesOf(tensor);
      if (plan.changed && at == 0) bytes = {bytes.rbegin(), bytes.rend()};
      expected[at] = bytes;
      at = Aligned(at + bytes.size());
    }
    if (!plan.table.empty()) expected[at] = plan.table;
    return expected;
  }
  uint64_t SizeOf(const UnitPlan& plan) const {
    const auto expected = Expected(plan);
    return expected.rbegin()->first + expected.rbegin()->second.size();
  }

  absl::Status Open(const OffloadOptions& options, Run* run) {
    run->driver = driver_.get();
    DeviceMemoryOptions memory;
    memory.page_size = kPage;
    memory.address_space = MiB(256);
    QUIRE_ASSIGN_OR_RETURN(
        run->memory, DeviceMemory::Create(driver_.get(), &run->owners, memory));
    QUIRE_ASSIGN_OR_RETURN(run->stream, driver_->CreateStream(DeviceId(0)));
    QUIRE_ASSIGN_OR_RETURN(
        run->store,
        OffloadStore::Create(run->memory.get(), run->owners.Register("weights"),
                             options));
    return absl::OkStatus();
  }

  absl::Status Fill(const UnitPlan& plan, Run* run) {
    QUIRE_RETURN_IF_ERROR(
        run->store->Begin("unit", plan.tier, Bytes(SizeOf(plan) + 4096))
            .status());
    std::vector<TensorPlacement> placements;
    for (const std::string& name : plan.tensors) {
      const TensorInfo* const tensor = checkpoint_->Find(name);
      QUIRE_ASSIGN_OR_RETURN(const DeviceAddress address,
                             run->store->Allocate(tensor->size));
      placements.push_back({tensor, address});
    }
    StreamingOptions streaming;
    streaming.buffers = 2;
    streaming.buffer_size = KiB(64);
    streaming.checksum = true;
    QUIRE_ASSIGN_OR_RETURN(const LoadReport report,
                           StreamTensors(driver_.get(), DeviceId(0),
                                         *checkpoint_, placements, streaming));
    if (!plan.table.empty()) {
      QUIRE_ASSIGN_OR_RETURN(const DeviceAddress address,
                             run->store->Allocate(Bytes(plan.table.size())));
      QUIRE_RETURN_IF_ERROR(CopyIn(address, plan.table, run->stream));
    }
    if (plan.changed) {
      const std::string& bytes = BytesOf(plan.tensors.front());
      QUIRE_RETURN_IF_ERROR(CopyIn(placements.front().destination,
                                   {bytes.rbegin(), bytes.rend()},
                                   run->stream));
    }
    return run->store->Finish(*checkpoint_, placements, report.crc32);
  }

  absl::Status CopyIn(DeviceAddress to, const std::string& bytes,
                      StreamId stream) {
    absl::Status status =
        driver_->CopyToDevice(to, bytes.data(), Bytes(bytes.size()), stream);
    status.Update(driver_->SynchronizeStream(stream));
    return status;
  }

  // One pass: every visit copies its unit out on the stream. What was read.
  absl::StatusOr<std::vector<std::string>> Pass(
      const std::vector<UnitPlan>& plans, const std::vector<size_t>& visits,
      Run* run) {
    std::vector<std::string> seen(visits.size());
    absl::Status status;
    for (size_t v = 0; v < visits.size() && status.ok(); ++v) {
      seen[v].resize(SizeOf(plans[visits[v]]));
      status = run->store->Acquire(v, run->stream);
      if (status.ok())
        status = driver_->CopyToHost(seen[v].data(), bases_[visits[v]],
                                     Bytes(seen[v].size()), run->stream);
      if (status.ok()) status = run->store->Release(v, run->stream);
    }
    const bool completed = status.ok();
    absl::Status drained = driver_->SynchronizeStream(run->stream);
    if (!drained.ok()) drained = driver_->SynchronizeStream(run->stream);
    EXPECT_TRUE(drained.ok()) << drained;
    status.Update(run->store->EndPass(completed));
    if (!status.ok()) return status;
    return seen;
  }

  absl::Status FillAll(const std::vector<UnitPlan>& plans,
                       const std::vector<size_t>& visits, Run* run) {
    bases_.clear();
    for (const UnitPlan& plan : plans) {
      QUIRE_RETURN_IF_ERROR(Fill(plan, run));
      bases_.push_back(run->store->address(bases_.size()));
    }
    run->store->SetSchedule(visits);
    return absl::OkStatus();
  }

  void ExpectRight(const std::vector<UnitPlan>& plans,
                   const std::vector<size_t>& visits,
                   const std::vector<std::string>& seen) const {
    ASSERT_EQ(seen.size(), visits.size());
    for (size_t v = 0; v < visits.size(); ++v) {
      for (const auto& [at, bytes] : Expected(plans[visits[v]]))
        EXPECT_TRUE(seen[v].compare(at, bytes.size(), bytes) == 0)
            << "visit " << v << ", offset " << at;
    }
  }

  // Fills, passes three times, and expects every byte in its place.
  void Check(const std::vector<UnitPlan>& plans,
             const std::vector<size_t>& visits, const OffloadOptions& options) {
    {
      Run run;
      ASSERT_TRUE(Open(options, &run).ok());
      const absl::Status filled = FillAll(plans, visits, &run);
      ASSERT_TRUE(filled.ok()) << filled;
      for (int pass = 0; pass < 3; ++pass) {
        const auto seen = Pass(plans, visits, &run);
        ASSERT_TRUE(seen.ok()) << seen.status();
        ExpectRight(plans, visits, *seen);
      }
      statistics_ = run.store->GetStatistics();
    }
    EXPECT_THAT(driver_->Leaks(), IsEmpty());
  }

  static OffloadOptions SmallRing() {
    OffloadOptions options;
    options.buffers = 3;
    options.buffer_size = KiB(20);
    return options;
  }
  // Every kind of unit.
  std::vector<UnitPlan> AllKinds(MemoryTier tier) const {
    return {{{"t0", "t1"}, std::string(24, 'a'), false, tier},
            {{"t2"}, "", false, tier},
            {{"t6", "t5", "t3"}, std::string(1000, 'b'), false, tier},
            {{"t4"}, std::string(256, 'c'), false, tier},
            {{"t1", "t3"}, "", false, tier}};
  }
  static std::vector<size_t> InOrder(size_t units) {
    std::vector<size_t> visits(units);
    for (size_t i = 0; i < units; ++i) visits[i] = i;
    return visits;
  }

  TemporaryFolder folder_;
  std::vector<KnownTensor> tensors_;
  std::unique_ptr<Checkpoint> checkpoint_;
  std::unique_ptr<TestDriver> driver_;
  std::vector<DeviceAddress> bases_;
  OffloadStatistics statistics_;
};

TEST_F(OffloadStoreTest, UnitsOnTheHostComeBackAsTheyWere) {
  const std::vector<UnitPlan> plans = AllKinds(MemoryTier::kHost);
  Check(plans, InOrder(plans.size()), SmallRing());
  EXPECT_EQ(statistics_.acquired, 15u);
  EXPECT_LE(statistics_.hits, 15u);
  EXPECT_EQ(statistics_.disk, Bytes(0));
  uint64_t total = 0;
  for (const UnitPlan& plan : plans) total += SizeOf(plan);
  EXPECT_EQ(statistics_.host, Bytes(total));
  // Two slots, each of the largest unit that uses it: that of t5 has two pages,
  // that of t2 four.
  EXPECT_EQ(statistics_.device, Bytes(6 * kPage.value()));
}

TEST_F(OffloadStoreTest, UnitsOnDiskComeFromTheCheckpoint) {
  const std::vector<UnitPlan> plans = AllKinds(MemoryTier::kDisk);
  Check(plans, InOrder(plans.size()), SmallRing());
  EXPECT_EQ(statistics_.host, Bytes(0));
  EXPECT_LE(statistics_.pinned, Bytes(3 * KiB(20).value()));
}

TEST_F(OffloadStoreTest, UnitsOnDiskComeFromAFolder) {
  const TemporaryFolder offload;
  OffloadOptions options = SmallRing();
  options.folder = offload.path();
  std::vector<UnitPlan> plans = AllKinds(MemoryTier::kDisk);
  plans[0].changed = true;
  Check(plans, InOrder(plans.size()), options);
  // Whatever ends the process, there is no file to be left.
  EXPECT_TRUE(fs::is_empty(offload.path()));
}

TEST_F(OffloadStoreTest, TiersSlotsAndRepeatedVisitsMix) {
  std::vector<UnitPlan> plans = AllKinds(MemoryTier::kHost);
  plans[1].tier = MemoryTier::kDisk;
  plans[2].tier = MemoryTier::kDisk;
  for (const uint32_t slots : {1u, 2u, 3u, 8u}) {
    OffloadOptions options = SmallRing();
    options.slots = slots;
    Check(plans, {0, 1, 2, 3, 4, 0}, options);
    Check(plans, {4, 3, 2, 2, 1, 0, 4}, options);
  }
}

// An embedding whose rows are read from the host: the others have slots of
// their own size, and what it holds stays.
TEST_F(OffloadStoreTest, AUnitOfNoPassTakesNoDeviceMemory) {
  const std::vector<UnitPlan> plans = {{{"t2"}, "", false, MemoryTier::kHost},
                                       {{"t0"}, "", false, MemoryTier::kHost},
                                       {{"t4"}, "", false, MemoryTier::kHost}};
  {
    Run run;
    ASSERT_TRUE(Open(SmallRing(), &run).ok());
    ASSERT_TRUE(Fill(plans[0], &run).ok());
    const DeviceAddress first = run.store->address(0);
    EXPECT_EQ(run.store->GetStatistics().device, Bytes(4 * kPage.value()));
    run.store->SetSchedule({});
    EXPECT_EQ(run.store->GetStatistics().device, Bytes(0));
    EXPECT_EQ(run.memory->GetStatistics().live, Bytes(0));
    bases_ = {first};
    for (size_t unit = 1; unit < plans.size(); ++unit) {
      ASSERT_TRUE(Fill(plans[unit], &run).ok());
      bases_.push_back(run.store->address(unit));
    }
    run.store->SetSchedule({1, 2});
    EXPECT_EQ(run.store->GetStatistics().device, Bytes(2 * kPage.value()));
    // In the pages that the first one has left.
    EXPECT_EQ(run.memory->GetStatistics().peak_in_use,
              Bytes(4 * kPage.value()));
    const auto seen = Pass(plans, {1, 2}, &run);
    ASSERT_TRUE(seen.ok()) << seen.status();
    ExpectRight(plans, {1, 2}, *seen);
    const DeviceAddress last(first.value() + 1000);
    EXPECT_EQ(std::memcmp(run.store->HostPointer(0, last),
                          BytesOf("t2").data() + 1000, 5000),
              0);
    EXPECT_EQ(run.store->GetStatistics().host,
              Bytes(SizeOf(plans[0]) + SizeOf(plans[1]) + SizeOf(plans[2])));
  }
  EXPECT_THAT(driver_->Leaks(), IsEmpty());
}

TEST_F(OffloadStoreTest, WhatIsThereIsNotFetchedAgain) {
  Check({{{"t2"}, "", false, MemoryTier::kHost}}, {0}, SmallRing());
  EXPECT_EQ(statistics_.hits, 3u);
  EXPECT_EQ(statistics_.hit_rate(), 1);
  EXPECT_EQ(statistics_.stall_seconds, 0);
  // It was in its slot from the filling on: what is not copied is not pinned.
  EXPECT_EQ(statistics_.streamed, Bytes(0));
  EXPECT_EQ(statistics_.pinned, Bytes(0));
}

TEST_F(OffloadStoreTest, NoMoreIsPinnedThanTheBudget) {
  OffloadOptions options = SmallRing();
  const std::vector<UnitPlan> plans = AllKinds(MemoryTier::kHost);
  // Room for all but one, which is larger than the others together.
  constexpr size_t kLarge = 1;
  constexpr uint64_t kHostPage = 4096;
  uint64_t others = 0;
  for (size_t i = 0; i < plans.size(); ++i)
    if (i != kLarge)
      others += (SizeOf(plans[i]) + kHostPage - 1) / kHostPage * kHostPage;
  ASSERT_GT(SizeOf(plans[kLarge]), others);
  options.pinned_limit = Bytes(others);
  Check(plans, InOrder(plans.size()), options);
  EXPECT_EQ(statistics_.pinned, Bytes(others));
  EXPECT_EQ(driver_->GetCallStatistics().CountOf("PinMemory"),
            plans.size() - 1);
}

TEST_F(OffloadStoreTest, WhatTheSystemDoesNotPinIsCopiedAllTheSame) {
  for (const absl::StatusCode code : {absl::StatusCode::kResourceExhausted,
                                      absl::StatusCode::kUnimplemented}) {
    // Two for each slot, so that all are copied; a page of the host each.
    std::vector<UnitPlan> plans;
    for (const char* tensor : {"t0", "t1", "t3", "t4"})
      plans.push_back({{tensor}, "", false, MemoryTier::kHost});
    driver_->FailCall(DriverCall::kPinMemory, 1, code);
    Check(plans, InOrder(plans.size()), SmallRing());
    EXPECT_EQ(statistics_.pinned, Bytes(3 * 4096));
  }
}

TEST_F(OffloadStoreTest, WhatTheCheckpointDoesNotHoldNeedsAFolder) {
  for (const UnitPlan& plan :
       {UnitPlan{{"t0", "t1"}, "", true, MemoryTier::kDisk},
        UnitPlan{
            {"t0"}, std::string(2 << 20, 'x'), false, MemoryTier::kDisk}}) {
    Run run;
    ASSERT_TRUE(Open(SmallRing(), &run).ok());
    const absl::Status status = Fill(plan, &run);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("unit"), HasSubstr("offload folder")));
  }
  EXPECT_THAT(driver_->Leaks(), IsEmpty());
}

TEST_F(OffloadStoreTest, OptionsAreChecked) {
  Run run;
  OffloadOptions options;
  options.buffers = 0;
  EXPECT_FALSE(Open(options, &run).ok());
  options.buffers = 100;
  EXPECT_FALSE(Open(options, &run).ok());
  options = OffloadOptions();
  options.slots = 0;
  EXPECT_FALSE(Open(options, &run).ok());
  options = OffloadOptions();
  options.folder = folder_.File("none");
  ASSERT_TRUE(Open(options, &run).ok());
  const absl::Status status =
      Fill({{"t0"}, "", false, MemoryTier::kDisk}, &run);
  EXPECT_THAT(std::string(status.message()), HasSubstr("none"));
}

// A file that is not what it was is an error of the pass that needs it; when it
// is back, the next pass is right.
TEST_F(OffloadStoreTest, APassAfterAFailedOneIsRight) {
  const std::vector<UnitPlan> plans = AllKinds(MemoryTier::kDisk);
  const std::vector<size_t> visits = InOrder(plans.size());
  Run run;
  ASSERT_TRUE(Open(SmallRing(), &run).ok());
  ASSERT_TRUE(FillAll(plans, visits, &run).ok());
  ASSERT_TRUE(Pass(plans, visits, &run).ok());
  const std::string path = checkpoint_->files().front().path;
  fs::rename(path, path + ".away");
  // Units that were fetched ahead may suffice for one more pass.
  bool failed = false;
  for (int pass = 0; pass < 2; ++pass) {
    const auto seen = Pass(plans, visits, &run);
    failed = failed || !seen.ok();
    if (!seen.ok()) {
      EXPECT_EQ(seen.status().code(), absl::StatusCode::kDataLoss);
      EXPECT_THAT(std::string(seen.status().message()), HasSubstr(path));
    }
  }
  EXPECT_TRUE(failed);
  fs::rename(path + ".away", path);
  absl::StatusOr<std::vector<std::string>> seen = Pass(plans, visits, &run);
  // What was read ahead before the file came back.
  if (!seen.ok()) seen = Pass(plans, visits, &run);
  ASSERT_TRUE(seen.ok()) << seen.status();
  ExpectRight(plans, visits, *seen);
}

// Copies to the device are slow: whoever does not wait for them sees the wrong
// bytes, and whoever does not wait for the readers overwrites theirs.
TEST_F(OffloadStoreTest, SlowCopiesChangeNothing) {
  driver_->DelayCalls(DriverCall::kCopyToDevice, std::chrono::milliseconds(2));
  for (const MemoryTier tier : {MemoryTier::kHost, MemoryTier::kDisk}) {
    const std::vector<UnitPlan> plans = AllKinds(tier);
    OffloadOptions options = SmallRing();
    options.buffer_size = KiB(100);
    Check(plans, InOrder(plans.size()), options);
  }
}

// Whichever call of the driver fails: nothing is left behind, and what a pass
// after it reads is right.
TEST_F(OffloadStoreTest, AnyFailedCallLeavesNothingBehind) {
  std::vector<UnitPlan> plans = {
      {{"t0"}, std::string(24, 'a'), false, MemoryTier::kHost},
      {{"t4", "t1"}, "", false, MemoryTier::kDisk},
      {{"t5"}, std::string(300, 'b'), false, MemoryTier::kDisk}};
  const std::vector<size_t> visits = {0, 1, 2};
  uint64_t fault = 0;
  bool fired = true;
  while (fired) {
    // Every call at first, then every fifth: the later ones repeat.
    fault += fault < 40 ? 1 : 5;
    driver_->FailCall(fault, absl::StatusCode::kInternal);
    const uint64_t fired_before = driver_->faults_fired();
    {
      Run run;
      absl::Status status = Open(SmallRing(), &run);
      if (status.ok()) status = FillAll(plans, visits, &run);
      if (status.ok()) {
        // One of two passes at most meets the fault.
        absl::StatusOr<std::vector<std::string>> seen =
            Pass(plans, visits, &run);
        if (!seen.ok()) seen = Pass(plans, visits, &run);
        ASSERT_TRUE(seen.ok()) << "fault " << fault << ": " << seen.status();
        ExpectRight(plans, visits, *seen);
        seen = Pass(plans, visits, &run);
        if (seen.ok()) ExpectRight(plans, visits, *seen);
      }
    }
    fired = driver_->faults_fired() > fired_before;
    ASSERT_THAT(driver_->Leaks(), IsEmpty()) << "fault " << fault;
  }
  EXPECT_GT(fault, 100u);
}

}  // namespace
}  // namespace quire
