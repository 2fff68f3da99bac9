#include "quire/model/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <ctime>
#include <set>
#include <thread>
#include <vector>

#include "quire/alloc/mutex.h"

namespace quire {
namespace {

TEST(ThreadPoolTest, CoversEveryElementOnceInRangesOfTheGrain) {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (const size_t count : {0, 1, 2, 7, 64, 1000}) {
      for (const size_t grain : {0, 1, 3, 64, 5000}) {
        std::vector<std::atomic<int>> seen(count);
        pool.ParallelFor(count, grain, [&](size_t begin, size_t end) {
          ASSERT_LT(begin, end);
          ASSERT_LE(end, count);
          if (grain > 0) {
            EXPECT_EQ(begin % grain, 0u);
            EXPECT_TRUE(end == count || end % grain == 0);
          }
          for (size_t i = begin; i < end; ++i) ++seen[i];
        });
        for (const auto& n : seen) ASSERT_EQ(n.load(), 1);
      }
    }
  }
}

TEST(ThreadPoolTest, ZeroThreadsMeansTheCoresOfThisProcess) {
  ThreadPool pool(0);
  EXPECT_GE(pool.threads(), 1);
  EXPECT_LE(pool.threads(),
            static_cast<int>(std::thread::hardware_concurrency()));
}

TEST(ThreadPoolTest, HugeCountsDoNotOverflow) {
  ThreadPool pool(2);
  std::atomic<size_t> covered{0};
  pool.ParallelFor(SIZE_MAX, SIZE_MAX / 3,
                   [&](size_t begin, size_t end) { covered += end - begin; });
  EXPECT_EQ(covered.load(), SIZE_MAX);
}

TEST(ThreadPoolTest, OneThreadStaysOnTheCaller) {
  ThreadPool pool(1);
  pool.ParallelFor(10, 1,
                   [caller = std::this_thread::get_id()](size_t, size_t) {
                     EXPECT_EQ(std::this_thread::get_id(), caller);
                   });
}

TEST(ThreadPoolTest, SeveralThreadsWorkAtOnce) {
  ThreadPool pool(3);
  // Each range waits for the others: one thread alone would never finish.
  std::atomic<int> inside{0};
  pool.ParallelFor(3, 1, [&](size_t, size_t) {
    ++inside;
    while (inside.load() < 3) std::this_thread::yield();
  });
  EXPECT_EQ(inside.load(), 3);
}

TEST(ThreadPoolTest, WritesOfALoopAreSeenAfterIt) {
  ThreadPool pool(4);
  std::vector<int> values(1000, 0);  // not atomic on purpose
  for (int round = 1; round <= 500; ++round) {
    pool.ParallelFor(values.size(), 10, [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) ++values[i];
    });
    for (const int v : values) ASSERT_EQ(v, round);
  }
}

TEST(ThreadPoolTest, ConcurrentCallersTakeTurns) {
  ThreadPool pool(3);
  std::atomic<int> loops{0};
  std::vector<std::thread> callers;
  for (int c = 0; c < 4; ++c) {
    callers.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        std::atomic<int> sum{0};
        pool.ParallelFor(50, 4, [&](size_t begin, size_t end) {
          sum += static_cast<int>(end - begin);
        });
        EXPECT_EQ(sum.load(), 50);
        ++loops;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(loops.load(), 800);
}

TEST(ThreadPoolTest, AnIdlePoolUsesNoProcessorTime) {
  ThreadPool pool(4);
  pool.ParallelFor(100, 1, [](size_t, size_t) {});
  // The clock counts processor time of all threads of the process, not time.
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  const std::clock_t before = std::clock();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  const double seconds =
      static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC;
  EXPECT_LT(seconds, 0.1);
}

TEST(ThreadPoolTest, WakesUpAfterIdling) {
  ThreadPool pool(2);
  for (int i = 0; i < 5; ++i) {
    std::atomic<int> inside{0};
    pool.ParallelFor(2, 1, [&](size_t, size_t) {
      ++inside;
      while (inside.load() < 2) std::this_thread::yield();
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

TEST(ThreadPoolTest, MayBeDestroyedUnusedOrRightAfterALoop) {
  for (int i = 0; i < 50; ++i) {
    ThreadPool unused(3);
    ThreadPool used(3);
    used.ParallelFor(3, 1, [](size_t, size_t) {});
  }
}

}  // namespace
}  // namespace quire
