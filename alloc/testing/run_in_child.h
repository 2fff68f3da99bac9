// Checks that run in a forked child.

#ifndef QUIRE_ALLOC_TESTING_RUN_IN_CHILD_H_
#define QUIRE_ALLOC_TESTING_RUN_IN_CHILD_H_

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

namespace quire {

// What went wrong in a child is told by its exit status: the number of the
// first check that failed. A child that hangs is ended by its alarm.
inline int RunInChild(const std::function<int()>& checks) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(30);
    _exit(checks());
  }
  EXPECT_GT(child, 0);
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << "ended by signal " << WTERMSIG(status);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// Whether memory can be had in a child that was forked while other threads were
// having some. The C library sees to that; AddressSanitizer's allocator may
// have its locks held for ever there.
inline constexpr bool kChildrenOfThreadsMayAllocate =
#if defined(__SANITIZE_ADDRESS__)
    false;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
    false;
#else
    true;
#endif
#else
    true;
#endif

}  // namespace quire

#endif  // QUIRE_ALLOC_TESTING_RUN_IN_CHILD_H_
