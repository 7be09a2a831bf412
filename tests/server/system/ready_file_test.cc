// SPDX-License-Identifier: Apache-2.0
//
// The file that exists while the daemon serves never replaces a file that is not the daemon's own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "server/system/service_manager.h"
#include "tests/testing/scratch_folder.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

std::string TextOf(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void Put(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

TEST(ReadyFileTest, IsThereUntilTheEnd) {
  const ScratchFolder folder;
  const std::string path = folder.Path("ready");
  {
    ReadyFile file(path);
    EXPECT_THAT(file.Check(), IsOk());
    EXPECT_FALSE(fs::exists(path));
    ASSERT_THAT(file.Write({"127.0.0.1:8470", "unix:/run/gemmd.sock"}), IsOk());
    EXPECT_EQ(TextOf(path), "127.0.0.1:8470\nunix:/run/gemmd.sock\n");
  }
  EXPECT_TRUE(fs::is_empty(folder.Path("")));
}

TEST(ReadyFileTest, TakesThePlaceOfWhatADaemonThatWasKilledHasLeft) {
  const ScratchFolder folder;
  const std::string path = folder.Path("ready");
  for (const char* text : {"", "127.0.0.1:1\n", "tls:[::]:8470\nunix:/x\nunix-abstract:y\n"}) {
    Put(path, text);
    ReadyFile file(path);
    EXPECT_THAT(file.Check(), IsOk()) << text;
    ASSERT_THAT(file.Write({"h:2"}), IsOk()) << text;
    EXPECT_EQ(TextOf(path), "h:2\n");
  }
}

TEST(ReadyFileTest, LeavesWhatIsNotItsOwn) {
  const ScratchFolder folder;
  const std::string file = folder.Path("file");
  const std::string link = folder.Path("link");
  const std::string pipe = folder.Path("pipe");
  Put(file, "a letter\n");
  Put(folder.Path("target"), "");
  fs::create_symlink(folder.Path("target"), link);
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string& path : {file, link, pipe, folder.Path(""), std::string("/dev/full")}) {
    ReadyFile ready(path);
    EXPECT_THAT(ready.Check(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("ready-file: got " + path)));
    EXPECT_THAT(ready.Write({"h:1"}), StatusIs(absl::StatusCode::kInvalidArgument));
  }
  EXPECT_EQ(TextOf(file), "a letter\n");
  EXPECT_TRUE(fs::is_symlink(link));
  EXPECT_TRUE(fs::is_fifo(pipe));
  EXPECT_TRUE(fs::is_character_file("/dev/full"));
  for (const char* text : {"h:1", "\n", "h:1\n\n", "h:port\n", "h:\n", ":1\n", "a h:1\n", "h\n"}) {
    EXPECT_FALSE(IsOfAddresses(text)) << text;
  }
}

TEST(ReadyFileTest, RemovesOnlyWhatItWrote) {
  const ScratchFolder folder;
  const std::string path = folder.Path("ready");
  {
    ReadyFile file(path);
    ASSERT_THAT(file.Write({"h:1"}), IsOk());
    Put(folder.Path("other"), "mine");
    fs::rename(folder.Path("other"), path);
  }
  EXPECT_EQ(TextOf(path), "mine");
}

// A limit on the size of files stands for a disk without room.
TEST(ReadyFileTest, LeavesNoPartOnAFullDisk) {
  const ScratchFolder folder;
  const std::string path = folder.Path("ready");
  Put(path, "127.0.0.1:1\n");
  signal(SIGXFSZ, SIG_IGN);
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit full = {.rlim_cur = 4, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &full), 0);
  const absl::Status status = ReadyFile(path).Write({"127.0.0.1:2"});
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable,
                               HasSubstr("cannot write " + path + ": File too large")));
  EXPECT_EQ(TextOf(path), "127.0.0.1:1\n");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.Path("")), fs::directory_iterator()), 1);
}

TEST(ReadyFileTest, SaysWhyItCannotBeWritten) {
  ReadyFile file("/nowhere/ready");
  EXPECT_THAT(file.Check(), IsOk());
  EXPECT_THAT(file.Write({"h:1"}),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("/nowhere/ready: No such file")));
  ReadyFile none("");
  EXPECT_THAT(none.Check(), IsOk());
  EXPECT_THAT(none.Write({"h:1"}), IsOk());
}

}  // namespace
}  // namespace gemmd
