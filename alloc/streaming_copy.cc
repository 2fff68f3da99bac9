#include "alloc/streaming_copy.h"

#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace quire {
namespace {

#if defined(__SSE2__)

// Half of what a core's own caches hold.
constexpr size_t kSmallest = size_t{512} << 10;
constexpr size_t kLine = 64;
constexpr size_t kVectors = kLine / sizeof(__m128i);

// REQUIRES: `to` is aligned to a line, and `size` a number of them.
void StreamLines(std::byte* to, const std::byte* from, size_t size) {
  for (size_t at = 0; at < size; at += kLine) {
    __m128i line[kVectors];
    for (size_t i = 0; i < kVectors; ++i)
      line[i] =
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at) + i);
    for (size_t i = 0; i < kVectors; ++i)
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + at) + i, line[i]);
  }
  // Streaming stores are ordered by nothing else.
  _mm_sfence();
}

#endif

}  // namespace

void StreamingCopy(void* to, const void* from, size_t size) {
#if defined(__SSE2__)
  if (size >= kSmallest) {
    auto* out = static_cast<std::byte*>(to);
    const auto* in = static_cast<const std::byte*>(from);
    const size_t head =
        (kLine - reinterpret_cast<uintptr_t>(out) % kLine) % kLine;
    const size_t lines = (size - head) / kLine * kLine;
    std::memcpy(out, in, head);
    StreamLines(out + head, in + head, lines);
    const size_t done = head + lines;
    std::memcpy(out + done, in + done, size - done);
    return;
  }
#endif
  std::memcpy(to, from, size);
}

}  // namespace quire
