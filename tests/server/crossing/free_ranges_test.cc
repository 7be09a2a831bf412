// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "server/crossing/shared_memory.h"

namespace gemmd {
namespace {

using testing::Optional;

TEST(FreeRangesTest, TakesTheFirstThatIsLongEnough) {
  FreeRanges ranges(2047);  // The last 255 bytes are not a multiple.
  EXPECT_EQ(ranges.bytes(), 1792);
  EXPECT_EQ(ranges.Take(1793), std::nullopt);
  EXPECT_EQ(ranges.Take(-1), std::nullopt);
  EXPECT_THAT(ranges.Take(0), Optional(0));
  EXPECT_THAT(ranges.Take(1), Optional(0));
  EXPECT_THAT(ranges.Take(257), Optional(256));
  EXPECT_THAT(ranges.Take(256), Optional(768));
  EXPECT_EQ(ranges.longest_bytes(), 768);
  ranges.GiveBack(256, 257);
  EXPECT_THAT(ranges.Take(513), Optional(1024));
  EXPECT_THAT(ranges.Take(512), Optional(256));
  EXPECT_EQ(ranges.Take(1), std::nullopt);
  EXPECT_EQ(ranges.taken_bytes(), 1792);
}

// Ranges never overlap, and after all are returned they form one range again.
TEST(FreeRangesTest, JoinsWhatIsGivenBack) {
  constexpr int64_t kBytes = 256 * 64;
  FreeRanges ranges(kBytes);
  std::map<int64_t, int64_t> taken;
  std::mt19937_64 random(1);
  for (int i = 0; i < 10000; ++i) {
    if (random() % 2 == 0) {
      const auto bytes = static_cast<int64_t>(random() % 2000 + 1);
      const std::optional<int64_t> offset = ranges.Take(bytes);
      if (!offset) continue;
      const auto next = taken.lower_bound(*offset);
      ASSERT_LE(*offset + bytes, next == taken.end() ? kBytes : next->first);
      if (next != taken.begin()) {
        ASSERT_LE(std::prev(next)->first + std::prev(next)->second, *offset);
      }
      taken[*offset] = bytes;
    } else if (!taken.empty()) {
      const auto given = std::next(taken.begin(), static_cast<int>(random() % taken.size()));
      ranges.GiveBack(given->first, given->second);
      taken.erase(given);
    }
  }
  for (const auto& [offset, bytes] : taken) ranges.GiveBack(offset, bytes);
  EXPECT_EQ(ranges.taken_bytes(), 0);
  EXPECT_EQ(ranges.longest_bytes(), kBytes);
}

}  // namespace
}  // namespace gemmd
