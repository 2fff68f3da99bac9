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

}  // namespace quire

#endif  // QUIRE_ALLOC_TESTING_RUN_IN_CHILD_H_
