// The HTML page of a memory snapshot.
//
// The page and its script are files of their own (memory_page.html, .js), built
// in as text. What is filled in here is tables, which are all that a reader
// without scripts gets, and the snapshot, which the scripts draw. Everything
// that comes from the snapshot is escaped on its way in.

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "alloc/memory_snapshot_data.h"
#include "memory_page.inc"

namespace quire {
namespace {

// Rows of a table that a person would still read; the JSON holds all.
constexpr size_t kRowsShown = 2000;

std::string Escape(const std::string& text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      case '\'':
        result += "&#39;";
        break;
      default:
        result += c;
    }
  }
  return result;
}

// JSON inside a script element: no character may end the element, and all of
// these may be written as escapes, since they occur in strings only.
std::string EscapeScriptData(const std::string& json) {
  std::string result;
  result.reserve(json.size());
  for (const char c : json) {
    if (c == '<' || c == '>' || c == '&') {
      absl::StrAppendFormat(&result, "\\u%04x", static_cast<unsigned>(c));
    } else {
      result += c;
    }
  }
  return result;
}

// Numbers are flush right, words are not.
struct Column {
  const char* header;
  bool words = false;
};

class HtmlTable {
 public:
  HtmlTable(const std::string& caption, std::vector<Column> columns)
      : columns_(std::move(columns)),
        html_(absl::StrCat("<table><caption>", Escape(caption),
                           "</caption><thead><tr>")) {
    for (const Column& column : columns_) {
      absl::StrAppend(&html_, "<th scope=\"col\"",
                      column.words ? " class=\"text\">" : ">",
                      Escape(column.header), "</th>");
    }
    html_ += "</tr></thead><tbody>\n";
  }
  // The first cell names the row.
  void AddRow(const std::vector<std::string>& row) {
    ++rows_;
    if (rows_ > kRowsShown) return;
    html_ += "<tr>";
    for (size_t i = 0; i < row.size(); ++i) {
      const char* const open = i == 0              ? "<th scope=\"row\">"
                               : columns_[i].words ? "<td class=\"text\">"
                                                   : "<td>";
      absl::StrAppend(&html_, open, Escape(row[i]), i == 0 ? "</th>" : "</td>");
    }
    html_ += "</tr>\n";
  }
  std::string Finish() const {
    std::string html = html_ + "</tbody></table>";
    if (rows_ > kRowsShown) {
      absl::StrAppend(&html, "<p class=\"soft\">", rows_ - kRowsShown,
                      " more rows are in the JSON.</p>");
    }
    return html;
  }

 private:
  const std::vector<Column> columns_;
  std::string html_;
  size_t rows_ = 0;
};

std::string Exact(Bytes bytes) { return FormatBytes(bytes); }
std::string Exact(uint64_t number) { return absl::StrCat(number); }

std::string Seconds(uint64_t nanoseconds) {
  return absl::StrFormat("%.6f s", static_cast<double>(nanoseconds) / 1e9);
}

std::string Tiles(const MemorySnapshot& snapshot) {
  const DeviceMemoryStatistics& memory = snapshot.memory;
  std::string html;
  const auto add = [&](const char* name, Bytes bytes) {
    absl::StrAppend(&html, "<div><dt>", name, "</dt><dd>", FormatBytes(bytes),
                    "</dd></div>");
  };
  add("In use", memory.in_use);
  add("Live", memory.live);
  add("Cooling", memory.cooling);
  add("Cached", memory.cached);
  add("Free under the limit", memory.growable);
  add("Peak in use", memory.peak_in_use);
  if (!memory.quarantined.zero()) add("Quarantined", memory.quarantined);
  return html;
}

std::string PageRuns(const MemorySnapshot& snapshot) {
  HtmlTable table(
      "Neighbouring pages of one owner in one state, in order of address",
      {{"Address"}, {"Owner", true}, {"State", true}, {"Pages"}, {"Size"}});
  const uint64_t page_size = snapshot.memory.page_size.value();
  const auto& pages = snapshot.pages;
  for (size_t i = 0; i < pages.size();) {
    size_t end = i + 1;
    while (end < pages.size() && pages[end].owner == pages[i].owner &&
           pages[end].cooling == pages[i].cooling &&
           pages[end].address == pages[end - 1].address + page_size) {
      ++end;
    }
    table.AddRow({absl::StrCat("0x", absl::Hex(pages[i].address)),
                  OwnerName(snapshot, pages[i].owner),
                  pages[i].cooling ? "cooling" : "live", absl::StrCat(end - i),
                  FormatBytes(CheckedMultiply(Bytes(page_size), end - i)
                                  .value_or(Bytes(UINT64_MAX)))});
    i = end;
  }
  return table.Finish();
}

std::string TimelineTable(const MemorySnapshot& snapshot) {
  const Timeline& timeline = snapshot.timeline;
  struct Row {
    uint64_t nanoseconds;
    std::vector<std::string> cells;
  };
  std::vector<Row> rows;
  for (size_t i = 0; i < timeline.nanoseconds.size(); ++i) {
    rows.push_back(
        {timeline.nanoseconds[i],
         {"live", absl::StrCat(FormatBytes(Bytes(timeline.live[i])), ", of it ",
                               FormatBytes(Bytes(timeline.requested[i])),
                               " asked for")}});
  }
  for (const Timeline::Mark& mark : timeline.marks) {
    rows.push_back({mark.nanoseconds, {"mark", mark.label}});
  }
  for (const Timeline::Failure& failure : timeline.failures) {
    rows.push_back(
        {failure.nanoseconds,
         {"out of memory",
          absl::StrCat(OwnerName(snapshot, failure.owner), " wanted ",
                       FormatBytes(Bytes(failure.requested)))}});
  }
  std::stable_sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) {
    return a.nanoseconds < b.nanoseconds;
  });
  HtmlTable table(
      timeline.dropped == 0
          ? "Since the trace began"
          : absl::StrCat("Since the trace began; ", timeline.dropped,
                         " older events are not kept"),
      {{"Time"}, {"What", true}, {"Value"}});
  for (const Row& row : rows) {
    table.AddRow({Seconds(row.nanoseconds), row.cells[0], row.cells[1]});
  }
  return table.Finish();
}

std::string OwnersTable(const MemorySnapshot& snapshot) {
  HtmlTable table("What each owner holds",
                  {{"Owner"}, {"Mapped"}, {"Requested"}, {"Allocations"}});
  for (const MemorySnapshot::Owner& owner : snapshot.owners) {
    table.AddRow({owner.name, FormatBytes(owner.live),
                  owner.allocations == 0 ? "–" : FormatBytes(owner.requested),
                  absl::StrCat(owner.allocations)});
  }
  return table.Finish();
}

std::string HostMemorySection(const MemorySnapshot& snapshot) {
  if (snapshot.host_memory.empty()) return std::string();
  HtmlTable table("Host memory that serves the device",
                  {{"Use"}, {"Now"}, {"Peak"}});
  for (const HostMemoryUse& use : snapshot.host_memory) {
    table.AddRow({use.name, FormatBytes(use.bytes), FormatBytes(use.peak)});
  }
  return absl::StrCat(
      "<section aria-labelledby=\"host-title\"><h2 id=\"host-title\">Host "
      "memory</h2><div class=\"scroll\">",
      table.Finish(), "</div></section>");
}

std::string StatisticsTable(const MemorySnapshot& snapshot) {
  HtmlTable table("Pages and addresses of the device, then its allocator",
                  {{"Name"}, {"Value"}, {"What it means", true}});
#define QUIRE_ADD_ROW(type, name, help) \
  table.AddRow({#name, Exact(snapshot.memory.name), help});
  QUIRE_DEVICE_MEMORY_STATISTICS(QUIRE_ADD_ROW)
#undef QUIRE_ADD_ROW
#define QUIRE_ADD_ROW(name, help)                                       \
  table.AddRow(                                                         \
      {"allocator " #name,                                              \
       std::string_view(#name).find("_bytes") != std::string_view::npos \
           ? FormatBytes(Bytes(snapshot.allocator.name))                \
           : absl::StrCat(snapshot.allocator.name),                     \
       help});
  QUIRE_ALLOCATOR_STATISTICS(QUIRE_ADD_ROW)
#undef QUIRE_ADD_ROW
  table.AddRow({"largest_possible", FormatBytes(snapshot.largest_possible),
                "the largest request that would succeed"});
  return table.Finish();
}

std::string Equations(const MemorySnapshot& snapshot) {
  const DeviceMemoryStatistics& memory = snapshot.memory;
  return absl::StrCat(
      "Physical pages: ", FormatBytes(memory.in_use),
      " in use = ", FormatBytes(memory.live), " live + ",
      FormatBytes(memory.cooling), " cooling + ", FormatBytes(memory.cached),
      " cached + ", FormatBytes(memory.quarantined),
      " quarantined. Addresses: ", FormatBytes(memory.reserved),
      " reserved = ", FormatBytes(memory.mapped), " mapped + ",
      FormatBytes(memory.unmapped), " unmapped. Fragmentation: ",
      absl::StrFormat("internal %.1f %%, external %.1f %%.",
                      100 * snapshot.allocator.internal_fragmentation(),
                      100 * snapshot.allocator.external_fragmentation()));
}

std::string DriverCallsTable(const MemorySnapshot& snapshot) {
  HtmlTable table("Calls made by this process",
                  {{"Call"}, {"Count"}, {"Failed"}, {"Time"}});
  for (const MemorySnapshot::Call& call : snapshot.driver_calls) {
    table.AddRow({call.name, absl::StrCat(call.count),
                  absl::StrCat(call.failed),
                  absl::StrFormat("%.3f ms", call.microseconds / 1000)});
  }
  return table.Finish();
}

// Puts values in the places of the template, in one pass: what a value holds is
// never taken for a place. Places without a value stay as they are.
std::string Fill(
    std::string_view page,
    const std::map<std::string, std::string, std::less<>>& values) {
  std::string result;
  for (;;) {
    const size_t open = page.find("{{");
    const size_t close = open == page.npos ? open : page.find("}}", open);
    if (close == page.npos) break;
    const auto value = values.find(page.substr(open + 2, close - open - 2));
    if (value == values.end()) {
      result += page.substr(0, close + 2);
    } else {
      result += page.substr(0, open);
      result += value->second;
    }
    page.remove_prefix(close + 2);
  }
  result += page;
  return result;
}

}  // namespace

std::string RenderHtml(const MemorySnapshot& snapshot,
                       const std::string& json) {
  const MemorySnapshot::Device& device = snapshot.device;
  std::string notes;
  const auto add_note = [&](const std::string& text) {
    absl::StrAppend(&notes, "<p class=\"verdict\" role=\"note\">", Escape(text),
                    "</p>");
  };
  if (snapshot.verdict) add_note(snapshot.verdict->ToString());
  for (const MemorySnapshot::Growth& growth : snapshot.growth) {
    add_note(DescribeGrowth(snapshot, growth));
  }
  if (snapshot.health != "OK") add_note(snapshot.health);
  return Fill(
      kMemoryPage,
      {{"title", absl::StrCat("Memory of device ", device.id)},
       {"subtitle",
        Escape(absl::StrCat(device.name, " (", device.driver, " driver), ",
                            FormatBytes(device.total), "; limit ",
                            FormatBytes(snapshot.memory.limit), "; pages of ",
                            FormatBytes(snapshot.memory.page_size)))},
       {"notes", notes},
       {"tiles", Tiles(snapshot)},
       {"page_runs", PageRuns(snapshot)},
       {"timeline", TimelineTable(snapshot)},
       {"owners", OwnersTable(snapshot)},
       {"host_memory", HostMemorySection(snapshot)},
       {"equations", Equations(snapshot)},
       {"statistics", StatisticsTable(snapshot)},
       {"driver_calls", DriverCallsTable(snapshot)},
       {"snapshot", EscapeScriptData(json)},
       {"script", std::string(kMemoryPageScript)}});
}

}  // namespace quire
