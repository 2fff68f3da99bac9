// io_uring by its system calls alone: no library is needed for a few reads.

#include <fcntl.h>
#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/status/statusor.h"
#include "bench/load_bench/raw_file.h"
#include "bench/load_bench/raw_reads.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

// One ring of the kernel's, mapped.
class Mapping {
 public:
  Mapping(int fd, size_t size, off_t offset)
      : size_(size),
        data_(mmap(nullptr, size, PROT_READ | PROT_WRITE,
                   MAP_SHARED | MAP_POPULATE, fd, offset)) {}
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() {
    if (ok()) munmap(data_, size_);
  }
  bool ok() const { return data_ != MAP_FAILED; }
  template <typename T>
  T* At(uint32_t offset) const {
    return reinterpret_cast<T*>(static_cast<char*>(data_) + offset);
  }

 private:
  const size_t size_;
  void* const data_;
};

uint32_t Acquire(const uint32_t* value) {
  return __atomic_load_n(value, __ATOMIC_ACQUIRE);
}
void Release(uint32_t* value, uint32_t to) {
  __atomic_store_n(value, to, __ATOMIC_RELEASE);
}

class Uring {
 public:
  static absl::StatusOr<std::unique_ptr<Uring>> Create(uint32_t entries) {
    io_uring_params params{};
    const long fd = syscall(SYS_io_uring_setup, entries, &params);
    if (fd < 0)
      return absl::UnimplementedError("the system does not allow io_uring");
    std::unique_ptr<Uring> ring(new Uring(static_cast<int>(fd), params));
    if (!ring->submissions_.ok() || !ring->completions_.ok() ||
        !ring->entries_.ok())
      return absl::UnimplementedError("io_uring's rings cannot be mapped");
    return ring;
  }
  ~Uring() { close(fd_); }

  // REQUIRES: fewer reads than entries are under way.
  void Add(int file, void* to, uint64_t size, uint64_t offset, uint64_t tag) {
    uint32_t* const tail = submissions_.At<uint32_t>(params_.sq_off.tail);
    const uint32_t mask = *submissions_.At<uint32_t>(params_.sq_off.ring_mask);
    const uint32_t index = *tail & mask;
    io_uring_sqe* const entry = entries_.At<io_uring_sqe>(0) + index;
    std::memset(entry, 0, sizeof(*entry));
    entry->opcode = IORING_OP_READ;
    entry->fd = file;
    entry->addr = reinterpret_cast<uint64_t>(to);
    entry->len = static_cast<uint32_t>(size);
    entry->off = offset;
    entry->user_data = tag;
    submissions_.At<uint32_t>(params_.sq_off.array)[index] = index;
    Release(tail, *tail + 1);
    ++added_;
  }
  // Submits what was added, waits for one read, and returns its tag.
  absl::StatusOr<uint64_t> Wait() {
    uint32_t* const head = completions_.At<uint32_t>(params_.cq_off.head);
    const uint32_t* const tail = completions_.At<uint32_t>(params_.cq_off.tail);
    while (added_ > 0 || *head == Acquire(tail)) {
      const long submitted =
          syscall(SYS_io_uring_enter, fd_, added_, *head == Acquire(tail),
                  IORING_ENTER_GETEVENTS, nullptr, 0);
      if (submitted < 0 && errno != EINTR)
        return absl::ErrnoToStatus(errno, "io_uring_enter");
      if (submitted > 0) added_ -= static_cast<uint32_t>(submitted);
    }
    const uint32_t mask = *completions_.At<uint32_t>(params_.cq_off.ring_mask);
    const io_uring_cqe entry =
        completions_.At<io_uring_cqe>(params_.cq_off.cqes)[*head & mask];
    Release(head, *head + 1);
    if (entry.res < 0) return absl::ErrnoToStatus(-entry.res, "a read");
    return entry.user_data;
  }

 private:
  Uring(int fd, const io_uring_params& params)
      : fd_(fd),
        params_(params),
        submissions_(fd,
                     params.sq_off.array + params.sq_entries * sizeof(uint32_t),
                     IORING_OFF_SQ_RING),
        completions_(
            fd, params.cq_off.cqes + params.cq_entries * sizeof(io_uring_cqe),
            IORING_OFF_CQ_RING),
        entries_(fd, params.sq_entries * sizeof(io_uring_sqe),
                 IORING_OFF_SQES) {}

  const int fd_;
  const io_uring_params params_;
  const Mapping submissions_;
  const Mapping completions_;
  const Mapping entries_;
  uint32_t added_ = 0;  // and not submitted
};

absl::Status ReadFile(const RawFile& file,
                      const std::vector<ReadBuffer>& buffers, Uring* ring) {
  uint64_t next = 0;
  const auto add = [&](uint64_t buffer) {
    ring->Add(file.fd(), buffers[buffer].data(), kReadBlock, next, buffer);
    next += kReadBlock;
  };
  size_t under_way = 0;
  for (; under_way < buffers.size() && next < file.size(); ++under_way)
    add(under_way);
  while (under_way > 0) {
    QUIRE_ASSIGN_OR_RETURN(const uint64_t buffer, ring->Wait());
    if (next < file.size()) {
      add(buffer);
    } else {
      --under_way;
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadByUring(const std::vector<std::string>& files) {
  std::vector<ReadBuffer> buffers;
  for (int i = 0; i < kReadsAtOnce; ++i) {
    buffers.emplace_back(kReadBlock);
    if (!buffers.back().ok())
      return absl::ResourceExhaustedError("no memory to read to");
  }
  // After the buffers, so that no read is under way when they go.
  QUIRE_ASSIGN_OR_RETURN(const std::unique_ptr<Uring> ring,
                         Uring::Create(kReadsAtOnce));
  for (const std::string& path : files) {
    QUIRE_ASSIGN_OR_RETURN(const RawFile file, RawFile::Open(path, O_DIRECT));
    QUIRE_RETURN_IF_ERROR(ReadFile(file, buffers, ring.get()));
  }
  return absl::OkStatus();
}

}  // namespace quire
