// Weights that are dropped and come back under the same addresses: the same
// logits, bit for bit, and nothing that holds them half.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "loader/checkpoint_test_util.h"
#include "loader/read_faults.h"
#include "quire/alloc/faulty_driver.h"
#include "quire/alloc/host_driver.h"
#include "quire/alloc/quiescent.h"
#include "quire/model/engine.h"
#include "quire/model/session.h"
#include "quire/paging/kv_cache.h"
#include "tests/golden_cases.h"
#include "tests/session_testing.h"

namespace quire {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::IsEmpty;

const fs::path kCases = fs::path(QUIRE_SOURCE_DIR) / "tests/golden";

// Where the weights of a session lie: what must not change.
std::vector<const void*> AddressesOf(const ModelWeights& weights) {
  std::vector<const void*> addresses = {weights.embedding().data,
                                        weights.output_norm().data};
  for (const DecoderLayer& layer : weights.layers()) {
    for (const Linear* linear :
         {&layer.query, &layer.key, &layer.value, &layer.attention_output,
          &layer.gate, &layer.up, &layer.down}) {
      if (const auto* gptq = std::get_if<GptqMatrix>(&linear->matrix)) {
        addresses.insert(addresses.end(),
                         {gptq->qweight, gptq->scales, gptq->group_begin});
      } else if (const auto* dense =
                     std::get_if<DenseMatrix>(&linear->matrix)) {
        addresses.push_back(dense->data);
      }
    }
  }
  return addresses;
}

Bytes LiveWeights(Runtime& runtime, const std::string& owner) {
  const OwnerId id = runtime.owners()->Register(owner);
  Bytes total;
  for (int i = 0; i < runtime.device_count(); ++i)
    total = SaturatingAdd(
        total, runtime.memory(DeviceId(i))->GetOwnerStatistics(id).live);
  return total;
}

class ReloadTest : public testing::TestWithParam<std::string> {
 protected:
  void Check(const SessionOptions& options) {
    const fs::path folder = kCases / GetParam();
    const GoldenCase golden = ReadGoldenCase(folder);
    auto session = Session::Open(folder, options);
    ASSERT_TRUE(session.ok()) << session.status();
    const std::vector<float> expected = AllLogits(**session, golden.prompt);
    const auto addresses = AddressesOf((*session)->weights());
    const Bytes live = LiveWeights((*session)->runtime(), "weights");
    for (int round = 0; round < 2; ++round) {
      const auto given_back = (*session)->DropWeights();
      ASSERT_TRUE(given_back.ok()) << given_back.status();
      EXPECT_EQ(*given_back, live);
      EXPECT_EQ(LiveWeights((*session)->runtime(), "weights"), Bytes(0));
      EXPECT_FALSE((*session)->weights().resident());
      EXPECT_EQ((*session)
                    ->ComputeLogits(
                        golden.prompt,
                        [](std::span<const float>) { return absl::OkStatus(); })
                    .code(),
                absl::StatusCode::kFailedPrecondition);
      // Others may have the pages meanwhile.
      const auto other = (*session)->runtime().allocator()->Allocate(live);
      ASSERT_TRUE(other.ok()) << other.status();
      std::memset(other->host_pointer<void>(), 0xa5, live.value());
      ASSERT_TRUE((*session)->runtime().allocator()->Free(*other).ok());
      EXPECT_EQ(*(*session)->DropWeights(), Bytes(0)) << "is dropped already";
      const auto reloaded = (*session)->ReloadWeights();
      ASSERT_TRUE(reloaded.ok()) << reloaded.status();
      EXPECT_TRUE((*session)->weights().resident());
      EXPECT_EQ(LiveWeights((*session)->runtime(), "weights"), live);
      EXPECT_EQ(AddressesOf((*session)->weights()), addresses);
      EXPECT_TRUE(AllLogits(**session, golden.prompt) == expected);
    }
    EXPECT_EQ((*session)->ReloadWeights()->bytes, Bytes(0)) << "is there";
  }
};

TEST_P(ReloadTest, OnOneDevice) { Check(SmallSessionOptions()); }

TEST_P(ReloadTest, OverDevicesAndTiers) {
  const TemporaryFolder folder;
  SessionOptions options = SmallSessionOptions();
  // The second layer, where there is one, and what comes after it on device 1.
  options.placement.device_map =
      folder.Write("map.json",
                   R"({"model.embed_tokens": 0, "model.layers.0": "cpu",
          "model.layers.1": 1, "model.norm": 1, "lm_head": 0})");
  Check(options);
}

std::string NameOf(const testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Cases, ReloadTest,
                         testing::Values("plain-f32", "plain-bf16-tied",
                                         "gptq-w4-sym", "gptq-w4-act-order"),
                         NameOf);

TEST(ReloadAtLoadTest, RoundsAgain) {
  for (const LoadQuantization quantization :
       {LoadQuantization::kInt8, LoadQuantization::kNf4}) {
    SessionOptions options = SmallSessionOptions();
    options.weights.quantization = quantization;
    const fs::path folder = kCases / "plain-f32";
    const GoldenCase golden = ReadGoldenCase(folder);
    auto session = Session::Open(folder, options);
    ASSERT_TRUE(session.ok()) << session.status();
    const std::vector<float> expected = AllLogits(**session, golden.prompt);
    ASSERT_TRUE((*session)->DropWeights().ok());
    ASSERT_TRUE((*session)->ReloadWeights().ok());
    EXPECT_TRUE(AllLogits(**session, golden.prompt) == expected);
  }
}

// Sleep and wake of the whole owner around it, in either order.
TEST(ReloadOwnerTest, GoesWithTheSleepOfItsOwner) {
  const fs::path folder = kCases / "plain-f32";
  const GoldenCase golden = ReadGoldenCase(folder);
  auto runtime = CreateRuntime(SmallSessionOptions().device);
  ASSERT_TRUE(runtime.ok());
  SessionOptions options = SmallSessionOptions();
  options.runtime = runtime->get();
  options.owner = "first";
  auto first = Session::Open(folder, options);
  options.owner = "second";
  auto second = Session::Open(folder, options);
  ASSERT_TRUE(first.ok() && second.ok());
  const std::vector<float> expected = AllLogits(**first, golden.prompt);
  const OwnerId owner = (*runtime)->owners()->Register("first");
  for (const bool reload_first : {false, true}) {
    ASSERT_TRUE((*first)->DropWeights().ok());
    {
      auto section = QuiescentSection::Begin((*runtime)->memory(), {});
      ASSERT_TRUE(section.ok());
      const auto slept = (*runtime)->allocator()->Sleep(*section, owner);
      ASSERT_TRUE(slept.ok()) << slept.status();
    }
    EXPECT_EQ((*runtime)->memory()->GetOwnerStatistics(owner).live, Bytes(0));
    EXPECT_TRUE(AllLogits(**second, golden.prompt) == expected);
    if (reload_first) {
      ASSERT_TRUE((*first)->ReloadWeights().ok());
    }
    ASSERT_TRUE((*runtime)->allocator()->Wake(owner).ok());
    ASSERT_TRUE((*first)->ReloadWeights().ok());
    EXPECT_TRUE(AllLogits(**first, golden.prompt) == expected);
  }
}

// A copy of a golden case, so that its files can be changed.
class ReloadFileTest : public testing::Test {
 protected:
  ReloadFileTest() : golden_(ReadGoldenCase(kCases / "gptq-w4-act-order")) {
    fs::copy(kCases / "gptq-w4-act-order", folder_.path(),
             fs::copy_options::recursive);
    session_ = *Session::Open(folder_.path(), SmallSessionOptions());
    expected_ = AllLogits(*session_, golden_.prompt);
    EXPECT_TRUE(session_->DropWeights().ok());
  }
  std::string File() const { return folder_.File("model.safetensors"); }
  // Everything is as after the drop.
  void ExpectAsleep() {
    EXPECT_FALSE(session_->weights().resident());
    EXPECT_EQ(LiveWeights(session_->runtime(), "weights"), Bytes(0));
    EXPECT_TRUE(session_->runtime().allocator()->CheckInvariants().ok());
  }
  void ExpectRefused(const std::string& reason) {
    const auto reloaded = session_->ReloadWeights();
    EXPECT_EQ(reloaded.status().code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(reloaded.status().message()),
                testing::AllOf(HasSubstr(File()), HasSubstr(reason)));
    ExpectAsleep();
  }

  TemporaryFolder folder_;
  GoldenCase golden_;
  std::unique_ptr<Session> session_;
  std::vector<float> expected_;
};

TEST_F(ReloadFileTest, RefusesAFileThatWasWrittenTo) {
  const struct timespec times[2] = {{1, 0}, {1, 0}};
  ASSERT_EQ(utimensat(AT_FDCWD, File().c_str(), times, 0), 0);
  ExpectRefused("written to");
}

TEST_F(ReloadFileTest, RefusesAFileThatWasReplaced) {
  fs::copy_file(File(), folder_.File("new"));
  struct stat before;
  ASSERT_EQ(stat(File().c_str(), &before), 0);
  const struct timespec times[2] = {before.st_atim, before.st_mtim};
  ASSERT_EQ(utimensat(AT_FDCWD, folder_.File("new").c_str(), times, 0), 0);
  fs::rename(folder_.File("new"), File());
  ExpectRefused("replaced");
}

TEST_F(ReloadFileTest, RefusesAFileThatBecameShorter) {
  fs::resize_file(File(), fs::file_size(File()) - 1);
  ExpectRefused("bytes, but had");
}

// Its time of change was set back.
TEST_F(ReloadFileTest, RefusesAnotherHeader) {
  struct stat before;
  ASSERT_EQ(stat(File().c_str(), &before), 0);
  {
    std::fstream file(File(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(9);
    file.put('X');
  }
  const struct timespec times[2] = {before.st_atim, before.st_mtim};
  ASSERT_EQ(utimensat(AT_FDCWD, File().c_str(), times, 0), 0);
  ExpectRefused("header");
}

TEST_F(ReloadFileTest, NamesAFileThatIsGoneAndTakesItWhenItIsBack) {
  fs::rename(File(), folder_.File("away"));
  const auto reloaded = session_->ReloadWeights();
  EXPECT_EQ(reloaded.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(reloaded.status().message()), HasSubstr(File()));
  ExpectAsleep();
  fs::rename(folder_.File("away"), File());
  EXPECT_TRUE(session_->ReloadWeights().ok());
  EXPECT_TRUE(AllLogits(*session_, golden_.prompt) == expected_);
}

TEST_F(ReloadFileTest, SleepsOnWhicheverReadFails) {
  StreamingOptions streaming;
  streaming.buffers = 2;
  streaming.buffer_size = KiB(16);
  uint64_t reads = 0;
  {
    ReadFaults counting([](uint64_t) { return 0; });
    ASSERT_TRUE(session_->ReloadWeights(streaming).ok());
    reads = counting.reads();
    ASSERT_TRUE(session_->DropWeights().ok());
  }
  ASSERT_GT(reads, 10u);
  for (uint64_t n = 1; n <= reads; ++n) {
    const ReadFaults faults(
        [n](uint64_t read) { return read == n ? ENXIO : 0; });
    EXPECT_FALSE(session_->ReloadWeights(streaming).ok()) << n;
    ExpectAsleep();
  }
  ASSERT_TRUE(session_->ReloadWeights(streaming).ok());
  EXPECT_TRUE(AllLogits(*session_, golden_.prompt) == expected_);
}

TEST_F(ReloadFileTest, SleepsOnWhereverItIsCancelled) {
  std::atomic<bool> cancelled{false};
  StreamingOptions streaming;
  streaming.buffers = 1;
  streaming.buffer_size = KiB(16);
  streaming.cancelled = &cancelled;
  for (uint64_t n = 1;; ++n) {
    cancelled = false;
    bool reached = false;
    {
      const ReadFaults faults([&](uint64_t read) {
        if (read == n) cancelled = reached = true;
        return 0;
      });
      const auto reloaded = session_->ReloadWeights(streaming);
      if (!reached) {
        EXPECT_TRUE(reloaded.ok()) << reloaded.status();
        EXPECT_GT(n, 10u);
        break;
      }
      if (reloaded.ok()) {
        // Nothing was left to stop: what is read last are group indexes.
        ASSERT_TRUE(session_->DropWeights().ok());
        continue;
      }
      EXPECT_EQ(reloaded.status().code(), absl::StatusCode::kCancelled) << n;
    }
    ExpectAsleep();
  }
  EXPECT_TRUE(AllLogits(*session_, golden_.prompt) == expected_);
}

// Whichever call of the driver fails, in the drop or in the reload: nothing is
// left behind, and what follows succeeds.
TEST(ReloadFaultTest, AnyFailedCallLeavesItWholeOrAsleep) {
  const fs::path folder = kCases / "gptq-w4-act-order";
  const auto checkpoint = Checkpoint::Open(folder);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const auto config = ParseModelConfig(**checkpoint);
  ASSERT_TRUE(config.ok()) << config.status();
  const GoldenCase golden = ReadGoldenCase(folder);
  WeightPlacement placement;
  // The embedding, two layers, the norm and the head.
  placement.places = {DevicePlace(0), kHostPlace, DevicePlace(1),
                      DevicePlace(1), DevicePlace(0)};
  StreamingOptions streaming;
  streaming.buffers = 2;
  streaming.buffer_size = KiB(64);
  ThreadPool pool(1);
  HostDriverOptions host_options;
  host_options.device_count = 2;
  host_options.memory_per_device = MiB(32);
  host_options.granularity = KiB(64);
  const auto host = HostDriver::Create(host_options);
  ASSERT_TRUE(host.ok());
  FaultyDriver faulty(host->get());
  {
    auto runtime = Runtime::Create(std::make_unique<FaultyDriver>(&faulty),
                                   {.page_size = KiB(64)});
    ASSERT_TRUE(runtime.ok());
    auto weights = ModelWeights::Load(runtime->get(), **checkpoint, *config,
                                      streaming, &pool, placement);
    ASSERT_TRUE(weights.ok()) << weights.status();
    auto decoder =
        Decoder::Create(runtime->get(), *config, weights->get(), &pool,
                        {.max_batch_tokens = 16, .max_logit_rows = 16});
    const auto layout =
        KvLayout::Create(KvShape{config->layers, config->kv_heads,
                                 config->head_dim, KvDType::kF32},
                         config->layers);
    auto cache =
        KvCache::Create((*runtime)->memory(), *layout,
                        {.max_sequence_length = 64, .max_sequences = 1});
    const auto sequence = (*cache)->Admit(8);
    ASSERT_TRUE(sequence.ok()) << sequence.status();
    const BatchItem item{.sequence = *sequence,
                         .tokens = std::span(golden.prompt).first(8),
                         .logit_rows = 8};
    const auto logits = [&] {
      const auto rows = (*decoder)->Forward(std::span(&item, 1), **cache);
      EXPECT_TRUE(rows.ok()) << rows.status();
      return rows.ok() ? std::vector<float>(rows->begin(), rows->end())
                       : std::vector<float>();
    };
    const std::vector<float> expected = logits();
    const auto reload = [&] {
      return (*weights)
          ->Reload(**checkpoint, *config, streaming, &pool)
          .status();
    };

    bool reached = true;
    int dropped_by_failure = 0;
    for (uint64_t fault = 1; reached; ++fault) {
      faulty.ClearFaults();
      const uint64_t fired = faulty.faults_fired();
      faulty.FailCall(fault, absl::StatusCode::kInternal);
      absl::Status status = (*weights)->Drop().status();
      if (status.ok()) status = reload();
      reached = faulty.faults_fired() > fired;
      faulty.ClearFaults();
      if (!status.ok()) {
        EXPECT_TRUE(reached) << status;
        if (!(*weights)->resident()) {
          ++dropped_by_failure;
          // All of it, or the next drop gives back the rest.
          ASSERT_TRUE((*weights)->Drop().ok());
          EXPECT_EQ(LiveWeights(**runtime, "weights"), Bytes(0)) << fault;
          ASSERT_TRUE(reload().ok()) << "fault " << fault;
        }
      }
      ASSERT_TRUE((*weights)->resident());
      EXPECT_TRUE(logits() == expected) << "fault " << fault;
      for (int device = 0; device < 2; ++device)
        EXPECT_TRUE(
            (*runtime)->memory(DeviceId(device))->CheckInvariants().ok());
    }
    EXPECT_GT(dropped_by_failure, 20);
    ASSERT_TRUE((*cache)->Release(*sequence, Fence()).ok());
  }
  EXPECT_THAT((*host)->Leaks(), IsEmpty());
}

}  // namespace
}  // namespace quire
