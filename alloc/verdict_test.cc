#include "quire/alloc/verdict.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/cord.h"

namespace quire {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

OutOfMemoryVerdict Example() {
  OutOfMemoryVerdict verdict;
  verdict.kind = ShortageKind::kCooling;
  verdict.requested = MiB(512);
  verdict.free = MiB(12);
  verdict.largest_possible = MiB(20);
  verdict.limit = GiB(8);
  verdict.device_total = GiB(80);
  verdict.cooling = Bytes(UINT64_MAX);
  verdict.held_as_slack = MiB(8);
  verdict.mesh_frees = MiB(5);
  verdict.relocation_frees = MiB(6);
  verdict.sleep_frees = MiB(9);
  verdict.reserved_for_others = MiB(3);
  verdict.owner_limit = OwnerShortage{"a model/k v", GiB(2), GiB(1)};
  verdict.owners = {{"weights 7 \n\"x\"", GiB(6)}, {"", Bytes(1)}};
  verdict.awaited = {{StreamId(7), GiB(3)}, {StreamId(UINT64_MAX), Bytes(1)}};
  verdict.recent = {{1500000, "allocate", "kv 1", MiB(91), ""},
                    {0, "mark", "", Bytes(0), "prefill 2"}};
  verdict.advice = "wait; 12 34";
  return verdict;
}

TEST(OutOfMemoryVerdictTest, TravelsWithAStatusAndComesBackTheSame) {
  const OutOfMemoryVerdict sent = Example();
  const absl::Status status = sent.ToStatus();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  const auto received = OutOfMemoryVerdict::FromStatus(status);
  ASSERT_TRUE(received.has_value());
  EXPECT_EQ(received->kind, sent.kind);
  EXPECT_EQ(received->requested, sent.requested);
  EXPECT_EQ(received->free, sent.free);
  EXPECT_EQ(received->largest_possible, sent.largest_possible);
  EXPECT_EQ(received->limit, sent.limit);
  EXPECT_EQ(received->device_total, sent.device_total);
  EXPECT_EQ(received->cooling, sent.cooling);
  EXPECT_EQ(received->held_as_slack, sent.held_as_slack);
  EXPECT_EQ(received->mesh_frees, sent.mesh_frees);
  EXPECT_EQ(received->relocation_frees, sent.relocation_frees);
  EXPECT_EQ(received->sleep_frees, sent.sleep_frees);
  EXPECT_EQ(received->awaited, sent.awaited);
  EXPECT_EQ(received->recent, sent.recent);
  EXPECT_EQ(received->reserved_for_others, sent.reserved_for_others);
  EXPECT_EQ(received->owner_limit, sent.owner_limit);
  EXPECT_EQ(received->owners, sent.owners);
  EXPECT_EQ(received->advice, sent.advice);
}

TEST(OutOfMemoryVerdictTest, TheMessageSaysKindNumbersOwnersAndAdvice) {
  const std::string text(Example().ToStatus().message());
  for (const char* part :
       {"(cooling)", "512.00 MiB requested", "12.00 MiB free",
        "limit of 8.00 GiB", "device has 80.00 GiB", "6.00 GiB", "wait; 12 34",
        "(awaiting streams 7, 18446744073709551615)",
        "5.00 MiB more to be had by mesh", "6.00 MiB more by relocation",
        "9.00 MiB of other owners that could sleep",
        "the last events: allocate 91.00 MiB (kv 1) 1.5 ms "
        "before, mark prefill 2"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

TEST(OutOfMemoryVerdictTest, NamesMoveNoCursorAndEndNoLine) {
  OutOfMemoryVerdict verdict = Example();
  verdict.owners = {{"a\x1b[2Jb\n", MiB(1)}};
  verdict.advice = "of c\xff";
  verdict.recent = {{0, "mark", "d\r", Bytes(0), "e\x07"}};
  const std::string text = verdict.ToString();
  for (const char* part :
       {R"(a\x1b[2Jb\n 1.00 MiB)", R"(of c\xff)", R"(mark e\x07 (d\x0d))"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  for (const char c : text) EXPECT_GE(c, ' ') << text;
}

TEST(OutOfMemoryVerdictTest, OtherErrorsCarryNone) {
  EXPECT_EQ(OutOfMemoryVerdict::FromStatus(absl::OkStatus()), std::nullopt);
  EXPECT_EQ(OutOfMemoryVerdict::FromStatus(absl::ResourceExhaustedError("x")),
            std::nullopt);
}

TEST(OutOfMemoryVerdictTest, APayloadCutAnywhereIsNoVerdict) {
  absl::Status status = Example().ToStatus();
  std::string url;
  std::string payload;
  status.ForEachPayload([&](absl::string_view name, const absl::Cord& cord) {
    url = std::string(name);
    payload = std::string(cord);
  });
  for (size_t size = 0; size < payload.size(); ++size) {
    status.SetPayload(url, absl::Cord(payload.substr(0, size)));
    EXPECT_EQ(OutOfMemoryVerdict::FromStatus(status), std::nullopt) << size;
  }
  // Counts that the rest does not hold: of owners, streams, events.
  for (const size_t at : {payload.find("2 14 weights"), payload.find("2 7 "),
                          payload.find("2 1500000 ")}) {
    ASSERT_NE(at, std::string::npos);
    std::string forged = payload;
    forged.replace(at, 1, "18446744073709551615");
    status.SetPayload(url, absl::Cord(forged));
    EXPECT_EQ(OutOfMemoryVerdict::FromStatus(status), std::nullopt) << at;
  }
  status.SetPayload(url, absl::Cord(payload + "x"));
  EXPECT_EQ(OutOfMemoryVerdict::FromStatus(status), std::nullopt);
}

// 16 GiB device, limit of 8 GiB, all of it live, 8 GiB free on the device.
ShortageFacts FullPool() {
  ShortageFacts facts;
  facts.requested = GiB(1);
  facts.limit = GiB(8);
  facts.in_use = GiB(8);
  facts.device_free = GiB(8);
  facts.device_total = GiB(16);
  facts.owners = {{"kv", GiB(2)}, {"weights", GiB(6)}};
  return facts;
}

TEST(DiagnoseShortageTest, NamesWhatTheNumbersSay) {
  const auto kind = [](ShortageFacts facts) {
    return DiagnoseShortage(std::move(facts)).kind;
  };
  EXPECT_EQ(kind(FullPool()), ShortageKind::kLimit);

  ShortageFacts facts = FullPool();
  facts.requested = GiB(17);
  EXPECT_EQ(kind(facts), ShortageKind::kCapacity);
  facts.requested = GiB(9);
  EXPECT_EQ(kind(facts), ShortageKind::kLimit);

  facts = FullPool();
  facts.cooling = GiB(1);
  EXPECT_EQ(kind(facts), ShortageKind::kCooling);
  facts.cooling = Bytes(GiB(1).value() - 1);
  EXPECT_EQ(kind(facts), ShortageKind::kLimit);

  facts = FullPool();
  facts.reclaimable = GiB(1);
  EXPECT_EQ(kind(facts), ShortageKind::kFragmentation);

  // The limit allows 4 GiB more, the device has half of one.
  facts = FullPool();
  facts.in_use = GiB(4);
  facts.device_free = MiB(512);
  EXPECT_EQ(kind(facts), ShortageKind::kOtherProcess);

  // The pool has the whole device.
  facts = FullPool();
  facts.limit = GiB(16);
  facts.in_use = GiB(16);
  facts.device_free = Bytes(0);
  EXPECT_EQ(kind(facts), ShortageKind::kCapacity);

  // The driver refused although it reports enough.
  facts = FullPool();
  facts.in_use = GiB(2);
  facts.cooling = GiB(1);
  EXPECT_EQ(kind(facts), ShortageKind::kCapacity);
}

TEST(DiagnoseShortageTest, NamesTheCheapestCompactionThatWouldDo) {
  ShortageFacts facts = FullPool();
  const auto advice = [&] { return DiagnoseShortage(facts).advice; };
  facts.relocation_frees = MiB(512);
  facts.mesh_frees = MiB(256);
  facts.reclaimable = MiB(255);
  EXPECT_EQ(DiagnoseShortage(facts).kind, ShortageKind::kLimit);
  facts.reclaimable = MiB(256);
  EXPECT_EQ(DiagnoseShortage(facts).kind, ShortageKind::kFragmentation);
  EXPECT_THAT(advice(), HasSubstr("768.00 MiB lie free between live "
                                  "allocations: mesh and relocate"));
  facts.mesh_frees = MiB(768);
  EXPECT_THAT(advice(), HasSubstr("768.00 MiB lie free between live slots"));
  facts.reclaimable = GiB(1);
  EXPECT_THAT(advice(), HasSubstr("trim"));
  const OutOfMemoryVerdict verdict = DiagnoseShortage(facts);
  EXPECT_EQ(verdict.held_as_slack, GiB(1));
  EXPECT_EQ(verdict.mesh_frees, MiB(768));
  EXPECT_EQ(verdict.relocation_frees, MiB(512));
  // Sums of estimates stay in 64 bits.
  facts.reclaimable = Bytes(0);
  facts.mesh_frees = MiB(1);
  facts.relocation_frees = Bytes(UINT64_MAX);
  EXPECT_EQ(DiagnoseShortage(facts).kind, ShortageKind::kFragmentation);
}

TEST(DiagnoseShortageTest, NamesSleepWhereNothingCheaperWouldDo) {
  ShortageFacts facts = FullPool();
  facts.device_free = Bytes(0);
  facts.device_total = facts.in_use;
  const auto verdict = [&] { return DiagnoseShortage(facts); };
  facts.sleep_frees = facts.requested;
  EXPECT_EQ(verdict().kind, ShortageKind::kCapacity);
  EXPECT_EQ(verdict().sleep_frees, facts.requested);
  EXPECT_THAT(verdict().advice, HasSubstr("put owners that rest to sleep"));
  // As far as it suffices.
  facts.sleep_frees = *CheckedSubtract(facts.requested, Bytes(1));
  EXPECT_THAT(verdict().advice, Not(HasSubstr("sleep")));
  facts.sleep_frees = facts.requested;
  facts.reclaimable = facts.requested;
  EXPECT_THAT(verdict().advice, HasSubstr("trim"));
}

TEST(DiagnoseShortageTest, NamesTheStreamsThatAreAwaitedMostMemoryFirst) {
  ShortageFacts facts = FullPool();
  facts.cooling = GiB(2);
  facts.awaited = {
      {StreamId(4), MiB(1)}, {StreamId(9), GiB(1)}, {StreamId(5), MiB(2)}};
  OutOfMemoryVerdict verdict = DiagnoseShortage(facts);
  EXPECT_EQ(verdict.kind, ShortageKind::kCooling);
  EXPECT_EQ(verdict.awaited[0].stream, StreamId(9));
  EXPECT_THAT(verdict.advice, HasSubstr("synchronise streams 9, 5, 4"));
  for (uint64_t i = 10; i < 20; ++i) {
    facts.awaited.push_back({StreamId(i), Bytes(i)});
  }
  EXPECT_THAT(DiagnoseShortage(facts).advice,
              HasSubstr("streams 9, 5, 4, 19 and others"));
  facts.awaited = {};
  EXPECT_THAT(DiagnoseShortage(facts).advice,
              HasSubstr("the streams that used them"));
}

TEST(DiagnoseShortageTest, NamesCapturesWhereOnlyTheirEndWouldDo) {
  ShortageFacts facts = FullPool();
  facts.cooling = facts.requested;
  facts.captured = MiB(1);
  facts.awaited = {{StreamId(7), MiB(1)}};
  OutOfMemoryVerdict verdict = DiagnoseShortage(facts);
  EXPECT_EQ(verdict.kind, ShortageKind::kCooling);
  EXPECT_THAT(verdict.advice, HasSubstr("captures of stream 7"));
  // What cools beside would do.
  facts.cooling = SaturatingAdd(facts.requested, facts.captured);
  verdict = DiagnoseShortage(facts);
  EXPECT_EQ(verdict.kind, ShortageKind::kCooling);
  EXPECT_THAT(verdict.advice, HasSubstr("synchronise stream 7"));
}

TEST(DiagnoseShortageTest, TheLimitOfAnOwnerComesBeforeWhatThePoolHas) {
  ShortageFacts facts = FullPool();
  facts.in_use = GiB(2);
  facts.cooling = GiB(4);
  facts.reclaimable = GiB(4);
  facts.owner_limit = OwnerShortage{"server/llama", GiB(2), MiB(1536)};
  facts.allowance = MiB(512);
  OutOfMemoryVerdict verdict = DiagnoseShortage(facts);
  EXPECT_EQ(verdict.kind, ShortageKind::kLimit);
  EXPECT_EQ(verdict.owner_limit, facts.owner_limit);
  EXPECT_EQ(verdict.free, MiB(512));
  EXPECT_THAT(verdict.advice, HasSubstr("server/llama has 1.50 GiB of its "
                                        "limit of 2.00 GiB: raise that by at "
                                        "least 512.00 MiB"));
  // A limit below the use does not wrap.
  facts.owner_limit->live = GiB(3);
  EXPECT_THAT(DiagnoseShortage(facts).advice, HasSubstr("at least 1.00 GiB"));
  // What can never fit is no matter of limits.
  facts.requested = GiB(17);
  verdict = DiagnoseShortage(facts);
  EXPECT_EQ(verdict.kind, ShortageKind::kCapacity);
  EXPECT_EQ(verdict.owner_limit, std::nullopt);
}

TEST(DiagnoseShortageTest, AReservationIsToBlameWhereItWouldSuffice) {
  ShortageFacts facts = FullPool();
  facts.in_use = GiB(6);
  facts.allowance = MiB(512);
  facts.reserved_for_others = MiB(1536);
  OutOfMemoryVerdict verdict = DiagnoseShortage(facts);
  EXPECT_EQ(verdict.kind, ShortageKind::kLimit);
  EXPECT_EQ(verdict.free, MiB(512));
  EXPECT_THAT(verdict.advice, HasSubstr("1.50 GiB are reserved"));
  EXPECT_THAT(verdict.ToString(), HasSubstr("1.50 GiB reserved for others"));
  // 4 GiB are more than all that is kept: it is the device limit.
  facts.requested = GiB(4);
  EXPECT_THAT(DiagnoseShortage(facts).advice, HasSubstr("raise the limit by"));
}

TEST(DiagnoseShortageTest, TheHeadroomIsNotFree) {
  ShortageFacts facts = FullPool();
  facts.limit = GiB(16);
  facts.in_use = GiB(14);
  facts.device_free = GiB(2);
  facts.headroom = MiB(1536);
  OutOfMemoryVerdict verdict = DiagnoseShortage(facts);
  EXPECT_EQ(verdict.kind, ShortageKind::kLimit);
  EXPECT_EQ(verdict.free, MiB(512));
  EXPECT_THAT(verdict.advice, HasSubstr("headroom of 1.50 GiB"));
  facts.headroom = Bytes(UINT64_MAX);
  EXPECT_EQ(DiagnoseShortage(facts).free, Bytes(0));
  // Not even without it.
  facts.requested = GiB(3);
  EXPECT_EQ(DiagnoseShortage(facts).kind, ShortageKind::kCapacity);
}

// What was free when the memory was made, less the headroom, is the limit then.
TEST(DiagnoseShortageTest, ALimitThatLeavesTheHeadroomIsNoWantOfCapacity) {
  ShortageFacts facts = FullPool();
  facts.requested = GiB(1);
  facts.limit = GiB(12);
  facts.in_use = GiB(12);
  facts.device_free = GiB(4);
  facts.headroom = GiB(4);
  const OutOfMemoryVerdict verdict = DiagnoseShortage(facts);
  EXPECT_EQ(verdict.kind, ShortageKind::kLimit);
  EXPECT_THAT(verdict.advice, HasSubstr("headroom of 4.00 GiB"));
  EXPECT_THAT(verdict.advice, HasSubstr("limit of 12.00 GiB"));
  facts.requested = GiB(5);
  EXPECT_EQ(DiagnoseShortage(facts).kind, ShortageKind::kCapacity);
}

TEST(DiagnoseShortageTest, GivesNumbersAndSortsOwners) {
  ShortageFacts facts = FullPool();
  facts.in_use = GiB(7);
  facts.cached = MiB(100);
  facts.reclaimable = MiB(50);
  facts.device_free = MiB(300);
  const OutOfMemoryVerdict verdict = DiagnoseShortage(facts);
  EXPECT_EQ(verdict.free, MiB(400));
  EXPECT_EQ(verdict.largest_possible, MiB(450));
  EXPECT_EQ(verdict.owners[0].first, "weights");
  EXPECT_FALSE(verdict.advice.empty());
}

TEST(DiagnoseShortageTest, NumbersThatContradictEachOtherStayAboveZero) {
  ShortageFacts facts;
  facts.requested = MiB(1);
  facts.limit = MiB(1);
  facts.in_use = Bytes(UINT64_MAX);
  facts.cached = Bytes(0);
  facts.device_free = Bytes(UINT64_MAX);
  facts.device_total = MiB(2);
  const OutOfMemoryVerdict verdict = DiagnoseShortage(facts);
  EXPECT_EQ(verdict.free, Bytes(0));
  EXPECT_EQ(verdict.largest_possible, Bytes(0));
}

}  // namespace
}  // namespace quire
