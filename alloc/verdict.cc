#include "quire/alloc/verdict.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "quire/alloc/quote.h"

namespace quire {
namespace {

// What a message names; the payload carries all.
constexpr size_t kOwnersInMessage = 4;
constexpr size_t kStreamsInMessage = 4;
constexpr size_t kEventsInMessage = 3;

// ---- Decision ---------------------------------------------------------------

struct Decision {
  ShortageKind kind;
  std::string advice;
  bool blames_owner = false;  // for a limit of its own
};

// What could be had now, as far as the pool goes.
Bytes FreeOf(const ShortageFacts& facts, Bytes device_free) {
  const Bytes growable = SaturatingSubtract(facts.limit, facts.in_use);
  return SaturatingAdd(facts.cached, std::min(growable, device_free));
}

Decision BlameOwner(const ShortageFacts& facts) {
  const OwnerShortage& owner = *facts.owner_limit;
  const Bytes room = SaturatingSubtract(owner.limit, owner.live);
  return {ShortageKind::kLimit,
          "owner " + owner.owner + " has " + FormatBytes(owner.live) +
              " of its limit of " + FormatBytes(owner.limit) +
              ": raise that by at least " +
              FormatBytes(SaturatingSubtract(facts.requested, room)) +
              ", or free something of it",
          /*blames_owner=*/true};
}

std::string NameStreams(const std::vector<AwaitedStream>& awaited) {
  if (awaited.empty()) return "the streams that used them";
  std::string text = awaited.size() == 1 ? "stream " : "streams ";
  for (size_t i = 0; i < std::min(awaited.size(), kStreamsInMessage); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(awaited[i].stream.value());
  }
  if (awaited.size() > kStreamsInMessage) text += " and others";
  return text;
}

Decision BlameStreams(const ShortageFacts& facts, Bytes missing) {
  if (SaturatingSubtract(facts.cooling, facts.captured) < missing) {
    return {ShortageKind::kCooling,
            FormatBytes(facts.captured) +
                " were freed on streams that are being captured into graphs: "
                "end the captures of " +
                NameStreams(facts.awaited) + ", or free before they begin"};
  }
  return {ShortageKind::kCooling,
          FormatBytes(facts.cooling) +
              " were freed under fences that do not complete: synchronise " +
              NameStreams(facts.awaited) + ", or free earlier"};
}

// The cheapest level of compaction that would do, if any does.
std::optional<Decision> FindFragmentation(const ShortageFacts& facts,
                                          Bytes missing) {
  Bytes freed = facts.reclaimable;
  if (freed >= missing) {
    return Decision{ShortageKind::kFragmentation,
                    FormatBytes(freed) +
                        " are held as cache or slack: trim, or compact in a "
                        "quiescent section"};
  }
  freed = SaturatingAdd(freed, facts.mesh_frees);
  if (freed >= missing) {
    return Decision{ShortageKind::kFragmentation,
                    FormatBytes(facts.mesh_frees) +
                        " lie free between live slots: mesh in a quiescent "
                        "section"};
  }
  freed = SaturatingAdd(freed, facts.relocation_frees);
  if (freed < missing) return std::nullopt;
  return Decision{
      ShortageKind::kFragmentation,
      FormatBytes(SaturatingAdd(facts.mesh_frees, facts.relocation_frees)) +
          " lie free between live allocations: mesh and relocate "
          "in a quiescent section"};
}

// The order of the questions matters: what can never fit comes first, then what
// nobody may have, then what was refused to this owner, then what is only held
// for now, then who holds the rest.
Decision Decide(const ShortageFacts& facts, Bytes device_free) {
  const Bytes growable = SaturatingSubtract(facts.limit, facts.in_use);
  const Bytes free = FreeOf(facts, device_free);
  const Bytes missing = SaturatingSubtract(facts.requested, free);
  const Bytes held_by_others = SaturatingSubtract(
      facts.device_total, SaturatingAdd(facts.device_free, facts.in_use));
  if (facts.requested > facts.device_total) {
    return {ShortageKind::kCapacity,
            "the device has no more than " + FormatBytes(facts.device_total) +
                ": use a smaller model, batch or context, or offload to the "
                "host"};
  }
  if (facts.requested > facts.limit) {
    return {ShortageKind::kLimit, "the request is above the limit of " +
                                      FormatBytes(facts.limit) +
                                      ": raise the limit to at least " +
                                      FormatBytes(facts.requested)};
  }
  if (facts.owner_limit) return BlameOwner(facts);
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
  if (facts.cooling >= missing) return BlameStreams(facts, missing);
  if (const auto fragmented = FindFragmentation(facts, missing)) {
    return *fragmented;
  }
  const bool limit_is_honoured = device_free >= growable;
  if (limit_is_honoured &&
      SaturatingSubtract(device_free, growable) >= missing) {
    return {ShortageKind::kLimit, "the device has " + FormatBytes(device_free) +
                                      " free: raise the limit by at least " +
                                      FormatBytes(missing)};
  }
  if (SaturatingSubtract(FreeOf(facts, facts.device_free), free) >= missing) {
    return {ShortageKind::kLimit,
            "a headroom of " + FormatBytes(facts.headroom) +
                " is left to the display and other processes: lower it, or "
                "free something of theirs"};
  }
  // The limit was set so that the headroom stays.
  if (!facts.headroom.zero() &&
      SaturatingSubtract(facts.device_free, std::min(growable, device_free)) >=
          missing) {
    return {
        ShortageKind::kLimit,
        "a headroom of " + FormatBytes(facts.headroom) +
            " is left to the display and other processes, and the limit of " +
            FormatBytes(facts.limit) +
            " with it: lower the one and raise the other, or free "
            "something of theirs"};
  }
  if (held_by_others >= missing) {
    return {ShortageKind::kOtherProcess,
            FormatBytes(held_by_others) +
                " of the device are held outside this pool: stop the other "
                "process or move to another device"};
  }
  if (facts.sleep_frees >= missing) {
    return {ShortageKind::kCapacity,
            "everything is in live use: put owners that rest to sleep, who "
            "could give up " +
                FormatBytes(facts.sleep_frees) +
                ", or free or offload something of the largest owners"};
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

std::string RecentEvent::ToString() const {
  std::string text = action;
  if (!label.empty()) absl::StrAppend(&text, " ", label);
  if (!size.zero()) absl::StrAppend(&text, " ", FormatBytes(size));
  if (!owner.empty()) absl::StrAppend(&text, " (", owner, ")");
  if (nanoseconds_before > 0) {
    absl::StrAppend(
        &text, absl::StrFormat(" %.1f ms before",
                               static_cast<double>(nanoseconds_before) / 1e6));
  }
  return Printable(text, SIZE_MAX);
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
  if (!cooling.zero()) {
    text += ", " + FormatBytes(cooling) + " cooling";
    if (!awaited.empty()) text += " (awaiting " + NameStreams(awaited) + ")";
  }
  if (!held_as_slack.zero()) {
    text += ", " + FormatBytes(held_as_slack) + " held as cache or slack";
  }
  if (!mesh_frees.zero()) {
    text += ", " + FormatBytes(mesh_frees) + " more to be had by mesh";
  }
  if (!relocation_frees.zero()) {
    text += ", " + FormatBytes(relocation_frees) + " more by relocation";
  }
  if (!sleep_frees.zero()) {
    text +=
        ", " + FormatBytes(sleep_frees) + " of other owners that could sleep";
  }
  if (!reserved_for_others.zero()) {
    text += ", " + FormatBytes(reserved_for_others) + " reserved for others";
  }
  for (size_t i = 0; i < std::min(owners.size(), kOwnersInMessage); ++i) {
    text += i == 0 ? "; largest owners: " : ", ";
    text += owners[i].first + " " + FormatBytes(owners[i].second);
  }
  if (!advice.empty()) text += "; " + advice;
  // The last ones: those before them are in the payload.
  const size_t shown = std::min(recent.size(), kEventsInMessage);
  for (size_t i = recent.size() - shown; i < recent.size(); ++i) {
    text += i == recent.size() - shown ? "; the last events: " : ", ";
    text += recent[i].ToString();
  }
  // Names and marks are the program's, or come from a file.
  return Printable(text, SIZE_MAX);
}

OutOfMemoryVerdict DiagnoseShortage(ShortageFacts facts) {
  const Bytes device_free =
      SaturatingSubtract(facts.device_free, facts.headroom);
  OutOfMemoryVerdict verdict;
  verdict.requested = facts.requested;
  verdict.free = std::min(FreeOf(facts, device_free), facts.allowance);
  verdict.largest_possible = SaturatingAdd(verdict.free, facts.reclaimable);
  verdict.limit = facts.limit;
  verdict.device_total = facts.device_total;
  verdict.cooling = facts.cooling;
  verdict.held_as_slack = facts.reclaimable;
  verdict.mesh_frees = facts.mesh_frees;
  verdict.relocation_frees = facts.relocation_frees;
  verdict.sleep_frees = facts.sleep_frees;
  verdict.reserved_for_others = facts.reserved_for_others;
  std::stable_sort(facts.awaited.begin(), facts.awaited.end(),
                   [](const AwaitedStream& a, const AwaitedStream& b) {
                     return a.cooling > b.cooling;
                   });
  std::stable_sort(
      facts.owners.begin(), facts.owners.end(),
      [](const auto& a, const auto& b) { return a.second > b.second; });
  Decision decision = Decide(facts, device_free);
  verdict.kind = decision.kind;
  verdict.advice = std::move(decision.advice);
  if (decision.blames_owner) verdict.owner_limit = std::move(facts.owner_limit);
  verdict.owners = std::move(facts.owners);
  verdict.awaited = std::move(facts.awaited);
  verdict.recent = std::move(facts.recent);
  return verdict;
}

}  // namespace quire
