#include "quire/alloc/quiescent.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "alloc/testing/device_memory_fixture.h"

namespace quire {
namespace {

using ::testing::HasSubstr;

class QuiescentSectionTest : public DeviceMemoryFixture {
 protected:
  absl::StatusOr<QuiescentSection> Begin(
      const std::vector<StreamId>& streams = {},
      const std::vector<EventId>& events = {}) {
    return QuiescentSection::Begin(memory_.get(), streams, events);
  }
};

TEST_F(QuiescentSectionTest, WaitsForStreamsAndEvents) {
  const StreamId stream = MakeStream();
  const StreamId recorded = MakeStream();
  const auto event = driver_->CreateEvent(DeviceId(0));
  ASSERT_TRUE(event.ok());
  std::vector<int> done;
  {
    Gate gate(driver_.get(), stream);
    Gate other_gate(driver_.get(), recorded);
    ASSERT_TRUE(
        driver_->LaunchHostFunction(stream, [&done] { done.push_back(1); })
            .ok());
    ASSERT_TRUE(driver_->RecordEvent(*event, recorded).ok());
    gate.OpenAfter(std::chrono::milliseconds(5));
    other_gate.OpenAfter(std::chrono::milliseconds(10));
    const auto section = Begin({stream}, {*event});
    ASSERT_TRUE(section.ok()) << section.status();
    EXPECT_EQ(done, std::vector<int>{1});
    EXPECT_TRUE(driver_->QueryEvent(*event).value_or(false));
    EXPECT_TRUE(memory_->in_quiescence());
  }
  EXPECT_FALSE(memory_->in_quiescence());
  EXPECT_TRUE(driver_->DestroyEvent(*event).ok());
}

TEST_F(QuiescentSectionTest, IsOneAtATime) {
  auto first = Begin();
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(Begin().status().code(), absl::StatusCode::kFailedPrecondition);
  first->End();
  first->End();
  const auto second = Begin();
  EXPECT_TRUE(second.ok());
  // The first has ended and does not end the second.
  first = absl::UnknownError("gone");
  EXPECT_TRUE(memory_->in_quiescence());
}

TEST_F(QuiescentSectionTest, MovesAndEndsOnce) {
  auto begun = Begin();
  ASSERT_TRUE(begun.ok());
  std::optional<QuiescentSection> section(*std::move(begun));
  EXPECT_EQ(begun->CheckOpen(*memory_, "sleep").code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(section->CheckOpen(*memory_, "sleep").ok());
  QuiescentSection& self = *section;
  *section = std::move(self);
  EXPECT_TRUE(section->CheckOpen(*memory_, "sleep").ok());
  EXPECT_TRUE(memory_->in_quiescence());
  section.reset();
  EXPECT_FALSE(memory_->in_quiescence());
}

TEST_F(QuiescentSectionTest, IsOfOneMemory) {
  auto other = DeviceMemory::Create(faulty_.get(), &owners_, Options());
  ASSERT_TRUE(other.ok());
  const auto section = Begin();
  ASSERT_TRUE(section.ok());
  EXPECT_FALSE((*other)->in_quiescence());
  const absl::Status refused = section->CheckOpen(**other, "sleep");
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("another memory"));
}

TEST_F(QuiescentSectionTest, IsNotOpenAfterAnError) {
  const StreamId stream = MakeStream();
  const auto event = driver_->CreateEvent(DeviceId(0));
  ASSERT_TRUE(event.ok());
  EXPECT_EQ(Begin({StreamId()}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(memory_->in_quiescence());
  for (const DriverCall call :
       {DriverCall::kSynchronizeStream, DriverCall::kSynchronizeEvent}) {
    faulty_->FailCall(call, 1, absl::StatusCode::kInternal);
    EXPECT_EQ(Begin({stream}, {*event}).status().code(),
              absl::StatusCode::kInternal);
    EXPECT_FALSE(memory_->in_quiescence());
  }
  EXPECT_TRUE(Begin({stream}, {*event}).ok());
  EXPECT_TRUE(driver_->DestroyEvent(*event).ok());
}

}  // namespace
}  // namespace quire
