// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <limits>
#include <optional>
#include <utility>

#include "server/crossing/shared_memory.h"
#include "server/product/admission.h"
#include "server/system/resources.h"
#include "tests/testing/units.h"

namespace gemmd {
namespace {

class MemoryPressureTest : public testing::Test {
 protected:
  Pressure At(int64_t resident_bytes, int64_t held_bytes) {
    resident_ = resident_bytes;
    return memory_.Measure(held_bytes);
  }

  std::optional<int64_t> resident_;
  int64_t after_giving_back_ = 0;
  int given_back_ = 0;
  MemoryPressure memory_{1000 * kMebi, [this] { return resident_; },
                         [this] {
                           ++given_back_;
                           resident_ = after_giving_back_;
                         }};
};

TEST_F(MemoryPressureTest, GrowsWithWhatIsResident) {
  const struct {
    int64_t percent;
    Pressure want;
  } cases[] = {{10, Pressure::kNone},     {84, Pressure::kNone},      {85, Pressure::kHigh},
               {91, Pressure::kHigh},     {92, Pressure::kSevere},    {94, Pressure::kSevere},
               {95, Pressure::kCritical}, {200, Pressure::kCritical}, {84, Pressure::kNone}};
  for (const auto& [percent, want] : cases) {
    EXPECT_EQ(At(percent * 10 * kMebi, percent * 10 * kMebi), want) << percent;
  }
  EXPECT_EQ(given_back_, 0);
}

TEST_F(MemoryPressureTest, WithoutAReadingItStaysAsItWas) {
  EXPECT_EQ(At(950 * kMebi, 950 * kMebi), Pressure::kCritical);
  resident_ = std::nullopt;
  EXPECT_EQ(memory_.Measure(0), Pressure::kCritical);
}

TEST_F(MemoryPressureTest, MemoryThatNobodyHoldsIsGivenBackOnce) {
  after_giving_back_ = 60 * kMebi;
  EXPECT_EQ(At(50 * kMebi, 0), Pressure::kNone);
  At(65 * kMebi, 0);  // Too little to give back.
  EXPECT_EQ(given_back_, 0);
  At(900 * kMebi, 850 * kMebi);  // It is in use.
  EXPECT_EQ(given_back_, 0);
  EXPECT_EQ(At(900 * kMebi, 0), Pressure::kNone);
  EXPECT_EQ(given_back_, 1);
  At(60 * kMebi, 0);  // The rest cannot be given back, and no further attempt is made.
  At(75 * kMebi, 0);
  EXPECT_EQ(given_back_, 1);
}

TEST_F(MemoryPressureTest, WhatWasInUseAtFirstIsGivenBackLater) {
  At(50 * kMebi, 0);
  after_giving_back_ = 180 * kMebi;  // A part of it is in use by gRPC.
  At(300 * kMebi, 0);
  EXPECT_EQ(given_back_, 1);
  after_giving_back_ = 50 * kMebi;
  for (int i = 0; i < 19; ++i) At(180 * kMebi, 0);
  EXPECT_EQ(given_back_, 1);
  At(180 * kMebi, 0);
  EXPECT_EQ(given_back_, 2);
  for (int i = 0; i < 100; ++i) At(50 * kMebi, 0);
  EXPECT_EQ(given_back_, 2);
}

TEST_F(MemoryPressureTest, WhereMemoryIsShortIsGivenBackWhatIsHeldOrNot) {
  after_giving_back_ = 800 * kMebi;
  for (int i = 0; i < 19; ++i) EXPECT_EQ(At(850 * kMebi, 2000 * kMebi), Pressure::kHigh);
  EXPECT_EQ(given_back_, 0);
  EXPECT_EQ(At(850 * kMebi, 2000 * kMebi), Pressure::kNone);
  EXPECT_EQ(given_back_, 1);
}

TEST(AdmissionPressureTest, RefusesLargeProductsThenAll) {
  Admission admission({.max_requests = 10, .max_bytes = std::numeric_limits<int64_t>::max()});
  constexpr int64_t kLarge = Admission::kLargeBytes;
  admission.SetPressure(Pressure::kHigh);
  EXPECT_TRUE(admission.Hold(kLarge).ok());
  EXPECT_EQ(admission.Hold(kLarge + 1).status().code(), absl::StatusCode::kResourceExhausted);
  admission.SetPressure(Pressure::kSevere);
  EXPECT_EQ(admission.Hold(0).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(admission.load().refused_for_memory, 2);
  admission.SetPressure(Pressure::kNone);
  EXPECT_TRUE(admission.Hold(kLarge + 1).ok());
}

TEST(AdmissionPressureTest, EachChangeCountsOnce) {
  Admission admission({.max_requests = 10, .max_bytes = 1});
  EXPECT_FALSE(admission.SetPressure(Pressure::kNone));
  EXPECT_TRUE(admission.SetPressure(Pressure::kCritical));
  EXPECT_FALSE(admission.SetPressure(Pressure::kCritical));
  EXPECT_TRUE(admission.SetPressure(Pressure::kNone));
  EXPECT_TRUE(admission.SetPressure(Pressure::kCritical));
  EXPECT_THAT(admission.load().pressure_changes, testing::ElementsAre(1, 0, 0, 2));
}

TEST(OwnResidentBytesTest, CountsWhatIsNotShared) {
  constexpr size_t kBytes = 32 * kMebi;
  const int64_t before = OwnResidentBytes(getpid());
  const auto map = [](int flags) {
    void* const bytes =
        mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    EXPECT_NE(bytes, MAP_FAILED);
    return bytes;
  };
  void* const shared = map(MAP_SHARED);
  EXPECT_LT(OwnResidentBytes(getpid()) - before, 8 * kMebi);
  void* const own = map(MAP_PRIVATE);
  EXPECT_GE(OwnResidentBytes(getpid()) - before, 31 * kMebi);
  munmap(shared, kBytes);
  munmap(own, kBytes);
  EXPECT_EQ(OwnResidentBytes(0), 0) << "no process";
}

TEST(SharedMemoryTest, IsUsedOnceAnotherProcessHasTouchedIt) {
  constexpr int64_t kBytes = 32 * kMebi;
  constexpr int64_t kLimit = int64_t{1} << 40;
  const int64_t before = Staging::ResidentBytesOfAll();
  absl::StatusOr<Staging> created = Staging::Create(kBytes);
  ASSERT_TRUE(created.ok()) << created.status();
  std::optional<Staging> staging = *std::move(created);
  EXPECT_LT(Staging::ResidentBytesOfAll() - before, kMebi) << "touched by nobody";
  const pid_t child = fork();
  if (child == 0) {
    Poison(staging->matrices());
    _exit(0);
  }
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  const int64_t shared = Staging::ResidentBytesOfAll() - before;
  EXPECT_GE(shared, kBytes);
  EXPECT_LT(shared, kBytes + kMebi);
  const int64_t with_it = UsedBytes(kLimit, Staging::ResidentBytesOfAll()).value();
  EXPECT_GT(with_it - UsedBytes(kLimit, 0).value(), kBytes - kMebi);
  Poison(staging->matrices());
  const int64_t touched = UsedBytes(kLimit, Staging::ResidentBytesOfAll()).value();
  EXPECT_LT(touched - with_it, kMebi) << "counted twice";
  staging.reset();
  EXPECT_LT(Staging::ResidentBytesOfAll() - before, kMebi);
}

}  // namespace
}  // namespace gemmd
