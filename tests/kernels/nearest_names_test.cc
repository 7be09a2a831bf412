// SPDX-License-Identifier: Apache-2.0
#include "kernels/nearest_names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "kernels/catalog.h"
#include "kernels/fastest_time.h"
#include "kernels/peer_text.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using testing::ElementsAre;

// Cell by cell, as the distance is defined.
int EditDistance(std::string_view from, std::string_view to) {
  std::vector<int> row(to.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 0; i < from.size(); ++i) {
    int diagonal = row[0]++;
    for (size_t j = 0; j < to.size(); ++j) {
      const int replaced = diagonal + (from[i] == to[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

std::vector<size_t> PlainlyNearest(const std::vector<std::string_view>& known,
                                   std::string_view name, size_t count) {
  std::vector<std::pair<int, size_t>> all;
  for (size_t i = 0; i < known.size(); ++i) all.emplace_back(EditDistance(name, known[i]), i);
  std::sort(all.begin(), all.end());
  std::vector<size_t> nearest;
  for (size_t i = 0; i < std::min(count, all.size()); ++i) nearest.push_back(all[i].second);
  return nearest;
}

std::vector<std::string_view> NamesOfTheCatalogue() {
  std::vector<std::string_view> names;
  for (const Kernel& kernel : Catalog()) names.push_back(kernel.name);
  return names;
}

// A name with some bytes inserted, deleted, replaced and swapped.
std::string Mistyped(std::string name, std::mt19937& random) {
  const auto below = [&](size_t end) { return random() % std::max<size_t>(end, 1); };
  for (size_t typos = 1 + below(4); typos > 0; --typos) {
    const size_t place = below(name.size());
    const char other = "abcdefmnks0123456789._x"[below(23)];
    switch (below(4)) {
      case 0: name.insert(name.begin() + static_cast<std::ptrdiff_t>(place), other); break;
      case 1: name.erase(place, 1); break;
      case 2: name[place] = other; break;
      default:
        if (place + 1 < name.size()) std::swap(name[place], name[place + 1]);
    }
  }
  return name;
}

TEST(NearestNamesTest, SuggestsWhatThePlainComputationDoes) {
  const std::vector<std::string_view> known = NamesOfTheCatalogue();
  const NameIndex index(known);
  std::mt19937 random(20240611);
  for (int i = 0; i < 15; ++i) {
    const std::string name = Mistyped(std::string(known[random() % known.size()]), random);
    EXPECT_EQ(index.Nearest(name, 3), PlainlyNearest(known, name, 3)) << name;
  }
  for (const size_t size : {0, 1, 5, 63, 64, 65, 127, 128, 129, 1000}) {
    const std::string name(size, 'm');
    EXPECT_EQ(index.Nearest(name, 3), PlainlyNearest(known, name.substr(0, kMaxNameBytes), 3))
        << size;
  }
}

// Of the thread's own time, at its best of a few: a caller of unknown names costs others little.
TEST(NearestNamesTest, TakesTwoTenthsOfAMillisecond) {
  const std::vector<std::string_view> known = NamesOfTheCatalogue();
  const NameIndex index(known);
  std::mt19937 random(20240612);
  std::vector<std::string> names = {"", "x", std::string(1000, 'm'), std::string(128, '~')};
  for (int i = 0; i < 50; ++i) {
    names.push_back(Mistyped(std::string(known[random() % known.size()]), random));
  }
  double longest = 0;
  for (const std::string& name : names) {
    double best = 1;
    for (int i = 0; i < 20; ++i) {
      const double start = ThreadSeconds();
      EXPECT_FALSE(index.Unknown("kernel", name, "one").ok());
      best = std::min(best, ThreadSeconds() - start);
    }
    longest = std::max(longest, best);
  }
  RecordProperty("longest_us", static_cast<int>(1e6 * longest));
  EXPECT_LE(longest, kIsSanitized ? 0.02 : 0.0002);
}

// Short names over few letters, where many are equally near and some contain others.
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
    EXPECT_EQ(index.Nearest(name, 5), PlainlyNearest(known, name, 5)) << name;
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
  EXPECT_EQ(index.Similar("grcae"), 0U);
  EXPECT_EQ(index.Similar("listne"), 1U);
  EXPECT_EQ(index.Similar("max-queue-request"), 3U);
  EXPECT_EQ(index.Similar("grcea-x"), std::nullopt);  // Four of its seven bytes are other ones.
  EXPECT_EQ(index.Similar("xy"), std::nullopt);       // Nothing of "ab" is left in it.
  EXPECT_EQ(index.Similar(""), std::nullopt);
  EXPECT_EQ(NameIndex({}).Similar("grace"), std::nullopt);
}

TEST(NearestNamesTest, KnowsFewerNamesThanAreAskedFor) {
  EXPECT_THAT(NameIndex({}).Nearest("x", 3), ElementsAre());
  const std::vector<std::string_view> known = {"sm_90", "sm_80"};
  EXPECT_THAT(NameIndex(known).Nearest("sm_91", 3), ElementsAre(0, 1));
  EXPECT_THAT(NameIndex(known).Nearest("sm_91", 0), ElementsAre());
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
