// SPDX-License-Identifier: Apache-2.0
//
// .npy files on disk: what they claim against what they are.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/matrix/npy.h"
#include "gemmd/v1/tensors.pb.h"
#include "tests/client/matrix/npy_text.h"
#include "tests/testing/scratch_folder.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using testing::HasSubstr;

// A file of its own, which says how long it is.
class NpyFileTest : public testing::Test {
 protected:
  void Write(absl::string_view text) const {
    std::FILE* const file = std::fopen(path_.c_str(), "wb");
    std::fwrite(text.data(), 1, text.size(), file);
    std::fclose(file);
  }

  ScratchFolder folder_;
  std::string path_ = folder_.Path("array.npy");
};

TEST_F(NpyFileTest, ReadsAndWrites) {
  const NpyArray array = {
      .type = v1::ELEMENT_TYPE_F16, .shape = {1, 2}, .order = v1::ORDER_ROW_MAJOR, .data = "abcd"};
  ASSERT_THAT(WriteNpyFile(array, path_), IsOk());
  EXPECT_EQ(ReadNpyFile(path_, v1::ELEMENT_TYPE_UNSPECIFIED)->data, "abcd");
}

TEST_F(NpyFileTest, ComparesTheClaimWithTheFile) {
  Write(NpyFileText("<f8", "(1048576, 1048576)", "abc"));
  EXPECT_THAT(ReadNpyFile(path_, v1::ELEMENT_TYPE_UNSPECIFIED),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       absl::StrCat(path_, ": npy data: got 3 bytes, want 8796093022208")));
  Write(NpyFileText("|u1", "(1, 2)", "abc"));
  EXPECT_THAT(ReadNpyFile(path_, v1::ELEMENT_TYPE_UNSPECIFIED),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       absl::StrCat(path_, ": npy file: got bytes after the data, want its end")));
  Write("");
  EXPECT_THAT(ReadNpyFile(path_, v1::ELEMENT_TYPE_UNSPECIFIED),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       absl::StrCat(path_, ": npy magic: got 0 bytes, want 8")));
}

TEST_F(NpyFileTest, SaysWhichFileIsMissing) {
  EXPECT_THAT(ReadNpyFile("/nonexistent/a.npy", v1::ELEMENT_TYPE_UNSPECIFIED),
              StatusIs(absl::StatusCode::kNotFound,
                       "/nonexistent/a.npy: cannot be read: No such file or directory"));
  EXPECT_FALSE(
      WriteNpyFile({.type = v1::ELEMENT_TYPE_F16, .shape = {0}, .data = {}}, "/nonexistent/a.npy")
          .ok());
  EXPECT_FALSE(ReadNpyFile("/", v1::ELEMENT_TYPE_UNSPECIFIED).ok());
}

TEST_F(NpyFileTest, NoticesAFullDisk) {
  const NpyArray array = {.type = v1::ELEMENT_TYPE_U8,
                          .shape = {1 << 20},
                          .order = v1::ORDER_ROW_MAJOR,
                          .data = std::string(1 << 20, 'x')};
  EXPECT_THAT(WriteNpyFile(array, "/dev/full"),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("No space left")));
}

}  // namespace
}  // namespace gemmd
