// SPDX-License-Identifier: Apache-2.0
#include "client/terminal/text_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/testing/scratch_folder.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using testing::HasSubstr;

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
  // Nothing else is left.
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.Path("")), {}), 2);
}

TEST(TextFileTest, DevicesStayWhatTheyAre) {
  EXPECT_THAT(CheckWritable("/dev/null"), IsOk());
  EXPECT_THAT(WriteTextFile("/dev/null", "text"), IsOk());
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
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
