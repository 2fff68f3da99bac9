// Which function a caller of a sample lies in, whether the program exports its
// name or not.

#ifndef QUIRE_ALLOC_TESTING_ENCLOSING_FUNCTION_H_
#define QUIRE_ALLOC_TESTING_ENCLOSING_FUNCTION_H_

#include <unwind.h>

#include <cstdint>

namespace quire {

// The first address of the function that `caller`, which a call returns to,
// lies in.
inline uintptr_t EnclosingFunction(uintptr_t caller) {
  return reinterpret_cast<uintptr_t>(
      _Unwind_FindEnclosingFunction(reinterpret_cast<void*>(caller - 1)));
}

}  // namespace quire

#endif  // QUIRE_ALLOC_TESTING_ENCLOSING_FUNCTION_H_
