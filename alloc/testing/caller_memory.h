// Pages of host memory as a caller of PinMemory has them.

#ifndef QUIRE_ALLOC_TESTING_CALLER_MEMORY_H_
#define QUIRE_ALLOC_TESTING_CALLER_MEMORY_H_

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstddef>

namespace quire {

class CallerMemory {
 public:
  static constexpr size_t kPage = 4096;

  explicit CallerMemory(size_t pages) : size_(pages * kPage) {
    void* const memory = mmap(nullptr, size_, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(memory, MAP_FAILED);
    start_ = static_cast<std::byte*>(memory);
  }
  ~CallerMemory() { munmap(start_, size_); }
  CallerMemory(const CallerMemory&) = delete;
  CallerMemory& operator=(const CallerMemory&) = delete;

  std::byte* page(size_t index) const { return start_ + index * kPage; }

 private:
  const size_t size_;
  std::byte* start_ = nullptr;
};

}  // namespace quire

#endif  // QUIRE_ALLOC_TESTING_CALLER_MEMORY_H_
