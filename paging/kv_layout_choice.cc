// The sums over all lengths are closed: floor sums, by Euclid's algorithm.

#include "quire/paging/kv_layout_choice.h"

#include <algorithm>
#include <utility>

#include "absl/numeric/int128.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

using absl::uint128;

// The sum of floor((a * i + b) / m) for i in [0, n). O(log(a + m)).
uint128 FloorSum(uint128 n, uint128 m, uint128 a, uint128 b) {
  uint128 sum = 0;
  while (n > 0) {
    if (a >= m) {
      sum += n * (n - 1) / 2 * (a / m);
      a %= m;
    }
    if (b >= m) {
      sum += n * (b / m);
      b %= m;
    }
    // Count the points under the line by its other axis.
    const uint128 top = a * n + b;
    if (top < m) break;
    n = top / m;
    b = top % m;
    std::swap(m, a);
  }
  return sum;
}

// Pages that the first i tokens touch, ceil(i * row / page), and pages that are
// full, floor(i * row / page), summed over i in [first, last].
class PrefixPages {
 public:
  PrefixPages(Bytes row, Bytes page) : row_(row.value()), page_(page.value()) {}

  uint128 Touched(uint64_t first, uint64_t last) const {
    return Sum(first, last, page_ - 1);
  }
  uint128 Full(uint64_t first, uint64_t last) const {
    return Sum(first, last, 0);
  }
  uint64_t Touched(uint64_t tokens) const {
    return PagesFor(Bytes(tokens * row_), Bytes(page_)).value();
  }
  // The fewest tokens that fill `pages` pages.
  uint64_t TokensToFill(uint64_t pages) const {
    const uint64_t bytes = pages * page_;
    return bytes / row_ + (bytes % row_ != 0 ? 1 : 0);
  }

 private:
  uint128 Sum(uint64_t first, uint64_t last, uint64_t rounding) const {
    if (first > last) return 0;
    return FloorSum(uint128(last) + 1, page_, row_, rounding) -
           FloorSum(first, page_, row_, rounding);
  }

  const uint64_t row_;
  const uint64_t page_;
};

// Pages that keep something in one group, summed over the lengths 1 to
// `longest`.
uint128 PagesKept(const KvLayerKind& kind, Bytes row, uint64_t longest,
                  Bytes page_size) {
  const PrefixPages pages(row, page_size);
  if (kind.window == 0) return pages.Touched(1, longest);
  // Up to here the pages of the sinks and of the window leave no gap.
  const uint64_t sinks = pages.Touched(std::min(kind.sinks, longest));
  const uint64_t gap_at = SaturatingAdd(kind.window, pages.TokensToFill(sinks));
  if (gap_at > longest) return pages.Touched(1, longest);
  return pages.Touched(1, longest) + uint128(sinks) * (longest - gap_at + 1) -
         pages.Full(gap_at - kind.window, longest - kind.window);
}

// Rows that are kept, summed over the lengths 1 to `longest`.
uint128 RowsKept(const KvLayerKind& kind, uint64_t longest) {
  const auto up_to = [](uint128 n) { return n * (n + 1) / 2; };
  const uint64_t most = SaturatingAdd(kind.window, kind.sinks);
  if (kind.window == 0 || most >= longest) return up_to(longest);
  return up_to(most) + uint128(most) * (longest - most);
}

// Sums over the lengths 1 to `longest`: bytes of pages, and of what is kept.
struct LengthSums {
  double pages = 0;
  double kept = 0;
};

LengthSums SumLengths(const KvLayout& layout, uint64_t longest,
                      Bytes page_size) {
  double pages = 0;
  double bytes = 0;
  for (uint32_t group = 0; group < layout.groups(); ++group) {
    const KvLayerKind& kind = layout.kinds()[layout.GroupKind(group)];
    const Bytes row = layout.RowBytes(group);
    pages += static_cast<double>(PagesKept(kind, row, longest, page_size));
    bytes += static_cast<double>(RowsKept(kind, longest)) *
             static_cast<double>(row.value());
  }
  return {pages * static_cast<double>(page_size.value()), bytes};
}

KvLayoutChoice::Candidate Describe(const KvLayout& layout) {
  KvLayoutChoice::Candidate candidate;
  candidate.layers_per_row = layout.options().layers_per_row;
  candidate.groups = layout.groups();
  for (uint32_t group = 0; group < layout.groups(); ++group)
    candidate.row = std::max(candidate.row, layout.RowBytes(group));
  return candidate;
}

const KvLayoutChoice::Candidate& Choose(
    const std::vector<KvLayoutChoice::Candidate>& candidates) {
  const auto within =
      std::find_if(candidates.begin(), candidates.end(),
                   [](const auto& c) { return c.within_limit; });
  if (within != candidates.end()) return *within;
  return *std::min_element(
      candidates.begin(), candidates.end(),
      [](const auto& a, const auto& b) { return a.waste < b.waste; });
}

}  // namespace

absl::StatusOr<KvLayoutChoice> ChooseLayout(const KvModelShape& shape,
                                            const KvWorkload& workload,
                                            Bytes page_size,
                                            bool values_apart) {
  if (workload.mean_tokens == 0)
    return absl::InvalidArgumentError("KV layout: a mean of 0 tokens");
  if (!(workload.waste_limit >= 0))
    return absl::InvalidArgumentError(
        absl::StrCat("KV layout: a waste limit of ", workload.waste_limit));
  if (!(workload.idle_tokens >= 0))
    return absl::InvalidArgumentError(
        absl::StrCat("KV layout: ", workload.idle_tokens, " idle tokens"));

  KvLayoutChoice choice;
  choice.options.values_apart = values_apart;
  const auto layers = static_cast<uint32_t>(shape.layers.size());
  for (uint32_t per_row = 1; per_row <= std::max(layers, 1u); ++per_row) {
    QUIRE_ASSIGN_OR_RETURN(const KvLayout layout,
                           KvLayout::Create(shape, {per_row, values_apart}));
    if (!choice.candidates.empty() &&
        choice.candidates.back().groups == layout.groups())
      continue;
    const uint64_t longest =
        SaturatingAdd(workload.mean_tokens, workload.mean_tokens - 1);
    const auto pages = layout.PagesForTokens(longest, page_size);
    if (!pages || !CheckedBytes(*pages, page_size))
      return absl::InvalidArgumentError(absl::StrCat(
          "KV layout: a mean of ", workload.mean_tokens, " tokens at ",
          layout.TokenBytes().value(), " bytes per token exceeds 2^63 bytes"));
    KvLayoutChoice::Candidate candidate = Describe(layout);
    const LengthSums sums = SumLengths(layout, longest, page_size);
    const double idle = workload.idle_tokens *
                        static_cast<double>(layout.TokenBytes().value()) *
                        static_cast<double>(longest);
    candidate.tail_waste = sums.pages / sums.kept - 1;
    candidate.waste = (sums.pages + idle) / sums.kept - 1;
    candidate.within_limit = candidate.waste <= workload.waste_limit;
    choice.candidates.push_back(candidate);
  }

  const KvLayoutChoice::Candidate& chosen = Choose(choice.candidates);
  choice.options.layers_per_row = chosen.layers_per_row;
  const std::string why =
      chosen.within_limit ? "the fewest that are within the limit"
                          : "no layout is within the limit, and its tails are "
                            "the smallest";
  choice.reason = absl::StrFormat(
      "%d layers per row: %s: %.2f %% wasted, at most %.2f %%, for sequences "
      "of %d tokens in the mean, %.1f more of them idle, and pages of %s",
      chosen.layers_per_row, why, 100 * chosen.waste,
      100 * workload.waste_limit, workload.mean_tokens, workload.idle_tokens,
      FormatBytes(page_size));
  return choice;
}

std::string FormatLayoutChoice(const KvLayoutChoice& choice) {
  std::string table =
      "  layers/row  groups         row  tail waste      in all\n";
  for (const KvLayoutChoice::Candidate& candidate : choice.candidates) {
    const bool chosen =
        candidate.layers_per_row == choice.options.layers_per_row;
    absl::StrAppendFormat(&table, "%c %10d  %6d  %10s  %8.2f %%  %8.2f %%\n",
                          chosen ? '*' : ' ', candidate.layers_per_row,
                          candidate.groups, FormatBytes(candidate.row),
                          100 * candidate.tail_waste, 100 * candidate.waste);
  }
  return table;
}

}  // namespace quire
