// SPDX-License-Identifier: Apache-2.0
#include "kernels/matrix/nearest_names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <initializer_list>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "kernels/matrix/text.h"
#include "tests/kernels/mistyped_name.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using testing::ElementsAre;

// Cell by cell, according to the definition of the distance.
size_t EditDistance(std::string_view from, std::string_view to) {
  std::vector<std::vector<size_t>> edits(from.size() + 1, std::vector<size_t>(to.size() + 1));
  for (size_t i = 0; i <= from.size(); ++i) {
    for (size_t j = 0; j <= to.size(); ++j) {
      if (i == 0 || j == 0) {
        edits[i][j] = i + j;
        continue;
      }
      const size_t replaced = edits[i - 1][j - 1] + (from[i - 1] == to[j - 1] ? 0 : 1);
      edits[i][j] = std::min({edits[i - 1][j] + 1, edits[i][j - 1] + 1, replaced});
      const bool is_swap = i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1];
      if (is_swap) edits[i][j] = std::min(edits[i][j], edits[i - 2][j - 2] + 1);
    }
  }
  return edits.back().back();
}

std::vector<size_t> NearestPositions(const NameIndex& index, std::string_view name, size_t count) {
  std::vector<size_t> positions;
  for (const NameIndex::Near& near : index.Nearest(name, count)) {
    positions.push_back(near.position);
  }
  return positions;
}

std::vector<size_t> PlainlyNearest(const std::vector<std::string_view>& known,
                                   std::string_view name, size_t count) {
  std::vector<std::pair<size_t, size_t>> all;
  for (size_t i = 0; i < known.size(); ++i) all.emplace_back(EditDistance(name, known[i]), i);
  std::sort(all.begin(), all.end());
  std::vector<size_t> nearest;
  for (size_t i = 0; i < std::min(count, all.size()); ++i) nearest.push_back(all[i].second);
  return nearest;
}

void ExpectPlainlyNearest(const std::vector<std::string_view>& known, int mistyped,
                          std::initializer_list<size_t> sizes) {
  const NameIndex index(known);
  std::mt19937 random(20240611);
  for (int i = 0; i < mistyped; ++i) {
    const std::string name = Mistyped(std::string(known[random() % known.size()]), random);
    EXPECT_EQ(NearestPositions(index, name, 3), PlainlyNearest(known, name, 3)) << name;
  }
  for (const size_t size : sizes) {
    const std::string name(size, 'm');
    EXPECT_EQ(NearestPositions(index, name, 3),
              PlainlyNearest(known, name.substr(0, kMaxNameBytes), 3))
        << size;
  }
}

// The plain computation takes long, so it is done for one name of the catalogue in five.
TEST(NearestNamesTest, SuggestsWhatThePlainComputationDoes) {
  const std::vector<std::string_view> all = NamesOfTheCatalogue();
  std::vector<std::string_view> known;
  for (size_t i = 0; i < all.size(); i += 5) known.push_back(all[i]);
  ExpectPlainlyNearest(known, 10, {0, 1, 63, 64, 65, 128, 129});
}

TEST(NearestNamesExhaustive, SuggestsWhatThePlainComputationDoes) {
  ExpectPlainlyNearest(NamesOfTheCatalogue(), 15, {0, 1, 5, 63, 64, 65, 127, 128, 129, 1000});
}

// A caller of unknown names costs others little: most bytes of all names are not read.
TEST(NearestNamesTest, ComputesFewColumns) {
  const std::vector<std::string_view> known = NamesOfTheCatalogue();
  const NameIndex index(known);
  size_t bytes = 0;
  for (const std::string_view name : known) bytes += name.size();
  size_t longest = 0;
  for (const std::string& name : UnknownNames(known)) {
    size_t columns = 0;
    EXPECT_EQ(index.Nearest(name, 3, &columns).size(), 3);
    EXPECT_LE(columns, bytes / 4) << name;
    longest = std::max(longest, columns);
  }
  EXPECT_GT(longest, 0);
  RecordProperty("columns", static_cast<int>(longest));
  RecordProperty("bytes_of_all_names", static_cast<int>(bytes));
}

// Short names over few letters, many of which are equally near, and some of which contain others.
TEST(NearestNamesTest, AgreesWithThePlainComputationOnNamesOfFewLetters) {
  std::mt19937 random(1);
  const auto some_name = [&] {
    std::string name(random() % 7, 'a');
    for (char& c : name) c = static_cast<char>('a' + random() % 3);
    return name;
  };
  std::set<std::string> unique;
  while (unique.size() < 60) unique.insert(some_name());
  std::vector<std::string_view> known(unique.begin(), unique.end());
  std::shuffle(known.begin(), known.end(), random);
  const NameIndex index(known);
  for (int i = 0; i < 300; ++i) {
    const std::string name = some_name();
    EXPECT_EQ(NearestPositions(index, name, 5), PlainlyNearest(known, name, 5)) << name;
  }
}

TEST(NearestNamesTest, FindsEveryNameAndNoOther) {
  const std::vector<std::string_view> known = NamesOfTheCatalogue();
  const NameIndex index(known);
  for (size_t i = 0; i < known.size(); ++i) {
    EXPECT_EQ(index.Find(known[i]), i);
    EXPECT_EQ(index.Find(std::string(known[i]) + "_"), std::nullopt);
  }
  EXPECT_EQ(index.Find(""), std::nullopt);
  EXPECT_EQ(index.Find("zzz"), std::nullopt);
}

TEST(NearestNamesTest, OnlyANameThatLooksLikeItIsSimilar) {
  const std::vector<std::string_view> known = {"grace", "listen", "ab", "max-queued-requests"};
  const NameIndex index(known);
  EXPECT_EQ(index.Similar("grcae"), "grace");
  EXPECT_EQ(index.Similar("listne"), "listen");
  EXPECT_EQ(index.Similar("max-queue-request"), "max-queued-requests");
  EXPECT_EQ(index.Similar("grcea-x"), std::nullopt);  // Four of its seven bytes differ.
  EXPECT_EQ(index.Similar("xy"), std::nullopt);       // It has nothing in common with "ab".
  EXPECT_EQ(index.Similar(""), std::nullopt);
  EXPECT_EQ(NameIndex({}).Similar("grace"), std::nullopt);
  // "ab" is as near, but shares nothing with it.
  const std::vector<std::string_view> short_names = {"ab", "xyzw"};
  EXPECT_EQ(NameIndex(short_names).Similar("xy"), "xyzw");
}

TEST(NearestNamesTest, KnowsFewerNamesThanAreAskedFor) {
  EXPECT_THAT(NearestPositions(NameIndex({}), "x", 3), ElementsAre());
  const std::vector<std::string_view> known = {"sm_90", "sm_80"};
  EXPECT_THAT(NearestPositions(NameIndex(known), "sm_91", 3), ElementsAre(0, 1));
  EXPECT_THAT(NearestPositions(NameIndex(known), "sm_91", 0), ElementsAre());
  EXPECT_THAT(NameIndex(known).Unknown("chip", "sm_91", "a chip"),
              StatusIs(absl::StatusCode::kNotFound,
                       "chip: got sm_91, want a chip (nearest: sm_90, sm_80)"));
}

TEST(NearestNamesTest, RepeatsOnlyTheBeginningOfAnUnknownName) {
  const std::vector<std::string_view> known = {"a"};
  std::string name;
  for (int i = 0; i < 100; ++i) name += "\xE2\x82\xAC";
  const absl::Status status = NameIndex(known).Unknown("kernel", name, "one");
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kNotFound,
                               "kernel: got " + name.substr(0, 63) + "..., want one (nearest: a)"));
}

}  // namespace
}  // namespace gemmd
