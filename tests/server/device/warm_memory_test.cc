// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <iterator>

#include "server/device/held_bytes.h"
#include "tests/testing/units.h"

namespace gemmd {
namespace {

TEST(WarmMemoryTest, KeepsWhatNobodyUsesUpToItsBound) {
  WarmMemory memory(20 * kMebi);
  std::byte* first = nullptr;
  {
    const HeldBytes taken = memory.Take(8 * kMebi).value();
    ASSERT_EQ(std::ssize(taken.bytes()), 8 * kMebi);
    first = taken.bytes().data();
    taken.bytes().front() = taken.bytes().back() = std::byte{1};
    EXPECT_EQ(memory.kept_bytes(), 0);
  }
  EXPECT_EQ(memory.kept_bytes(), 8 * kMebi);
  {
    const HeldBytes again = memory.Take(5 * kMebi).value();
    EXPECT_EQ(again.bytes().data(), first);
    EXPECT_EQ(std::ssize(again.bytes()), 5 * kMebi);
    // Memory in use is not given out twice, and memory that is far too large is not used.
    const HeldBytes other = memory.Take(8 * kMebi).value();
    EXPECT_NE(other.bytes().data(), first);
  }
  EXPECT_EQ(memory.kept_bytes(), 16 * kMebi);
  { const HeldBytes shorter = memory.Take(2 * kMebi).value(); }
  EXPECT_EQ(memory.kept_bytes(), 18 * kMebi);
  { const HeldBytes longer = memory.Take(16 * kMebi).value(); }
  EXPECT_LE(memory.kept_bytes(), 20 * kMebi);
  { const HeldBytes small = memory.Take(1000).value(); }
  memory.Cool();
  EXPECT_EQ(memory.kept_bytes(), 0);
  {
    const HeldBytes late = memory.Take(2 * kMebi).value();
    memory.Cool();
  }
  EXPECT_EQ(memory.kept_bytes(), 0);
  EXPECT_FALSE(memory.Take(int64_t{1} << 60).has_value());
  EXPECT_EQ(memory.Take(0).value().size(), 0u);
}

TEST(WarmMemoryTest, TellsWhatTheSystemHasJustGiven) {
  WarmMemory memory(20 * kMebi);
  bool is_new = false;
  { const HeldBytes first = memory.Take(8 * kMebi, &is_new).value(); }
  EXPECT_TRUE(is_new);
  { const HeldBytes again = memory.Take(8 * kMebi, &is_new).value(); }
  EXPECT_FALSE(is_new);
  is_new = true;
  // Memory of malloc may have been used before.
  { const HeldBytes small = memory.Take(1000, &is_new).value(); }
  EXPECT_FALSE(is_new);
}

TEST(WarmMemoryTest, KeepsPoisonWhereThatIsWanted) {
  for (const bool poisons_freed : {false, true}) {
    WarmMemory memory(20 * kMebi, poisons_freed);
    {
      const HeldBytes taken = memory.Take(3 * kMebi).value();
      std::fill(taken.bytes().begin(), taken.bytes().end(), std::byte{1});
    }
    const HeldBytes again = memory.Take(3 * kMebi).value();
    EXPECT_EQ(std::count(again.bytes().begin(), again.bytes().end(),
                         poisons_freed ? kPoison : std::byte{1}),
              3 * kMebi);
  }
}

TEST(WarmMemoryTest, MayGoBeforeWhatWasTaken) {
  HeldBytes taken;
  { taken = WarmMemory(int64_t{1} << 30).Take(int64_t{3} << 20).value(); }
  taken.bytes().back() = std::byte{1};
}

}  // namespace
}  // namespace gemmd
