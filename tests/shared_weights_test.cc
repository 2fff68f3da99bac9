// One checkpoint, several models of one process: one copy of its weights, as
// long as somebody uses it.

#include "quire/model/shared_weights.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "loader/checkpoint_test_util.h"
#include "loader/read_faults.h"
#include "quire/alloc/quiescent.h"
#include "quire/model/session.h"
#include "tests/golden_cases.h"
#include "tests/session_testing.h"

namespace quire {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

const fs::path kCases = fs::path(QUIRE_SOURCE_DIR) / "tests/golden";

std::string ReadText(const fs::path& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

class SharedWeightsTest : public testing::Test {
 protected:
  SharedWeightsTest() : golden_(ReadGoldenCase(kCases / "gptq-w4-act-order")) {
    fs::copy(kCases / "gptq-w4-act-order", folder_.path(),
             fs::copy_options::recursive);
    options_.device.device_count = 2;
    runtime_ = *CreateRuntime(options_.device);
    shared_ = std::make_unique<SharedWeights>(runtime_.get());
    options_.runtime = runtime_.get();
    options_.shared_weights = shared_.get();
  }

  absl::StatusOr<std::unique_ptr<Session>> TryOpen(const std::string& owner) {
    options_.owner = owner;
    return Session::Open(folder_.path(), options_);
  }
  std::unique_ptr<Session> Open(const std::string& owner) {
    auto session = TryOpen(owner);
    EXPECT_TRUE(session.ok()) << session.status();
    return session.ok() ? *std::move(session) : nullptr;
  }
  Bytes Live(const std::string& owner) {
    return runtime_->memory()
        ->GetOwnerStatistics(runtime_->owners()->Register(owner))
        .live;
  }
  // Of all that is shared.
  Bytes SharedPages() { return Live("shared"); }

  TemporaryFolder folder_;
  GoldenCase golden_;
  SessionOptions options_ = SmallSessionOptions();
  std::unique_ptr<Runtime> runtime_;
  std::unique_ptr<SharedWeights> shared_;
};

TEST_F(SharedWeightsTest, ASecondLoadReadsNothingAndTakesNoPage) {
  const auto first = Open("first");
  ASSERT_NE(first, nullptr);
  const std::vector<float> expected = AllLogits(*first, golden_.prompt);
  const Bytes pages = SharedPages();
  EXPECT_GT(pages, Bytes(0));
  EXPECT_EQ(Live("first/weights"), Bytes(0));
  const auto second = Open("second");
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(second->weights().load_report().bytes, Bytes(0));
  EXPECT_EQ(SharedPages(), pages);
  EXPECT_EQ(shared_->size(), 1u);
  EXPECT_EQ(second->weights().embedding().data,
            first->weights().embedding().data);
  EXPECT_EQ(second->weights().Parameters(), first->weights().Parameters());
  EXPECT_TRUE(AllLogits(*second, golden_.prompt) == expected);
  EXPECT_TRUE(AllLogits(*first, golden_.prompt) == expected);
}

// Whoever goes, the others go on; the memory goes with the last.
TEST_F(SharedWeightsTest, TheLastOneFreesIt) {
  auto first = Open("first");
  auto second = Open("second");
  const std::vector<float> expected = AllLogits(*first, golden_.prompt);
  first.reset();
  EXPECT_TRUE(AllLogits(*second, golden_.prompt) == expected);
  second.reset();
  EXPECT_EQ(SharedPages(), Bytes(0));
  EXPECT_EQ(shared_->size(), 0u);
  // Before its sessions are gone, the registry may be.
  first = Open("first");
  shared_.reset();
  EXPECT_TRUE(AllLogits(*first, golden_.prompt) == expected);
  first.reset();
  EXPECT_EQ(SharedPages(), Bytes(0));
}

TEST_F(SharedWeightsTest, DropsWhenTheLastUserDropsIt) {
  auto first = Open("first");
  auto second = Open("second");
  const std::vector<float> expected = AllLogits(*first, golden_.prompt);
  const Bytes pages = SharedPages();
  EXPECT_EQ(*first->DropWeights(), Bytes(0)) << "the other one uses it";
  EXPECT_EQ(*first->DropWeights(), Bytes(0)) << "once counts once";
  EXPECT_EQ(SharedPages(), pages);
  EXPECT_TRUE(AllLogits(*second, golden_.prompt) == expected);
  EXPECT_EQ(first
                ->ComputeLogits(
                    golden_.prompt,
                    [](std::span<const float>) { return absl::OkStatus(); })
                .code(),
            absl::StatusCode::kFailedPrecondition);
  // Back while the other one has it: nothing is read.
  EXPECT_EQ(first->ReloadWeights()->bytes, Bytes(0));
  EXPECT_TRUE(AllLogits(*first, golden_.prompt) == expected);

  EXPECT_EQ(*first->DropWeights(), Bytes(0));
  EXPECT_EQ(*second->DropWeights(), pages);
  EXPECT_EQ(SharedPages(), Bytes(0));
  // The first that wants it back reads it, for both.
  EXPECT_GT(second->ReloadWeights()->bytes, Bytes(0));
  EXPECT_EQ(first->ReloadWeights()->bytes, Bytes(0));
  EXPECT_TRUE(AllLogits(*first, golden_.prompt) == expected);
  EXPECT_TRUE(AllLogits(*second, golden_.prompt) == expected);

  // One that sleeps keeps no pages from going when the last one awake ends.
  EXPECT_EQ(*first->DropWeights(), Bytes(0));
  second.reset();
  EXPECT_EQ(SharedPages(), Bytes(0));
  EXPECT_GT(first->ReloadWeights()->bytes, Bytes(0));
  EXPECT_TRUE(AllLogits(*first, golden_.prompt) == expected);
}

// A session that opens while the others sleep wakes the weights for all.
TEST_F(SharedWeightsTest, OpensWhatSleeps) {
  const auto first = Open("first");
  const std::vector<float> expected = AllLogits(*first, golden_.prompt);
  ASSERT_TRUE(first->DropWeights().ok());
  const auto second = Open("second");
  EXPECT_GT(second->weights().load_report().bytes, Bytes(0));
  EXPECT_TRUE(AllLogits(*second, golden_.prompt) == expected);
  EXPECT_EQ(first->ReloadWeights()->bytes, Bytes(0));
  EXPECT_TRUE(AllLogits(*first, golden_.prompt) == expected);
}

TEST_F(SharedWeightsTest, TheSleepOfOneSessionLeavesTheOthersTheirs) {
  const auto first = Open("first");
  const auto second = Open("second");
  const std::vector<float> expected = AllLogits(*first, golden_.prompt);
  const OwnerId owner = runtime_->owners()->Register("first");
  {
    auto section = QuiescentSection::Begin(runtime_->memory(), {});
    ASSERT_TRUE(section.ok());
    ASSERT_TRUE(runtime_->allocator()->Sleep(*section, owner).ok());
  }
  EXPECT_EQ(Live("first"), Bytes(0));
  EXPECT_TRUE(AllLogits(*second, golden_.prompt) == expected);
  ASSERT_TRUE(runtime_->allocator()->Wake(owner).ok());
  EXPECT_TRUE(AllLogits(*first, golden_.prompt) == expected);
}

TEST_F(SharedWeightsTest, DoesNotShareWhatIsNotTheSame) {
  const auto first = Open("first");
  const std::string file = folder_.File("model.safetensors");
  // Another time of change.
  const struct timespec times[2] = {{1, 0}, {1, 0}};
  ASSERT_EQ(utimensat(AT_FDCWD, file.c_str(), times, 0), 0);
  const auto changed = Open("changed");
  EXPECT_EQ(shared_->size(), 2u);
  EXPECT_NE(changed->weights().embedding().data,
            first->weights().embedding().data);
  EXPECT_GT(changed->weights().load_report().bytes, Bytes(0));
  // Another file of the same contents.
  fs::copy_file(file, folder_.File("new"));
  fs::rename(folder_.File("new"), file);
  const auto replaced = Open("replaced");
  EXPECT_EQ(shared_->size(), 3u);
  // The same file with another configuration.
  const std::string text = ReadText(folder_.File("config.json"));
  folder_.Write("config.json",
                text.substr(0, text.rfind('}')) + ", \"rope_theta\": 5.0}");
  const auto configured = Open("configured");
  EXPECT_EQ(shared_->size(), 4u);
  // Another placement.
  options_.placement.device_map = folder_.Write("map.json", R"({"": 1})");
  const auto placed = Open("placed");
  EXPECT_EQ(shared_->size(), 5u);
  EXPECT_GT(first->DropWeights().value_or(Bytes(0)), Bytes(0));
  EXPECT_FALSE(first->ReloadWeights().ok()) << "its file has changed";
}

// Two names for one file are one file.
TEST_F(SharedWeightsTest, SharesWhatAnotherPathLeadsTo) {
  const auto first = Open("first");
  const TemporaryFolder other;
  for (const auto& entry : fs::directory_iterator(folder_.path()))
    fs::create_symlink(entry.path(),
                       fs::path(other.path()) / entry.path().filename());
  options_.owner = "second";
  const auto second = Session::Open(other.path(), options_);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ((*second)->weights().load_report().bytes, Bytes(0));
  EXPECT_EQ(shared_->size(), 1u);
}

TEST_F(SharedWeightsTest, RefusesPartsThatRunFromElsewhere) {
  options_.placement.device_map = folder_.Write("map.json", R"({"": "cpu"})");
  const auto session = TryOpen("first");
  EXPECT_EQ(session.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(session.status().message()), HasSubstr("cpu"));
  options_.placement.device_map.clear();
  options_.runtime = nullptr;
  EXPECT_EQ(TryOpen("first").status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(SharedWeightsTest, ALoadThatFailsLeavesNothingToShare) {
  {
    const ReadFaults faults(
        [](uint64_t read) { return read > 20 ? ENXIO : 0; });
    EXPECT_FALSE(TryOpen("first").ok());
  }
  EXPECT_EQ(shared_->size(), 0u);
  // What the allocator keeps for others.
  runtime_->allocator()->Trim();
  EXPECT_EQ(SharedPages(), Bytes(0));
  EXPECT_NE(Open("first"), nullptr);
}

// All at once: one of them loads, and all are right.
TEST_F(SharedWeightsTest, ThreadsComeAndGo) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 6;
  const std::vector<float> expected =
      AllLogits(*Open("reference"), golden_.prompt);
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      SessionOptions options = options_;
      options.owner = "thread" + std::to_string(i);
      for (int round = 0; round < kRounds; ++round) {
        auto session = Session::Open(folder_.path(), options);
        ASSERT_TRUE(session.ok()) << session.status();
        EXPECT_TRUE(AllLogits(**session, golden_.prompt) == expected);
        ASSERT_TRUE((*session)->DropWeights().ok());
        const auto reloaded = (*session)->ReloadWeights();
        ASSERT_TRUE(reloaded.ok()) << reloaded.status();
        EXPECT_TRUE(AllLogits(**session, golden_.prompt) == expected);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(SharedPages(), Bytes(0));
  EXPECT_EQ(shared_->size(), 0u);
}

}  // namespace
}  // namespace quire
