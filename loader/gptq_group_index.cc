// The group of every input row of a GPTQ module.

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "quire/alloc/quote.h"
#include "quire/alloc/status_macros.h"
#include "quire/loader/gptq.h"

namespace quire {
namespace {

// REQUIRES: the shapes were checked, so every quotient is below groups.
std::vector<uint32_t> SequentialGroups(const GptqModule& module) {
  std::vector<uint32_t> groups(module.in_features, 0);
  if (module.settings.group_size > 0) {
    const auto size = static_cast<uint64_t>(module.settings.group_size);
    for (uint64_t row = 0; row < groups.size(); ++row)
      groups[row] = static_cast<uint32_t>(row / size);
  }
  return groups;
}

// The format makes groups of one size, the last one perhaps smaller.
bool GroupsAreEqual(const GptqModule& module,
                    const std::vector<uint32_t>& groups) {
  const auto sizes_of = [&module](const std::vector<uint32_t>& index) {
    std::vector<uint64_t> sizes(module.groups, 0);
    for (const uint32_t group : index) ++sizes[group];
    std::sort(sizes.begin(), sizes.end());
    return sizes;
  };
  return sizes_of(groups) == sizes_of(SequentialGroups(module));
}

}  // namespace

absl::StatusOr<std::vector<uint32_t>> ReadGroupIndex(
    const Checkpoint& checkpoint, const GptqModule& module,
    GroupIndexOddity* oddity) {
  if (oddity != nullptr) *oddity = GroupIndexOddity::kNone;
  if (module.g_idx == nullptr) return SequentialGroups(module);
  std::vector<std::byte> bytes;
  QUIRE_RETURN_IF_ERROR(checkpoint.ReadSmallTensor(*module.g_idx, &bytes));
  std::vector<int32_t> stored(module.in_features);
  std::memcpy(stored.data(), bytes.data(), bytes.size());
  std::vector<uint32_t> groups(stored.size());
  for (size_t row = 0; row < stored.size(); ++row) {
    if (stored[row] < 0 || static_cast<uint64_t>(stored[row]) >= module.groups)
      return absl::InvalidArgumentError(absl::StrCat(
          Printable(checkpoint.files()[module.g_idx->file].path), ": tensor ",
          Quoted(module.g_idx->name), ": row ", row, " is in group ",
          stored[row], ", but the module has ", module.groups, " groups"));
    groups[row] = static_cast<uint32_t>(stored[row]);
  }
  const bool all_zero = std::all_of(groups.begin(), groups.end(),
                                    [](uint32_t group) { return group == 0; });
  if (all_zero && module.groups > 1) {
    if (oddity != nullptr) *oddity = GroupIndexOddity::kAllZero;
    return SequentialGroups(module);
  }
  if (oddity != nullptr && !GroupsAreEqual(module, groups))
    *oddity = GroupIndexOddity::kUnequalGroups;
  return groups;
}

}  // namespace quire
