// SPDX-License-Identifier: Apache-2.0
#include <fnmatch.h>
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "kernels/kernel.h"
#include "server/wire/listing.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

bool Matches(const std::string& pattern, const std::string& name) {
  return NamePattern::Parse("name_pattern", pattern).value().Matches(name);
}

// One random part of a pattern, of any kind.
std::string SomePart(std::mt19937& random) {
  static constexpr const char* kParts[] = {"a",
                                           "b",
                                           "c",
                                           "-",
                                           "*",
                                           "*",
                                           "**",
                                           "?",
                                           "[ab]",
                                           "[!ab]",
                                           "[^a]",
                                           "[a-c]",
                                           "[c-a]",
                                           "[]a]",
                                           "[!]a]",
                                           "[a-]",
                                           "[\\]b]",
                                           "[[:alpha:]]",
                                           "\\*",
                                           "\\?",
                                           "\\a",
                                           "[*?]",
                                           "[a-b-]",
                                           "[[:digit:]a]",
                                           "[![:upper:]b]",
                                           "\\[",
                                           "[[]",
                                           "[a\\-c]"};
  return kParts[random() % std::size(kParts)];
}

TEST(NamePatternTest, MatchesWhatFnmatchDoes) {
  std::mt19937 random(20240611);
  int matches = 0;
  for (int i = 0; i < 60'000; ++i) {
    std::string pattern;
    for (size_t parts = random() % 6; parts > 0; --parts) pattern += SomePart(random);
    std::string name;
    for (size_t size = random() % 7; size > 0; --size) name += "aabbc-]*?[4\\Z"[random() % 13];
    const bool expected = fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
    ASSERT_EQ(Matches(pattern, name), expected) << pattern << " and " << name;
    matches += expected ? 1 : 0;
  }
  EXPECT_GT(matches, 3'000);
}

TEST(NamePatternTest, MatchesNamesOfTheCatalogue) {
  for (const std::string pattern : {"openblas.f64*", "*bf16*", "wgmma.m64n[1-9]*k16.*", "*_s?",
                                    "mma.sp.*", "[mw]*.s32.*", "*"}) {
    for (const Kernel& kernel : Catalog()) {
      const std::string name(kernel.name);
      ASSERT_EQ(Matches(pattern, name), fnmatch(pattern.c_str(), name.c_str(), 0) == 0)
          << pattern << " and " << name;
    }
  }
}

TEST(NamePatternTest, WhatIsNoPatternStandsForItself) {
  EXPECT_TRUE(Matches("[ab", "[ab"));
  EXPECT_TRUE(Matches("a[", "a["));
  EXPECT_FALSE(Matches("a\\", "a\\"));
  EXPECT_FALSE(Matches("a\\", "a"));
  EXPECT_FALSE(Matches("[[:nothing:]]", "n"));
  EXPECT_FALSE(Matches(std::string("a\0", 2), "a"));
}

// As many parts as bits, and characters of several bytes.
TEST(NamePatternTest, TakesPatternsOfEveryLengthThatIsAllowed) {
  for (const size_t size : {63, 64, 65, 127, 128}) {
    const std::string name(size, 'x');
    EXPECT_TRUE(Matches(name, name));
    EXPECT_TRUE(Matches(std::string(size, '?'), name));
    EXPECT_FALSE(Matches(name, name + "x"));
    EXPECT_FALSE(Matches(name, std::string(size - 1, 'x')));
    EXPECT_TRUE(Matches("*" + name.substr(1), "yyy" + name));
    EXPECT_TRUE(Matches(name.substr(1) + "*", name));
  }
  EXPECT_TRUE(Matches("*\xC3\xA4?", "a\xC3\xA4y"));
  EXPECT_THAT(NamePattern::Parse("name_pattern", std::string(129, '*')).status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "name_pattern: got 129 bytes, want at most 128"));
}

}  // namespace
}  // namespace gemmd
