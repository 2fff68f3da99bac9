// Which running request gives up its memory, where there is too little.

#ifndef QUIRE_PAGING_VICTIM_POLICY_H_
#define QUIRE_PAGING_VICTIM_POLICY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "quire/alloc/units.h"

namespace quire {

// A request of a Scheduler. Ids grow in the order of arrival; 0 names none.
using RequestId = Id<struct RequestIdTag, uint64_t>;

struct VictimCandidate {
  RequestId request;
  // The last step that computed a token of it.
  uint64_t last_step = 0;
  // Tokens in the cache: what is computed again, or copied.
  uint64_t computed = 0;
  // What its preemption makes free: SequenceCache::FreedByRelease.
  Bytes frees;
};

// Stateless: thread-safe.
class VictimPolicy {
 public:
  virtual ~VictimPolicy() = default;
  // The index of the victim. `shortfall` is what is missing, as far as that is
  // known, else 0 bytes. Candidates are in the order of arrival.
  // REQUIRES: there is one.
  virtual size_t Choose(std::span<const VictimCandidate> candidates,
                        Bytes shortfall) const = 0;
};

// The youngest: first come, first served.
std::unique_ptr<VictimPolicy> MakeYoungestPolicy();
// The one that was computed least recently; of these the one that frees most,
// then the youngest.
std::unique_ptr<VictimPolicy> MakeLeastRecentPolicy();
// Of those that free what is missing by themselves, the one with the fewest
// tokens to compute again; where there is none, the one that frees most. In
// doubt the youngest.
std::unique_ptr<VictimPolicy> MakePageAwarePolicy();

// By name, for options: "youngest" or "fifo", which are the same, "lru",
// "page-aware"; null for others.
std::unique_ptr<VictimPolicy> MakeVictimPolicy(const std::string& name);

}  // namespace quire

#endif  // QUIRE_PAGING_VICTIM_POLICY_H_
