// A cache over two devices against the caches that it is made of.

#include "model/engine/split_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "quire/alloc/host_driver.h"
#include "quire/alloc/runtime.h"
#include "quire/paging/kv_cache.h"

namespace quire {
namespace {

constexpr Bytes kPage = KiB(64);
constexpr uint32_t kLayers = 3;

class SplitCacheTest : public testing::Test {
 protected:
  // Device 0 has layers 0 and 2, device 1 has layer 1; their limits are in
  // pages.
  void Open(uint64_t pages0, uint64_t pages1) {
    HostDriverOptions options;
    options.device_count = 2;
    options.memory_per_device = MiB(16);
    options.granularity = kPage;
    auto runtime =
        Runtime::Create(*HostDriver::Create(options), {.page_size = kPage});
    ASSERT_TRUE(runtime.ok()) << runtime.status();
    runtime_ = *std::move(runtime);
    const std::vector<std::vector<uint32_t>> layers = {{0, 2}, {1}};
    std::vector<SplitLayer> places(kLayers);
    std::vector<std::unique_ptr<SequenceCache>> parts;
    streams_.clear();
    for (size_t device = 0; device < layers.size(); ++device) {
      streams_.push_back(*runtime_->driver()->CreateStream(
          DeviceId(static_cast<int32_t>(device))));
      DeviceMemory* const memory =
          runtime_->memory(DeviceId(static_cast<int32_t>(device)));
      ASSERT_TRUE(
          memory
              ->SetLimit(Bytes((device == 0 ? pages0 : pages1) * kPage.value()))
              .ok());
      auto cache = KvCache::Create(
          memory, Layout(static_cast<uint32_t>(layers[device].size())),
          {.max_sequence_length = 4096,
           .max_sequences = 4,
           .limit = limit_,
           .stream = streams_.back(),
           .swap_space = swap_space_[device]});
      ASSERT_TRUE(cache.ok()) << cache.status();
      for (size_t i = 0; i < layers[device].size(); ++i)
        places[layers[device][i]] = {device, static_cast<uint32_t>(i)};
      caches_.push_back(cache->get());
      parts.push_back(*std::move(cache));
    }
    split_ = std::make_unique<SplitCache>(Layout(kLayers), std::move(places),
                                          std::move(parts));
  }

  // Rows of a KiB a layer: 64 tokens to a page of one layer.
  static KvLayout Layout(uint32_t layers) {
    return *KvLayout::Create(KvShape{layers, 4, 32, KvDType::kF32}, layers);
  }

  // The caches have copied on their streams.
  void Synchronize() {
    for (const StreamId stream : streams_)
      EXPECT_TRUE(runtime_->driver()->SynchronizeStream(stream).ok());
  }

  Bytes swap_space_[2];  // of each device
  KvTokenLimit limit_;
  std::unique_ptr<Runtime> runtime_;
  std::vector<StreamId> streams_;       // of each device
  std::vector<SequenceCache*> caches_;  // of split_
  std::unique_ptr<SplitCache> split_;
};

TEST_F(SplitCacheTest, EveryLayerIsOnItsDevice) {
  Open(16, 16);
  const auto sequence = split_->Admit(10);
  ASSERT_TRUE(sequence.ok()) << sequence.status();
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    const auto view = split_->View(*sequence, layer);
    ASSERT_TRUE(view.ok()) << view.status();
    const int device = layer == 1 ? 1 : 0;
    EXPECT_TRUE(runtime_->memory(DeviceId(device))->Contains(view->KeyRow(9)));
    // Written as the decoder does: the rows of no two layers are the same.
    *view->KeyRow(9).host_pointer<uint32_t>() = layer;
    *view->ValueRow(9).host_pointer<uint32_t>() = 100 + layer;
  }
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    const auto view = split_->View(*sequence, layer);
    EXPECT_EQ(*view->KeyRow(9).host_pointer<uint32_t>(), layer);
    EXPECT_EQ(*view->ValueRow(9).host_pointer<uint32_t>(), 100 + layer);
  }
  EXPECT_EQ(split_->View(*sequence, kLayers).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(split_->Release(*sequence, Fence()).ok());
  EXPECT_EQ(split_->Release(*sequence, Fence()).code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(split_->View(*sequence, 0).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_TRUE(split_->CheckInvariants().ok());
}

// A limit of 128 tokens and steps of 64: with the page that they begin on, at
// most 7 pages of device 0 and 4 of device 1.
TEST_F(SplitCacheTest, APromptInStepsIsAdmittedForItsPeakOnEveryDevice) {
  const std::vector<int32_t> prompt(1000, 7);
  Open(70, 40);
  EXPECT_TRUE(split_->KeepsAllTokens());
  const auto whole = split_->AdmitPromptInSteps(prompt, 64);
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_EQ(*split_->Length(whole->sequence), 1000u);
  limit_.max_tokens = 128;
  for (const uint64_t pages1 : {3, 4}) {
    split_.reset();
    Open(7, pages1);
    EXPECT_FALSE(split_->KeepsAllTokens());
    EXPECT_TRUE(absl::IsResourceExhausted(split_->Admit(1000).status()));
    const auto admission = split_->AdmitPromptInSteps(prompt, 64);
    EXPECT_EQ(admission.ok(), pages1 == 4) << admission.status();
    if (!admission.ok()) continue;
    for (uint64_t end = 64; end <= 1000; end += 64) {
      split_->EndBatch(Fence());
      const SequenceStep step{admission->sequence, end};
      EXPECT_TRUE(split_->Step(std::span(&step, 1)).ok()) << end;
    }
  }
}

TEST_F(SplitCacheTest, WhatOnePartRefusesNoneHas) {
  // Device 1 has two pages: 128 tokens.
  Open(64, 2);
  EXPECT_EQ(split_->AdmissibleTokens(), 128u);
  EXPECT_EQ(split_->Admit(129).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(caches_[0]->Use().needed, Bytes(0));
  const auto sequence = split_->Admit(100);
  ASSERT_TRUE(sequence.ok()) << sequence.status();
  const Bytes before = caches_[0]->Use().needed;
  const SequenceStep step{*sequence, 200};
  EXPECT_EQ(split_->Step(std::span(&step, 1)).code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(*split_->Length(*sequence), 100u);
  EXPECT_EQ(caches_[0]->Use().needed, before);
  const SequenceStep smaller{*sequence, 128};
  EXPECT_TRUE(split_->Step(std::span(&smaller, 1)).ok());
  EXPECT_EQ(*split_->Length(*sequence), 128u);
  // The fullest part is the one that counts.
  EXPECT_EQ(split_->Use().fraction(), caches_[1]->Use().fraction());
  EXPECT_TRUE(split_->Shrink(*sequence, 10, Fence()).ok());
  EXPECT_EQ(*split_->Length(*sequence), 10u);
  EXPECT_EQ(*split_->FreedByRelease(*sequence),
            SaturatingAdd(Bytes(kPage.value()), kPage));
  EXPECT_TRUE(split_->Release(*sequence, Fence()).ok());
  EXPECT_TRUE(split_->CheckInvariants().ok());
}

TEST_F(SplitCacheTest, SequencesAreApart) {
  Open(64, 64);
  const auto first = split_->Admit(5);
  const auto second = split_->Admit(7);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_NE(*first, *second);
  const std::vector<SequenceStep> steps = {{*second, 9}, {*first, 6}};
  ASSERT_TRUE(split_->Step(steps).ok());
  EXPECT_EQ(*split_->Length(*first), 6u);
  EXPECT_EQ(*split_->Length(*second), 9u);
  EXPECT_EQ(split_->Step(std::vector<SequenceStep>{{SequenceId(77), 1}}).code(),
            absl::StatusCode::kNotFound);
  for (uint32_t layer = 0; layer < kLayers; ++layer)
    EXPECT_NE(split_->View(*first, layer)->KeyRow(0),
              split_->View(*second, layer)->KeyRow(0));
  EXPECT_TRUE(split_->Release(*first, Fence()).ok());
  EXPECT_TRUE(split_->Release(*second, Fence()).ok());
}

// Writes and reads a number in every row of a sequence of `tokens` tokens.
void WriteRows(SplitCache& cache, SequenceId sequence, uint64_t tokens) {
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    const auto view = cache.View(sequence, layer);
    ASSERT_TRUE(view.ok()) << view.status();
    for (uint64_t token = 0; token < tokens; ++token)
      *view->KeyRow(token).host_pointer<uint64_t>() = layer * 1000 + token;
  }
}
void ExpectRows(SplitCache& cache, SequenceId sequence, uint64_t tokens) {
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    const auto view = cache.View(sequence, layer);
    ASSERT_TRUE(view.ok()) << view.status();
    for (uint64_t token = 0; token < tokens; ++token)
      ASSERT_EQ(*view->KeyRow(token).host_pointer<uint64_t>(),
                layer * 1000 + token);
  }
}

TEST_F(SplitCacheTest, AForkHasTheRowsOfEveryDevice) {
  Open(16, 16);
  const SequenceId parent = *split_->Admit(70);
  WriteRows(*split_, parent, 70);
  const auto child = split_->Fork(parent);
  ASSERT_TRUE(child.ok()) << child.status();
  Synchronize();
  EXPECT_EQ(*split_->Length(*child), 70u);
  const SequenceStep step{*child, 71};
  ASSERT_TRUE(split_->Step(std::span(&step, 1)).ok());
  WriteRows(*split_, parent, 70);
  EXPECT_TRUE(split_->Release(parent, Fence()).ok());
  ExpectRows(*split_, *child, 70);
  EXPECT_EQ(split_->Fork(parent).status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(split_->CheckInvariants().ok());
}

// Device 1 has two pages, and the copy of the fork's last rows needs a third.
TEST_F(SplitCacheTest, AForkThatOnePartRefusesNoneHas) {
  Open(64, 2);
  const SequenceId parent = *split_->Admit(100);
  const Bytes before = caches_[0]->Use().needed;
  EXPECT_EQ(split_->Fork(parent).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(caches_[0]->Use().needed, before);
  EXPECT_TRUE(split_->CheckInvariants().ok());
}

TEST_F(SplitCacheTest, ASequenceIsSwappedOutOnAllDevices) {
  swap_space_[0] = swap_space_[1] = MiB(1);
  Open(8, 8);
  ASSERT_EQ(split_->swap(), split_.get());
  const auto sequence = split_->Admit(200);
  ASSERT_TRUE(sequence.ok()) << sequence.status();
  WriteRows(*split_, *sequence, 200);
  const Bytes before = split_->Use().needed;
  ASSERT_TRUE(split_->SwapOut(*sequence, Fence()).ok());
  for (SequenceCache* const cache : caches_)
    EXPECT_EQ(cache->Use().needed, Bytes(0));
  // Others have the memory meanwhile.
  const auto other = split_->Admit(200);
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_TRUE(absl::IsResourceExhausted(split_->SwapIn(*sequence)));
  ASSERT_TRUE(split_->Release(*other, Fence()).ok());
  ASSERT_TRUE(split_->SwapIn(*sequence).ok());
  Synchronize();
  EXPECT_EQ(split_->Use().needed, before);
  ExpectRows(*split_, *sequence, 200);
  EXPECT_TRUE(split_->CheckInvariants().ok());
}

// Device 1 is short of swap space, or of pages: device 0 goes back.
TEST_F(SplitCacheTest, ASwapThatFailsOnOneDeviceIsUndoneOnTheOther) {
  swap_space_[0] = MiB(1);
  swap_space_[1] = kPage;
  Open(8, 8);
  const auto sequence = split_->Admit(200);
  ASSERT_TRUE(sequence.ok()) << sequence.status();
  WriteRows(*split_, *sequence, 200);
  EXPECT_TRUE(absl::IsResourceExhausted(split_->SwapOut(*sequence, Fence())));
  ExpectRows(*split_, *sequence, 200);
  EXPECT_TRUE(split_->CheckInvariants().ok());
  ASSERT_TRUE(split_->Shrink(*sequence, 64, Fence()).ok());
  ASSERT_TRUE(split_->SwapOut(*sequence, Fence()).ok());
  // All of device 1 is somebody else's.
  const auto other = caches_[1]->Admit(8 * 64);
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_TRUE(absl::IsResourceExhausted(split_->SwapIn(*sequence)));
  EXPECT_EQ(caches_[0]->Use().needed, Bytes(0));
  ASSERT_TRUE(caches_[1]->Release(*other, Fence()).ok());
  ASSERT_TRUE(split_->SwapIn(*sequence).ok());
  Synchronize();
  ExpectRows(*split_, *sequence, 64);
  EXPECT_TRUE(split_->CheckInvariants().ok());
}

TEST_F(SplitCacheTest, WithoutSwapSpaceOnEveryDeviceNothingIsSwapped) {
  swap_space_[0] = MiB(1);
  Open(8, 8);
  EXPECT_EQ(split_->swap(), nullptr);
  const auto sequence = split_->Admit(10);
  ASSERT_TRUE(sequence.ok()) << sequence.status();
  EXPECT_EQ(split_->SwapOut(*sequence, Fence()).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(split_->SwapIn(*sequence).code(),
            absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace quire
