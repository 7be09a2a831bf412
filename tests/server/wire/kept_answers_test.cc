// SPDX-License-Identifier: Apache-2.0
//
// What the Registry keeps in memory: listings, fragments, and answers that have not been read.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "gemmd/v1/registry.pb.h"
#include "server/product/admission.h"
#include "server/wire/calls.h"
#include "server/wire/convert.h"
#include "server/wire/gate.h"
#include "server/wire/listing.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

Listing ListingOf(const std::vector<std::string>& names) {
  std::vector<ListedItem> items;
  for (const std::string& name : names) {
    v1::Kernel kernel;
    kernel.set_name(name);
    items.push_back({name, kernel.SerializeAsString()});
  }
  return Listing(v1::ListKernelsResponse::kKernelsFieldNumber, items);
}

std::vector<std::string> NamesIn(const grpc::ByteBuffer& bytes) {
  grpc::Slice whole;
  EXPECT_TRUE(bytes.DumpToSingleSlice(&whole).ok());
  v1::ListKernelsResponse response;
  EXPECT_TRUE(response.ParseFromArray(whole.begin(), static_cast<int>(whole.size())));
  std::vector<std::string> names;
  for (const v1::Kernel& kernel : response.kernels()) names.push_back(kernel.name());
  return names;
}

TEST(ListingTest, AnswersWithTheItemsThatAreKept) {
  const std::vector<std::string> names = {"a", std::string(200, 'b'), "c", std::string(20000, 'd'),
                                          "e"};
  const Listing listing = ListingOf(names);
  EXPECT_EQ(NamesIn(listing.All()), names);
  for (size_t kept = 0; kept < size_t{1} << names.size(); ++kept) {
    std::vector<std::string> wanted;
    for (size_t i = 0; i < names.size(); ++i) {
      if ((kept >> i) % 2 == 1) wanted.push_back(names[i]);
    }
    EXPECT_EQ(NamesIn(listing.Answer([&](size_t i, std::string_view name) {
                EXPECT_EQ(name, names[i]);
                return (kept >> i) % 2 == 1;
              })),
              wanted);
  }
  EXPECT_THAT(NamesIn(ListingOf({}).All()), IsEmpty());
}

TEST(FragmentCacheTest, KeepsWhatWasAskedForLast) {
  FragmentCache cache(100);
  const auto answer = [](size_t size) { return grpc::Slice(std::string(size, 'x')); };
  cache.Add({1, 0, 0}, answer(40));
  cache.Add({2, 0, 0}, answer(40));
  cache.Add({2, 0, 0}, answer(40));
  EXPECT_EQ(cache.bytes(), 80u);
  EXPECT_TRUE(cache.Find({1, 0, 0}).has_value());
  cache.Add({3, 0, 0}, answer(50));  // The second is the least recently requested.
  EXPECT_FALSE(cache.Find({2, 0, 0}).has_value());
  EXPECT_EQ(cache.Find({1, 0, 0})->size(), 40u);
  EXPECT_EQ(cache.Find({3, 0, 0})->size(), 50u);
  EXPECT_EQ(cache.bytes(), 90u);
  cache.Add({4, 0, 0}, answer(101));
  EXPECT_FALSE(cache.Find({4, 0, 0}).has_value());
  EXPECT_FALSE(cache.Find({3, 1, 0}).has_value());
  EXPECT_FALSE(cache.Find({3, 0, 1}).has_value());
  EXPECT_EQ(cache.bytes(), 90u);
}

TEST(UnreadAnswersTest, HoldsUpToItsBound) {
  const Gate gate(nullptr);
  UnreadAnswers answers(100'000, gate);
  absl::StatusOr<UnreadAnswers::Room> first = answers.HoldFor("one", 60'000);
  ASSERT_THAT(first.status(), IsOk());
  const absl::Status refused = answers.HoldFor("other", 40'001).status();
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kResourceExhausted,
                                HasSubstr("an answer of 40001 bytes, want at most 40000 now")));
  EXPECT_EQ(RetryAfterMs(refused), 100);
  EXPECT_THAT(answers.HoldFor("other", 40'000).status(), IsOk());  // Returned at once.
  UnreadAnswers::Room moved = *std::move(first);
  EXPECT_EQ(answers.bytes(), 60'000);
  moved = UnreadAnswers::Room();
  EXPECT_EQ(answers.bytes(), 0);
}

TEST(UnreadAnswersTest, ACallerHoldsAtMostHalf) {
  const Gate gate(nullptr);
  UnreadAnswers answers(100'000, gate);
  absl::StatusOr<UnreadAnswers::Room> first = answers.HoldFor("one", 30'000);
  ASSERT_THAT(first.status(), IsOk());
  const absl::Status refused = answers.HoldFor("one", 20'001).status();
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kResourceExhausted,
                                HasSubstr("an answer of 20001 bytes, want at most 20000 now: "
                                          "unread answers of this caller hold 30000")));
  EXPECT_EQ(RetryAfterMs(refused), 100);
  const absl::StatusOr<UnreadAnswers::Room> second = answers.HoldFor("one", 20'000);
  EXPECT_THAT(second.status(), IsOk());
  EXPECT_THAT(answers.HoldFor("one", 5'000).status(), Not(IsOk()));
  EXPECT_THAT(answers.HoldFor("other", 50'000).status(), IsOk());
  // What was read counts no more.
  first = UnreadAnswers::Room();
  EXPECT_THAT(answers.HoldFor("one", 30'000).status(), IsOk());
}

TEST(UnreadAnswersTest, SmallAnswersAreNeverRefused) {
  const Gate gate(nullptr);
  UnreadAnswers answers(0, gate);
  EXPECT_THAT(answers.HoldFor("one", UnreadAnswers::kUncountedBytes).status(), IsOk());
  EXPECT_THAT(answers.HoldFor("one", UnreadAnswers::kUncountedBytes + 1).status(),
              StatusIs(absl::StatusCode::kResourceExhausted));
}

}  // namespace
}  // namespace gemmd
