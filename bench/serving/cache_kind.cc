#include "bench/serving/cache_kind.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "quire/alloc/status_macros.h"
#include "quire/paging/block_table_cache.h"
#include "quire/paging/kv_cache.h"
#include "quire/paging/static_cache.h"

namespace quire {
namespace {

absl::StatusOr<CacheKind> Contiguous(uint32_t layers_per_row) {
  CacheKind kind;
  kind.layers_per_row = layers_per_row;
  kind.name = absl::StrCat("contiguous:", layers_per_row);
  return kind;
}

}  // namespace

absl::StatusOr<CacheKind> ParseCacheKind(const std::string& text,
                                         const KvModelShape& shape,
                                         const KvWorkload& workload,
                                         Bytes page_size) {
  const auto layers = static_cast<uint32_t>(shape.layers.size());
  absl::string_view rest = text;
  uint32_t number = 0;
  if (absl::ConsumePrefix(&rest, "contiguous:")) {
    if (rest == "all") return Contiguous(layers);
    if (rest == "auto") {
      QUIRE_ASSIGN_OR_RETURN(const KvLayoutChoice choice,
                             ChooseLayout(shape, workload, page_size));
      QUIRE_ASSIGN_OR_RETURN(CacheKind kind,
                             Contiguous(choice.options.layers_per_row));
      kind.name = absl::StrCat("auto:", kind.layers_per_row);
      kind.reason = choice.reason;
      return kind;
    }
    if (absl::SimpleAtoi(rest, &number) && number > 0 && number <= layers)
      return Contiguous(number);
  } else if (absl::ConsumePrefix(&rest, "blocks:")) {
    CacheKind kind;
    kind.family = CacheKind::Family::kBlocks;
    kind.name = text;
    if (absl::SimpleAtoi(rest, &kind.block_tokens) && kind.block_tokens > 0)
      return kind;
  } else if (rest == "static") {
    CacheKind kind;
    kind.family = CacheKind::Family::kStatic;
    kind.layers_per_row = layers;
    kind.name = text;
    return kind;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", text, "' is no kind of cache for ", layers,
                   " layers, as contiguous:1, contiguous:all, contiguous:auto, "
                   "blocks:16 and static are"));
}

absl::StatusOr<Bytes> AddressesOf(const CacheKind& kind,
                                  const CacheSettings& settings) {
  if (kind.family == CacheKind::Family::kBlocks) return Bytes(0);
  QUIRE_ASSIGN_OR_RETURN(const KvLayout layout,
                         KvLayout::Create(settings.shape, kind.layers_per_row));
  const auto pages =
      layout.PagesForTokens(settings.max_sequence_length, settings.page_size);
  const auto region =
      pages ? CheckedBytes(*pages, settings.page_size) : std::nullopt;
  const auto addresses =
      region ? CheckedMultiply(*region, 2 * uint64_t{settings.max_sequences})
             : std::nullopt;
  if (!addresses)
    return absl::InvalidArgumentError(absl::StrCat(
        "the addresses of ", settings.max_sequences, " sequences of ",
        settings.max_sequence_length, " tokens exceed 2^64 bytes"));
  return *addresses;
}

absl::StatusOr<std::unique_ptr<SequenceCache>> MakeStressCache(
    const CacheKind& kind, const CacheSettings& settings,
    DeviceMemory* memory) {
  QUIRE_ASSIGN_OR_RETURN(const KvLayout layout,
                         KvLayout::Create(settings.shape, kind.layers_per_row));
  std::unique_ptr<SequenceCache> cache;
  if (kind.family == CacheKind::Family::kBlocks) {
    BlockTableCacheOptions options;
    options.max_sequence_length = settings.max_sequence_length;
    options.max_sequences = settings.max_sequences;
    options.owner = settings.owner;
    options.block_tokens = kind.block_tokens;
    options.headroom_blocks =
        settings.headroom.value() / kind.block_tokens /
        std::max<uint64_t>(layout.TokenBytes().value(), 1);
    options.stream = settings.stream;
    QUIRE_ASSIGN_OR_RETURN(cache,
                           BlockTableCache::Create(memory, layout, options));
  } else if (kind.family == CacheKind::Family::kStatic) {
    QUIRE_ASSIGN_OR_RETURN(
        cache, StaticCache::Create(
                   memory, layout,
                   {.max_sequence_length = settings.max_sequence_length,
                    .max_sequences = settings.max_sequences,
                    .owner = settings.owner,
                    .stream = settings.stream}));
  } else {
    KvCacheOptions options;
    options.max_sequence_length = settings.max_sequence_length;
    options.max_sequences = settings.max_sequences;
    options.owner = settings.owner;
    options.headroom = PagesFor(settings.headroom, settings.page_size);
    options.map_ahead = settings.map_ahead;
    options.page_ahead = {.max_steps = settings.page_ahead,
                          .clock = settings.clock};
    options.eager_reclaim = settings.eager_reclaim;
    options.max_parked = settings.max_parked;
    options.swap_space = settings.swap_space;
    options.stream = settings.stream;
    QUIRE_ASSIGN_OR_RETURN(cache, KvCache::Create(memory, layout, options));
  }
  return cache;
}

}  // namespace quire
