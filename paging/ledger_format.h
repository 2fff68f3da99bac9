// The layout of a ledger in shared memory.
//
//   | header | record 0 | record 1 | ... | record kLedgerRecords - 1 |
//
// Header and records are of one size, which divides a page of memory, so that
// the write of one is all or nothing also where the writer is killed. Each
// carries a checksum of itself. No total is stored: whatever a killed process
// left is a set of valid records, and a record of a dead process is free.
//
// Native byte order: the ledger never leaves the machine.

#ifndef QUIRE_PAGING_LEDGER_FORMAT_H_
#define QUIRE_PAGING_LEDGER_FORMAT_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace quire {

inline constexpr size_t kLedgerBlock = 256;
inline constexpr size_t kLedgerRecords = 64;
inline constexpr uint32_t kLedgerVersion = 1;
inline constexpr size_t kLedgerNameBytes = 96;  // the last one is 0
inline constexpr std::array<char, 8> kLedgerMagic = {'Q', 'U', 'I', 'R',
                                                     'E', 'L', 'D', 'G'};
// In `most`: as much as its maximum and limit allow.
inline constexpr uint64_t kNoBytesLimit = UINT64_MAX;

struct LedgerHeader {
  std::array<char, 8> magic;
  uint32_t version;
  uint32_t records;
  int32_t device;
  uint32_t unused;
  uint64_t budget;
  uint64_t pid_namespace;
  std::array<uint64_t, 26> reserved;  // 0
  uint64_t checksum;
};

enum class LedgerRecordKind : uint32_t {
  kFree = 0,
  kProcess = 1,  // the memory of a process
  kOwner = 2,    // an owner in it
};

struct LedgerRecord {
  LedgerRecordKind kind;
  uint32_t generation;  // counts who had the record
  int32_t pid;
  uint32_t parent;  // of owners: the number of the process's record
  uint64_t start_time;
  // All in bytes.
  uint64_t limit;  // 0: none
  uint64_t min;
  uint64_t max;
  uint64_t most;  // what the others leave to it; kNoBytesLimit: anything
  uint64_t claim;
  uint64_t used;
  uint64_t peak;
  uint64_t wanted;     // 0: nothing beyond the claim
  uint64_t last_seen;  // milliseconds of the monotonic clock
  std::array<char, kLedgerNameBytes> name;
  std::array<uint64_t, 7> reserved;  // 0
  uint64_t checksum;
};

static_assert(sizeof(LedgerHeader) == kLedgerBlock);
static_assert(sizeof(LedgerRecord) == kLedgerBlock);
static_assert(std::is_trivially_copyable_v<LedgerHeader>);
static_assert(std::is_trivially_copyable_v<LedgerRecord>);

inline constexpr size_t kLedgerBytes = kLedgerBlock * (1 + kLedgerRecords);

// As FNV-1a, over the words in front of the checksum instead of bytes, as every
// call checks all records: it finds damage, not malice, against which the
// contents are checked.
template <typename Block>
uint64_t LedgerChecksum(const Block& block) {
  static_assert(offsetof(Block, checksum) % sizeof(uint64_t) == 0);
  uint64_t hash = 0xcbf29ce484222325;
  for (size_t i = 0; i < offsetof(Block, checksum); i += sizeof(uint64_t)) {
    uint64_t word;
    std::memcpy(&word, reinterpret_cast<const char*>(&block) + i, sizeof(word));
    hash = (hash ^ word) * 0x100000001b3;
  }
  return hash;
}

}  // namespace quire

#endif  // QUIRE_PAGING_LEDGER_FORMAT_H_
