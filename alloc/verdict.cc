#include "quire/alloc/verdict.h"

#include <algorithm>
#include <charconv>
#include <string_view>

#include "absl/strings/cord.h"

namespace quire {
namespace {

constexpr char kPayloadUrl[] = "quire/out-of-memory-verdict";
// First in the payload, so that a later layout is not misread as this one.
constexpr uint64_t kPayloadVersion = 2;
// Owners named in a message; the payload carries all.
constexpr size_t kOwnersInMessage = 4;

uint64_t SaturatingSubtract(Bytes a, Bytes b) {
  return CheckedSubtract(a.value(), b.value()).value_or(0);
}

Bytes SaturatingAdd(Bytes a, Bytes b) {
  return CheckedAdd(a, b).value_or(Bytes(UINT64_MAX));
}

// ---- Payload ----------------------------------------------------------------
// Decimal numbers, each ended by a space; strings as length, space, bytes.

void AppendNumber(uint64_t number, std::string* out) {
  *out += std::to_string(number);
  *out += ' ';
}

void AppendString(const std::string& text, std::string* out) {
  AppendNumber(text.size(), out);
  *out += text;
}

class PayloadReader {
 public:
  explicit PayloadReader(std::string_view text) : text_(text) {}

  std::optional<uint64_t> Number() {
    uint64_t number = 0;
    const char* const end = text_.data() + text_.size();
    const auto [at, error] = std::from_chars(text_.data(), end, number);
    if (error != std::errc() || at == end || *at != ' ') return std::nullopt;
    text_.remove_prefix(static_cast<size_t>(at + 1 - text_.data()));
    return number;
  }
  std::optional<std::string> String() {
    const auto size = Number();
    if (!size || *size > text_.size()) return std::nullopt;
    std::string result(text_.substr(0, *size));
    text_.remove_prefix(*size);
    return result;
  }
  bool AtEnd() const { return text_.empty(); }

 private:
  std::string_view text_;
};

// ---- Decision ---------------------------------------------------------------

struct Decision {
  ShortageKind kind;
  std::string advice;
};

// What could be had now, as far as the pool goes.
Bytes FreeOf(const ShortageFacts& facts, Bytes device_free) {
  const Bytes growable(SaturatingSubtract(facts.limit, facts.in_use));
  return SaturatingAdd(facts.cached, std::min(growable, device_free));
}

Decision BlameOwner(const ShortageFacts& facts) {
  const OwnerShortage& owner = *facts.owner_limit;
  const Bytes room(SaturatingSubtract(owner.limit, owner.live));
  return {ShortageKind::kLimit,
          "owner " + owner.owner + " has " + FormatBytes(owner.live) +
              " of its limit of " + FormatBytes(owner.limit) +
              ": raise that by at least " +
              FormatBytes(Bytes(SaturatingSubtract(facts.requested, room))) +
              ", or free something of it"};
}

// The order of the questions matters: what can never fit comes first, then what
// was refused to this owner, then what is only held for now, then who holds the
// rest.
Decision Decide(const ShortageFacts& facts, Bytes device_free) {
  const Bytes growable(SaturatingSubtract(facts.limit, facts.in_use));
  const Bytes free = FreeOf(facts, device_free);
  const Bytes missing(SaturatingSubtract(facts.requested, free));
  const uint64_t held_by_others = SaturatingSubtract(
      facts.device_total, SaturatingAdd(facts.device_free, facts.in_use));
  if (facts.requested > facts.device_total) {
    return {ShortageKind::kCapacity,
            "the device has no more than " + FormatBytes(facts.device_total) +
                ": use a smaller model, batch or context, or offload to the "
                "host"};
  }
  if (facts.owner_limit) return BlameOwner(facts);
  if (facts.requested > facts.limit) {
    return {ShortageKind::kLimit, "the request is above the limit of " +
                                      FormatBytes(facts.limit) +
                                      ": raise the limit to at least " +
                                      FormatBytes(facts.requested)};
  }
  if (facts.requested > facts.allowance &&
      facts.requested <=
          SaturatingAdd(facts.allowance, facts.reserved_for_others)) {
    return {ShortageKind::kLimit,
            FormatBytes(facts.reserved_for_others) +
                " are reserved for other owners: lower their minimum, or raise "
                "the limit"};
  }
  if (missing.zero()) {
    return {ShortageKind::kCapacity,
            "the driver refused memory that it reports as free: something else "
            "took it meanwhile, try again"};
  }
  if (facts.cooling >= missing) {
    return {ShortageKind::kCooling,
            FormatBytes(facts.cooling) +
                " were freed under fences that do not complete: synchronise "
                "the streams that used them, or free earlier"};
  }
  if (facts.reclaimable >= missing) {
    return {ShortageKind::kFragmentation,
            FormatBytes(facts.reclaimable) +
                " are held as cache or slack: trim, or compact in a quiescent "
                "section"};
  }
  const bool limit_is_honoured = device_free >= growable;
  if (limit_is_honoured &&
      SaturatingSubtract(device_free, growable) >= missing.value()) {
    return {ShortageKind::kLimit, "the device has " + FormatBytes(device_free) +
                                      " free: raise the limit by at least " +
                                      FormatBytes(missing)};
  }
  if (SaturatingSubtract(FreeOf(facts, facts.device_free), free) >=
      missing.value()) {
    return {ShortageKind::kLimit,
            "a headroom of " + FormatBytes(facts.headroom) +
                " is left to the display and other processes: lower it, or "
                "free something of theirs"};
  }
  if (held_by_others >= missing.value()) {
    return {ShortageKind::kOtherProcess,
            FormatBytes(Bytes(held_by_others)) +
                " of the device are held outside this pool: stop the other "
                "process or move to another device"};
  }
  return {ShortageKind::kCapacity,
          "everything is in live use: free or offload something of the largest "
          "owners, or admit less work at once"};
}

}  // namespace

const char* ShortageKindName(ShortageKind kind) {
  switch (kind) {
    case ShortageKind::kCapacity:
      return "capacity";
    case ShortageKind::kFragmentation:
      return "fragmentation";
    case ShortageKind::kLimit:
      return "limit";
    case ShortageKind::kCooling:
      return "cooling";
    case ShortageKind::kAddressSpace:
      return "address space";
    case ShortageKind::kOtherProcess:
      return "other process";
    case ShortageKind::kMappings:
      return "mappings";
  }
  return "unknown";
}

std::optional<ShortageKind> ShortageKindFromName(const std::string& name) {
  for (int i = 0; i <= static_cast<int>(ShortageKind::kMappings); ++i) {
    const auto kind = static_cast<ShortageKind>(i);
    if (name == ShortageKindName(kind)) return kind;
  }
  return std::nullopt;
}

std::string OutOfMemoryVerdict::ToString() const {
  const bool addresses = kind == ShortageKind::kAddressSpace;
  std::string text =
      addresses ? "out of device addresses (" : "out of device memory (";
  text += ShortageKindName(kind);
  text += "): " + FormatBytes(requested) + " requested, " + FormatBytes(free) +
          " free of " + (addresses ? "a reservation of " : "a limit of ") +
          FormatBytes(limit) + ", at most " + FormatBytes(largest_possible) +
          " possible in one request; the device has " +
          FormatBytes(device_total);
  if (!cooling.zero()) text += ", " + FormatBytes(cooling) + " cooling";
  if (!held_as_slack.zero()) {
    text += ", " + FormatBytes(held_as_slack) + " held as cache or slack";
  }
  if (!reserved_for_others.zero()) {
    text += ", " + FormatBytes(reserved_for_others) + " reserved for others";
  }
  for (size_t i = 0; i < std::min(owners.size(), kOwnersInMessage); ++i) {
    text += i == 0 ? "; largest owners: " : ", ";
    text += owners[i].first + " " + FormatBytes(owners[i].second);
  }
  if (!advice.empty()) text += "; " + advice;
  return text;
}

absl::Status OutOfMemoryVerdict::ToStatus() const {
  std::string payload;
  AppendNumber(kPayloadVersion, &payload);
  AppendNumber(static_cast<uint64_t>(kind), &payload);
  for (const Bytes bytes :
       {requested, free, largest_possible, limit, device_total, cooling,
        held_as_slack, reserved_for_others}) {
    AppendNumber(bytes.value(), &payload);
  }
  AppendNumber(owner_limit ? 1 : 0, &payload);
  if (owner_limit) {
    AppendString(owner_limit->owner, &payload);
    AppendNumber(owner_limit->limit.value(), &payload);
    AppendNumber(owner_limit->live.value(), &payload);
  }
  AppendNumber(owners.size(), &payload);
  for (const auto& [name, bytes] : owners) {
    AppendString(name, &payload);
    AppendNumber(bytes.value(), &payload);
  }
  AppendString(advice, &payload);
  absl::Status status = absl::ResourceExhaustedError(ToString());
  status.SetPayload(kPayloadUrl, absl::Cord(payload));
  return status;
}

std::optional<OutOfMemoryVerdict> OutOfMemoryVerdict::FromStatus(
    const absl::Status& status) {
  const auto payload = status.GetPayload(kPayloadUrl);
  if (!payload.has_value()) return std::nullopt;
  const std::string text(*payload);
  PayloadReader reader(text);
  if (reader.Number() != kPayloadVersion) return std::nullopt;
  OutOfMemoryVerdict verdict;
  const auto kind = reader.Number();
  if (!kind || *kind > static_cast<uint64_t>(ShortageKind::kMappings)) {
    return std::nullopt;
  }
  verdict.kind = static_cast<ShortageKind>(*kind);
  for (Bytes* const bytes :
       {&verdict.requested, &verdict.free, &verdict.largest_possible,
        &verdict.limit, &verdict.device_total, &verdict.cooling,
        &verdict.held_as_slack, &verdict.reserved_for_others}) {
    const auto number = reader.Number();
    if (!number) return std::nullopt;
    *bytes = Bytes(*number);
  }
  const auto limits = reader.Number();
  if (!limits || *limits > 1) return std::nullopt;
  if (*limits == 1) {
    auto name = reader.String();
    const auto limit = name ? reader.Number() : std::nullopt;
    const auto live = limit ? reader.Number() : std::nullopt;
    if (!live) return std::nullopt;
    verdict.owner_limit =
        OwnerShortage{*std::move(name), Bytes(*limit), Bytes(*live)};
  }
  const auto owner_count = reader.Number();
  if (!owner_count) return std::nullopt;
  for (uint64_t i = 0; i < *owner_count; ++i) {
    auto name = reader.String();
    const auto bytes = name ? reader.Number() : std::nullopt;
    if (!bytes) return std::nullopt;
    verdict.owners.emplace_back(*std::move(name), Bytes(*bytes));
  }
  auto advice = reader.String();
  if (!advice || !reader.AtEnd()) return std::nullopt;
  verdict.advice = *std::move(advice);
  return verdict;
}

OutOfMemoryVerdict DiagnoseShortage(ShortageFacts facts) {
  const Bytes device_free(
      SaturatingSubtract(facts.device_free, facts.headroom));
  OutOfMemoryVerdict verdict;
  verdict.requested = facts.requested;
  verdict.free = std::min(FreeOf(facts, device_free), facts.allowance);
  verdict.largest_possible = SaturatingAdd(verdict.free, facts.reclaimable);
  verdict.limit = facts.limit;
  verdict.device_total = facts.device_total;
  verdict.cooling = facts.cooling;
  verdict.held_as_slack = facts.reclaimable;
  verdict.reserved_for_others = facts.reserved_for_others;
  std::stable_sort(
      facts.owners.begin(), facts.owners.end(),
      [](const auto& a, const auto& b) { return a.second > b.second; });
  Decision decision = Decide(facts, device_free);
  verdict.kind = decision.kind;
  verdict.advice = std::move(decision.advice);
  if (verdict.kind == ShortageKind::kLimit) {
    verdict.owner_limit = std::move(facts.owner_limit);
  }
  verdict.owners = std::move(facts.owners);
  return verdict;
}

}  // namespace quire
