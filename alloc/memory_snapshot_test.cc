// A snapshot against the runtime that it is of, and its readers against files
// that are not what they should be.

#include "quire/alloc/memory_snapshot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "alloc/testing/runtime_fixture.h"
#include "quire/alloc/trace_formats.h"

namespace quire {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

class MemorySnapshotTest : public RuntimeFixture {
 protected:
  MemorySnapshotTest() : RuntimeFixture({.limit = MiB(4)}) {
    weights_ = runtime_->owners()->Register("weights");
    kv_ = runtime_->owners()->Register("kv");
  }

  // 3 pages of KV, 2 allocations of weights, one failure.
  void Work() {
    runtime_->trace()->Mark("load");
    AllocateOptions options;
    options.owner = weights_;
    for (const uint64_t size : {uint64_t{1000}, 2 * kPageBytes}) {
      const auto address =
          runtime_->allocator()->Allocate(Bytes(size), options);
      ASSERT_TRUE(address.ok()) << address.status();
    }
    const auto range = runtime_->memory()->ReserveRange(PageCount(80), kv_);
    ASSERT_TRUE(range.ok()) << range.status();
    ASSERT_TRUE(
        runtime_->memory()->Commit(*range, PageCount(1), PageCount(3)).ok());
    const absl::Status failed =
        runtime_->memory()->Commit(*range, PageCount(0), PageCount(80));
    ASSERT_FALSE(failed.ok());
    options_.verdict = OutOfMemoryVerdict::FromStatus(failed);
    options_.host_memory = {{"staging", MiB(1), MiB(2)}};
  }
  Json Build() { return BuildMemorySnapshot(*runtime_, options_); }

  OwnerId weights_;
  OwnerId kv_;
  MemorySnapshotOptions options_;
};

TEST_F(MemorySnapshotTest, SaysWhatTheRuntimeHolds) {
  Work();
  const Json json = Build();
  EXPECT_EQ(json["version"], 4);
  EXPECT_EQ(json["device"]["driver"], runtime_->driver()->name());
  EXPECT_EQ(json["device"]["total"], MiB(8).value());
  EXPECT_EQ(json["page_size"], kPageBytes);
  EXPECT_EQ(json["memory"]["limit"], MiB(4).value());
  EXPECT_EQ(json["health"], "OK");

  // An owner's small allocations lie in slabs of its own.
  ASSERT_EQ(json["owners"].size(), 2u);
  const Json& weights = json["owners"][0];
  EXPECT_EQ(weights["name"], "weights");
  EXPECT_EQ(weights["requested"], 1000 + 2 * kPageBytes);
  EXPECT_EQ(weights["allocations"], 2);
  EXPECT_EQ(weights["live"], 3 * kPageBytes);
  const Json& kv = json["owners"][1];
  EXPECT_EQ(kv["name"], "kv");
  EXPECT_EQ(kv["live"], 3 * kPageBytes);
  EXPECT_EQ(kv["allocations"], 0);

  EXPECT_EQ(json["pages"].size() * kPageBytes, json["memory"]["live"]);
  uint64_t kv_pages = 0;
  for (const Json& page : json["pages"]) kv_pages += page["owner"] == kv["id"];
  EXPECT_EQ(kv_pages, 3u);

  const Json& timeline = json["timeline"];
  EXPECT_EQ(timeline["live"].back(), json["memory"]["live"]);
  EXPECT_EQ(timeline["marks"][0]["label"], "load");
  ASSERT_EQ(timeline["failures"].size(), 1u);
  EXPECT_EQ(timeline["failures"][0]["requested"], 77 * kPageBytes);
  EXPECT_EQ(json["verdict"]["kind"], "limit");
  EXPECT_EQ(json["host_memory"][0]["peak"], MiB(2).value());
}

TEST_F(MemorySnapshotTest, SaysWhatEachSizeClassStreamAndOwnerHas) {
  Work();
  const Json json = Build();
  const Json& breakdown = json["breakdown"];
  ASSERT_EQ(breakdown["classes"].size(), 2u);
  const Json& slots = breakdown["classes"][0];
  EXPECT_EQ(slots["slot_size"], 1024);
  EXPECT_EQ(slots["slabs"], 1);
  EXPECT_EQ(slots["requested_bytes"], 1000);
  EXPECT_EQ(slots["live_bytes"], 1024);
  EXPECT_DOUBLE_EQ(slots["internal_fragmentation"], 24.0 / 1024);
  const Json& large = breakdown["classes"][1];
  EXPECT_EQ(large["slot_size"], 0);
  EXPECT_EQ(large["live_bytes"], 2 * kPageBytes);
  ASSERT_EQ(breakdown["streams"].size(), 1u);
  EXPECT_EQ(breakdown["streams"][0]["live_allocations"], 2);
  // Only what is the allocator's: "kv" maps its own pages.
  ASSERT_EQ(breakdown["owners"].size(), 1u);
  EXPECT_EQ(breakdown["owners"][0]["owner"], json["owners"][0]["id"]);
  EXPECT_EQ(breakdown["owners"][0]["mapped_bytes"], json["owners"][0]["live"]);
  Json more = json;
  more["breakdown"]["classes"][0]["live_bytes"] = 1u;
  EXPECT_THAT(std::string(CheckMemorySnapshot(more).message()),
              HasSubstr("breakdown.classes[0] has more requested than live"));
  EXPECT_THAT(FormatMemoryReport(json), HasSubstr("slots of"));
}

TEST_F(MemorySnapshotTest, HoldsTheVerdictWithAllThatItSays) {
  OutOfMemoryVerdict verdict;
  verdict.kind = ShortageKind::kLimit;
  verdict.requested = MiB(5);
  verdict.cooling = MiB(4);
  verdict.mesh_frees = MiB(3);
  verdict.relocation_frees = MiB(2);
  verdict.sleep_frees = MiB(7);
  verdict.reserved_for_others = MiB(1);
  verdict.owner_limit = OwnerShortage{"server/llama", MiB(9), MiB(8)};
  verdict.owners = {{"kv", MiB(7)}};
  verdict.awaited = {{StreamId(3), MiB(4)}};
  verdict.recent = {{2500000, "commit", "kv", MiB(6), ""},
                    {0, "mark", "", Bytes(0), "decode"}};
  verdict.advice = "raise it";
  options_.verdict = verdict;
  const Json json = Build();
  EXPECT_EQ(CheckMemorySnapshot(json), absl::OkStatus());
  EXPECT_EQ(json["verdict"]["owner_limit"]["live"], MiB(8).value());
  EXPECT_EQ(json["verdict"]["awaited"][0]["stream"], 3u);
  EXPECT_EQ(json["verdict"]["recent"][1]["label"], "decode");
  // Read back and printed, it is what the error said.
  EXPECT_THAT(FormatMemoryReport(json), HasSubstr(verdict.ToString()));
  Json broken = json;
  broken["verdict"]["owner_limit"] = Json();
  EXPECT_EQ(CheckMemorySnapshot(broken), absl::OkStatus());
  for (const char* key : {"mesh_frees", "awaited", "recent"}) {
    broken = json;
    broken["verdict"].erase(key);
    EXPECT_FALSE(CheckMemorySnapshot(broken).ok()) << key;
  }
}

TEST_F(MemorySnapshotTest, HoldsAllocationsAndEvents) {
  Work();
  const Json json = Build();
  ASSERT_EQ(json["allocations"].size(), 2u);
  uint64_t requested = 0;
  for (const Json& allocation : json["allocations"]) {
    EXPECT_EQ(allocation["owner"], weights_.value());
    requested += allocation["requested"].get<uint64_t>();
  }
  EXPECT_EQ(requested, 1000 + 2 * kPageBytes);
  // Pages of the allocator hold allocations, those of a region are used whole.
  for (const Json& page : json["pages"]) {
    EXPECT_EQ(page["managed"], page["owner"] != kv_.value());
  }
  const Json& events = json["events"];
  const auto count = [&](const char* action) {
    return std::count(events["action"].begin(), events["action"].end(), action);
  };
  EXPECT_EQ(count("mark"), 1);
  EXPECT_EQ(count("allocate"), 2);
  EXPECT_EQ(count("commit"), 3);
  EXPECT_EQ(count("out_of_memory"), 1);
  EXPECT_EQ(json["timeline"]["requested"].back(),
            1000 + 2 * kPageBytes + 3 * kPageBytes);
  options_.events = 2;
  EXPECT_EQ(Build()["events"]["nanoseconds"].size(), 2u);
  // The whole timeline all the same. Times are not the same to the nanosecond
  // from one reading to the next.
  const auto without_times = [](Json timeline) {
    timeline.erase("nanoseconds");
    for (const char* const list : {"failures", "marks"}) {
      for (Json& entry : timeline[list]) entry.erase("nanoseconds");
    }
    return timeline;
  };
  EXPECT_EQ(without_times(Build()["timeline"]),
            without_times(json["timeline"]));
}

// Events of a leak, an hour long, in place of those of the runtime.
TEST_F(MemorySnapshotTest, GrowthIsSaidInWords) {
  Work();
  Json json = Build();
  EXPECT_TRUE(json["growth"].empty());
  json["growth"].push_back({{"owner", Json()},
                            {"kind", "leak"},
                            {"from_nanoseconds", 900'000'000'000u},
                            {"to_nanoseconds", 3'600'000'000'000u},
                            {"held_from", GiB(1).value()},
                            {"held_to", GiB(3).value()},
                            {"used_from", MiB(900).value()},
                            {"used_to", MiB(2900).value()},
                            {"cooling_from", uint64_t{0}},
                            {"cooling_to", MiB(50).value()}});
  json["growth"].push_back(json["growth"][0]);
  json["growth"][1]["owner"] = kv_.value();
  json["growth"][1]["kind"] = "fragmentation";
  json["growth"].push_back(json["growth"][1]);
  json["growth"][2]["kind"] = "cooling";
  ASSERT_EQ(CheckMemorySnapshot(json), absl::OkStatus());
  const std::string report = FormatMemoryReport(json);
  EXPECT_THAT(report, HasSubstr("growth of the device from 900.000 s to "
                                "3600.000 s: held 1.00 GiB -> 3.00 GiB"));
  EXPECT_THAT(report, HasSubstr("a leak"));
  EXPECT_THAT(report, HasSubstr("growth of \"kv\""));
  EXPECT_THAT(report, HasSubstr("fragmentation, more is held"));
  EXPECT_THAT(report, HasSubstr("freed and cooling 0 B -> 50.00 MiB: streams"));
  const auto html = RenderMemoryHtml(json);
  ASSERT_TRUE(html.ok());
  EXPECT_THAT(*html, HasSubstr("growth of the device"));
}

// What a snapshot recorded is what happened, in whatever form it is read.
TEST_F(MemorySnapshotTest, ItsAllocationsAreATrace) {
  Work();
  ASSERT_TRUE(
      runtime_->allocator()
          ->Free(runtime_->allocator()->CalculateLiveAllocations()[0].address)
          .ok());
  const auto trace = ReadAllocationTrace(Build().dump());
  ASSERT_TRUE(trace.ok()) << trace.status();
  ASSERT_EQ(CheckAllocationTrace(*trace), absl::OkStatus());
  AllocationTraceSummary summary = SummarizeAllocationTrace(*trace);
  EXPECT_EQ(summary.allocations, 2u);
  EXPECT_EQ(summary.frees, 1u);
  EXPECT_EQ(summary.failures, 1u);
  EXPECT_EQ(summary.peak_requested, Bytes(1000 + 2 * kPageBytes));
  // What was taken from the driver: as much as the memory says.
  EXPECT_EQ(summary.peak_reserved,
            runtime_->memory()->GetStatistics().peak_in_use);
  EXPECT_EQ(trace->labels[1], "load");
  EXPECT_EQ(trace->labels[2], "weights");
  // Without its events, what is live is older than the recording.
  options_.events = 0;
  const auto shorter = ReadAllocationTrace(Build().dump());
  ASSERT_TRUE(shorter.ok()) << shorter.status();
  ASSERT_EQ(shorter->events.size(), 1u);
  EXPECT_EQ(shorter->events[0].action, AllocationAction::kLive);
  EXPECT_EQ(SummarizeAllocationTrace(*shorter).live_at_end,
            SummarizeAllocationTrace(*trace).live_at_end);
  // PyTorch's form tells the same of the allocator, and has one block for each
  // page of the region.
  options_.events = SIZE_MAX;
  const auto pickle = RenderPyTorchSnapshot(Build());
  ASSERT_TRUE(pickle.ok()) << pickle.status();
  const auto of_pytorch = ReadAllocationTrace(*pickle);
  ASSERT_TRUE(of_pytorch.ok()) << of_pytorch.status();
  summary = SummarizeAllocationTrace(*of_pytorch);
  EXPECT_EQ(summary.allocations, 2u + 3u);
  EXPECT_EQ(summary.frees, 1u);
  EXPECT_EQ(
      summary.live_at_end.value(),
      SummarizeAllocationTrace(*trace).live_at_end.value() + 3 * kPageBytes);
}

TEST_F(MemorySnapshotTest, StreamsThatWereRecordedAreInTheTrace) {
  const StreamId stream = *runtime_->driver()->CreateStream(DeviceId(0));
  const auto address = runtime_->allocator()->Allocate(Bytes(1000));
  ASSERT_TRUE(address.ok()) << address.status();
  ASSERT_TRUE(runtime_->allocator()->RecordStream(*address, stream).ok());
  ASSERT_TRUE(runtime_->allocator()->Free(*address).ok());
  const auto trace = ReadAllocationTrace(Build().dump());
  ASSERT_TRUE(trace.ok()) << trace.status();
  std::vector<AllocationAction> actions;
  for (const AllocationEvent& event : trace->events) {
    if (event.action == AllocationAction::kReserve) continue;
    actions.push_back(event.action);
    EXPECT_EQ(event.stream == stream.value(),
              event.action == AllocationAction::kRecordStream);
  }
  EXPECT_THAT(actions, ::testing::ElementsAre(AllocationAction::kAllocate,
                                              AllocationAction::kRecordStream,
                                              AllocationAction::kFree));
  EXPECT_TRUE(runtime_->driver()->DestroyStream(stream).ok());
}

// Also where the recording begins when much is in use, and where nothing was
// taken from the driver since.
TEST_F(MemorySnapshotTest, WhatWasTakenBeforeTheRecordingCounts) {
  const auto peak_pages = [&] {
    const auto trace = ReadAllocationTrace(Build().dump());
    EXPECT_TRUE(trace.ok()) << trace.status();
    EXPECT_EQ(CheckAllocationTrace(*trace), absl::OkStatus());
    return SummarizeAllocationTrace(*trace).peak_reserved.value() / kPageBytes;
  };
  // Pages are reserved, committed and allocated: an event each.
  ASSERT_TRUE(runtime_->allocator()->Allocate(Bytes(2 * kPageBytes)).ok());
  options_.events = 1;
  EXPECT_EQ(peak_pages(), 2u);
  ASSERT_TRUE(runtime_->allocator()->Allocate(Bytes(4 * kPageBytes)).ok());
  options_.events = 3;
  EXPECT_EQ(peak_pages(), 6u);
}

// Whoever made an allocation is named, in both forms.
class SampledSnapshotTest : public RuntimeFixture {
 protected:
  SampledSnapshotTest() : RuntimeFixture({.sample_interval = Bytes(1)}) {}
};

TEST_F(SampledSnapshotTest, SaysWhoMadeWhatLives) {
  std::vector<DeviceAddress> live;
  for (const uint64_t size : {uint64_t{1000}, 2 * kPageBytes}) {
    live.push_back(*runtime_->allocator()->Allocate(Bytes(size)));
  }
  const auto freed = runtime_->allocator()->Allocate(Bytes(5000));
  ASSERT_TRUE(runtime_->allocator()->Free(*freed).ok());
  const Json json = BuildMemorySnapshot(*runtime_);
  ASSERT_EQ(CheckMemorySnapshot(json), absl::OkStatus());
  ASSERT_EQ(json["samples"].size(), live.size());
  for (const Json& sample : json["samples"]) {
    ASSERT_FALSE(sample["callers"].empty());
    EXPECT_EQ(sample["estimated"], sample["size"]);
    for (const Json& caller : sample["callers"]) {
      EXPECT_THAT(json["frames"].at(caller.get<size_t>()).get<std::string>(),
                  HasSubstr("+0x"));
    }
  }
  const auto pickle = RenderPyTorchSnapshot(json);
  ASSERT_TRUE(pickle.ok());
  const std::string frame = json["frames"].back().get<std::string>();
  EXPECT_THAT(*pickle, HasSubstr(frame));
  Json bad = json;
  bad["samples"][0]["callers"][0] = json["frames"].size();
  EXPECT_THAT(std::string(CheckMemorySnapshot(bad).message()),
              HasSubstr("samples[0].callers has one that is no frame"));
}

TEST_F(MemorySnapshotTest, ListsEachFailureOnce) {
  AllocateOptions options;
  options.owner = kv_;
  // Beyond the limit, and then within it, but not to be had.
  EXPECT_FALSE(runtime_->allocator()->Allocate(MiB(5), options).ok());
  ASSERT_TRUE(runtime_->allocator()->Allocate(MiB(3), options).ok());
  EXPECT_FALSE(runtime_->allocator()->Allocate(MiB(2), options).ok());
  const Json json = Build();
  const Json& failures = json["timeline"]["failures"];
  ASSERT_EQ(failures.size(), 2u);
  EXPECT_EQ(failures[0]["requested"], MiB(5).value());
  EXPECT_EQ(failures[1]["requested"], MiB(2).value());
  EXPECT_EQ(failures[1]["owner"], kv_.value());
}

TEST_F(MemorySnapshotTest, TheEquationsHold) {
  Work();
  const Json json = Build();
  const auto term = [&](const char* equation, const char* name) {
    return json["equations"][equation][name].get<uint64_t>();
  };
  EXPECT_EQ(term("addresses", "reserved"),
            term("addresses", "mapped") + term("addresses", "unmapped"));
  EXPECT_EQ(term("pages", "in_use"),
            term("pages", "live") + term("pages", "cooling") +
                term("pages", "cached") + term("pages", "quarantined"));
  EXPECT_EQ(term("allocator", "mapped"),
            term("allocator", "live") + term("allocator", "cached") +
                term("allocator", "cooling") + term("allocator", "slack"));
}

TEST_F(MemorySnapshotTest, IsOfOneDevice) {
  Work();
  options_.device = DeviceId(1);
  const Json json = Build();
  EXPECT_EQ(json["device"]["id"], 1);
  EXPECT_TRUE(json["pages"].empty());
  EXPECT_TRUE(json["timeline"]["live"].empty());
  EXPECT_TRUE(json["timeline"]["failures"].empty());
  EXPECT_EQ(json["timeline"]["marks"].size(), 1u);
}

TEST_F(MemorySnapshotTest, SurvivesBeingWrittenAndReadAgain) {
  Work();
  const Json json = Json::parse(Build().dump());
  EXPECT_EQ(CheckMemorySnapshot(json), absl::OkStatus());
  EXPECT_THAT(FormatMemoryReport(json), HasSubstr("weights"));
  EXPECT_TRUE(RenderMemoryHtml(json).ok());
}

// Every field, taken out or replaced by something else, is named by the error.
TEST_F(MemorySnapshotTest, EveryFieldThatIsWrongIsNamed) {
  Work();
  const Json good = Build();
  // Derived from others, for readers that do not know Quire.
  const std::vector<std::string> unread = {"/page_size", "/equations"};
  const Json flat = good.flatten();
  for (const auto& [path, value] : flat.items()) {
    // Clang 14 captures no structured bindings.
    const std::string& field = path;
    if (std::any_of(
            unread.begin(), unread.end(),
            [&](const auto& prefix) { return field.rfind(prefix, 0) == 0; }) ||
        field.find("_fragmentation") != field.npos) {
      continue;
    }
    const Json::json_pointer pointer(path);
    for (const Json& wrong : {Json(-1), Json(true), Json::array({Json()})}) {
      if (wrong.is_boolean() && value.is_boolean()) continue;
      Json bad = good;
      bad[pointer] = wrong;
      const absl::Status status = CheckMemorySnapshot(bad);
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << path;
      EXPECT_THAT(FormatMemoryReport(bad), HasSubstr("not a memory snapshot"));
      EXPECT_FALSE(RenderMemoryHtml(bad).ok());
    }
    const Json::json_pointer parent = pointer.parent_pointer();
    if (!good[parent].is_object()) continue;
    Json bad = good;
    bad[parent].erase(pointer.back());
    const absl::Status status = CheckMemorySnapshot(bad);
    EXPECT_EQ(status.ok(),
              path == "/device/free" || path == "/verdict/owner_limit")
        << path;
    if (!status.ok()) {
      EXPECT_THAT(std::string(status.message()), HasSubstr(pointer.back()));
    }
  }
  for (const Json& bad : {Json(), Json(3), Json::array(), Json::object()}) {
    EXPECT_FALSE(CheckMemorySnapshot(bad).ok());
  }
  Json later = good;
  later["version"] = 5;
  EXPECT_THAT(std::string(CheckMemorySnapshot(later).message()),
              HasSubstr("version"));
  Json newer_field = good;
  newer_field["something_else"] = 1;
  EXPECT_EQ(CheckMemorySnapshot(newer_field), absl::OkStatus());
}

TEST_F(MemorySnapshotTest, TheReportNamesEveryRowInAlignedColumns) {
  Work();
  const std::string report = FormatMemoryReport(Build());
  for (const char* part :
       {"weights", "kv", "staging (host)", "requested", "mapped", "cached",
        "free", "fragmentation: internal", "CreatePage", "(limit)"}) {
    EXPECT_THAT(report, HasSubstr(part));
  }
  // Each table's lines end in the same column, where the last one is flush
  // right.
  size_t width = 0;
  size_t lines = 0;
  size_t from = report.find("owner ");
  while (report[from] != '\n') {
    const size_t end = report.find('\n', from);
    if (width == 0) width = end - from;
    EXPECT_EQ(end - from, width) << report.substr(from, end - from);
    from = end + 1;
    ++lines;
  }
  EXPECT_EQ(lines, 4u);  // header, two owners, staging
}

TEST_F(MemorySnapshotTest, HostileNamesStayText) {
  const std::string name =
      "</script><img src=x onerror=alert(1)>&\"'{{owners}}";
  const OwnerId owner = runtime_->owners()->Register(name);
  runtime_->owners()->Register("\x1b[31m\xff\xfe");
  const auto range = runtime_->memory()->ReserveRange(PageCount(1), owner);
  ASSERT_TRUE(range.ok());
  ASSERT_TRUE(
      runtime_->memory()->Commit(*range, PageCount(0), PageCount(1)).ok());
  runtime_->trace()->Mark(name);
  const Json json = Build();
  const auto html = RenderMemoryHtml(json);
  ASSERT_TRUE(html.ok()) << html.status();
  EXPECT_THAT(*html, Not(HasSubstr("<img")));
  EXPECT_THAT(*html, HasSubstr("&lt;img src=x"));
  // Two scripts begin and two end: none was added.
  size_t ends = 0;
  for (size_t at = html->find("</script"); at != html->npos;
       at = html->find("</script", at + 1)) {
    ++ends;
  }
  EXPECT_EQ(ends, 2u);
  EXPECT_THAT(FormatMemoryReport(json), Not(HasSubstr("\x1b")));
}

// json::dump throws where a text is not UTF-8.
TEST_F(MemorySnapshotTest, EveryTextIsUtf8) {
  AllocateOptions options;
  options.owner = runtime_->owners()->Register("model\xff");
  ASSERT_TRUE(runtime_->allocator()->Allocate(Bytes(8), options).ok());
  runtime_->trace()->Mark("load \xc3");
  const Json json = Json::parse(Build().dump());
  std::set<std::string> names;
  for (const Json& owner : json["owners"]) names.insert(owner["name"]);
  EXPECT_THAT(names, ::testing::Contains("model\xef\xbf\xbd"));
  EXPECT_EQ(json["timeline"]["marks"][0]["label"], "load \xef\xbf\xbd");
}

TEST_F(MemorySnapshotTest, ThePageNeedsNothingFromElsewhere) {
  Work();
  const auto html = RenderMemoryHtml(Build());
  ASSERT_TRUE(html.ok()) << html.status();
  for (const char* outside :
       {"src=", "href=", "@import", "url(http", "fetch("}) {
    EXPECT_THAT(*html, Not(HasSubstr(outside)));
  }
  // Every place of the template was filled.
  EXPECT_THAT(*html, Not(HasSubstr("{{")));
  for (const char* part : {"<caption>", "scope=\"row\"", "aria-live", "weights",
                           "prefers-color-scheme: dark", "CreatePage"}) {
    EXPECT_THAT(*html, HasSubstr(part));
  }
}

}  // namespace
}  // namespace quire
