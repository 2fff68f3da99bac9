#include "paging/kv_region.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

// What `a` has beyond `b`.
uint64_t Beyond(PageCount a, PageCount b) {
  return SaturatingSubtract(a.value(), b.value());
}

}  // namespace

bool IsOnStreams(const Fence& fence, std::span<const StreamId> streams) {
  return std::all_of(
      fence.streams().begin(), fence.streams().end(), [&](StreamId stream) {
        return std::find(streams.begin(), streams.end(), stream) !=
               streams.end();
      });
}

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

PageCount RegionGeometry::FilledBy(uint32_t group, uint64_t tokens) const {
  return PageCount(layout_.RowBytes(group).value() * tokens /
                   page_size_.value());
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
    : geometry_(geometry), range_(range), parts_(geometry->layout().groups()) {
  SetLimit(KvTokenLimit());
}

void KvRegion::set_committed(uint32_t group, PageCount count) {
  Part& part = parts_[group];
  const uint64_t old = part.committed.value();
  part.committed = count;
  total_committed_ = PageCount(total_committed_.value() - old + count.value());
  spare_ = PageCount(spare_.value() - Beyond(PageCount(old), part.needed) +
                     Beyond(count, part.needed));
  mapped_tokens_ = CountMappedTokens();
}

PageRun KvRegion::Gap(uint32_t group) const {
  const Part& part = parts_[group];
  return {group, part.sinks, PageCount(part.gone.value() - part.sinks.value())};
}

PageCount KvRegion::live(uint32_t group) const {
  return PageCount(parts_[group].committed.value() - Gap(group).count.value());
}

void KvRegion::Remove(const PageRun& run) {
  Part& part = parts_[run.group];
  if (Plus(run.first, run.count) >= part.committed) {
    set_committed(run.group, run.first);
    return;
  }
  part.gone = Plus(run.first, run.count);
  total_committed_ = PageCount(total_committed_.value() - run.count.value());
  CountSpare();
}

void KvRegion::set_used_tokens(uint64_t tokens) {
  const bool same_pages = tokens >= used_tokens_ && tokens <= quiet_tokens_;
  used_tokens_ = tokens;
  if (!same_pages) CountNeeded();
}

PageCount KvRegion::MappingWork(uint64_t tokens) const {
  uint64_t work = 0;
  for (uint32_t group = 0; group < parts_.size(); ++group)
    work += Beyond(geometry_->PagesOf(group, tokens), parts_[group].committed);
  return PageCount(work);
}

PageCount KvRegion::PagesToGrow(const SequenceGrowth& growth) const {
  if (growth.limit && *growth.limit != limit_) {
    KvRegion limited(geometry_, nullptr);
    limited.SetLimit(*growth.limit);
    return limited.PagesToGrow(growth);
  }
  uint64_t pages = 0;
  for (uint32_t group = 0; group < parts_.size(); ++group) {
    PageCount peak = geometry_->PagesOf(group, growth.tokens);
    PageCount now = growth.forks ? geometry_->FilledBy(group, growth.backed)
                                 : geometry_->PagesOf(group, growth.backed);
    const KvLayerKind& kind = KindOf(group);
    if (kind.window > 0) {
      const PageCount sinks = BehindWindow(group, 0);
      // A step, and the window of its first token.
      const uint64_t seen = std::min(
          SaturatingAdd(kind.window, growth.step_tokens), growth.tokens);
      peak = std::min(peak, Plus(Plus(sinks, geometry_->PagesOf(group, seen)),
                                 PageCount(1)));
      // What a fork has of these layers is a copy.
      now =
          growth.forks
              ? PageCount(0)
              : PageCount(Beyond(
                    now, PageCount(Beyond(
                             BehindWindow(group, SaturatingAdd(growth.computed,
                                                               uint64_t{1})),
                             sinks))));
    }
    pages = SaturatingAdd(pages, Beyond(peak, now));
  }
  return PageCount(pages);
}

void KvRegion::AppendMissing(std::vector<PageRun>* runs) const {
  for (uint32_t group = 0; group < parts_.size(); ++group) {
    const Part& part = parts_[group];
    const uint64_t missing = Beyond(part.needed, part.committed);
    if (missing > 0)
      runs->push_back({group, part.committed, PageCount(missing)});
  }
}

// ---- Windows ----

void KvRegion::SetLimit(const KvTokenLimit& limit) {
  limit_ = limit;
  const std::span<const KvLayerKind> kinds = geometry_->layout().kinds();
  kinds_.assign(kinds.begin(), kinds.end());
  for (KvLayerKind& kind : kinds_) kind = WithLimit(kind, limit);
  for (uint32_t group = 0; group < parts_.size(); ++group) {
    Part& part = parts_[group];
    part.sinks = BehindWindow(group, 0);
    part.gone = part.sinks;
    part.behind = part.sinks;
  }
  CountSpare();
  CountDropAt();
}

PageCount KvRegion::BehindWindow(uint32_t group, uint64_t length) const {
  const KvLayerKind& kind = KindOf(group);
  if (kind.window == 0) return PageCount(0);
  const uint64_t most = geometry_->max_tokens();
  const uint64_t first = std::min(KeptTokens(kind, length).first, most);
  return std::max(geometry_->FilledBy(group, first),
                  geometry_->PagesOf(group, std::min(kind.sinks, most)));
}

void KvRegion::DropBehind(uint64_t length) {
  if (length < drop_at_) return;
  for (uint32_t group = 0; group < parts_.size(); ++group)
    parts_[group].behind =
        std::max(parts_[group].behind, BehindWindow(group, length));
  CountSpare();
  CountDropAt();
}

bool KvRegion::KeepsAllTokens() const {
  return std::all_of(kinds_.begin(), kinds_.end(),
                     [](const KvLayerKind& kind) { return kind.window == 0; });
}

uint64_t KvRegion::WholeTokens() const {
  uint64_t whole = UINT64_MAX;
  for (uint32_t group = 0; group < parts_.size(); ++group) {
    const Part& part = parts_[group];
    if (part.behind > part.sinks)
      whole = std::min(whole, geometry_->TokensWithin(group, part.sinks));
  }
  return whole;
}

bool KvRegion::CanGoBackTo(uint64_t length) const {
  for (uint32_t group = 0; group < parts_.size(); ++group) {
    // The next kernel sees the window of the token that comes next.
    if (parts_[group].behind > BehindWindow(group, SaturatingAdd(length, 1)))
      return false;
  }
  return true;
}

std::vector<PageRun> KvRegion::NeededRuns(uint32_t group) const {
  const Part& part = parts_[group];
  const PageCount sinks = std::min(part.sinks, part.needed);
  std::vector<PageRun> runs;
  if (part.behind > part.sinks) {
    if (!sinks.zero()) runs.push_back({group, PageCount(0), sinks});
    if (part.needed > part.behind)
      runs.push_back(
          {group, part.behind, PageCount(Beyond(part.needed, part.behind))});
  } else if (!part.needed.zero()) {
    runs.push_back({group, PageCount(0), part.needed});
  }
  return runs;
}

void KvRegion::ReopenGap(uint32_t group, PageCount behind) {
  Part& part = parts_[group];
  part.behind = behind;
  part.gone = behind;
  part.committed = behind;
  CountSpare();
  CountDropAt();
  mapped_tokens_ = CountMappedTokens();
}

std::vector<PageRun> KvRegion::BehindGaps() const {
  std::vector<PageRun> runs;
  for (uint32_t group = 0; group < parts_.size(); ++group) {
    const Part& part = parts_[group];
    if (!Gap(group).count.zero())
      runs.push_back(
          {group, part.gone, PageCount(Beyond(part.committed, part.gone))});
  }
  return runs;
}

void KvRegion::Forget() {
  for (uint32_t group = 0; group < parts_.size(); ++group) {
    Part& part = parts_[group];
    const PageRun gap = Gap(group);
    if (!gap.count.zero()) {
      part.gone = gap.first;
      total_committed_ =
          PageCount(total_committed_.value() + gap.count.value());
      set_committed(group, gap.first);
    }
    part.behind = part.sinks;
  }
  used_tokens_ = 0;
  SetPrompt(0, 0);
  CountNeeded();
  CountDropAt();
}

// ---- Spare pages ----

std::vector<PageRun> KvRegion::SpareRuns(
    PageCount wanted, std::span<const PageCount> kept) const {
  std::vector<PageRun> runs;
  uint64_t left = std::min(wanted, spare_).value();
  for (uint32_t group = 0; group < parts_.size() && left > 0; ++group) {
    const Part& part = parts_[group];
    const uint64_t taken = std::min(left, Beyond(part.behind, part.gone));
    if (taken > 0) runs.push_back({group, part.gone, PageCount(taken)});
    left -= taken;
  }
  if (left > 0) AppendTails(PageCount(left), kept, &runs);
  return runs;
}

void KvRegion::AppendTails(PageCount wanted, std::span<const PageCount> kept,
                           std::vector<PageRun>* runs) const {
  // What a cut of every part down to `level` pages would give back.
  const auto cut = [&](uint32_t group, uint64_t level) {
    const Part& part = parts_[group];
    const PageCount stay = kept.empty() ? PageCount(0) : kept[group];
    return Beyond(part.committed,
                  std::max({part.needed, PageCount(level), stay}));
  };
  const auto cut_all = [&](uint64_t level) {
    uint64_t sum = 0;
    for (uint32_t group = 0; group < parts_.size(); ++group)
      sum += cut(group, level);
    return sum;
  };
  const uint64_t target = std::min(wanted.value(), cut_all(0));
  if (target == 0) return;

  // The highest level that gives enough: cut_all falls as the level rises.
  uint64_t enough = 0;
  uint64_t too_high = 0;
  for (const Part& part : parts_)
    too_high = std::max(too_high, part.committed.value());
  while (too_high - enough > 1) {
    const uint64_t middle = enough + (too_high - enough) / 2;
    (cut_all(middle) >= target ? enough : too_high) = middle;
  }
  // One level higher gives too little, so a page each of some parts makes the
  // difference: the first parts that the last level cuts keep theirs.
  uint64_t surplus = cut_all(enough) - target;
  for (uint32_t group = 0; group < parts_.size(); ++group) {
    const Part& part = parts_[group];
    uint64_t taken = cut(group, enough);
    if (surplus > 0 && taken > cut(group, enough + 1)) {
      --taken;
      --surplus;
    }
    if (taken > 0)
      runs->push_back(
          {group, PageCount(part.committed.value() - taken), PageCount(taken)});
  }
}

bool KvRegion::FenceIsComplete() {
  const absl::StatusOr<bool> complete = fence_.IsComplete();
  if (!complete.ok() || !*complete) return false;
  // Its events go back to the driver; it covers the readers.
  fence_ = readers_ = Fence();
  return true;
}

bool KvRegion::SettleReaders() {
  const absl::StatusOr<bool> complete = readers_.IsComplete();
  if (!complete.ok() || !*complete) return false;
  // The last copy gives its events back, which no step is to do.
  if (fence_ == readers_) fence_ = Fence();
  readers_ = Fence();
  return true;
}

void KvRegion::AddCooling(const Fence& fence, bool shared) {
  std::erase_if(cooling_, [&](const Fence& old) {
    return IsOnStreams(old, fence.streams());
  });
  cooling_.push_back(fence);
  unsharing_ |= shared;
}

bool KvRegion::HasCooled() const {
  return std::all_of(cooling_.begin(), cooling_.end(), [](const Fence& fence) {
    const absl::StatusOr<bool> complete = fence.IsComplete();
    return complete.ok() && *complete;
  });
}

std::vector<Fence> KvRegion::FencesOffStream(StreamId stream) const {
  std::vector<Fence> fences;
  for (const Fence* fence : {&fence_, &readers_}) {
    if (!IsOnStreams(*fence, std::span(&stream, 1))) fences.push_back(*fence);
  }
  return fences;
}

absl::Status KvRegion::CheckInvariants() const {
  uint64_t committed = 0;
  uint64_t spare = 0;
  uint64_t behind = 0;
  for (uint32_t group = 0; group < parts_.size(); ++group) {
    const Part& part = parts_[group];
    const PageCount capacity =
        geometry_->PagesOf(group, geometry_->max_tokens());
    if (part.committed > capacity)
      return absl::InternalError(absl::StrCat("group ", group, " has ",
                                              part.committed.value(),
                                              " pages of ", capacity.value()));
    const bool gap = part.gone > part.sinks;
    if (part.sinks > part.gone || part.gone > part.behind ||
        (gap && (part.gone > part.committed || parked_)))
      return absl::InternalError(
          absl::StrCat("group ", group, " with ", part.committed.value(),
                       " pages lacks those from ", part.sinks.value(), " to ",
                       part.gone.value(), " of ", part.behind.value()));
    committed += live(group).value();
    const PageCount needed = geometry_->PagesOf(group, used_tokens_);
    spare += Beyond(part.committed, needed);
    behind += Beyond(part.behind, part.gone);
    if (needed != part.needed || quiet_tokens_ < used_tokens_ ||
        geometry_->PagesOf(group, quiet_tokens_) != needed)
      return absl::InternalError(
          absl::StrCat("group ", group, " needs ", needed.value(),
                       " pages for ", used_tokens_, " tokens, kept ",
                       part.needed.value(), " for up to ", quiet_tokens_));
  }
  spare += behind;
  if (mapped_tokens_ != CountMappedTokens())
    return absl::InternalError(absl::StrCat("pages for ", CountMappedTokens(),
                                            " tokens, kept ", mapped_tokens_));
  if (committed != total_committed_.value() || spare != spare_.value() ||
      behind != behind_.value())
    return absl::InternalError(absl::StrCat(
        "counted ", committed, " committed, ", spare, " spare pages and ",
        behind, " behind windows, kept ", total_committed_.value(), ", ",
        spare_.value(), " and ", behind_.value()));
  return absl::OkStatus();
}

uint64_t KvRegion::CountMappedTokens() const {
  uint64_t tokens = UINT64_MAX;
  for (uint32_t group = 0; group < parts_.size(); ++group)
    tokens = std::min(tokens,
                      geometry_->TokensWithin(group, parts_[group].committed));
  return tokens;
}

void KvRegion::CountNeeded() {
  quiet_tokens_ = UINT64_MAX;
  for (uint32_t group = 0; group < parts_.size(); ++group) {
    Part& part = parts_[group];
    part.needed = geometry_->PagesOf(group, used_tokens_);
    quiet_tokens_ =
        std::min(quiet_tokens_, geometry_->TokensWithin(group, part.needed));
  }
  CountSpare();
}

void KvRegion::CountSpare() {
  uint64_t spare = 0;
  uint64_t behind = 0;
  for (const Part& part : parts_) {
    spare += Beyond(part.committed, part.needed);
    behind += Beyond(part.behind, part.gone);
  }
  behind_ = PageCount(behind);
  spare_ = PageCount(spare + behind);
}

// The window leaves a page when it begins behind its last row.
void KvRegion::CountDropAt() {
  drop_at_ = UINT64_MAX;
  for (uint32_t group = 0; group < parts_.size(); ++group) {
    const uint64_t window = KindOf(group).window;
    if (window == 0) continue;
    const uint64_t row = geometry_->layout().RowBytes(group).value();
    const uint64_t end =
        (parts_[group].behind.value() + 1) * geometry_->page_size().value();
    drop_at_ =
        std::min(drop_at_, SaturatingAdd(end / row + (end % row != 0), window));
  }
}

}  // namespace quire
