#include "bench/program.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iostream>

namespace quire {

int FinishOutput(const char* program, int exit_status) {
  errno = 0;
  std::cout.flush();
  const bool written =
      std::fflush(stdout) == 0 && std::ferror(stdout) == 0 && std::cout.good();
  if (written) return exit_status;
  // What failed long ago has left no reason.
  const char* const reason =
      errno == 0 ? "an earlier error" : std::strerror(errno);
  std::fprintf(stderr, "%s: standard output cannot be written: %s\n", program,
               reason);
  return exit_status == 0 ? kFailed : exit_status;
}

}  // namespace quire
