// SPDX-License-Identifier: Apache-2.0
//
// A file of lines: written completely and in order, limited in size, and never waited for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "server/system/files.h"
#include "tests/testing/scratch_folder.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class LineFileTest : public testing::Test {
 protected:
  std::string path() const { return folder_.Path("lines"); }

  static std::vector<std::string> Lines(const std::string& path) {
    std::ifstream file(path);
    std::vector<std::string> lines;
    for (std::string line; std::getline(file, line);) lines.push_back(line);
    return lines;
  }

  std::unique_ptr<LineFile> Open(const LineFile::Options& options = {}) {
    auto file = LineFile::Open(path(), options);
    EXPECT_TRUE(file.ok()) << file.status();
    return *std::move(file);
  }

  const ScratchFolder folder_;
};

void Add(LineFile& file, const std::string& text) {
  file.Add([text] { return text; }, 1);
}

TEST_F(LineFileTest, WritesInOrderAndAllBeforeItsEnd) {
  {
    const auto file = Open();
    for (const char* text : {"a", "b", "c"}) Add(*file, text);
  }
  EXPECT_THAT(Lines(path()), ElementsAre("a", "b", "c"));
  {
    const auto file = Open();  // Appends to the existing file.
    Add(*file, "d");
  }
  EXPECT_THAT(Lines(path()), ElementsAre("a", "b", "c", "d"));
}

TEST_F(LineFileTest, IsRenamedWhereItIsFull) {
  {
    const auto file = Open({.max_bytes = 10});
    for (const char* text : {"1111", "2222", "3333", "44444444444444", "5555"}) Add(*file, text);
  }
  EXPECT_THAT(Lines(path()), ElementsAre("5555"));
  EXPECT_THAT(Lines(path() + ".1"), ElementsAre("44444444444444"));
  {
    const auto file = Open({.max_bytes = 10});  // The existing contents count.
    for (const char* text : {"6666", "7777"}) Add(*file, text);
  }
  EXPECT_THAT(Lines(path()), ElementsAre("7777"));
  EXPECT_THAT(Lines(path() + ".1"), ElementsAre("5555", "6666"));
}

TEST_F(LineFileTest, IsOpenedAgainAfterAnotherProgramHasRenamedIt) {
  {
    const auto file = Open({.max_bytes = 10});
    Add(*file, "1111");
    file->Reopen();  // The same file, with its size.
    file->Add(
        [this] {
          std::filesystem::rename(path(), path() + ".old");
          return "2222";
        },
        1);
    file->Reopen();
    for (const char* text : {"3333", "4444"}) Add(*file, text);
  }
  EXPECT_THAT(Lines(path() + ".old"), ElementsAre("1111", "2222"));
  EXPECT_THAT(Lines(path()), ElementsAre("3333", "4444"));
  EXPECT_FALSE(std::filesystem::exists(path() + ".1"));
}

TEST_F(LineFileTest, StaysWhereItIsIfItCannotBeOpenedAgain) {
  {
    const auto file = Open();
    file->Add(
        [this] {
          std::filesystem::rename(path(), path() + ".old");
          std::filesystem::create_directory(path());
          return "1";
        },
        1);
    file->Reopen();
    Add(*file, "2");
  }
  EXPECT_THAT(Lines(path() + ".old"), ElementsAre("1", "2"));
}

TEST_F(LineFileTest, WhatHasNoRoomIsLostAndNobodyWaits) {
  Mutex mutex;
  bool may_go_on = false, is_begun = false;
  const auto file = Open({.max_kept = 2});
  file->Add(
      [&] {
        MutexLock lock(&mutex);
        is_begun = true;
        mutex.Await([&] { return may_go_on; });
        return std::string("slow");
      },
      1);
  {
    MutexLock lock(&mutex);
    mutex.Await([&] { return is_begun; });
  }
  for (int i = 0; i < 2; ++i) Add(*file, "kept");
  file->Add([] { return std::string("lost"); }, 7);
  EXPECT_EQ(file->counts().lost, 7);
  EXPECT_EQ(file->counts().written, 0);
  MutexLock lock(&mutex);
  may_go_on = true;
}

TEST_F(LineFileTest, AFileThatCannotBeWrittenLosesLinesAndNothingElse) {
  std::filesystem::create_directory(path() + ".1");  // No file can have this name.
  std::ofstream(path() + ".1/occupied");
  const auto file = Open({.max_bytes = 4});
  Add(*file, "aaa");
  Add(*file, "bbb");
  while (file->counts().written + file->counts().lost < 2) std::this_thread::yield();
  EXPECT_EQ(file->counts().written, 1);
  EXPECT_EQ(file->counts().lost, 1);
  EXPECT_THAT(Lines(path()), ElementsAre("aaa"));
}

TEST_F(LineFileTest, OnlyRegularFilesCanBeFollowedAndRenamed) {
  const std::string pipe = folder_.Path("pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  // Opening a pipe that nobody reads would block.
  for (const std::string& bad :
       {folder_.path(), folder_.Path("no/folder"), std::string("/dev/null"), pipe}) {
    EXPECT_THAT(LineFile::Open(bad, {}).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(bad)));
  }
}

}  // namespace
}  // namespace gemmd
