// SPDX-License-Identifier: Apache-2.0
#include "server/system/token_bucket.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <thread>
#include <type_traits>
#include <vector>

namespace gemmd {
namespace {

constexpr int64_t kSecondNs = 1'000'000'000;
constexpr int64_t kNowNs = 5 * kSecondNs;

TEST(TokenBucket, ARefusalTakesNothing) {
  constexpr TokenBucket::Rate kRate = TokenBucket::EachSecond(100);
  TokenBucket bucket;
  EXPECT_TRUE(bucket.Take(95, kRate, 1));
  EXPECT_FALSE(bucket.Take(10, kRate, 1));
  EXPECT_TRUE(bucket.Take(5, kRate, 1));
  EXPECT_FALSE(bucket.Take(1, kRate, 1));
}

TEST(TokenBucket, FillsAtItsRateUpToItsBound) {
  constexpr TokenBucket::Rate kRate = {.price_ns = kSecondNs, .max_ns = 3 * kSecondNs};
  TokenBucket bucket;
  EXPECT_TRUE(bucket.IsWhole(0));
  EXPECT_TRUE(bucket.Take(3, kRate, kNowNs));
  EXPECT_FALSE(bucket.Has(1, kRate, kNowNs + kSecondNs - 1));
  EXPECT_TRUE(bucket.Has(1, kRate, kNowNs + kSecondNs));
  EXPECT_FALSE(bucket.Has(2, kRate, kNowNs + kSecondNs));
  EXPECT_FALSE(bucket.IsWhole(kNowNs + 3 * kSecondNs - 1));
  EXPECT_TRUE(bucket.IsWhole(kNowNs + 3 * kSecondNs));
  EXPECT_TRUE(bucket.Has(3, kRate, kNowNs + 100 * kSecondNs));
  EXPECT_FALSE(bucket.Has(4, kRate, kNowNs + 100 * kSecondNs)) << "time is not saved";
}

TEST(TokenBucket, SoManyAtOnceWhateverTheRateDividesASecondInto) {
  for (const int64_t count : {1, 3, 7, 100, 2500, 10'000}) {
    const TokenBucket::Rate rate = TokenBucket::EachSecond(count);
    TokenBucket bucket;
    EXPECT_TRUE(bucket.Take(count, rate, kNowNs)) << count;
    EXPECT_FALSE(bucket.Take(1, rate, kNowNs)) << count;
    EXPECT_TRUE(bucket.Take(count, rate, kNowNs + kSecondNs)) << count;
  }
}

TEST(TokenBucket, AChargeMayOweMoreThanThereIs) {
  constexpr TokenBucket::Rate kRate = TokenBucket::EachSecond(2);
  TokenBucket bucket;
  for (int i = 0; i < 4; ++i) bucket.Charge(1, kRate, kNowNs);
  EXPECT_FALSE(bucket.Has(1, kRate, kNowNs + kSecondNs));
  EXPECT_TRUE(bucket.Has(1, kRate, kNowNs + 3 * kSecondNs / 2));
}

TEST(TokenBucket, IsUsedUntilItIsForgivenOnceWhole) {
  static_assert(std::is_trivially_copyable_v<TokenBucket>);
  constexpr TokenBucket::Rate kRate = TokenBucket::EachSecond(1);
  TokenBucket bucket;
  EXPECT_FALSE(bucket.is_used());
  bucket.Charge(1, kRate, kNowNs);
  bucket.Forgive(kNowNs + kSecondNs - 1);
  EXPECT_TRUE(bucket.is_used());
  bucket.Forgive(kNowNs + kSecondNs);
  EXPECT_FALSE(bucket.is_used());
}

TEST(TokenBucket, ThreadsTakeNoMoreThanThereIs) {
  constexpr int64_t kCount = 10'000;
  constexpr TokenBucket::Rate kRate = TokenBucket::EachSecond(kCount);
  TokenBucket bucket;
  std::atomic<int64_t> taken = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int64_t k = 0; k < kCount; ++k) taken += bucket.Take(1, kRate, kNowNs) ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(taken, kCount);
}

}  // namespace
}  // namespace gemmd
