#include "paging/kv_region.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace quire {
namespace {

// What `a` has beyond `b`.
uint64_t Beyond(PageCount a, PageCount b) {
  return SaturatingSubtract(a.value(), b.value());
}

}  // namespace

// ---- RegionGeometry ---------------------------------------------------------

absl::StatusOr<RegionGeometry> RegionGeometry::Create(const KvLayout& layout,
                                                      uint64_t max_tokens,
                                                      Bytes page_size) {
  if (max_tokens == 0)
    return absl::InvalidArgumentError("KV cache: max_sequence_length is 0");
  const auto pages = layout.PagesForTokens(max_tokens, page_size);
  const auto bytes = pages ? CheckedBytes(*pages, page_size) : std::nullopt;
  if (!bytes)
    return absl::InvalidArgumentError(absl::StrCat(
        "KV cache: max_sequence_length is ", max_tokens, ", which at ",
        layout.TokenBytes().value(), " bytes per token exceeds 2^64 bytes"));
  RegionGeometry geometry(layout, max_tokens, page_size, *pages);
  PageCount first;
  for (uint32_t group = 0; group < layout.groups(); ++group) {
    geometry.first_pages_.push_back(first);
    first = Plus(first, geometry.PagesOf(group, max_tokens));
  }
  return geometry;
}

Bytes RegionGeometry::Offset(uint32_t group) const {
  return Bytes(FirstPage(group).value() * page_size_.value());
}

PageCount RegionGeometry::PagesOf(uint32_t group, uint64_t tokens) const {
  return PagesFor(Bytes(layout_.RowBytes(group).value() * tokens), page_size_);
}

PageCount RegionGeometry::PagesOf(uint64_t tokens) const {
  PageCount sum;
  for (uint32_t group = 0; group < layout_.groups(); ++group)
    sum = Plus(sum, PagesOf(group, tokens));
  return sum;
}

uint64_t RegionGeometry::TokensWithin(uint32_t group, PageCount pages) const {
  return pages.value() * page_size_.value() / layout_.RowBytes(group).value();
}

// ---- KvRegion ---------------------------------------------------------------

KvRegion::KvRegion(const RegionGeometry* geometry, AddressRange* range)
    : geometry_(geometry),
      range_(range),
      committed_(geometry->layout().groups()),
      needed_(geometry->layout().groups()) {}

void KvRegion::set_committed(uint32_t group, PageCount count) {
  const PageCount old = committed_[group];
  const PageCount needed = needed_[group];
  committed_[group] = count;
  total_committed_ =
      PageCount(total_committed_.value() - old.value() + count.value());
  spare_ =
      PageCount(spare_.value() - Beyond(old, needed) + Beyond(count, needed));
  mapped_tokens_ = CountMappedTokens();
}

void KvRegion::set_used_tokens(uint64_t tokens) {
  const bool same_pages = tokens >= used_tokens_ && tokens <= quiet_tokens_;
  used_tokens_ = tokens;
  if (!same_pages) CountNeeded();
}

PageCount KvRegion::MappingWork(uint64_t tokens) const {
  uint64_t work = 0;
  for (uint32_t group = 0; group < committed_.size(); ++group)
    work += Beyond(geometry_->PagesOf(group, tokens), committed_[group]);
  return PageCount(work);
}

void KvRegion::AppendMissing(std::vector<PageRun>* runs) const {
  for (uint32_t group = 0; group < committed_.size(); ++group) {
    const uint64_t missing = Beyond(needed_[group], committed_[group]);
    if (missing > 0)
      runs->push_back({group, committed_[group], PageCount(missing)});
  }
}

std::vector<PageRun> KvRegion::SpareRuns(PageCount wanted) const {
  const auto count = static_cast<uint32_t>(committed_.size());
  // What a cut of every part down to `level` pages would give back.
  const auto cut = [&](uint32_t group, uint64_t level) {
    return Beyond(committed_[group],
                  std::max(needed_[group], PageCount(level)));
  };
  const auto cut_all = [&](uint64_t level) {
    uint64_t sum = 0;
    for (uint32_t group = 0; group < count; ++group) sum += cut(group, level);
    return sum;
  };
  const uint64_t target = std::min(wanted, spare_).value();
  if (target == 0) return {};

  // The highest level that gives enough: cut_all falls as the level rises.
  uint64_t enough = 0;
  uint64_t too_high =
      std::max_element(committed_.begin(), committed_.end())->value();
  while (too_high - enough > 1) {
    const uint64_t middle = enough + (too_high - enough) / 2;
    (cut_all(middle) >= target ? enough : too_high) = middle;
  }
  // One level higher gives too little, so a page each of some parts makes the
  // difference: the first parts that the last level cuts keep theirs.
  uint64_t surplus = cut_all(enough) - target;
  std::vector<PageRun> runs;
  for (uint32_t group = 0; group < count; ++group) {
    uint64_t taken = cut(group, enough);
    if (surplus > 0 && taken > cut(group, enough + 1)) {
      --taken;
      --surplus;
    }
    if (taken > 0)
      runs.push_back({group, PageCount(committed_[group].value() - taken),
                      PageCount(taken)});
  }
  return runs;
}

bool KvRegion::FenceIsComplete() {
  const absl::StatusOr<bool> complete = fence_.IsComplete();
  if (!complete.ok() || !*complete) return false;
  fence_ = Fence();  // its events go back to the driver
  return true;
}

absl::Status KvRegion::CheckInvariants() const {
  uint64_t committed = 0;
  uint64_t spare = 0;
  for (uint32_t group = 0; group < committed_.size(); ++group) {
    const PageCount capacity =
        geometry_->PagesOf(group, geometry_->max_tokens());
    if (committed_[group] > capacity)
      return absl::InternalError(absl::StrCat("group ", group, " has ",
                                              committed_[group].value(),
                                              " pages of ", capacity.value()));
    committed += committed_[group].value();
    const PageCount needed = geometry_->PagesOf(group, used_tokens_);
    spare += Beyond(committed_[group], needed);
    if (needed != needed_[group] || quiet_tokens_ < used_tokens_ ||
        geometry_->PagesOf(group, quiet_tokens_) != needed)
      return absl::InternalError(
          absl::StrCat("group ", group, " needs ", needed.value(),
                       " pages for ", used_tokens_, " tokens, kept ",
                       needed_[group].value(), " for up to ", quiet_tokens_));
  }
  if (mapped_tokens_ != CountMappedTokens())
    return absl::InternalError(absl::StrCat("pages for ", CountMappedTokens(),
                                            " tokens, kept ", mapped_tokens_));
  if (committed != total_committed_.value() || spare != spare_.value())
    return absl::InternalError(absl::StrCat(
        "counted ", committed, " committed and ", spare, " spare pages, kept ",
        total_committed_.value(), " and ", spare_.value()));
  return absl::OkStatus();
}

uint64_t KvRegion::CountMappedTokens() const {
  uint64_t tokens = UINT64_MAX;
  for (uint32_t group = 0; group < committed_.size(); ++group)
    tokens =
        std::min(tokens, geometry_->TokensWithin(group, committed_[group]));
  return tokens;
}

void KvRegion::CountNeeded() {
  uint64_t spare = 0;
  quiet_tokens_ = UINT64_MAX;
  for (uint32_t group = 0; group < committed_.size(); ++group) {
    needed_[group] = geometry_->PagesOf(group, used_tokens_);
    quiet_tokens_ =
        std::min(quiet_tokens_, geometry_->TokensWithin(group, needed_[group]));
    spare += Beyond(committed_[group], needed_[group]);
  }
  spare_ = PageCount(spare);
}

}  // namespace quire
