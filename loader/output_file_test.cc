#include "quire/loader/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "gtest/gtest.h"
#include "loader/testing/temporary_folder.h"
#include "quire/loader/regular_file.h"

namespace quire {
namespace {

TEST(OutputFileTest, AppearsWhenItIsWhole) {
  const TemporaryFolder folder;
  const std::string path = folder.File("out");
  {
    auto file = OutputFile::Create(path);
    ASSERT_TRUE(file.ok()) << file.status();
    ASSERT_TRUE((*file)->Write("abc", 3).ok());
    EXPECT_FALSE(std::filesystem::exists(path));
    ASSERT_TRUE((*file)->Commit().ok());
  }
  EXPECT_EQ(*ReadRegularFile(path), "abc");
  {
    auto file = OutputFile::Create(path);
    ASSERT_TRUE(file.ok()) << file.status();
    ASSERT_TRUE((*file)->Write("de", 2).ok());
  }
  // Not reached: what there was is there, and nothing beside it.
  EXPECT_EQ(*ReadRegularFile(path), "abc");
  EXPECT_FALSE(std::filesystem::exists(path + ".partial"));
}

TEST(OutputFileTest, WaitsForNoReaderOfAPipe) {
  const TemporaryFolder folder;
  const std::string path = folder.File("pipe");
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  const absl::Status status = WriteFile(path, "abc");
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.message().find("cannot open for writing"),
            absl::string_view::npos)
      << status;

  const int reader = open(path.c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(reader, 0);
  EXPECT_TRUE(WriteFile(path, "abc").ok());
  char read_back[8] = {};
  EXPECT_EQ(read(reader, read_back, sizeof(read_back)), 3);
  EXPECT_EQ(std::string(read_back), "abc");
  close(reader);
}

TEST(OutputFileTest, SaysWhatCannotBeWritten) {
  const TemporaryFolder folder;
  EXPECT_TRUE(absl::IsNotFound(WriteFile(folder.File("no/such/file"), "")));
  EXPECT_FALSE(WriteFile(folder.File(""), "abc").ok());
}

}  // namespace
}  // namespace quire
