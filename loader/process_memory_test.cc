#include "quire/loader/process_memory.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <thread>

#include "gtest/gtest.h"

namespace quire {
namespace {

constexpr size_t kSize = size_t{64} << 20;
// The kernel counts in batches; a sanitizer's bookkeeping comes on top.
constexpr uint64_t kTolerance = uint64_t{8} << 20;

// ThreadSanitizer keeps four bytes of its own, anonymous ones, for each byte
// that it sees touched: so it must not see these.
__attribute__((no_sanitize("thread"), noinline)) void TouchPages(void* memory) {
  constexpr size_t kPage = 4096;
  for (size_t at = 0; at < kSize; at += kPage)
    static_cast<volatile char*>(memory)[at] = 1;
}

// Memory of one kind, touched page by page. The system calls are made directly,
// for the same reason.
class TouchedMemory {
 public:
  explicit TouchedMemory(int flags)
      : memory_(reinterpret_cast<void*>(
            syscall(SYS_mmap, nullptr, kSize, PROT_READ | PROT_WRITE,
                    flags | MAP_ANONYMOUS, -1, 0))) {
    EXPECT_NE(memory_, MAP_FAILED);
    TouchPages(memory_);
  }
  ~TouchedMemory() { syscall(SYS_munmap, memory_, kSize); }

 private:
  void* const memory_;
};

uint64_t AnonymousNow() {
  const auto memory = ReadProcessMemory();
  EXPECT_TRUE(memory.ok()) << memory.status();
  return memory->anonymous.value();
}

TEST(ProcessMemory, CountsPrivateMemoryAsAnonymous) {
  const uint64_t before = AnonymousNow();
  {
    TouchedMemory memory(MAP_PRIVATE);
    const uint64_t with = AnonymousNow();
    EXPECT_GE(with + kTolerance, before + kSize);
    EXPECT_LE(with, before + kSize + kTolerance);
  }
  EXPECT_LE(AnonymousNow(), before + kTolerance);
}

TEST(ProcessMemory, AvailableIsLessThanTheMachineHas) {
  const auto available = ReadAvailableMemory();
  ASSERT_TRUE(available.ok()) << available.status();
  EXPECT_GT(*available, MiB(1));
  EXPECT_LE(available->value(),
            static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) *
                static_cast<uint64_t>(sysconf(_SC_PAGESIZE)));
}

TEST(ProcessMemory, DoesNotCountSharedMemoryAsAnonymous) {
  const auto before = ReadProcessMemory();
  ASSERT_TRUE(before.ok()) << before.status();
  TouchedMemory memory(MAP_SHARED);
  const auto with = ReadProcessMemory();
  ASSERT_TRUE(with.ok()) << with.status();
  EXPECT_LE(with->anonymous.value(), before->anonymous.value() + kTolerance);
  EXPECT_GE(with->resident.value() + kTolerance,
            before->resident.value() + kSize);
  EXPECT_GE(with->peak_resident.value() + kTolerance, with->resident.value());
}

TEST(AnonymousPeakSampler, SeesAPeakThatIsOver) {
  const uint64_t before = AnonymousNow();
  auto sampler = AnonymousPeakSampler::Start(std::chrono::milliseconds(1));
  ASSERT_TRUE(sampler.ok()) << sampler.status();
  {
    TouchedMemory memory(MAP_PRIVATE);
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
  const uint64_t peak = (*sampler)->Stop().value();
  EXPECT_GE(peak + kTolerance, before + kSize);
  EXPECT_LE(peak, before + kSize + 2 * kTolerance);
  EXPECT_LE(AnonymousNow(), before + kTolerance);
  EXPECT_EQ((*sampler)->Stop().value(), peak);
}

TEST(AnonymousPeakSampler, CountsWhatIsThereAtTheEnd) {
  auto sampler = AnonymousPeakSampler::Start(std::chrono::hours(1));
  ASSERT_TRUE(sampler.ok()) << sampler.status();
  const uint64_t before = AnonymousNow();
  TouchedMemory memory(MAP_PRIVATE);
  EXPECT_GE((*sampler)->Stop().value() + kTolerance, before + kSize);
}

TEST(AnonymousPeakSampler, EndsWhereItIsDestroyed) {
  for (int i = 0; i < 50; ++i) {
    auto sampler = AnonymousPeakSampler::Start(std::chrono::hours(1));
    ASSERT_TRUE(sampler.ok()) << sampler.status();
  }
}

}  // namespace
}  // namespace quire
