// Statistics by size class, stream and owner, against figures by hand and
// against a plain list of what is live.

#include "quire/alloc/allocator_breakdown.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "alloc/testing/allocator_fixture.h"
#include "alloc/testing/run_in_child.h"
#include "quire/alloc/quiescent.h"

namespace quire {
namespace {

class AllocatorBreakdownTest : public AllocatorFixture {
 protected:
  AllocatorBreakdownTest()
      : model_(owners_.Register("model")), kv_(owners_.Register("model/kv")) {}

  DeviceAddress AllocateFor(OwnerId owner, uint64_t size,
                            StreamId stream = StreamId()) {
    AllocateOptions options;
    options.owner = owner;
    options.stream = stream;
    const auto address = allocator_->Allocate(Bytes(size), options);
    EXPECT_TRUE(address.ok()) << address.status();
    return address.value_or(DeviceAddress());
  }

  // Rows by what they are of; zeros where there is none.
  template <typename Row, typename Key>
  static Row RowOf(const std::vector<Row>& rows, Key Row::*key, Key wanted) {
    for (const Row& row : rows) {
      if (row.*key == wanted) return row;
    }
    return {};
  }
  static SizeClassStatistics Class(const AllocatorBreakdown& breakdown,
                                   uint64_t slot_size) {
    return RowOf(breakdown.classes, &SizeClassStatistics::slot_size, slot_size);
  }
  static StreamStatistics Stream(const AllocatorBreakdown& breakdown,
                                 StreamId stream) {
    return RowOf(breakdown.streams, &StreamStatistics::stream, stream);
  }
  static OwnerUseStatistics Owner(const AllocatorBreakdown& breakdown,
                                  OwnerId owner) {
    return RowOf(breakdown.owners, &OwnerUseStatistics::owner, owner);
  }

  template <typename Row>
  static void ExpectEquation(const Row& row) {
    EXPECT_EQ(row.mapped_bytes, row.live_bytes + row.cached_bytes +
                                    row.cooling_bytes + row.slack_bytes);
    EXPECT_LE(row.requested_bytes, row.live_bytes);
  }
  template <typename Row>
  using SummedFields =
      std::vector<std::pair<uint64_t Row::*, uint64_t AllocatorStatistics::*>>;
  template <typename Row>
  static void ExpectSumsOf(const std::vector<Row>& rows,
                           const AllocatorStatistics& totals,
                           const SummedFields<Row>& fields) {
    for (size_t i = 0; i < fields.size(); ++i) {
      uint64_t sum = 0;
      for (const Row& row : rows) sum += row.*fields[i].first;
      EXPECT_EQ(sum, totals.*fields[i].second) << "field " << i;
    }
  }
  // Every row holds its equation, in order and once, and each kind of rows adds
  // up to the allocator's own figures.
  void ExpectSums(const AllocatorBreakdown& breakdown,
                  const AllocatorStatistics& totals) {
    using Totals = AllocatorStatistics;
    using ClassRow = SizeClassStatistics;
    using StreamRow = StreamStatistics;
    using OwnerRow = OwnerUseStatistics;
    for (const ClassRow& row : breakdown.classes) ExpectEquation(row);
    for (const OwnerRow& row : breakdown.owners) ExpectEquation(row);
    ExpectSumsOf<ClassRow>(
        breakdown.classes, totals,
        {{&ClassRow::slabs, &Totals::slab_count},
         {&ClassRow::live_allocations, &Totals::live_allocations},
         {&ClassRow::requested_bytes, &Totals::requested_bytes},
         {&ClassRow::live_bytes, &Totals::live_bytes},
         {&ClassRow::cached_bytes, &Totals::cached_bytes},
         {&ClassRow::cooling_bytes, &Totals::cooling_bytes},
         {&ClassRow::slack_bytes, &Totals::slack_bytes},
         {&ClassRow::mapped_bytes, &Totals::mapped_bytes}});
    ExpectSumsOf<OwnerRow>(
        breakdown.owners, totals,
        {{&OwnerRow::slabs, &Totals::slab_count},
         {&OwnerRow::live_allocations, &Totals::live_allocations},
         {&OwnerRow::requested_bytes, &Totals::requested_bytes},
         {&OwnerRow::live_bytes, &Totals::live_bytes},
         {&OwnerRow::cached_bytes, &Totals::cached_bytes},
         {&OwnerRow::cooling_bytes, &Totals::cooling_bytes},
         {&OwnerRow::slack_bytes, &Totals::slack_bytes},
         {&OwnerRow::mapped_bytes, &Totals::mapped_bytes},
         {&OwnerRow::asleep_bytes, &Totals::asleep_bytes},
         {&OwnerRow::graph_pool_bytes, &Totals::graph_pool_bytes}});
    ExpectSumsOf<StreamRow>(
        breakdown.streams, totals,
        {{&StreamRow::live_allocations, &Totals::live_allocations},
         {&StreamRow::requested_bytes, &Totals::requested_bytes},
         {&StreamRow::live_bytes, &Totals::live_bytes},
         {&StreamRow::thread_cached_bytes, &Totals::thread_cached_bytes}});
    // What several streams share is in none of theirs alone.
    uint64_t cooling = 0;
    for (const StreamRow& row : breakdown.streams) cooling += row.cooling_bytes;
    EXPECT_LE(cooling, totals.cooling_bytes);
    const auto slot_size = [](const SizeClassStatistics& row) {
      return row.slot_size == 0 ? UINT64_MAX : row.slot_size;
    };
    for (size_t i = 1; i < breakdown.classes.size(); ++i) {
      EXPECT_LT(slot_size(breakdown.classes[i - 1]),
                slot_size(breakdown.classes[i]));
    }
    for (size_t i = 1; i < breakdown.streams.size(); ++i) {
      EXPECT_LT(breakdown.streams[i - 1].stream, breakdown.streams[i].stream);
    }
    for (size_t i = 1; i < breakdown.owners.size(); ++i) {
      EXPECT_LT(breakdown.owners[i - 1].owner, breakdown.owners[i].owner);
    }
  }

  const OwnerId model_;
  const OwnerId kv_;
};

TEST_F(AllocatorBreakdownTest, AnAllocatorThatHasNothingHasNoRows) {
  const AllocatorBreakdown breakdown = allocator_->CalculateStatistics();
  EXPECT_TRUE(breakdown.classes.empty());
  EXPECT_TRUE(breakdown.streams.empty());
  EXPECT_TRUE(breakdown.owners.empty());
  EXPECT_EQ(SizeClassStatistics().internal_fragmentation(), 0.0);
  EXPECT_EQ(OwnerUseStatistics().external_fragmentation(), 0.0);
}

TEST_F(AllocatorBreakdownTest, FiguresByHand) {
  const StreamId first = MakeStream();
  const StreamId second = MakeStream();
  std::vector<DeviceAddress> live = {
      AllocateFor(model_, 1000, first), AllocateFor(model_, 900, second),
      AllocateFor(kv_, 1024, second), AllocateFor(kv_, 300, first),
      AllocateFor(kv_, 3 * kPageBytes - 512, second)};
  const AllocatorBreakdown breakdown = allocator_->CalculateStatistics();
  ExpectSums(breakdown, Statistics());
  ASSERT_EQ(breakdown.classes.size(), 3u);

  const SizeClassStatistics half = Class(breakdown, 512);
  EXPECT_EQ(half.slabs, 1u);
  EXPECT_EQ(half.live_allocations, 1u);
  EXPECT_EQ(half.requested_bytes, 300u);
  EXPECT_EQ(half.live_bytes, 512u);
  EXPECT_DOUBLE_EQ(half.internal_fragmentation(), 212.0 / 512);
  EXPECT_DOUBLE_EQ(half.external_fragmentation(),
                   1.0 - 512.0 / static_cast<double>(half.mapped_bytes));
  // Owners share no slab.
  const SizeClassStatistics kilo = Class(breakdown, 1024);
  EXPECT_EQ(kilo.slabs, 2u);
  EXPECT_EQ(kilo.live_allocations, 3u);
  EXPECT_EQ(kilo.requested_bytes, 2924u);
  EXPECT_EQ(kilo.live_bytes, 3072u);
  const SizeClassStatistics large = Class(breakdown, 0);
  EXPECT_EQ(large.slabs, 0u);
  EXPECT_EQ(large.live_allocations, 1u);
  EXPECT_EQ(large.requested_bytes, 3 * kPageBytes - 512);

  EXPECT_EQ(Stream(breakdown, first).live_allocations, 2u);
  EXPECT_EQ(Stream(breakdown, first).requested_bytes, 1300u);
  EXPECT_EQ(Stream(breakdown, first).live_bytes, 1536u);
  EXPECT_EQ(Stream(breakdown, second).live_allocations, 3u);
  EXPECT_EQ(Stream(breakdown, second).requested_bytes,
            1924 + 3 * kPageBytes - 512);

  EXPECT_EQ(Owner(breakdown, model_).live_allocations, 2u);
  EXPECT_EQ(Owner(breakdown, model_).requested_bytes, 1900u);
  EXPECT_EQ(Owner(breakdown, model_).live_bytes, 2048u);
  EXPECT_EQ(Owner(breakdown, model_).slabs, 1u);
  EXPECT_DOUBLE_EQ(Owner(breakdown, model_).internal_fragmentation(),
                   148.0 / 2048);
  // What is below an owner is not its own.
  EXPECT_EQ(Owner(breakdown, model_).mapped_bytes,
            memory_->GetOwnerStatistics(model_).own_live.value());
  EXPECT_EQ(Owner(breakdown, kv_).mapped_bytes,
            memory_->GetOwnerStatistics(kv_).own_live.value());
  for (const DeviceAddress address : live) Free(address);
}

TEST_F(AllocatorBreakdownTest, WhatAThreadKeepsIsCachedAndItsStreams) {
  const StreamId stream = MakeStream();
  const DeviceAddress address = AllocateFor(kv_, 1000, stream);
  const uint64_t before =
      Stream(allocator_->CalculateStatistics(), stream).thread_cached_bytes;
  Free(address, stream);
  const AllocatorBreakdown breakdown = allocator_->CalculateStatistics();
  ExpectSums(breakdown, Statistics());
  EXPECT_EQ(Stream(breakdown, stream).thread_cached_bytes, before + 1024);
  EXPECT_EQ(Stream(breakdown, stream).live_allocations, 0u);
  const SizeClassStatistics row = Class(breakdown, 1024);
  EXPECT_EQ(row.cached_bytes + row.slack_bytes, row.mapped_bytes);
}

TEST_F(AllocatorBreakdownTest, WhatCoolsIsOfTheStreamsThatMayStillUseIt) {
  DeviceAllocatorOptions options;
  options.thread_cache = Bytes(0);
  MakeAllocator(options);
  const StreamId first = MakeStream();
  const StreamId second = MakeStream();
  Gate first_gate(driver_.get(), first);
  Gate second_gate(driver_.get(), second);
  const DeviceAddress small = AllocateFor(kv_, 1000, first);
  const DeviceAddress large = AllocateFor(kv_, 3 * kPageBytes, second);
  const DeviceAddress shared = AllocateFor(model_, 300, first);
  ASSERT_EQ(allocator_->RecordStream(shared, second), absl::OkStatus());
  Free(small, first);
  Free(large, second);
  Free(shared, first);
  AllocatorBreakdown breakdown = allocator_->CalculateStatistics();
  ExpectSums(breakdown, Statistics());
  EXPECT_EQ(Class(breakdown, 1024).cooling_bytes, 1024u);
  EXPECT_EQ(Class(breakdown, 512).cooling_bytes, 512u);
  EXPECT_EQ(Class(breakdown, 0).cooling_bytes, 3 * kPageBytes);
  EXPECT_EQ(Stream(breakdown, first).cooling_bytes, 1024u);
  EXPECT_EQ(Stream(breakdown, first).shared_cooling_bytes, 512u);
  EXPECT_EQ(Stream(breakdown, second).cooling_bytes, 3 * kPageBytes);
  EXPECT_EQ(Stream(breakdown, second).shared_cooling_bytes, 512u);
  EXPECT_EQ(Owner(breakdown, kv_).cooling_bytes, 1024 + 3 * kPageBytes);
  EXPECT_EQ(Owner(breakdown, model_).cooling_bytes, 512u);
  first_gate.Open();
  second_gate.Open();
  ASSERT_EQ(driver_->SynchronizeStream(first), absl::OkStatus());
  ASSERT_EQ(driver_->SynchronizeStream(second), absl::OkStatus());
  allocator_->Trim();
  breakdown = allocator_->CalculateStatistics();
  ExpectSums(breakdown, Statistics());
  EXPECT_EQ(Owner(breakdown, kv_).cooling_bytes, 0u);
  EXPECT_EQ(Stream(breakdown, second).cooling_bytes, 0u);
  EXPECT_EQ(Stream(breakdown, second).shared_cooling_bytes, 0u);
}

TEST_F(AllocatorBreakdownTest, WhatSleepsAndWhatStaysForGraphsIsToldByOwner) {
  const DeviceAddress slept = AllocateFor(kv_, 2 * kPageBytes);
  const DeviceAddress awake = AllocateFor(model_, kPageBytes);
  {
    const auto section = QuiescentSection::Begin(memory_.get(), {});
    ASSERT_TRUE(section.ok()) << section.status();
    ASSERT_TRUE(allocator_->Sleep(*section, kv_).ok());
  }
  const AllocatorBreakdown breakdown = allocator_->CalculateStatistics();
  ExpectSums(breakdown, Statistics());
  EXPECT_EQ(Owner(breakdown, kv_).asleep_bytes, 2 * kPageBytes);
  EXPECT_EQ(Owner(breakdown, kv_).live_bytes, 2 * kPageBytes);
  EXPECT_EQ(Owner(breakdown, model_).asleep_bytes, 0u);
  ASSERT_TRUE(allocator_->Wake(kv_).ok());
  Free(slept);
  Free(awake);

  const StreamId stream = MakeStream();
  const auto pool = allocator_->CreateGraphPool(model_);
  ASSERT_TRUE(pool.ok()) << pool.status();
  ASSERT_EQ(allocator_->BeginGraphCapture(*pool, stream), absl::OkStatus());
  const DeviceAddress captured = AllocateFor(model_, 3 * kPageBytes, stream);
  ASSERT_EQ(allocator_->EndGraphCapture(stream), absl::OkStatus());
  const AllocatorBreakdown with_pool = allocator_->CalculateStatistics();
  ExpectSums(with_pool, Statistics());
  EXPECT_EQ(Owner(with_pool, model_).graph_pool_bytes, 3 * kPageBytes);
  EXPECT_EQ(Owner(with_pool, model_).graph_pool_bytes,
            Statistics().graph_pool_bytes);
  Free(captured);
  ASSERT_EQ(allocator_->ReleaseGraphPool(*pool, {}), absl::OkStatus());
}

TEST_F(AllocatorBreakdownTest, AgreesWithAListOfWhatIsLive) {
  // So much that no request has to do with room that is not of its class.
  constexpr uint64_t kPages = 1024;
  allocator_.reset();
  HostDriverOptions driver = DriverOptions();
  driver.memory_per_device = Bytes(kPages * kPageBytes);
  MakeDriver(driver);
  DeviceMemoryOptions memory = Options();
  memory.limit = driver.memory_per_device;
  memory.address_space = Bytes(4 * kPages * kPageBytes);
  MakeMemory(memory);
  MakeAllocator();
  struct Live {
    uint64_t size;
    OwnerId owner;
    StreamId stream;
  };
  const std::vector<OwnerId> owners = {kUnnamedOwner, model_, kv_};
  const std::vector<StreamId> streams = {StreamId(), MakeStream(),
                                         MakeStream()};
  std::map<DeviceAddress, Live> live;
  std::mt19937_64 random(7);
  const auto any = [&](const auto& of) { return of[random() % of.size()]; };
  for (int step = 0; step < 1200; ++step) {
    if (live.size() < 20 || random() % 2 == 0) {
      const uint64_t size = random() % 8 == 0
                                ? kPageBytes / 2 + random() % kPageBytes
                                : random() % 5000;
      const Live made = {size, any(owners), any(streams)};
      AllocateOptions options;
      options.owner = made.owner;
      options.stream = made.stream;
      const auto address = allocator_->Allocate(Bytes(size), options);
      ASSERT_TRUE(address.ok()) << address.status();
      live[*address] = made;
    } else {
      auto victim = live.begin();
      std::advance(victim, random() % live.size());
      if (random() % 4 == 0) {
        ASSERT_EQ(allocator_->RecordStream(victim->first, any(streams_)),
                  absl::OkStatus());
      }
      Free(victim->first, any(streams));
      live.erase(victim);
    }
    if (step % 100 == 50) {
      const auto section = QuiescentSection::Begin(memory_.get(), streams_);
      ASSERT_TRUE(section.ok()) << section.status();
      MeshOptions options;
      options.smallest_slot = Bytes(256);
      ASSERT_TRUE(allocator_->Mesh(*section, options).ok());
    }
    if (step % 20 != 0) continue;
    // Streams go on meanwhile, but nothing looks at them in between.
    const AllocatorBreakdown breakdown = allocator_->CalculateStatistics();
    ExpectSums(breakdown, Statistics());
    std::map<uint64_t, SizeClassStatistics> classes;
    std::map<StreamId, StreamStatistics> by_stream;
    std::map<OwnerId, OwnerUseStatistics> by_owner;
    for (const auto& [address, each] : live) {
      const auto info = allocator_->Find(address);
      ASSERT_TRUE(info.has_value());
      // No slot is larger than half a page.
      const uint64_t allocated = info->allocated.value();
      SizeClassStatistics& row =
          classes[allocated > kPageBytes / 2 ? 0 : allocated];
      ++row.live_allocations;
      row.live_bytes += allocated;
      row.requested_bytes += each.size;
      ++by_stream[each.stream].live_allocations;
      by_stream[each.stream].requested_bytes += each.size;
      ++by_owner[each.owner].live_allocations;
      by_owner[each.owner].requested_bytes += each.size;
    }
    for (const SizeClassStatistics& row : breakdown.classes) {
      const SizeClassStatistics& expected = classes[row.slot_size];
      EXPECT_EQ(row.live_allocations, expected.live_allocations);
      EXPECT_EQ(row.requested_bytes, expected.requested_bytes);
      EXPECT_EQ(row.live_bytes, expected.live_bytes);
    }
    for (const StreamId stream : streams) {
      const StreamStatistics row = Stream(breakdown, stream);
      EXPECT_EQ(row.live_allocations, by_stream[stream].live_allocations);
      EXPECT_EQ(row.requested_bytes, by_stream[stream].requested_bytes);
    }
    for (const OwnerId owner : owners) {
      const OwnerUseStatistics row = Owner(breakdown, owner);
      EXPECT_EQ(row.live_allocations, by_owner[owner].live_allocations);
      EXPECT_EQ(row.requested_bytes, by_owner[owner].requested_bytes);
    }
  }
  for (const auto& [address, each] : live) Free(address);
}

TEST_F(AllocatorBreakdownTest, IsOfOneMomentWhileThreadsGoOn) {
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    const StreamId stream = MakeStream();
    threads.emplace_back([this, stream, &stop] {
      AllocateOptions options;
      options.owner = kv_;
      options.stream = stream;
      while (!stop.load(std::memory_order_relaxed)) {
        const auto address = allocator_->Allocate(Bytes(1000), options);
        if (address.ok()) (void)allocator_->Free(*address, stream);
      }
    });
  }
  for (int i = 0; i < 50; ++i) {
    const AllocatorBreakdown breakdown = allocator_->CalculateStatistics();
    uint64_t by_class = 0;
    uint64_t by_stream = 0;
    for (const SizeClassStatistics& row : breakdown.classes) {
      ExpectEquation(row);
      by_class += row.live_allocations;
    }
    for (const OwnerUseStatistics& row : breakdown.owners) ExpectEquation(row);
    for (const StreamStatistics& row : breakdown.streams) {
      by_stream += row.live_allocations;
      EXPECT_LE(row.live_allocations, 1u);
    }
    EXPECT_EQ(by_class, by_stream);
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  ExpectSums(allocator_->CalculateStatistics(), Statistics());
}

TEST_F(AllocatorBreakdownTest, AForkedChildHasNoRows) {
  const DeviceAddress address = AllocateFor(kv_, 1000);
  EXPECT_EQ(RunInChild([&] {
              return allocator_->CalculateStatistics().classes.empty() ? 0 : 1;
            }),
            0);
  Free(address);
}

// ---- Whose an address is ----------------------------------------------------

TEST_F(AllocatorBreakdownTest, TheOwnerOfAnAddressIsKnownWithoutALock) {
  const DeviceAddress small = AllocateFor(model_, 1000);
  const DeviceAddress large = AllocateFor(kv_, 3 * kPageBytes);
  const auto beyond = [](DeviceAddress address, uint64_t bytes) {
    return DeviceAddress(address.value() + bytes);
  };
  EXPECT_EQ(allocator_->OwnerOf(small), model_);
  EXPECT_EQ(allocator_->OwnerOf(beyond(small, 999)), model_);
  EXPECT_EQ(allocator_->OwnerOf(large), kv_);
  EXPECT_EQ(allocator_->OwnerOf(beyond(large, 3 * kPageBytes - 1)), kv_);
  EXPECT_EQ(allocator_->OwnerOf(DeviceAddress(1)), std::nullopt);
  AddressRange* const range = Reserve(1);
  EXPECT_EQ(allocator_->OwnerOf(range->address()), std::nullopt);
  memory_->ReleaseRange(range, Fence());
  Free(small);
  Free(large);
}

}  // namespace
}  // namespace quire
