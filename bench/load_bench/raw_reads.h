// The rulers of load_bench: how fast a disk gives the bytes of files by ways of
// reading that do nothing else.

#ifndef QUIRE_BENCH_LOAD_BENCH_RAW_READS_H_
#define QUIRE_BENCH_LOAD_BENCH_RAW_READS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace quire {

// Blocks of one read, and how many are under way at once, of every ruler.
inline constexpr uint64_t kReadBlock = uint64_t{8} << 20;
inline constexpr int kReadsAtOnce = 4;

// Each reads all bytes of all files, one file after another, and keeps none.
// kUnimplemented where the system has no such way.
//
// By threads, each with a buffer of its own: past the page cache, or through it
// with the pages dropped behind.
absl::Status ReadDirectly(const std::vector<std::string>& files);
absl::Status ReadAndDrop(const std::vector<std::string>& files);
// By one thread through io_uring, past the page cache.
absl::Status ReadByUring(const std::vector<std::string>& files);

// So that the next read comes from the disk.
void DropFromCache(const std::vector<std::string>& files);

}  // namespace quire

#endif  // QUIRE_BENCH_LOAD_BENCH_RAW_READS_H_
