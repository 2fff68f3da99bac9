#include "paging/parked_regions.h"

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

namespace quire {

void ParkedRegions::Park(std::unique_ptr<KvRegion> region) {
  regions_.emplace(next_stamp_++, std::move(region));
}

void ParkedRegions::PutBack(Entry entry) {
  regions_.emplace(entry.stamp, std::move(entry.region));
}

ParkedRegions::Entry ParkedRegions::TakeBestFit(uint64_t tokens) {
  struct Candidate {
    PageCount work;
    PageCount pages;
    uint64_t stamp;
    KvRegion* region;
  };
  std::vector<Candidate> candidates;
  candidates.reserve(regions_.size());
  for (const auto& [stamp, region] : regions_) {
    if (region->prefix() == PrefixEntryId())
      candidates.push_back({region->MappingWork(tokens), region->committed(),
                            stamp, region.get()});
  }
  std::sort(candidates.begin(), candidates.end(),
            [](const Candidate& a, const Candidate& b) {
              return std::tie(a.work, a.pages, b.stamp) <
                     std::tie(b.work, b.pages, a.stamp);
            });
  // In this order, so that few fences are queried: each is a driver call.
  for (const Candidate& candidate : candidates) {
    if (!candidate.region->FenceIsComplete()) continue;
    auto node = regions_.extract(candidate.stamp);
    return {std::move(node.mapped()), candidate.stamp};
  }
  return {};
}

ParkedRegions::Entry ParkedRegions::Take(const KvRegion* region) {
  const auto it = std::find_if(
      regions_.begin(), regions_.end(),
      [&](const auto& parked) { return parked.second.get() == region; });
  auto node = regions_.extract(it);
  return {std::move(node.mapped()), node.key()};
}

template <typename Predicate>
std::vector<std::unique_ptr<KvRegion>> ParkedRegions::TakeIf(
    Predicate predicate) {
  std::vector<std::unique_ptr<KvRegion>> taken;
  for (auto it = regions_.begin(); it != regions_.end();) {
    if (predicate(*it->second)) {
      taken.push_back(std::move(it->second));
      it = regions_.erase(it);
    } else {
      ++it;
    }
  }
  return taken;
}

std::vector<std::unique_ptr<KvRegion>> ParkedRegions::TakeDamaged() {
  return TakeIf([](const KvRegion& region) { return region.damaged(); });
}

std::vector<std::unique_ptr<KvRegion>> ParkedRegions::TakeEmpty() {
  return TakeIf([](const KvRegion& region) {
    return region.committed() == PageCount(0) &&
           region.prefix() == PrefixEntryId();
  });
}

std::unique_ptr<KvRegion> ParkedRegions::TakeCold() {
  for (auto it = regions_.begin(); it != regions_.end(); ++it) {
    KvRegion& region = *it->second;
    if (region.committed() == PageCount(0) &&
        region.prefix() == PrefixEntryId() && region.FenceIsComplete() &&
        region.HasCooled()) {
      std::unique_ptr<KvRegion> taken = std::move(it->second);
      regions_.erase(it);
      return taken;
    }
  }
  return nullptr;
}

std::vector<KvRegion*> ParkedRegions::OldestFirst() const {
  std::vector<KvRegion*> regions;
  regions.reserve(regions_.size());
  for (const auto& [stamp, region] : regions_) regions.push_back(region.get());
  return regions;
}

}  // namespace quire
