#include "quire/paging/victim_policy.h"

#include <algorithm>
#include <tuple>

namespace quire {
namespace {

// The greatest by `key`; of equal ones the last, which is the youngest.
template <typename Key>
size_t LastGreatest(std::span<const VictimCandidate> candidates, Key key) {
  size_t best = 0;
  for (size_t i = 1; i < candidates.size(); ++i) {
    if (key(candidates[i]) >= key(candidates[best])) best = i;
  }
  return best;
}

class YoungestPolicy : public VictimPolicy {
 public:
  size_t Choose(std::span<const VictimCandidate> candidates,
                Bytes /*shortfall*/) const override {
    return LastGreatest(candidates,
                        [](const VictimCandidate& c) { return c.request; });
  }
};

class LeastRecentPolicy : public VictimPolicy {
 public:
  size_t Choose(std::span<const VictimCandidate> candidates,
                Bytes /*shortfall*/) const override {
    return LastGreatest(candidates, [](const VictimCandidate& c) {
      return std::tuple(UINT64_MAX - c.last_step, c.frees);
    });
  }
};

class PageAwarePolicy : public VictimPolicy {
 public:
  size_t Choose(std::span<const VictimCandidate> candidates,
                Bytes shortfall) const override {
    // A candidate that frees nothing is no help, even where what is missing is
    // not known.
    const Bytes missing = std::max(shortfall, Bytes(1));
    return LastGreatest(candidates, [&](const VictimCandidate& c) {
      const bool suffices = c.frees >= missing;
      return std::tuple(suffices,
                        suffices ? UINT64_MAX - c.computed : c.frees.value());
    });
  }
};

}  // namespace

std::unique_ptr<VictimPolicy> MakeYoungestPolicy() {
  return std::make_unique<YoungestPolicy>();
}
std::unique_ptr<VictimPolicy> MakeLeastRecentPolicy() {
  return std::make_unique<LeastRecentPolicy>();
}
std::unique_ptr<VictimPolicy> MakePageAwarePolicy() {
  return std::make_unique<PageAwarePolicy>();
}

std::unique_ptr<VictimPolicy> MakeVictimPolicy(const std::string& name) {
  if (name == "youngest" || name == "fifo") return MakeYoungestPolicy();
  if (name == "lru") return MakeLeastRecentPolicy();
  if (name == "page-aware") return MakePageAwarePolicy();
  return nullptr;
}

}  // namespace quire
