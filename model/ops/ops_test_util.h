// What the tests of the operations share: every SIMD target in turn, buffers
// that fault where they are over-read, and a bit writer.

#ifndef QUIRE_MODEL_OPS_OPS_TEST_UTIL_H_
#define QUIRE_MODEL_OPS_OPS_TEST_UTIL_H_

#include <gtest/gtest.h>
#include <hwy/highway.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <vector>

namespace quire {

// Runs `body` on each target that was compiled and that this machine has.
template <class Body>
void ForEachTarget(const Body& body) {
  hwy::SetSupportedTargetsForTest(0);
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    body();
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

// A copy of `values` that ends where memory ends: reading past it faults, in
// every kind of build.
template <typename T>
class GuardedBuffer {
 public:
  explicit GuardedBuffer(std::span<const T> values) {
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t bytes = values.size_bytes();
    const size_t pages = (bytes + page - 1) / page;
    size_ = (pages + 1) * page;
    base_ = mmap(nullptr, size_, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base_ == MAP_FAILED) {
      ADD_FAILURE() << "no memory for a guarded buffer";
      return;
    }
    auto* const guard = static_cast<uint8_t*>(base_) + pages * page;
    EXPECT_EQ(mprotect(guard, page, PROT_NONE), 0);
    data_ = reinterpret_cast<T*>(guard - bytes);
    if (bytes > 0) std::memcpy(data_, values.data(), bytes);
  }
  explicit GuardedBuffer(const std::vector<T>& values)
      : GuardedBuffer(std::span<const T>(values)) {}
  ~GuardedBuffer() { munmap(base_, size_); }
  GuardedBuffer(const GuardedBuffer&) = delete;
  GuardedBuffer& operator=(const GuardedBuffer&) = delete;

  T* data() const { return data_; }

 private:
  void* base_ = nullptr;
  size_t size_ = 0;
  T* data_ = nullptr;
};

inline std::vector<float> RandomNormal(size_t count, std::mt19937* random,
                                       float deviation = 1.0f) {
  std::normal_distribution<float> normal(0.0f, deviation);
  std::vector<float> values(count);
  for (float& v : values) v = normal(*random);
  return values;
}

// Sets bits [first, first + count) of column `column` of a matrix of words with
// `columns` columns to `code`, one bit at a time: bit b of a column is bit b %
// 32 of its word b / 32.
inline void WriteBits(std::vector<uint32_t>* words, size_t columns,
                      size_t column, size_t first, int count, uint32_t code) {
  for (int b = 0; b < count; ++b) {
    const size_t bit = first + static_cast<size_t>(b);
    uint32_t& word = (*words)[bit / 32 * columns + column];
    const uint32_t one = uint32_t{1} << (bit % 32);
    word = (code >> b & 1) != 0 ? word | one : word & ~one;
  }
}

}  // namespace quire

#endif  // QUIRE_MODEL_OPS_OPS_TEST_UTIL_H_
