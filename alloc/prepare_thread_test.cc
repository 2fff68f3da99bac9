#include "quire/alloc/prepare_thread.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>

namespace quire {
namespace {

using Progress = PrepareThread::Progress;

// What is made, and what steps are allowed to make.
struct Workshop {
  std::atomic<int> wanted{0};
  std::atomic<int> made{0};
  std::atomic<int> refusals{0};
  std::atomic<bool> refuses{false};

  std::unique_ptr<PrepareThread> Start() {
    auto thread = PrepareThread::Start([this] {
      if (made >= wanted) return Progress::kEnough;
      if (refuses) {
        ++refusals;
        return Progress::kRefused;
      }
      ++made;
      return Progress::kMade;
    });
    EXPECT_TRUE(thread.ok()) << thread.status();
    return *std::move(thread);
  }
  void AwaitMade(int count) const {
    while (made < count) std::this_thread::yield();
  }
};

TEST(PrepareThreadTest, MakesWhatIsWantedFromTheStartAndWhenWoken) {
  Workshop workshop;
  workshop.wanted = 5;
  const auto thread = workshop.Start();
  workshop.AwaitMade(5);
  for (int i = 6; i < 200; ++i) {
    workshop.wanted = i;
    thread->Wake();
    workshop.AwaitMade(i);
  }
  EXPECT_EQ(workshop.made, 199);
}

TEST(PrepareThreadTest, TriesAgainWhenItWasRefused) {
  Workshop workshop;
  workshop.refuses = true;
  workshop.wanted = 1;
  const auto thread = workshop.Start();
  // Nobody wakes it.
  while (workshop.refusals < 2) std::this_thread::yield();
  workshop.refuses = false;
  workshop.AwaitMade(1);
}

TEST(PrepareThreadTest, StopsInTheMiddleOfItsWork) {
  Workshop workshop;
  workshop.wanted = 1 << 30;
  auto thread = workshop.Start();
  workshop.AwaitMade(3);
  thread.reset();
  const int made = workshop.made;
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(workshop.made, made);
}

}  // namespace
}  // namespace quire
