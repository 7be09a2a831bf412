// SPDX-License-Identifier: Apache-2.0
//
// Readings of GPUs, from a library that stands in for NVML.
#include "server/metrics/gpu_sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gemmd {
namespace {

using testing::HasSubstr;
using testing::Optional;

TEST(GpuSamplerTest, ReadsTheGpusAmongTheDevices) {
  const GpuSampler sampler({"", "0000:0a:00.0", "0000:0b:00.0"}, GEMMD_FAKE_NVML,
                           absl::Milliseconds(1));
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
  const GpuSampler sampler({"0000:0a:00.0"}, GEMMD_FAKE_NVML, absl::Milliseconds(1));
  const double at_start = sampler.sample(0)->joules_at_start;
  while (!(*sampler.sample(0)->reading.energy_joules > at_start)) sched_yield();
  EXPECT_EQ(sampler.sample(0)->joules_at_start, at_start);
}

TEST(GpuSamplerTest, WithoutTheLibraryThereAreNoReadings) {
  const GpuSampler sampler({"", "0000:0a:00.0"}, "libnone.so.1");
  EXPECT_THAT(sampler.absence(), HasSubstr("libnone.so.1"));
  EXPECT_FALSE(sampler.sample(1).has_value());
}

TEST(GpuSamplerTest, WithoutAGpuNothingIsMissed) {
  const GpuSampler sampler({"", ""}, "libnone.so.1");
  EXPECT_EQ(sampler.absence(), "");
}

}  // namespace
}  // namespace gemmd
