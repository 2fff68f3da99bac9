#include "quire/alloc/leak_report.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "quire/alloc/allocation_sampler.h"
#include "quire/alloc/quote.h"

namespace quire {
namespace {

// What one owner holds on one device.
struct Held {
  std::vector<AllocationInfo> allocations;
  Bytes pages;
};

using HeldByOwner = std::map<OwnerId, Held>;

HeldByOwner CollectLive(const DeviceAllocator& allocator) {
  HeldByOwner held;
  for (const AllocationInfo& allocation :
       allocator.CalculateLiveAllocations()) {
    held[allocation.owner].allocations.push_back(allocation);
  }
  return held;
}

// Those that are not the allocator's.
void AddPages(const DeviceAllocator& allocator, HeldByOwner* held) {
  const DeviceMemory& memory = *allocator.memory();
  for (const DeviceMemory::PageMapEntry& page : memory.CalculatePageMap()) {
    if (page.cooling || allocator.Manages(page.address)) continue;
    Bytes& pages = (*held)[page.owner].pages;
    pages = SaturatingAdd(pages, memory.page_size());
  }
}

std::vector<LeakReport::Group> GroupBySize(
    const std::vector<AllocationInfo>& allocations, size_t most) {
  std::map<std::pair<Bytes, StreamId>, LeakReport::Group> groups;
  for (const AllocationInfo& allocation : allocations) {
    LeakReport::Group& group =
        groups[{allocation.requested, allocation.stream}];
    group.size = allocation.requested;
    group.stream = allocation.stream;
    ++group.count;
    group.total = SaturatingAdd(group.total, allocation.requested);
  }
  std::vector<LeakReport::Group> sorted;
  for (const auto& [key, group] : groups) sorted.push_back(group);
  std::stable_sort(
      sorted.begin(), sorted.end(),
      [](const auto& a, const auto& b) { return a.total > b.total; });
  sorted.resize(std::min(sorted.size(), most));
  return sorted;
}

std::vector<LeakReport::Site> GroupByCallers(
    const std::vector<AllocationInfo>& allocations,
    const AllocationSampler& sampler, size_t most) {
  struct Sum {
    uint64_t samples = 0;
    double weight = 0;
  };
  std::map<std::vector<const void*>, Sum> sums;
  for (const AllocationInfo& allocation : allocations) {
    const auto sample = sampler.Find(allocation.address);
    if (!sample) continue;
    Sum& sum = sums[sample->callers];
    ++sum.samples;
    sum.weight += sample->weight;
  }
  std::vector<std::pair<std::vector<const void*>, Sum>> sorted(sums.begin(),
                                                               sums.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) {
                     return a.second.weight > b.second.weight;
                   });
  sorted.resize(std::min(sorted.size(), most));
  std::vector<LeakReport::Site> sites;
  for (const auto& [callers, sum] : sorted) {
    LeakReport::Site site;
    for (const void* caller : callers) {
      site.callers.push_back(DescribeCaller(caller));
    }
    site.samples = sum.samples;
    site.estimated = AllocationSampler::EstimatedBytesOf(sum.weight);
    sites.push_back(std::move(site));
  }
  return sites;
}

void AppendReports(const HeldByOwner& held_by_owner,
                   const DeviceAllocator& allocator, const LeakOptions& options,
                   std::vector<LeakReport>* reports) {
  const OwnerRegistry& owners = *allocator.memory()->owners();
  for (const auto& [owner, held] : held_by_owner) {
    if (options.owner && !owners.IsWithin(owner, *options.owner)) continue;
    LeakReport report;
    report.owner = owners.Name(owner);
    report.device = allocator.memory()->device();
    report.allocations = held.allocations.size();
    for (const AllocationInfo& allocation : held.allocations) {
      report.requested = SaturatingAdd(report.requested, allocation.requested);
    }
    report.pages = held.pages;
    report.groups = GroupBySize(held.allocations, options.groups);
    if (allocator.sampler() != nullptr) {
      report.sites =
          GroupByCallers(held.allocations, *allocator.sampler(), options.sites);
    }
    reports->push_back(std::move(report));
  }
}

}  // namespace

std::vector<LeakReport> FindLeaks(Runtime& runtime,
                                  const LeakOptions& options) {
  std::vector<LeakReport> reports;
  for (int id = 0; id < runtime.device_count(); ++id) {
    const DeviceAllocator& allocator = *runtime.allocator(DeviceId(id));
    HeldByOwner held = CollectLive(allocator);
    AddPages(allocator, &held);
    AppendReports(held, allocator, options, &reports);
  }
  return reports;
}

std::vector<LeakReport> FindLeaks(const DeviceAllocator& allocator,
                                  const LeakOptions& options) {
  std::vector<LeakReport> reports;
  AppendReports(CollectLive(allocator), allocator, options, &reports);
  return reports;
}

std::string FormatLeaks(const std::vector<LeakReport>& leaks) {
  std::string out;
  for (const LeakReport& leak : leaks) {
    absl::StrAppend(&out, Quoted(leak.owner), " still holds on device ",
                    leak.device.value(), ":");
    if (leak.allocations > 0) {
      absl::StrAppend(&out, " ", FormatBytes(leak.requested), " in ",
                      leak.allocations,
                      leak.allocations == 1 ? " allocation" : " allocations");
    }
    if (!leak.pages.zero()) {
      absl::StrAppend(&out, leak.allocations > 0 ? ", and " : " ",
                      FormatBytes(leak.pages), " in pages of its own");
    }
    out += "\n";
    for (const LeakReport::Group& group : leak.groups) {
      absl::StrAppend(&out, "  ", group.count, " of ", group.size.value(), " B",
                      group.stream == StreamId()
                          ? std::string()
                          : absl::StrCat(" on stream ", group.stream.value()),
                      ", ", FormatBytes(group.total), "\n");
    }
    for (const LeakReport::Site& site : leak.sites) {
      absl::StrAppend(&out, "  about ", FormatBytes(site.estimated),
                      " made here (", site.samples,
                      site.samples == 1 ? " sample):\n" : " samples):\n");
      for (const std::string& caller : site.callers) {
        absl::StrAppend(&out, "    ", Printable(caller), "\n");
      }
    }
  }
  return out;
}

}  // namespace quire
