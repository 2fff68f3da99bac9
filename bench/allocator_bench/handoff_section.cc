// Blocks that whoever allocated them does not free: another stream or another
// thread does, round after round.

#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "absl/strings/str_format.h"
#include "bench/allocator_bench/contender.h"
#include "bench/allocator_bench/sections.h"
#include "bench/allocator_bench/timing.h"
#include "bench/bench_device.h"
#include "quire/alloc/mutex.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

// What is live at a time, and of the peak of memory in use to that.
constexpr uint64_t kLive = 128 << 20;
constexpr double kBar = 1.05;
constexpr int kRounds = 100;

using Work = std::function<void(int round)>;

void OnOneThread(const Work& first, const Work& second) {
  for (int round = 0; round < kRounds; ++round) {
    first(round);
    second(round);
  }
}

// The second part of each round runs on a thread of its own.
void OnTwoThreads(const Work& first, const Work& second) {
  Mutex mutex;
  CondVar turned;
  bool seconds_turn = false;
  const auto take_turns = [&](bool mine, const Work& work) {
    for (int round = 0; round < kRounds; ++round) {
      MutexLock lock(&mutex);
      while (seconds_turn != mine) turned.Wait(&mutex);
      work(round);
      seconds_turn = !mine;
      turned.NotifyAll();
    }
  };
  std::thread other([&] { take_turns(true, second); });
  take_turns(false, first);
  other.join();
}

struct Case {
  const char* name;
  void (*run)(const Work&, const Work&);
  int streams;
  // By how many it goes on from an allocation to the free, and from a free to
  // the next round.
  int to_free;
  int to_next;
};
constexpr Case kCases[] = {
    {"to another stream", OnOneThread, 2, 1, 0},
    {"around four streams", OnOneThread, 4, 0, 1},
    {"to another thread", OnTwoThreads, 1, 0, 0},
};

absl::Status MeasureCase(const Case& that, uint64_t size, Section* section) {
  QUIRE_ASSIGN_OR_RETURN(const auto device, BenchDevice::Create(GiB(64)));
  std::vector<StreamId> streams;
  for (int i = 0; i < that.streams; ++i) {
    QUIRE_ASSIGN_OR_RETURN(const StreamId stream, device->CreateStream());
    streams.push_back(stream);
  }
  const auto stream_of = [&](int round, int behind) {
    return streams[(round * that.to_next + behind) % that.streams];
  };
  std::vector<uint64_t> blocks(kLive / size);
  uint64_t nanoseconds = 0;
  bool ok = true;
  that.run(
      [&](int round) {
        QuireContender contender(device->allocator(), stream_of(round, 0));
        const uint64_t start = ThreadNanoseconds();
        for (uint64_t& block : blocks) {
          block = contender.Allocate(size);
          ok &= block != 0;
        }
        nanoseconds += ThreadNanoseconds() - start;
      },
      [&](int round) {
        const StreamId stream = stream_of(round, that.to_free);
        QuireContender contender(device->allocator(), stream);
        const uint64_t start = ThreadNanoseconds();
        for (const uint64_t block : blocks) ok &= contender.Free(block);
        nanoseconds += ThreadNanoseconds() - start;
        ok &= device->driver()->SynchronizeStream(stream).ok();
      });
  if (!ok) return absl::InternalError("an operation failed");
  const auto name = [&](const char* what) {
    return absl::StrFormat("%s, %u KiB, %s", that.name, size >> 10, what);
  };
  section->figures.push_back(
      {.name = name("peak / live"),
       .unit = "x",
       .value = static_cast<double>(
                    device->memory()->GetStatistics().peak_in_use.value()) /
                static_cast<double>(kLive),
       .bar = kBar});
  section->figures.push_back(
      {.name = name("an operation"),
       .unit = "ns",
       .value = static_cast<double>(nanoseconds) /
                static_cast<double>(2 * blocks.size() * kRounds)});
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Section> MeasureHandoff(const BenchOptions& /*options*/) {
  Section section;
  section.name = "handoff";
  section.title = "128 MiB allocated here and freed there, 100 times";
  section.method =
      "streams stand still after each round; processor time of both threads, "
      "the first rounds, which make the pages, included";
  for (const Case& that : kCases) {
    for (const uint64_t size : {4 << 10, 64 << 10, 1 << 20}) {
      QUIRE_RETURN_IF_ERROR(MeasureCase(that, size, &section));
    }
  }
  return section;
}

}  // namespace quire
