// Weights in every tier and over several devices: the same logits, bit for bit,
// and the same tokens as with all of them on one device.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "loader/checkpoint_test_util.h"
#include "quire/alloc/faulty_driver.h"
#include "quire/alloc/host_driver.h"
#include "quire/alloc/status_macros.h"
#include "quire/model/engine.h"
#include "quire/model/session.h"
#include "quire/paging/kv_cache.h"
#include "tests/golden_cases.h"
#include "tests/session_testing.h"

namespace quire {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

const fs::path kOwnCases = fs::path(QUIRE_SOURCE_DIR) / "tests/golden";
const fs::path kSharedCases =
    fs::path(QUIRE_SOURCE_DIR).parent_path() / "shared/golden";

std::unique_ptr<Session> Open(const fs::path& folder, SessionOptions options) {
  // Parts move while several threads compute.
  options.threads = 2;
  auto session = Session::Open(folder, options);
  EXPECT_TRUE(session.ok()) << session.status();
  return session.ok() ? *std::move(session) : nullptr;
}

// Logits of the prompt, and the tokens that follow it.
struct Output {
  std::vector<float> logits;
  std::vector<TokenId> tokens;

  friend bool operator==(const Output&, const Output&) = default;
};

Output Answer(Session* session, const GoldenCase& golden) {
  Output output;
  output.logits = AllLogits(*session, golden.prompt);
  Engine engine(&session->decoder(), &session->cache(), 4);
  Request request;
  request.prompt = golden.prompt;
  request.max_new_tokens = golden.greedy.size();
  EXPECT_TRUE(engine.Add(std::move(request)).ok());
  const absl::Status ran = engine.RunToCompletion();
  EXPECT_TRUE(ran.ok()) << ran;
  output.tokens = engine.completions()[0].tokens;
  return output;
}

// The modules of a model: what a map covers.
std::vector<std::string> ModulesOf(const fs::path& folder) {
  const auto checkpoint = Checkpoint::Open(folder);
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
  const auto config = ParseModelConfig(**checkpoint);
  EXPECT_TRUE(config.ok()) << config.status();
  const auto blocks = ModelWeights::Blocks(**checkpoint, *config);
  EXPECT_TRUE(blocks.ok()) << blocks.status();
  std::vector<std::string> names;
  for (const PlacementBlock& block : *blocks) names.push_back(block.name);
  return names;
}

class PlacementTest : public testing::TestWithParam<fs::path> {
 protected:
  void SetUp() override {
    golden_ = ReadGoldenCase(GetParam());
    modules_ = ModulesOf(GetParam());
    const auto session = Open(GetParam(), SmallSessionOptions());
    ASSERT_NE(session, nullptr);
    expected_ = Answer(session.get(), golden_);
    EXPECT_EQ(expected_.tokens, golden_.greedy);
  }

  // A map that places module i where `place` says.
  std::string Map(const std::function<std::string(size_t)>& place) {
    std::string text = "{";
    for (size_t i = 0; i < modules_.size(); ++i)
      text += (i == 0 ? "\"" : ", \"") + modules_[i] + "\": " + place(i);
    return folder_.Write("map.json", text + "}");
  }

  std::unique_ptr<Session> OpenMapped(
      const std::function<std::string(size_t)>& place,
      const std::function<void(SessionOptions*)>& change = {}) {
    SessionOptions options = SmallSessionOptions();
    options.placement.device_map = Map(place);
    options.placement.offload.folder = folder_.path();
    if (change) change(&options);
    return Open(GetParam(), options);
  }
  void Check(const std::function<std::string(size_t)>& place,
             const std::function<void(SessionOptions*)>& change = {}) {
    const auto session = OpenMapped(place, change);
    ASSERT_NE(session, nullptr);
    EXPECT_TRUE(Answer(session.get(), golden_) == expected_);
    const absl::Status invariants = session->cache().CheckInvariants();
    EXPECT_TRUE(invariants.ok()) << invariants;
  }
  size_t last() const { return modules_.size() - 1; }
  // The head is the embedding.
  bool IsTied() const {
    const auto checkpoint = Checkpoint::Open(GetParam());
    const auto config = ParseModelConfig(**checkpoint);
    const auto blocks = ModelWeights::Blocks(**checkpoint, *config);
    return blocks->back().tied_to.has_value();
  }
  bool IsLayer(size_t module) const {
    return module > 0 && module + 2 < modules_.size();
  }

  GoldenCase golden_;
  std::vector<std::string> modules_;
  Output expected_;
  TemporaryFolder folder_;
};

// Its rows are read where they lie, so that no pass copies it, and no slot has
// room for it; one that serves as head has a slot as the head.
TEST_P(PlacementTest, AnEmbeddingOnDiskIsReadByRows) {
  const bool tied = IsTied();
  const auto session = OpenMapped([&](size_t module) {
    const bool on_disk = module == 0 || (tied && module == last());
    return on_disk ? "\"disk\"" : "0";
  });
  ASSERT_NE(session, nullptr);
  EXPECT_TRUE(Answer(session.get(), golden_) == expected_);
  const OffloadStatistics offload = session->weights().GetOffloadStatistics();
  EXPECT_GT(offload.disk, Bytes(0));
  if (tied) {
    EXPECT_GT(offload.acquired, 0u);
  } else {
    EXPECT_EQ(offload.acquired, 0u);
    EXPECT_EQ(offload.streamed, Bytes(0));
    EXPECT_EQ(offload.device, Bytes(0));
  }
}

TEST_P(PlacementTest, OnTheHost) {
  Check([](size_t) { return "\"cpu\""; });
}

TEST_P(PlacementTest, OnDisk) {
  Check([](size_t) { return "\"disk\""; });
}

TEST_P(PlacementTest, LayersInEveryTier) {
  Check([&](size_t module) {
    if (!IsLayer(module)) return "0";
    return module % 2 == 0 ? "\"cpu\"" : "\"disk\"";
  });
  Check([&](size_t module) {
    if (!IsLayer(module)) return "0";
    return module % 2 == 0 ? "\"disk\"" : "0";
  });
  Check([&](size_t module) { return IsLayer(module) ? "0" : "\"cpu\""; });
}

TEST_P(PlacementTest, OverTwoDevices) {
  Check([&](size_t module) {
    return IsLayer(module) && module % 2 == 1 ? "1" : "0";
  });
  for (const KvCacheKind kind :
       {KvCacheKind::kStatic, KvCacheKind::kContiguous})
    Check([&](size_t module) { return IsLayer(module) ? "1" : "0"; },
          [&](SessionOptions* options) {
            options->kv_cache = kind;
            options->max_sequences = 4;
          });
  Check([](size_t) { return "2"; });
}

TEST_P(PlacementTest, OverDevicesAndTiers) {
  Check(
      [&](size_t module) {
        if (!IsLayer(module)) return "0";
        return module % 2 == 0 ? "\"cpu\"" : "1";
      },
      [](SessionOptions* options) {
        options->placement.offload.slots = 1;
        options->placement.offload.pinned_limit = Bytes(0);
      });
}

// Everything that is offloaded fits nowhere else: the limits decide.
TEST_P(PlacementTest, PoliciesKeepLimits) {
  for (const char* policy : {"auto", "balanced_low_0", "sequential"}) {
    SessionOptions options = SmallSessionOptions();
    options.placement.device_map = policy;
    options.placement.max_memory = {{DevicePlace(0), KiB(1024)},
                                    {DevicePlace(1), KiB(1024)},
                                    {kHostPlace, MiB(4)},
                                    {kDiskPlace, MiB(100)}};
    options.placement.offload.folder = folder_.path();
    const auto session = Open(GetParam(), options);
    ASSERT_NE(session, nullptr) << policy;
    EXPECT_TRUE(Answer(session.get(), golden_) == expected_) << policy;
    for (int device = 0; device < 2; ++device)
      EXPECT_LE(session->runtime()
                    .memory(DeviceId(device))
                    ->GetStatistics()
                    .peak_in_use,
                KiB(1024));
  }
}

std::string NameOf(const testing::TestParamInfo<fs::path>& info) {
  std::string name = info.param.filename();
  std::replace_if(
      name.begin(), name.end(), [](char c) { return !std::isalnum(c); }, '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Own, PlacementTest,
                         testing::ValuesIn(FindGoldenCases(
                             kOwnCases, {"plain-", "gptq-", "rope-linear"})),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(
    Shared, PlacementTest,
    testing::ValuesIn(FindGoldenCases(kSharedCases, {"plain-", "gptq-w"})),
    NameOf);

fs::path OneCase(const std::string& name) { return kOwnCases / name; }

TEST(PlacementErrorTest, NamesWhatDoesNotFit) {
  SessionOptions options = SmallSessionOptions();
  options.placement.max_memory = {{DevicePlace(0), KiB(256)},
                                  {kHostPlace, KiB(16)}};
  const auto session = Session::Open(OneCase("plain-f32"), options);
  ASSERT_FALSE(session.ok());
  EXPECT_EQ(session.status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(PlacementErrorTest, ATensorThatIsChangedNeedsAFolderOnDisk) {
  const TemporaryFolder folder;
  SessionOptions options = SmallSessionOptions();
  options.placement.device_map = folder.Write("map.json", R"({"": "disk"})");
  const auto session = Session::Open(OneCase("gptq-w4-act-order"), options);
  ASSERT_FALSE(session.ok());
  EXPECT_THAT(std::string(session.status().message()),
              AllOf(HasSubstr("model.layers.0"), HasSubstr("offload folder")));
  // Those that run as they are stored do not.
  EXPECT_NE(Open(OneCase("gptq-w4-sym"), options), nullptr);
  EXPECT_NE(Open(OneCase("plain-bf16-tied"), options), nullptr);
}

TEST(PlacementErrorTest, AMapIsHeldAgainstItsLimits) {
  const TemporaryFolder folder;
  SessionOptions options = SmallSessionOptions();
  options.placement.device_map =
      folder.Write("map.json", R"({"model": "cpu", "lm_head": 0})");
  options.placement.max_memory = {{kHostPlace, KiB(8)}};
  const auto session = Session::Open(OneCase("plain-f32"), options);
  ASSERT_FALSE(session.ok());
  EXPECT_EQ(session.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(session.status().message()),
              AllOf(HasSubstr("map.json"), HasSubstr("cpu"),
                    HasSubstr("more than its limit")));
}

// Whichever call of the driver fails, from the load to the second pass: an
// error, nothing left behind, and, where the model was loaded, a pass after it
// that gives the right logits.
void FailEveryCall(const MemoryPlace& embedding, const MemoryPlace& layer) {
  const fs::path folder = OneCase("gptq-w4-act-order");
  const auto checkpoint = Checkpoint::Open(folder);
  const auto config = ParseModelConfig(**checkpoint);
  ASSERT_TRUE(config.ok()) << config.status();
  const GoldenCase golden = ReadGoldenCase(folder);
  const TemporaryFolder offload;
  // The embedding, two layers, the norm and the head.
  WeightPlacement placement;
  placement.places = {embedding, layer, kDiskPlace, DevicePlace(1), kHostPlace};
  placement.offload.folder = offload.path();
  placement.offload.buffers = 2;
  placement.offload.buffer_size = KiB(64);
  StreamingOptions streaming;
  streaming.buffers = 2;
  streaming.buffer_size = KiB(64);
  ThreadPool pool(1);

  HostDriverOptions host_options;
  host_options.device_count = 2;
  host_options.memory_per_device = MiB(32);
  host_options.granularity = KiB(64);
  std::vector<float> expected;
  // One life of a model; the logits of its last pass.
  const auto live = [&](FaultyDriver* driver,
                        bool* loaded) -> absl::StatusOr<std::vector<float>> {
    auto wrapper = std::make_unique<FaultyDriver>(driver);
    QUIRE_ASSIGN_OR_RETURN(
        const std::unique_ptr<Runtime> runtime,
        Runtime::Create(std::move(wrapper), {.page_size = KiB(64)}));
    // What pools do about a driver that fails when they end is for their tests.
    struct Clear {
      FaultyDriver* driver;
      ~Clear() { driver->ClearFaults(); }
    } clear{driver};
    QUIRE_ASSIGN_OR_RETURN(
        const std::unique_ptr<ModelWeights> weights,
        ModelWeights::Load(runtime.get(), **checkpoint, *config, streaming,
                           &pool, placement));
    QUIRE_ASSIGN_OR_RETURN(
        const std::unique_ptr<Decoder> decoder,
        Decoder::Create(runtime.get(), *config, weights.get(), &pool,
                        {.max_batch_tokens = 16, .max_logit_rows = 16}));
    const auto layout =
        KvLayout::Create(KvShape{config->layers, config->kv_heads,
                                 config->head_dim, KvDType::kF32},
                         config->layers);
    QUIRE_ASSIGN_OR_RETURN(
        const std::unique_ptr<KvCache> cache,
        KvCache::Create(runtime->memory(), *layout,
                        {.max_sequence_length = 64, .max_sequences = 1}));
    QUIRE_ASSIGN_OR_RETURN(const SequenceId sequence, cache->Admit(8));
    *loaded = true;
    const BatchItem item{.sequence = sequence,
                         .tokens = std::span(golden.prompt).first(8),
                         .logit_rows = 8};
    std::vector<float> logits;
    int failed = 0;
    for (int pass = 0; pass < 3; ++pass) {
      const auto rows = decoder->Forward(std::span(&item, 1), *cache);
      if (!rows.ok()) {
        ++failed;
        continue;
      }
      logits.assign(rows->begin(), rows->end());
      EXPECT_TRUE(expected.empty() || logits == expected);
    }
    EXPECT_LE(failed, 1);
    return logits;
  };

  uint64_t fault = 0;
  for (;;) {
    const auto host = HostDriver::Create(host_options);
    ASSERT_TRUE(host.ok());
    FaultyDriver faulty(host->get());
    if (fault > 0) faulty.FailCall(fault, absl::StatusCode::kInternal);
    bool loaded = false;
    const auto logits = live(&faulty, &loaded);
    ASSERT_THAT((*host)->Leaks(), IsEmpty()) << "fault " << fault;
    if (fault == 0) {
      ASSERT_TRUE(logits.ok()) << logits.status();
      expected = *logits;
    } else if (loaded) {
      EXPECT_TRUE(logits.ok()) << "fault " << fault << ": " << logits.status();
    }
    if (fault > 0 && faulty.faults_fired() == 0) break;
    // Every call at first, then every seventh: the later ones repeat.
    fault += fault < 40 ? 1 : 7;
  }
  EXPECT_GT(fault, 200u);
}

TEST(PlacementFaultTest, AnyFailedCallFreesEverything) {
  FailEveryCall(DevicePlace(0), kHostPlace);
}

TEST(PlacementFaultTest, AnyFailedCallFreesAnEmbeddingOfTheHost) {
  FailEveryCall(kHostPlace, DevicePlace(0));
}

TEST(PlacementFaultTest, AnyFailedCallFreesAnEmbeddingOfTheDisk) {
  FailEveryCall(kDiskPlace, DevicePlace(0));
}

}  // namespace
}  // namespace quire
