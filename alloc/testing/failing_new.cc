#include "alloc/testing/failing_new.h"

#include <cstdlib>
#include <new>

namespace {

// Calls that succeed before one fails; negative: none fails.
thread_local int64_t calls_left = -1;
thread_local bool has_failed = false;

void* AllocateOrFail(std::size_t size) {
  if (calls_left == 0) {
    calls_left = -1;
    has_failed = true;
    return nullptr;
  }
  if (calls_left > 0) --calls_left;
  return std::malloc(size == 0 ? 1 : size);
}

}  // namespace

namespace quire {

void FailingNew::FailAfter(int64_t calls) {
  has_failed = false;
  calls_left = calls;
}

bool FailingNew::Stop() {
  calls_left = -1;
  return has_failed;
}

}  // namespace quire

void* operator new(std::size_t size) {
  void* const memory = AllocateOrFail(size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  return AllocateOrFail(size);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
