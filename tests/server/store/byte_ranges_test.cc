// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bitset>
#include <random>

#include "server/store/upload.h"

namespace gemmd {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(ByteRangesTest, TellsWhatIsMissing) {
  ByteRanges ranges;
  EXPECT_THAT(ranges.Missing(10), ElementsAre(ByteRange{0, 10}));
  EXPECT_THAT(ranges.Missing(0), IsEmpty());
  EXPECT_THAT(ranges.Add({2, 3}), ElementsAre(ByteRange{2, 3}));
  EXPECT_THAT(ranges.Add({8, 2}), ElementsAre(ByteRange{8, 2}));
  EXPECT_THAT(ranges.Missing(10), ElementsAre(ByteRange{0, 2}, ByteRange{5, 3}));
  EXPECT_EQ(ranges.PrefixBytes(), 0);
  EXPECT_THAT(ranges.Add({0, 9}), ElementsAre(ByteRange{0, 2}, ByteRange{5, 3}));
  EXPECT_EQ(ranges.PrefixBytes(), 10);
  EXPECT_EQ(ranges.count(), 1);
  EXPECT_THAT(ranges.Missing(10), IsEmpty());
}

TEST(ByteRangesTest, NeighboursBecomeOne) {
  ByteRanges ranges;
  ranges.Add({10, 5});
  EXPECT_TRUE(ranges.Touches({15, 1}));
  EXPECT_TRUE(ranges.Touches({5, 5}));
  EXPECT_FALSE(ranges.Touches({16, 1}));
  EXPECT_FALSE(ranges.Touches({5, 4}));
  ranges.Add({15, 5});
  ranges.Add({5, 5});
  EXPECT_EQ(ranges.count(), 1);
  EXPECT_THAT(ranges.Add({5, 15}), IsEmpty());
}

// Compared with one bit per byte.
TEST(ByteRangesTest, AgreesWithASetOfBytes) {
  constexpr int64_t kBytes = 64;
  std::mt19937 random(20240611);
  for (int round = 0; round < 200; ++round) {
    ByteRanges ranges;
    std::bitset<kBytes> there;
    for (int i = 0; i < 12; ++i) {
      const int64_t offset = static_cast<int64_t>(random() % kBytes);
      const int64_t bytes = static_cast<int64_t>(random() % 9);
      const ByteRange range = {offset, std::min(bytes, kBytes - offset)};
      const size_t before = ranges.count();
      const bool touches = ranges.Touches(range);
      std::bitset<kBytes> added;
      for (const ByteRange& part : ranges.Add(range)) {
        for (int64_t at = part.offset; at < part.end(); ++at) added.set(static_cast<size_t>(at));
      }
      std::bitset<kBytes> wanted;
      for (int64_t at = range.offset; at < range.end(); ++at) wanted.set(static_cast<size_t>(at));
      EXPECT_EQ(added, wanted & ~there);
      there |= wanted;
      std::bitset<kBytes> missing;
      for (const ByteRange& part : ranges.Missing(kBytes)) {
        for (int64_t at = part.offset; at < part.end(); ++at) missing.set(static_cast<size_t>(at));
      }
      EXPECT_EQ(missing, ~there);
      EXPECT_LE(ranges.count(), before + (touches ? 0 : 1));
      if (round % 2 == 0) continue;
      // Takes a part of it out again.
      const int64_t left = range.bytes - std::min<int64_t>(range.bytes, 3);
      const ByteRange removed = {range.offset + left / 2, range.bytes - left};
      if (removed.bytes == 0) continue;
      ranges.Remove(removed);
      for (int64_t at = removed.offset; at < removed.end(); ++at)
        there.reset(static_cast<size_t>(at));
      std::bitset<kBytes> still_there;
      still_there.set();
      for (const ByteRange& part : ranges.Missing(kBytes)) {
        for (int64_t at = part.offset; at < part.end(); ++at) {
          still_there.reset(static_cast<size_t>(at));
        }
      }
      EXPECT_EQ(still_there, there);
    }
  }
}

}  // namespace
}  // namespace gemmd
