#include "loader/read_faults.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "quire/alloc/mutex.h"

namespace quire {
namespace {

struct Interceptor {
  Mutex mutex;
  std::function<int(uint64_t)> before_read ABSL_GUARDED_BY(mutex);
  uint64_t reads ABSL_GUARDED_BY(mutex) = 0;

  // The errno of the next read, or 0.
  int BeforeRead() {
    MutexLock lock(&mutex);
    return before_read ? before_read(++reads) : 0;
  }
};

Interceptor& TheInterceptor() {
  static Interceptor* const interceptor = new Interceptor;
  return *interceptor;
}

}  // namespace

ReadFaults::ReadFaults(std::function<int(uint64_t read)> before_read) {
  Interceptor& interceptor = TheInterceptor();
  MutexLock lock(&interceptor.mutex);
  interceptor.before_read = std::move(before_read);
  interceptor.reads = 0;
}

ReadFaults::~ReadFaults() {
  Interceptor& interceptor = TheInterceptor();
  MutexLock lock(&interceptor.mutex);
  interceptor.before_read = nullptr;
}

uint64_t ReadFaults::reads() const {
  Interceptor& interceptor = TheInterceptor();
  MutexLock lock(&interceptor.mutex);
  return interceptor.reads;
}

}  // namespace quire

// Takes the place of the C library's in this program.
extern "C" ssize_t pread(int fd, void* out, size_t size, off_t offset) {
  if (const int error = quire::TheInterceptor().BeforeRead(); error != 0) {
    errno = error;
    return -1;
  }
  return syscall(SYS_pread64, fd, out, size, offset);
}
