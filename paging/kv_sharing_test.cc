// Several models' KV caches on one device memory: what an idle one has parked
// serves the busy one, within the limits and minima of their owners.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "paging/kv_cache_testing.h"
#include "quire/alloc/memory_limits.h"
#include "quire/paging/kv_cache.h"

namespace quire {
namespace {

constexpr uint64_t kPages = 400;
constexpr uint64_t kTokens = 320;

struct Model {
  std::string name;
  OwnerId owner;
  std::unique_ptr<KvCache> cache;
  std::vector<SequenceId> sequences;
  std::vector<uint64_t> lengths;
  uint64_t peak_pages = 0;

  uint64_t held_pages() const {
    const KvCacheStatistics statistics = cache->GetStatistics();
    return (statistics.committed.value() + statistics.parked.value()) / 4096;
  }
};

class KvSharingTest : public testing::Test {
 protected:
  KvSharingTest() : device_(kPages) {
    for (const uint32_t layers_per_row : {1, 5, 2}) {
      Model model;
      model.name = absl::StrCat("model-", layers_per_row);
      model.owner = device_.memory()->owners()->Register(model.name);
      KvCacheOptions options = CacheOptions(kTokens);
      options.max_sequences = 64;
      options.owner = model.owner;
      model.cache = MakeCache(&device_, layers_per_row, options);
      models_.push_back(std::move(model));
    }
  }

  // Sequences of random lengths until one is refused, then steps until nothing
  // is left for one: the device is full of this model.
  void Burst(Model* model, std::mt19937* random) {
    while (true) {
      const uint64_t tokens = 1 + (*random)() % kTokens;
      const auto sequence = model->cache->Admit(tokens);
      if (!sequence.ok()) {
        EXPECT_EQ(sequence.status().code(),
                  absl::StatusCode::kResourceExhausted);
        break;
      }
      model->sequences.push_back(*sequence);
      model->lengths.push_back(tokens);
    }
    for (size_t i = 0; i < model->sequences.size(); ++i) {
      while (model->lengths[i] < kTokens) {
        const SequenceStep step{model->sequences[i], model->lengths[i] + 1};
        if (!model->cache->Step({&step, 1}).ok()) break;
        ++model->lengths[i];
      }
    }
    model->peak_pages = std::max(model->peak_pages, model->held_pages());
  }
  void End(Model* model) {
    for (const SequenceId sequence : model->sequences)
      Release(model->cache.get(), sequence);
    model->sequences.clear();
    model->lengths.clear();
  }
  void SetLimits(const Model& model, uint64_t hard, uint64_t minimum) {
    const absl::Status status = device_.memory()->SetOwnerLimits(
        model.owner, {.hard = Bytes(hard * 4096),
                      .reserved_minimum = Bytes(minimum * 4096)});
    EXPECT_TRUE(status.ok()) << status;
  }
  // Pages that lengths of a model need, by the layout alone.
  uint64_t NeededPages(const Model& model) const {
    uint64_t pages = 0;
    for (const uint64_t length : model.lengths)
      pages += model.cache->layout().PagesForTokens(length, KiB(4))->value();
    return pages;
  }

  TestDevice device_;
  std::vector<Model> models_;
};

TEST_F(KvSharingTest, IdleModelsHoldNothingThatABusyOneNeeds) {
  std::mt19937 random(1);
  for (int round = 0; round < 9; ++round) {
    Model& busy = models_[static_cast<size_t>(round) % models_.size()];
    Burst(&busy, &random);
    for (const Model& model : models_) {
      if (&model == &busy) {
        EXPECT_GE(model.held_pages(), NeededPages(model));
        EXPECT_GE(NeededPages(model), kPages * 97 / 100) << model.name;
      } else {
        EXPECT_LE(model.held_pages() * 100, model.peak_pages) << model.name;
      }
    }
    // Pages went from one to the other: none was made anew.
    EXPECT_LE(device_.memory()->GetStatistics().pages_created, kPages);
    End(&busy);
  }
}

TEST_F(KvSharingTest, MinimaAndMaximaHoldInEveryBurst) {
  std::mt19937 random(2);
  SetLimits(models_[0], 0, 60);
  SetLimits(models_[1], 200, 0);
  SetLimits(models_[2], 300, 20);
  const uint64_t maxima[] = {kPages - 20, 200, 300};
  const uint64_t minima[] = {60, 0, 20};
  for (int round = 0; round < 9; ++round) {
    Model& busy = models_[static_cast<size_t>(round) % models_.size()];
    Burst(&busy, &random);
    EXPECT_LE(busy.held_pages(), maxima[round % 3]);
    EXPECT_GE(NeededPages(busy), maxima[round % 3] * 95 / 100);
    // Whatever it took, the others get what is kept for them, at once.
    for (size_t i = 0; i < models_.size(); ++i) {
      Model& model = models_[i];
      if (&model == &busy || minima[i] == 0) continue;
      uint64_t tokens = kTokens;
      while (model.cache->layout().PagesForTokens(tokens, KiB(4))->value() >
             minima[i])
        --tokens;
      const auto sequence = model.cache->Admit(tokens);
      EXPECT_TRUE(sequence.ok()) << model.name << ": " << sequence.status();
      if (sequence.ok()) Release(model.cache.get(), *sequence);
    }
    End(&busy);
  }
}

// A model that comes back makes no page: it maps.
TEST_F(KvSharingTest, ComingBackCostsMappingAlone) {
  std::mt19937 random(3);
  Burst(&models_[0], &random);
  End(&models_[0]);
  Burst(&models_[1], &random);
  End(&models_[1]);
  const DeviceMemoryStatistics before = device_.memory()->GetStatistics();
  Burst(&models_[0], &random);
  const DeviceMemoryStatistics after = device_.memory()->GetStatistics();
  EXPECT_LE(after.pages_created - before.pages_created,
            kPages - before.in_use.value() / 4096);
  EXPECT_EQ(after.pages_released, before.pages_released);
  EXPECT_GT(models_[0].cache->GetStatistics().adoptions, 0u);
  End(&models_[0]);
}

}  // namespace
}  // namespace quire
