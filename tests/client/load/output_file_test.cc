// SPDX-License-Identifier: Apache-2.0
#include "client/output_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/testing/scratch_folder.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using testing::HasSubstr;

namespace fs = std::filesystem;

// No longer name fits, so the file can be overwritten but not replaced.
const std::string kLongName(250, 'x');

int64_t FilesIn(const ScratchFolder& folder) {
  return std::distance(fs::directory_iterator(folder.Path("")), {});
}

// While this object lives, writes fail early, as on a full disk.
class SmallFiles {
 public:
  explicit SmallFiles(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &limit_);
    const rlimit less = {.rlim_cur = bytes, .rlim_max = limit_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &less);
  }
  ~SmallFiles() {
    setrlimit(RLIMIT_FSIZE, &limit_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit limit_ = {};
  void (*const handler_)(int);
};

TEST(TextFileTest, ProbesWithoutATrace) {
  const ScratchFolder folder;
  const std::string path = folder.Path("a");
  EXPECT_THAT(CheckWritable(path), IsOk());
  EXPECT_FALSE(std::filesystem::exists(path));
  ASSERT_THAT(WriteTextFile(path, "text"), IsOk());
  EXPECT_THAT(CheckWritable(path), IsOk());
  EXPECT_EQ(ReadTextFile(path).value(), "text");
}

TEST(TextFileTest, ReplacesWhatIsThere) {
  const ScratchFolder folder;
  const std::string path = folder.Path("a");
  const std::string link = folder.Path("link");
  ASSERT_THAT(WriteTextFile(path, "a longer text"), IsOk());
  std::filesystem::create_symlink(path, link);
  ASSERT_THAT(WriteTextFile(link, ""), IsOk());
  EXPECT_EQ(ReadTextFile(path).value(), "");
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  // No other file is left.
  EXPECT_EQ(FilesIn(folder), 2);
}

TEST(TextFileTest, DevicesStayWhatTheyAre) {
  EXPECT_THAT(CheckWritable("/dev/null"), IsOk());
  EXPECT_THAT(WriteTextFile("/dev/null", "text"), IsOk());
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
}

TEST(TextFileTest, AFullDiskKeepsTheOldFile) {
  for (const std::string& name : {std::string("a"), kLongName}) {
    const ScratchFolder folder;
    ASSERT_THAT(WriteTextFile(folder.Path(name), "old"), IsOk());
    {
      const SmallFiles limit(16);
      EXPECT_THAT(WriteTextFile(folder.Path(name), std::string(100, 'n')),
                  StatusIs(absl::StatusCode::kPermissionDenied,
                           folder.Path(name) + ": cannot be written: File too large"));
    }
    EXPECT_EQ(ReadTextFile(folder.Path(name)).value(), "old");
    EXPECT_EQ(FilesIn(folder), 1);
  }
  EXPECT_THAT(WriteTextFile("/dev/full", "text"),
              StatusIs(absl::StatusCode::kPermissionDenied,
                       "/dev/full: cannot be written: No space left on device"));
}

TEST(TextFileTest, OverwritesWhatCannotBeReplaced) {
  const ScratchFolder folder;
  const std::string path = folder.Path(kLongName);
  ASSERT_THAT(WriteTextFile(folder.Path("a"), "old"), IsOk());
  fs::create_hard_link(folder.Path("a"), path);
  for (const std::string& text : {std::string(100, 'n'), std::string("short"), std::string()}) {
    ASSERT_THAT(WriteTextFile(path, text), IsOk());
    EXPECT_EQ(ReadTextFile(folder.Path("a")).value(), text);
  }
  EXPECT_EQ(FilesIn(folder), 2);
}

TEST(TextFileTest, LinksAreFollowedToNothing) {
  const ScratchFolder folder;
  fs::create_directory(folder.Path("b"));
  fs::create_symlink("b/target", folder.Path("link"));
  fs::create_symlink(folder.Path("link"), folder.Path("again"));
  EXPECT_THAT(CheckWritable(folder.Path("again")), IsOk());
  EXPECT_TRUE(fs::is_symlink(folder.Path("link")) && fs::is_empty(folder.Path("b")));
  ASSERT_THAT(WriteTextFile(folder.Path("again"), "text"), IsOk());
  EXPECT_TRUE(fs::is_symlink(folder.Path("link")) && fs::is_symlink(folder.Path("again")));
  EXPECT_EQ(ReadTextFile(folder.Path("b/target")).value(), "text");
}

TEST(TextFileTest, FilesOfOthersAndPermissionsStay) {
  const ScratchFolder folder;
  const std::string path = folder.Path("a");
  const std::string theirs = path + "." + std::to_string(getpid()) + ".part";
  std::ofstream(theirs) << "theirs";
  std::ofstream(path) << "old";
  chmod(path.c_str(), 0640);
  EXPECT_THAT(CheckWritable(path), IsOk());
  ASSERT_THAT(WriteTextFile(path, "new"), IsOk());
  EXPECT_EQ(ReadTextFile(theirs).value(), "theirs");
  struct stat facts = {};
  ASSERT_EQ(stat(path.c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777, 0640U);
  EXPECT_EQ(FilesIn(folder), 2);
}

class PipeTest : public testing::Test {
 protected:
  PipeTest() { EXPECT_EQ(mkfifo(path_.c_str(), 0600), 0); }

  const ScratchFolder folder_;
  const std::string path_ = folder_.Path("pipe");
};

// A reader takes the first writer's end for the end of the pipe.
TEST_F(PipeTest, IsNotOpenedByTheCheck) {
  EXPECT_THAT(CheckWritable(path_), IsOk());
  pollfd reader = {
      .fd = open(path_.c_str(), O_RDONLY | O_NONBLOCK), .events = POLLIN, .revents = 0};
  EXPECT_THAT(CheckWritable(path_), IsOk());
  EXPECT_EQ(poll(&reader, 1, 0), 0);
  close(reader.fd);
}

TEST_F(PipeTest, WaitsForAReader) {
  const std::atomic<int> stops = 0;
  absl::Status written;
  std::thread writer([&] { written = WriteTextFile(path_, std::string(1 << 20, 'x'), &stops); });
  const auto text = ReadTextFile(path_);
  writer.join();
  EXPECT_THAT(written, IsOk());
  EXPECT_EQ(text.value(), std::string(1 << 20, 'x'));
}

TEST_F(PipeTest, WithoutAReaderASignalEndsTheWait) {
  std::atomic<int> stops = 0;
  absl::Status written;
  std::thread writer([&] { written = WriteTextFile(path_, "text", &stops); });
  ++stops;
  writer.join();
  EXPECT_THAT(written, StatusIs(absl::StatusCode::kPermissionDenied,
                                HasSubstr("/pipe: cannot be written: no process reads the pipe")));
}

// The pipe buffers less than the text.
TEST_F(PipeTest, ASignalEndsTheWaitForAReaderThatStandsStill) {
  std::atomic<int> stops = 0;
  const int reader = open(path_.c_str(), O_RDONLY | O_NONBLOCK);
  absl::Status written;
  std::thread writer([&] { written = WriteTextFile(path_, std::string(1 << 20, 'x'), &stops); });
  pollfd pipe = {.fd = reader, .events = POLLIN, .revents = 0};
  EXPECT_EQ(poll(&pipe, 1, 60'000), 1);
  ++stops;
  writer.join();
  close(reader);
  EXPECT_THAT(written, StatusIs(absl::StatusCode::kPermissionDenied));
}

TEST(OutputsTest, EachIsAFileOfItsOwn) {
  const ScratchFolder folder;
  std::ofstream(folder.Path("a")) << "text";
  fs::create_symlink("a", folder.Path("link"));
  fs::create_hard_link(folder.Path("a"), folder.Path("hard"));
  fs::create_symlink("new", folder.Path("nowhere"));
  const auto check = [&](const std::string& one, const std::string& other) {
    return CheckOutputs({{"--one", one}}, {{"--other", other}});
  };
  const std::string a = folder.Path("a");
  for (const std::string& same :
       {a, folder.Path("./a"), folder.Path("link"), folder.Path("hard")}) {
    EXPECT_THAT(check(same, a),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         "--one: got \"" + same + "\", want another file than that of --other"));
    EXPECT_FALSE(CheckOutputs({{"--one", a}, {"--two", same}}, {}).ok());
  }
  EXPECT_FALSE(check(folder.Path("nowhere"), folder.Path("./new")).ok());
  EXPECT_FALSE(CheckOutputs({{"--one", "-"}, {"--two", "-"}}, {}).ok());
  EXPECT_THAT(check("-", "-"), IsOk());
  EXPECT_THAT(check("", ""), IsOk());
  EXPECT_THAT(check("/dev/null", "/dev/null"), IsOk());
  EXPECT_THAT(check(folder.Path("b"), a), IsOk());
  EXPECT_THAT(check(folder.Path("b"), folder.Path("c")), IsOk());
}

TEST(TextFileTest, SaysWhyNot) {
  EXPECT_THAT(CheckWritable("/nowhere/a"),
              StatusIs(absl::StatusCode::kPermissionDenied,
                       "/nowhere/a: cannot be written: No such file or directory"));
  EXPECT_THAT(CheckWritable("/tmp"),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("Is a directory")));
  EXPECT_THAT(WriteTextFile("/nowhere/a", ""), StatusIs(absl::StatusCode::kPermissionDenied));
  EXPECT_THAT(ReadTextFile("/nowhere/a"),
              StatusIs(absl::StatusCode::kNotFound,
                       "/nowhere/a: cannot be read: No such file or directory"));
}

}  // namespace
}  // namespace gemmd
