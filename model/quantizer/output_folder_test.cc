#include "model/quantizer/output_folder.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "loader/testing/temporary_folder.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> Names(const std::string& folder) {
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

void Write(const std::string& path) { std::ofstream(path) << "x"; }

class OutputFolderTest : public testing::Test {
 protected:
  std::string out() const { return parent_.File("out"); }
  std::string staging() const { return parent_.File("out.partial"); }
  std::vector<std::string> Beside() const { return Names(parent_.path()); }

  const TemporaryFolder parent_;
};

using Strings = std::vector<std::string>;

TEST_F(OutputFolderTest, AppearsWholeWithCommit) {
  auto folder = OutputFolder::Create(out());
  ASSERT_TRUE(folder.ok()) << folder.status();
  EXPECT_EQ((*folder)->staging(), fs::canonical(staging()));
  Write((*folder)->staging() + "/config.json");
  Write((*folder)->staging() + "/model.safetensors");
  EXPECT_EQ(Beside(), Strings{"out.partial"});
  const absl::Status committed = (*folder)->Commit();
  ASSERT_TRUE(committed.ok()) << committed;
  folder->reset();
  EXPECT_EQ(Beside(), Strings{"out"});
  EXPECT_EQ(Names(out()), (Strings{"config.json", "model.safetensors"}));
}

TEST_F(OutputFolderTest, LeavesNothingWithoutCommit) {
  auto folder = OutputFolder::Create(out());
  ASSERT_TRUE(folder.ok()) << folder.status();
  Write((*folder)->staging() + "/model.safetensors.77-0.partial");
  Write((*folder)->staging() + "/tokenizer.json");
  folder->reset();
  EXPECT_EQ(Beside(), Strings{});
}

TEST_F(OutputFolderTest, TakesAnEmptyFolderAndMakesThoseAbove) {
  fs::create_directory(out());
  auto folder = OutputFolder::Create(out() + "/");
  ASSERT_TRUE(folder.ok()) << folder.status();
  Write((*folder)->staging() + "/config.json");
  ASSERT_TRUE((*folder)->Commit().ok());
  EXPECT_EQ(Beside(), Strings{"out"});
  EXPECT_EQ(Names(out()), Strings{"config.json"});

  auto deep = OutputFolder::Create(parent_.File("a/b/c"));
  ASSERT_TRUE(deep.ok()) << deep.status();
  ASSERT_TRUE((*deep)->Commit().ok());
  EXPECT_EQ(Names(parent_.File("a/b")), Strings{"c"});
}

TEST_F(OutputFolderTest, WhatIsThereIsNotReplaced) {
  fs::create_directory(out());
  Write(out() + "/precious");
  auto folder = OutputFolder::Create(out());
  EXPECT_TRUE(absl::IsAlreadyExists(folder.status())) << folder.status();
  EXPECT_EQ(Beside(), Strings{"out"});

  const std::string file = parent_.Write("file", "x");
  EXPECT_TRUE(absl::IsAlreadyExists(OutputFolder::Create(file).status()));

  // Nor where it comes while the folder is written.
  fs::remove(out() + "/precious");
  folder = OutputFolder::Create(out());
  ASSERT_TRUE(folder.ok()) << folder.status();
  Write((*folder)->staging() + "/config.json");
  Write(out() + "/precious");
  EXPECT_FALSE((*folder)->Commit().ok());
  folder->reset();
  EXPECT_EQ(Beside(), (Strings{"file", "out"}));
  EXPECT_EQ(Names(out()), Strings{"precious"});
}

TEST_F(OutputFolderTest, OneWriterAtATime) {
  auto folder = OutputFolder::Create(out());
  ASSERT_TRUE(folder.ok()) << folder.status();
  const auto second = OutputFolder::Create(out());
  EXPECT_TRUE(absl::IsFailedPrecondition(second.status())) << second.status();
  // The first one is none the worse.
  Write((*folder)->staging() + "/config.json");
  ASSERT_TRUE((*folder)->Commit().ok());
  EXPECT_EQ(Names(out()), Strings{"config.json"});
}

TEST_F(OutputFolderTest, WhatAKilledProcessLeftIsReplaced) {
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const auto folder = OutputFolder::Create(out());
    if (folder.ok()) {
      Write((*folder)->staging() + "/model.safetensors.5-0.partial");
      Write((*folder)->staging() + "/config.json");
      if (write(ready[1], "x", 1) != 1) _exit(1);
    }
    pause();
    _exit(0);
  }
  char byte;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  EXPECT_TRUE(absl::IsFailedPrecondition(OutputFolder::Create(out()).status()));
  ASSERT_EQ(kill(child, SIGKILL), 0);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  close(ready[0]);
  close(ready[1]);
  EXPECT_EQ(Beside(), Strings{"out.partial"});

  const auto folder = OutputFolder::Create(out());
  ASSERT_TRUE(folder.ok()) << folder.status();
  EXPECT_EQ(Names((*folder)->staging()), Strings{});
  ASSERT_TRUE((*folder)->Commit().ok());
  EXPECT_EQ(Beside(), Strings{"out"});
}

TEST_F(OutputFolderTest, WhatNoRunHasLeftIsKept) {
  fs::create_directory(staging());
  Write(staging() + "/thesis.txt");
  const auto folder = OutputFolder::Create(out());
  EXPECT_TRUE(absl::IsAlreadyExists(folder.status())) << folder.status();
  EXPECT_NE(folder.status().message().find("thesis.txt"),
            std::string_view::npos);
  EXPECT_EQ(Names(staging()), Strings{"thesis.txt"});
}

TEST_F(OutputFolderTest, WhatCannotBeRenamedToIsRefusedAtOnce) {
  const fs::path before = fs::current_path();
  fs::create_directory(out());
  fs::current_path(out());
  const auto working = OutputFolder::Create(".");
  fs::current_path(before);
  EXPECT_TRUE(absl::IsFailedPrecondition(working.status())) << working.status();

  // A file system of its own on most machines, or no empty folder.
  EXPECT_FALSE(OutputFolder::Create("/proc").ok());
}

}  // namespace
}  // namespace quire
