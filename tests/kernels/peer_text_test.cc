// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "kernels/matrix/text.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

constexpr std::string_view kCharacters[] = {"a", "\xC3\xA4", "\xE2\x82\xAC", "\xF0\x9F\x90\x8D"};

TEST(PeerTextTest, TextIsCutBetweenCharactersOnly) {
  for (const std::string_view character : kCharacters) {
    for (size_t before = 0; before <= 8; ++before) {
      std::string text(before, 'x');
      for (int i = 0; i < 40; ++i) text += character;
      for (size_t most = 4; most < 20; ++most) {
        const std::string_view cut = CutAtCharacter(text, most);
        SCOPED_TRACE(testing::Message() << character << " " << before << " " << most);
        EXPECT_LE(cut.size(), most);
        EXPECT_GT(cut.size() + character.size(), most);
        EXPECT_TRUE(text.starts_with(cut));
        EXPECT_EQ(cut.size() < before ? 0 : (cut.size() - before) % character.size(), 0u);
      }
    }
  }
}

TEST(PeerTextTest, ShortTextIsLeftAlone) {
  EXPECT_EQ(CutAtCharacter("", 0), "");
  EXPECT_EQ(CutAtCharacter("\xC3\xA4", 2), "\xC3\xA4");
  EXPECT_EQ(Shown(std::string(kShownBytes, 'x')), std::string(kShownBytes, 'x'));
}

TEST(PeerTextTest, BytesThatAreNoTextAreCutAnywhere) {
  EXPECT_EQ(CutAtCharacter(std::string(100, '\x80'), 10).size(), 10u);
  EXPECT_EQ(CutAtCharacter(std::string(100, '\x80'), 0).size(), 0u);
}

TEST(PeerTextTest, LongTextIsShownByItsBeginning) {
  const std::string text = std::string(kShownBytes - 1, 'x') + "\xE2\x82\xAC" + "y";
  EXPECT_EQ(Shown(text), std::string(kShownBytes - 1, 'x') + "...");
  EXPECT_EQ(Shown(std::string(1 << 20, 'x')).size(), kShownBytes + 3);
}

TEST(PeerTextTest, NamesHaveABoundedLength) {
  EXPECT_THAT(CheckNameLength("kernel", std::string(kMaxNameBytes, 'x')), IsOk());
  EXPECT_THAT(
      CheckNameLength("kernel", std::string(kMaxNameBytes + 1, 'x')),
      StatusIs(absl::StatusCode::kInvalidArgument, "kernel: got 129 bytes, want at most 128"));
}

}  // namespace
}  // namespace gemmd
