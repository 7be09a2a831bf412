// SPDX-License-Identifier: Apache-2.0
//
// Readings of GPUs, from a library that replaces NVML.
#include "server/metrics/gpu_sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/patience.h"

namespace gemmd {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::Optional;

GpuSamplerOptions Quick() {
  return {.library = GEMMD_FAKE_NVML,
          .interval = absl::Milliseconds(1),
          .max_age = kPatience,
          .patience = kPatience};
}

GpuSamplerOptions WithoutLibrary() { return {.library = "libnone.so.1", .patience = kPatience}; }

TEST(GpuSamplerTest, ReadsTheGpusAmongTheDevices) {
  const GpuSampler sampler({"", "0000:0a:00.0", "0000:0b:00.0"}, Quick());
  EXPECT_EQ(sampler.absence(), "");
  EXPECT_FALSE(sampler.sample(0).has_value());
  ASSERT_TRUE(sampler.sample(1).has_value());
  EXPECT_EQ(sampler.sample(1)->uuid, "GPU-0a");
  EXPECT_THAT(sampler.sample(1)->reading.power_watts, Optional(512.25));
  ASSERT_TRUE(sampler.sample(2).has_value());
  EXPECT_EQ(sampler.sample(2)->uuid, "GPU-0b");
  EXPECT_FALSE(sampler.sample(2)->reading.power_watts.has_value());
}

// The library's count of joules grows with each reading.
TEST(GpuSamplerTest, GoesOnReading) {
  const GpuSampler sampler({"0000:0a:00.0"}, Quick());
  const double at_start = sampler.sample(0)->joules_at_start.value();
  const auto has_read_again = [&] {
    const auto sample = sampler.sample(0);
    return sample.has_value() && *sample->reading.energy_joules > at_start;
  };
  ASSERT_TRUE(Eventually(has_read_again)) << "no second reading";
  EXPECT_EQ(sampler.sample(0)->joules_at_start, at_start);
}

constexpr char kHangingGpu[] = "0000:0f:00.0";

// Makes the hanging GPU hang, until the end of the test at the latest.
class HangingNvml : public testing::Test {
 protected:
  HangingNvml() : library_(DynamicLibrary::Load({GEMMD_FAKE_NVML}).value()) {
    EXPECT_TRUE(library_.Find("fakeNvmlHang", hang_).ok());
  }
  ~HangingNvml() override { hang_(false); }

  void Hang(bool should_hang) { hang_(should_hang); }

 private:
  const DynamicLibrary library_;
  void (*hang_)(bool should_hang) = nullptr;
};

TEST_F(HangingNvml, HoldsUpNeitherStartNorEnd) {
  Hang(true);
  GpuSamplerOptions options = Quick();
  options.patience = absl::Milliseconds(10);
  const GpuSampler sampler({kHangingGpu}, options);
  EXPECT_FALSE(sampler.sample(0).has_value());
  EXPECT_EQ(sampler.absence(), "NVML has not answered within 10ms");
}

TEST_F(HangingNvml, ReadingsThatGrowOldAreNoneAndComeBack) {
  GpuSamplerOptions options = Quick();
  options.max_age = absl::Milliseconds(20);
  const GpuSampler sampler({kHangingGpu}, options);
  EXPECT_EQ(sampler.absence(), "");
  Hang(true);
  EXPECT_TRUE(Eventually([&] { return !sampler.sample(0).has_value(); }))
      << "the reading of a GPU that hangs does not grow old";
  Hang(false);
  EXPECT_TRUE(Eventually([&] { return sampler.sample(0).has_value(); }))
      << "no reading of a GPU that answers again";
}

TEST(GpuSamplerTest, WithoutTheLibraryThereAreNoReadings) {
  const GpuSampler sampler({"", "0000:0a:00.0"}, WithoutLibrary());
  EXPECT_THAT(sampler.absence(), HasSubstr("libnone.so.1"));
  EXPECT_FALSE(sampler.sample(1).has_value());
}

// Every reason is reported, not only that of the last GPU.
TEST(GpuSamplerTest, TellsEveryReasonOnce) {
  const GpuSampler sampler({"0000:0c:00.0", "0000:0a:00.0", "0000:0d:00.0"}, Quick());
  EXPECT_THAT(sampler.absence(), AllOf(HasSubstr("no GPU 0000:0c:00.0: "),
                                       HasSubstr("; NVML: no GPU 0000:0d:00.0: ")));
  EXPECT_TRUE(sampler.sample(1).has_value());
  const GpuSampler without({"0000:0a:00.0", "0000:0b:00.0"}, WithoutLibrary());
  EXPECT_THAT(without.absence(), Not(HasSubstr("; ")));
}

TEST(GpuSamplerTest, WithoutAGpuNothingIsMissed) {
  const GpuSampler sampler({"", ""}, WithoutLibrary());
  EXPECT_EQ(sampler.absence(), "");
}

}  // namespace
}  // namespace gemmd
