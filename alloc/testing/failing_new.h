// operator new that fails when a test says so. Linked into a test program, it
// replaces the one of the whole program.

#ifndef QUIRE_ALLOC_TESTING_FAILING_NEW_H_
#define QUIRE_ALLOC_TESTING_FAILING_NEW_H_

#include <cstdint>

namespace quire {

// Of the calling thread alone.
class FailingNew {
 public:
  // The call of operator new after the next `calls` fails, once.
  static void FailAfter(int64_t calls);
  // No call fails any more. Whether one has since FailAfter.
  static bool Stop();
};

}  // namespace quire

#endif  // QUIRE_ALLOC_TESTING_FAILING_NEW_H_
