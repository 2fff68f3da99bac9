// Reads of files that fail, or that a test acts in the middle of: the whole
// process's pread, in the tests that link this.

#ifndef QUIRE_LOADER_READ_FAULTS_H_
#define QUIRE_LOADER_READ_FAULTS_H_

#include <cstdint>
#include <functional>

namespace quire {

// While it lives. At most one at a time; made and destroyed while nothing
// reads.
class ReadFaults {
 public:
  // Called before read 1, 2, ... by the thread that reads, one at a time.
  // Returns the errno that it fails with, or 0.
  explicit ReadFaults(std::function<int(uint64_t read)> before_read);
  ~ReadFaults();
  ReadFaults(const ReadFaults&) = delete;
  ReadFaults& operator=(const ReadFaults&) = delete;

  uint64_t reads() const;
};

}  // namespace quire

#endif  // QUIRE_LOADER_READ_FAULTS_H_
