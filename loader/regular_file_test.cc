#include "quire/loader/regular_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

#include "loader/checkpoint_test_util.h"

namespace quire {
namespace {

using testing::HasSubstr;

class RegularFileTest : public testing::Test {
 protected:
  void ExpectRefused(const std::string& path) {
    for (const absl::Status& status :
         {OpenRegularFile(path).status(), CheckRegularFile(path),
          ReadRegularFile(path).status()}) {
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr(path));
      EXPECT_THAT(std::string(status.message()),
                  HasSubstr("is not a regular file"));
    }
  }

  TemporaryFolder folder_;
};

TEST_F(RegularFileTest, IsReadWhole) {
  const std::string bytes("a\0b\n", 4);
  EXPECT_EQ(*ReadRegularFile(folder_.Write("four", bytes)), bytes);
  EXPECT_EQ(*ReadRegularFile(folder_.Write("none", "")), "");
  symlink(folder_.File("four").c_str(), folder_.File("link").c_str());
  EXPECT_EQ(*ReadRegularFile(folder_.File("link")), bytes);
}

// Without a writer, opening it would wait for one: this test would not end.
TEST_F(RegularFileTest, APipeIsRefusedAtOnce) {
  const std::string path = folder_.File("pipe");
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  ExpectRefused(path);
  symlink(path.c_str(), folder_.File("link").c_str());
  ExpectRefused(folder_.File("link"));
}

TEST_F(RegularFileTest, FoldersAndDevicesAreRefused) {
  ExpectRefused(folder_.path());
  ExpectRefused("/dev/zero");
  ExpectRefused("/dev/null");
}

TEST_F(RegularFileTest, WhatIsNotThereIsNotFound) {
  const absl::Status status = ReadRegularFile(folder_.File("nowhere")).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("nowhere"));
}

TEST_F(RegularFileTest, LargerThanTheLimitIsRefusedBeforeItIsRead) {
  const std::string path = folder_.Write("file", "12345");
  EXPECT_TRUE(ReadRegularFile(path, Bytes(5)).ok());
  EXPECT_EQ(ReadRegularFile(path, Bytes(4)).status().code(),
            absl::StatusCode::kInvalidArgument);
  // A hole of 1 TiB takes no disk, and would take all memory.
  ASSERT_EQ(truncate(path.c_str(), off_t{1} << 40), 0);
  EXPECT_EQ(ReadRegularFile(path).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(RegularFileTest, ThePathIsFitForAMessage) {
  const absl::Status status = OpenRegularFile("no\nfile").status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("no\\nfile"));
}

}  // namespace
}  // namespace quire
