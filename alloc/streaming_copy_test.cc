#include "alloc/streaming_copy.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

namespace quire {
namespace {

constexpr size_t kMargin = 128;
constexpr auto kUntouched = std::byte{0x5a};

// Every alignment of both sides, and sizes on both sides of where streaming
// begins and of the ends of lines: all bytes, and no other.
TEST(StreamingCopyTest, CopiesEveryByteAndNoOther) {
  constexpr size_t kLargest = (size_t{512} << 10) + 200;
  std::vector<std::byte> from(kLargest + kMargin);
  uint32_t state = 1;
  for (std::byte& byte : from) {
    state = state * 1664525 + 1013904223;
    byte = static_cast<std::byte>(state >> 24);
  }
  std::vector<std::byte> to(kLargest + 2 * kMargin);
  for (const size_t size :
       {size_t{0}, size_t{1}, size_t{63}, size_t{4096}, (size_t{512} << 10) - 1,
        size_t{512} << 10, (size_t{512} << 10) + 1, (size_t{512} << 10) + 64,
        kLargest}) {
    for (size_t offset = 0; offset < 64; offset += offset < 4 ? 1 : 15) {
      for (const size_t skew : {0, 1, 16, 33}) {
        std::fill(to.begin(), to.end(), kUntouched);
        std::byte* const out = to.data() + kMargin + offset;
        const std::byte* const in = from.data() + skew;
        StreamingCopy(out, in, size);
        ASSERT_TRUE(std::equal(out, out + size, in))
            << size << " bytes at " << offset << " from " << skew;
        ASSERT_TRUE(std::all_of(
            to.data(), out, [](std::byte byte) { return byte == kUntouched; }));
        ASSERT_TRUE(
            std::all_of(out + size, to.data() + to.size(),
                        [](std::byte byte) { return byte == kUntouched; }));
      }
    }
  }
}

}  // namespace
}  // namespace quire
