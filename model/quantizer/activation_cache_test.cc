#include "model/quantizer/activation_cache.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "quire/alloc/faulty_driver.h"
#include "quire/alloc/host_driver.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

using Access = ActivationCache::Access;
using Sequences = std::vector<std::vector<TokenId>>;

constexpr uint64_t kColumns = 24;

// Sequences of these lengths.
Sequences OfLengths(const std::vector<size_t>& lengths) {
  Sequences sequences;
  for (const size_t length : lengths) sequences.emplace_back(length, 7);
  return sequences;
}

HostDriverOptions SmallDevice() {
  HostDriverOptions options;
  options.memory_per_device = MiB(8);
  options.granularity = KiB(64);
  return options;
}

std::unique_ptr<Runtime> MakeRuntime() {
  auto driver = HostDriver::Create(SmallDevice());
  EXPECT_TRUE(driver.ok()) << driver.status();
  auto runtime = Runtime::Create(*std::move(driver), {.page_size = KiB(64)});
  EXPECT_TRUE(runtime.ok()) << runtime.status();
  return *std::move(runtime);
}

// What row element `i` of a batch is after so many updates.
float Value(size_t batch, size_t i, int updates) {
  return static_cast<float>(batch * 1000 + i) +
         0.5f * static_cast<float>(updates);
}

// Fills the cache, updates it twice with a reading pass in between that
// scribbles over what it is given, and checks every element each time.
absl::Status Use(ActivationCache* cache, const Sequences& sequences) {
  const auto check = [&](size_t batch, const float* rows, int updates) {
    for (size_t i = 0; i < sequences[batch].size() * kColumns; ++i)
      if (rows[i] != Value(batch, i, updates))
        return absl::DataLossError(absl::StrCat("batch ", batch, ", element ",
                                                i, " is ", rows[i], " after ",
                                                updates, " updates"));
    return absl::OkStatus();
  };
  const auto fill = [&](size_t batch, float* rows, int updates) {
    for (size_t i = 0; i < sequences[batch].size() * kColumns; ++i)
      rows[i] = Value(batch, i, updates);
  };
  size_t next = 0;
  QUIRE_RETURN_IF_ERROR(
      cache->ForEach(Access::kFill, [&](size_t batch, float* rows) {
        EXPECT_EQ(batch, next++);
        fill(batch, rows, 0);
        return absl::OkStatus();
      }));
  EXPECT_EQ(next, sequences.size());
  for (int updates = 0; updates < 2; ++updates) {
    QUIRE_RETURN_IF_ERROR(
        cache->ForEach(Access::kRead, [&](size_t batch, float* rows) {
          const absl::Status status = check(batch, rows, updates);
          fill(batch, rows, 99);
          return status;
        }));
    QUIRE_RETURN_IF_ERROR(
        cache->ForEach(Access::kUpdate, [&](size_t batch, float* rows) {
          const absl::Status status = check(batch, rows, updates);
          fill(batch, rows, updates + 1);
          return status;
        }));
  }
  return cache->ForEach(Access::kRead, [&](size_t batch, float* rows) {
    return check(batch, rows, 2);
  });
}

TEST(ActivationCacheTest, WhatABodyMakesOfRowsIsKeptWhereItShouldBe) {
  for (const std::vector<size_t>& lengths :
       {std::vector<size_t>{5}, {1, 1}, {9, 2, 31, 4, 31}, {64, 64, 64, 64}}) {
    const Sequences sequences = OfLengths(lengths);
    const std::unique_ptr<Runtime> runtime = MakeRuntime();
    const auto cache =
        ActivationCache::Create(runtime.get(), sequences, kColumns, MiB(1));
    ASSERT_TRUE(cache.ok()) << cache.status();
    const absl::Status used = Use(cache->get(), sequences);
    EXPECT_TRUE(used.ok()) << used;
  }
}

TEST(ActivationCacheTest, TheLimitCountsEveryRowAndTwoPinnedBatches) {
  const Sequences sequences = OfLengths({3, 10, 4});
  const Bytes needed((3 + 10 + 4 + 2 * 10) * kColumns * sizeof(float));
  EXPECT_EQ(ActivationCacheBytes(17, 10, kColumns), needed);
  EXPECT_EQ(ActivationCacheBytes(17, 10, UINT64_MAX), Bytes(UINT64_MAX));
  EXPECT_EQ(ActivationCacheBytes(UINT64_MAX, 10, 1), Bytes(UINT64_MAX));
  const std::unique_ptr<Runtime> runtime = MakeRuntime();
  const auto enough =
      ActivationCache::Create(runtime.get(), sequences, kColumns, needed);
  ASSERT_TRUE(enough.ok()) << enough.status();
  EXPECT_EQ((*enough)->host_bytes(), needed);
  const auto short_of = ActivationCache::Create(
      runtime.get(), sequences, kColumns, Bytes(needed.value() - 1));
  EXPECT_TRUE(absl::IsResourceExhausted(short_of.status()));
  EXPECT_NE(short_of.status().message().find(absl::StrCat(needed.value())),
            std::string_view::npos)
      << short_of.status();
}

TEST(ActivationCacheTest, AnErrorOfTheBodyEndsThePass) {
  const Sequences sequences = OfLengths({3, 3, 3});
  const std::unique_ptr<Runtime> runtime = MakeRuntime();
  const auto cache =
      ActivationCache::Create(runtime.get(), sequences, kColumns, MiB(1));
  ASSERT_TRUE(cache.ok()) << cache.status();
  size_t calls = 0;
  const absl::Status status =
      (*cache)->ForEach(Access::kFill, [&](size_t batch, float*) {
        ++calls;
        return batch == 1 ? absl::AbortedError("enough") : absl::OkStatus();
      });
  EXPECT_TRUE(absl::IsAborted(status)) << status;
  EXPECT_EQ(calls, 2u);
  // It can be filled again.
  EXPECT_TRUE(Use(cache->get(), sequences).ok());
}

TEST(ActivationCacheTest, NothingIsLeftBehindWhicheverCallFails) {
  const Sequences sequences = OfLengths({6, 2, 9});
  uint64_t fault = 1;
  for (;; ++fault) {
    const auto host = HostDriver::Create(SmallDevice());
    ASSERT_TRUE(host.ok()) << host.status();
    FaultyDriver faulty(host->get());
    absl::Status status;
    {
      const auto runtime = Runtime::Create(
          std::make_unique<FaultyDriver>(&faulty), {.page_size = KiB(64)});
      ASSERT_TRUE(runtime.ok()) << runtime.status();
      faulty.FailCall(fault, absl::StatusCode::kInternal);
      auto cache =
          ActivationCache::Create(runtime->get(), sequences, kColumns, MiB(1));
      status = cache.status();
      if (status.ok()) status = Use(cache->get(), sequences);
      if (cache.ok()) cache->reset();
      // What pools do about a driver that fails when they end is for their
      // tests.
      const bool fired = faulty.faults_fired() > 0;
      faulty.ClearFaults();
      if (!fired) break;
    }
    EXPECT_FALSE(absl::IsDataLoss(status))
        << "fault " << fault << ": " << status;
    EXPECT_EQ((*host)->Leaks(), std::vector<std::string>())
        << "fault " << fault;
  }
  EXPECT_GT(fault, 50u);
}

}  // namespace
}  // namespace quire
