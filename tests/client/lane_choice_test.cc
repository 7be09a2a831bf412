// SPDX-License-Identifier: Apache-2.0
//
// How many connections a client's transfers take, by what its earlier ones took.
#include "client/lane_choice.h"

#include <gtest/gtest.h>

#include "tests/testing/random_source.h"
#include "tests/testing/units.h"

namespace gemmd {
namespace {

constexpr int kSeveral = LaneChoice::kSeveralLanes;

TEST(LaneChoiceTest, TriesBothWaysFirst) {
  for (const int64_t bytes : {3 * kMebi, 8 * kMebi, 8 * kMebi + 1, 100 * kMebi}) {
    LaneChoice choice;
    const int first = choice.For(bytes, 2 * kMebi);
    EXPECT_EQ(first, bytes > LaneChoice::kLargeBytes ? kSeveral : 1);
    // Nothing is known before it has ended.
    EXPECT_EQ(choice.For(bytes, 2 * kMebi), first);
    choice.Tell(bytes, first, absl::Milliseconds(10));
    EXPECT_NE(choice.For(bytes, 2 * kMebi), first);
  }
}

TEST(LaneChoiceTest, WhatCannotBeDividedTakesOne) {
  LaneChoice choice;
  for (const int64_t bytes : {int64_t{0}, int64_t{1}, 2 * kMebi}) {
    EXPECT_EQ(choice.For(bytes, 2 * kMebi), 1);
    choice.Tell(bytes, 1, absl::Milliseconds(1));
    EXPECT_EQ(choice.For(bytes, 2 * kMebi), 1);
  }
}

// A network on which one connection moves a byte in so many ns, and several in fewer after some
// time.
struct Network {
  double one_ns = 0;
  double several_ns = 0;
  absl::Duration several_start;

  absl::Duration Took(int64_t bytes, int lanes) const {
    const double count = static_cast<double>(bytes);
    return lanes == 1 ? absl::Nanoseconds(count * one_ns)
                      : several_start + absl::Nanoseconds(count * several_ns);
  }
};

// Transfers that go over several connections, out of many after the first ones.
int CountSeveral(LaneChoice& choice, const Network& network, int64_t bytes, int transfers) {
  int several = 0;
  for (int i = 0; i < transfers; ++i) {
    const int lanes = choice.For(bytes, 2 * kMebi);
    choice.Tell(bytes, lanes, network.Took(bytes, lanes));
    several += lanes == 1 ? 0 : 1;
  }
  return several;
}

TEST(LaneChoiceTest, FindsTheSizeFromWhichSeveralAreFaster) {
  RandomSource random;
  for (int turn = 0; turn < 20; ++turn) {
    const double one_ns = 0.1 + static_cast<double>(random.Between(1, 100)) / 10;
    const Network network = {.one_ns = one_ns,
                             .several_ns = one_ns / 3,
                             .several_start = absl::Milliseconds(random.Between(1, 300))};
    LaneChoice choice;
    constexpr int kTransfers = 10 * LaneChoice::kTransfersPerTrial;
    for (int64_t bytes = 4 * kMebi; bytes <= 1024 * kMebi; bytes *= 2) {
      const bool are_several_faster = network.Took(bytes, kSeveral) < network.Took(bytes, 1);
      const int several = CountSeveral(choice, network, bytes, kTransfers);
      const int slower = are_several_faster ? kTransfers - several : several;
      // The first or second one, and one trial in sixteen.
      EXPECT_GE(slower, kTransfers / LaneChoice::kTransfersPerTrial - 1) << random.trace();
      EXPECT_LE(slower, kTransfers / LaneChoice::kTransfersPerTrial + 1) << random.trace();
    }
  }
}

TEST(LaneChoiceTest, FollowsANetworkThatChanges) {
  LaneChoice choice;
  constexpr int64_t kBytes = 64 * kMebi;
  const Network wide = {.one_ns = 1, .several_ns = 0.3, .several_start = absl::Milliseconds(1)};
  const Network narrow = {.one_ns = 1, .several_ns = 1, .several_start = absl::Milliseconds(9)};
  constexpr int kMany = 20 * LaneChoice::kTransfersPerTrial;
  EXPECT_GT(CountSeveral(choice, wide, kBytes, kMany), kMany / 10 * 9);
  CountSeveral(choice, narrow, kBytes, kMany);
  EXPECT_LT(CountSeveral(choice, narrow, kBytes, kMany), kMany / 10);
}

}  // namespace
}  // namespace gemmd
