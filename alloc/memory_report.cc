// The memory report for a terminal.

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "alloc/memory_snapshot_data.h"
#include "quire/alloc/quote.h"

namespace quire {
namespace {

// Bytes in UTF-8 are not columns: continuation bytes take none.
size_t Width(const std::string& text) {
  return static_cast<size_t>(std::count_if(
      text.begin(), text.end(),
      [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

// Rows of cells; the first column is flush left, the others are flush right.
class TextTable {
 public:
  explicit TextTable(std::vector<std::string> header) {
    rows_.push_back(std::move(header));
  }
  void AddRow(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  bool empty() const { return rows_.size() == 1; }

  void AppendTo(std::string* out) const {
    std::vector<size_t> widths(rows_[0].size(), 0);
    for (const auto& row : rows_) {
      for (size_t i = 0; i < row.size(); ++i) {
        widths[i] = std::max(widths[i], Width(row[i]));
      }
    }
    for (const auto& row : rows_) {
      std::string line;
      for (size_t i = 0; i < row.size(); ++i) {
        const std::string padding(widths[i] - Width(row[i]), ' ');
        line += i == 0 ? row[i] + padding : "  " + padding + row[i];
      }
      // Nothing behind the last column, so that diffs stay clean.
      line.erase(line.find_last_not_of(' ') + 1);
      absl::StrAppend(out, line, "\n");
    }
    *out += "\n";
  }

 private:
  std::vector<std::vector<std::string>> rows_;
};

std::string Percent(double part, double whole) {
  return whole > 0 ? absl::StrFormat("%.1f %%", 100 * part / whole) : "-";
}

void AppendOwners(const MemorySnapshot& snapshot, std::string* out) {
  TextTable table({"owner", "requested", "mapped", "of limit", "allocations"});
  const auto limit = static_cast<double>(snapshot.memory.limit.value());
  for (const MemorySnapshot::Owner& owner : snapshot.owners) {
    table.AddRow(
        {Printable(owner.name),
         // Regions map pages without asking the allocator for anything.
         owner.allocations == 0 ? "-" : FormatBytes(owner.requested),
         FormatBytes(owner.live),
         Percent(static_cast<double>(owner.live.value()), limit),
         absl::StrCat(owner.allocations)});
  }
  for (const HostMemoryUse& use : snapshot.host_memory) {
    table.AddRow({Printable(use.name) + " (host)", "-", FormatBytes(use.bytes),
                  "-", absl::StrCat("peak ", FormatBytes(use.peak))});
  }
  if (!table.empty()) table.AppendTo(out);
}

void AppendMemory(const MemorySnapshot& snapshot, std::string* out) {
  const DeviceMemoryStatistics& memory = snapshot.memory;
  const auto limit = static_cast<double>(memory.limit.value());
  TextTable table({"memory", "bytes", "of limit"});
  const auto add = [&](const char* name, Bytes bytes) {
    table.AddRow({name, FormatBytes(bytes),
                  Percent(static_cast<double>(bytes.value()), limit)});
  };
  add("requested", Bytes(snapshot.allocator.requested_bytes));
  add("mapped, live", memory.live);
  add("mapped, cooling", memory.cooling);
  add("cached in pages", memory.cached);
  add("cooling in allocator", Bytes(snapshot.allocator.cooling_bytes));
  add("cached in allocator", Bytes(snapshot.allocator.cached_bytes));
  if (!memory.quarantined.zero()) add("quarantined", memory.quarantined);
  add("in use", memory.in_use);
  add("free", memory.growable);
  add("peak in use", memory.peak_in_use);
  table.AppendTo(out);
}

// What each size class, and each stream, has of the allocator's memory.
void AppendBreakdown(const MemorySnapshot& snapshot, std::string* out) {
  TextTable classes({"slots of", "slabs", "live", "cached", "cooling", "mapped",
                     "internal", "external"});
  for (const SizeClassStatistics& row : snapshot.breakdown.classes) {
    classes.AddRow(
        {row.slot_size == 0 ? "large" : FormatBytes(Bytes(row.slot_size)),
         row.slot_size == 0 ? "-" : absl::StrCat(row.slabs),
         FormatBytes(Bytes(row.live_bytes)),
         FormatBytes(Bytes(row.cached_bytes)),
         FormatBytes(Bytes(row.cooling_bytes)),
         FormatBytes(Bytes(row.mapped_bytes)),
         Percent(row.internal_fragmentation(), 1),
         Percent(row.external_fragmentation(), 1)});
  }
  if (!classes.empty()) classes.AppendTo(out);
  TextTable streams({"stream", "allocations", "live", "cooling",
                     "cooling with others", "cached by threads"});
  for (const StreamStatistics& row : snapshot.breakdown.streams) {
    streams.AddRow(
        {row.stream == StreamId() ? "none" : absl::StrCat(row.stream.value()),
         absl::StrCat(row.live_allocations), FormatBytes(Bytes(row.live_bytes)),
         FormatBytes(Bytes(row.cooling_bytes)),
         FormatBytes(Bytes(row.shared_cooling_bytes)),
         FormatBytes(Bytes(row.thread_cached_bytes))});
  }
  if (!streams.empty()) streams.AppendTo(out);
}

void AppendDriverCalls(const MemorySnapshot& snapshot, std::string* out) {
  TextTable table({"driver call", "count", "failed", "time"});
  for (const MemorySnapshot::Call& call : snapshot.driver_calls) {
    table.AddRow({Printable(call.name), absl::StrCat(call.count),
                  absl::StrCat(call.failed),
                  absl::StrFormat("%.3f ms", call.microseconds / 1000)});
  }
  if (!table.empty()) table.AppendTo(out);
}

}  // namespace

std::string OwnerName(const MemorySnapshot& snapshot, uint32_t owner) {
  for (const MemorySnapshot::Owner& known : snapshot.owners) {
    if (known.id == owner) return known.name;
  }
  return absl::StrCat("owner ", owner);
}

std::string DescribeGrowth(const MemorySnapshot& snapshot,
                           const MemorySnapshot::Growth& growth) {
  const MemoryGrowth& found = growth.growth;
  const auto seconds = [](uint64_t nanoseconds) {
    return absl::StrFormat("%.3f s", static_cast<double>(nanoseconds) / 1e9);
  };
  const std::string what =
      growth.owner ? Quoted(OwnerName(snapshot, *growth.owner)) : "the device";
  std::string text = absl::StrCat(
      "growth of ", what, " from ", seconds(found.from_nanoseconds), " to ",
      seconds(found.to_nanoseconds), ": held ", FormatBytes(found.held_from),
      " -> ", FormatBytes(found.held_to), ", asked for ",
      FormatBytes(found.used_from), " -> ", FormatBytes(found.used_to));
  switch (found.kind) {
    case GrowthKind::kLeak:
      return text + ": a leak, unless the program is still loading";
    case GrowthKind::kFragmentation:
      return text + ": fragmentation, more is held for the same use";
    case GrowthKind::kCooling:
      return absl::StrCat(
          text, ", freed and cooling ", FormatBytes(found.cooling_from), " -> ",
          FormatBytes(found.cooling_to),
          ": streams do not get done with what was freed on them");
  }
  return text;
}

std::string FormatReport(const MemorySnapshot& snapshot) {
  const MemorySnapshot::Device& device = snapshot.device;
  std::string out = absl::StrCat(
      "device ", device.id, ": ", Printable(device.name), " (",
      Printable(device.driver), " driver), ", FormatBytes(device.total));
  if (device.free)
    absl::StrAppend(&out, ", ", FormatBytes(*device.free), " free");
  absl::StrAppend(&out, "; limit ", FormatBytes(snapshot.memory.limit),
                  ", pages of ", FormatBytes(snapshot.memory.page_size),
                  "\n\n");
  if (snapshot.verdict) {
    absl::StrAppend(&out, snapshot.verdict->ToString(), "\n\n");
  }
  for (const MemorySnapshot::Growth& growth : snapshot.growth) {
    absl::StrAppend(&out, DescribeGrowth(snapshot, growth), "\n");
  }
  if (!snapshot.growth.empty()) out += "\n";
  AppendOwners(snapshot, &out);
  AppendMemory(snapshot, &out);
  absl::StrAppend(
      &out, "fragmentation: internal ",
      absl::StrFormat("%.1f %%, external %.1f %%",
                      100 * snapshot.allocator.internal_fragmentation(),
                      100 * snapshot.allocator.external_fragmentation()),
      "; largest request possible: ", FormatBytes(snapshot.largest_possible),
      "\n\n");
  AppendBreakdown(snapshot, &out);
  AppendDriverCalls(snapshot, &out);
  if (snapshot.health != "OK") {
    absl::StrAppend(&out, "health: ", Printable(snapshot.health), "\n");
  }
  return out;
}

}  // namespace quire
