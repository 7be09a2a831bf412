// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "kernels/cpu/library_settings.h"

namespace gemmd {
namespace {

using testing::IsEmpty;
using testing::StartsWith;

TEST(BlasCoreTest, ACoreAsWideAsTheProcessorIsKept) {
  EXPECT_EQ(NextBlasCore(VectorIsa::kAvx512, {{"SkylakeX", 1}}), "SkylakeX");
  EXPECT_EQ(NextBlasCore(VectorIsa::kAvx2, {{"Zen", 1}}), "Zen");
  EXPECT_EQ(NextBlasCore(VectorIsa::kSse, {{"Prescott", 1}}), "Prescott");
  EXPECT_EQ(NextBlasCore(VectorIsa::kAvx512, {{"SapphireRapids", 1}}), "SapphireRapids");
}

TEST(BlasCoreTest, TheWidestThatTheProcessorHasIsTriedFirst) {
  for (const char* const old : {"Prescott", "Nehalem", "Barcelona", "Core2"}) {
    EXPECT_EQ(NextBlasCore(VectorIsa::kAvx512, {{old, 1}}), "SkylakeX") << old;
    EXPECT_EQ(NextBlasCore(VectorIsa::kAvx2, {{old, 1}}), "Haswell") << old;
    EXPECT_EQ(NextBlasCore(VectorIsa::kAvx, {{old, 1}}), "Sandybridge") << old;
  }
  for (const char* const narrower : {"Haswell", "Zen", "Sandybridge", "Excavator"}) {
    EXPECT_EQ(NextBlasCore(VectorIsa::kAvx512, {{narrower, 1}}), "SkylakeX") << narrower;
  }
}

TEST(BlasCoreTest, TheFirstThatIsFasterIsKept) {
  EXPECT_EQ(NextBlasCore(VectorIsa::kAvx512, {{"Prescott", 4}, {"SkylakeX", 1}}), "SkylakeX");
  EXPECT_EQ(NextBlasCore(VectorIsa::kAvx512, {{"Prescott", 2}, {"SkylakeX", 3}}), "Haswell");
  EXPECT_EQ(NextBlasCore(VectorIsa::kAvx512, {{"Prescott", 2}, {"SkylakeX", 3}, {"Haswell", 1}}),
            "Haswell");
  EXPECT_EQ(NextBlasCore(VectorIsa::kAvx512, {{"Zen", 2}, {"SkylakeX", 3}}), "Zen");
  EXPECT_EQ(NextBlasCore(VectorIsa::kAvx512,
                         {{"Prescott", 2}, {"SkylakeX", 3}, {"Haswell", 3}, {"Sandybridge", 3}}),
            "Prescott");
}

TEST(BlasCoreTest, TimesTravelAsText) {
  const std::vector<BlasCoreTime> times =
      ParseBlasCoreTimes(FormatBlasCoreTimes({{"Prescott", 0.25}, {"SkylakeX", 1e-4}}));
  ASSERT_EQ(times.size(), 2U);
  EXPECT_EQ(times[0].core, "Prescott");
  EXPECT_EQ(times[0].seconds, 0.25);
  EXPECT_EQ(times[1].core, "SkylakeX");
  EXPECT_EQ(times[1].seconds, 1e-4);
  for (const char* const text : {"", "Zen", "Zen:", "Zen:0", "Zen:nan", "Zen:1,", "Zen:1:2"}) {
    EXPECT_THAT(ParseBlasCoreTimes(text), IsEmpty()) << text;
  }
}

// What a newly started program finds; the core that is already loaded does not change.
class BetterBlasCoreTest : public testing::Test {
 protected:
  void TearDown() override {
    Set("OPENBLAS_CORETYPE", core_);
    Set(kTimes, nullptr);
  }

  static void Set(const char* variable, const char* value) {
    if (value == nullptr) {
      unsetenv(variable);
    } else {
      setenv(variable, value, 1);
    }
  }

  static constexpr char kTimes[] = "GEMMD_OPENBLAS_CORE_TIMES";

  const char* const core_ = getenv("OPENBLAS_CORETYPE");
};

TEST_F(BetterBlasCoreTest, TheUsersCoreIsKept) {
  Set("OPENBLAS_CORETYPE", "Prescott");
  EXPECT_EQ(BetterBlasCore(), "");
  EXPECT_STREQ(getenv("OPENBLAS_CORETYPE"), "Prescott");
}

TEST_F(BetterBlasCoreTest, AFasterCoreIsKept) {
  Set("OPENBLAS_CORETYPE", "SkylakeX");
  Set(kTimes, "Prescott:1000");
  EXPECT_EQ(BetterBlasCore(), "");
  EXPECT_STREQ(getenv("OPENBLAS_CORETYPE"), "SkylakeX");
  EXPECT_EQ(getenv(kTimes), nullptr);
}

TEST_F(BetterBlasCoreTest, ASlowerCoreIsGivenUpForGood) {
  Set("OPENBLAS_CORETYPE", "Sandybridge");
  Set(kTimes, "Prescott:1e-12,SkylakeX:1,Haswell:1");
  EXPECT_EQ(BetterBlasCore(), "Prescott");
  EXPECT_EQ(getenv("OPENBLAS_CORETYPE"), nullptr);
  EXPECT_THAT(getenv(kTimes), StartsWith("Prescott:1e-12,SkylakeX:1,Haswell:1,Sandybridge:"));
  Set("OPENBLAS_CORETYPE", "Prescott");
  EXPECT_EQ(BetterBlasCore(), "");
  EXPECT_EQ(getenv(kTimes), nullptr);
}

}  // namespace
}  // namespace gemmd
