// SPDX-License-Identifier: Apache-2.0
//
// What is read through NVML, from a library that replaces it.
#include "kernels/nvml.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using testing::HasSubstr;
using testing::Optional;

TEST(NvmlTest, ReadsEverythingInBaseUnits) {
  const absl::StatusOr<Nvml> nvml = Nvml::Open("0000:0a:00.0", GEMMD_FAKE_NVML);
  ASSERT_THAT(nvml, IsOk());
  EXPECT_EQ(nvml->driver_version(), "580.1.2");
  EXPECT_EQ(nvml->uuid(), "GPU-0a");
  EXPECT_EQ(nvml->sm_clock_mhz(), 1755);
  const GpuReading reading = nvml->Read();
  EXPECT_THAT(reading.utilization, Optional(0.75));
  EXPECT_THAT(reading.memory_utilization, Optional(0.3));
  EXPECT_THAT(reading.power_watts, Optional(512.25));
  EXPECT_THAT(reading.power_limit_watts, Optional(700.0));
  EXPECT_THAT(reading.energy_joules, Optional(testing::Ge(123456.789)));
  EXPECT_THAT(reading.energy_joules, Optional(testing::Lt(124456)));
  EXPECT_THAT(reading.memory_bytes, Optional(150'000'000'000));
  EXPECT_THAT(reading.memory_used_bytes, Optional(100'000'000'000));
  EXPECT_THAT(reading.sm_clock_hertz, Optional(1'755'000'000));
  EXPECT_THAT(reading.memory_clock_hertz, Optional(3'201'000'000));
  EXPECT_THAT(reading.temperature_celsius, Optional(61.0));
  EXPECT_THAT(reading.ecc_corrected, Optional(7));
  EXPECT_THAT(reading.ecc_uncorrected, Optional(2));
}

TEST(NvmlTest, WhatAGpuDoesNotTellIsAbsent) {
  const absl::StatusOr<Nvml> nvml = Nvml::Open("0000:0b:00.0", GEMMD_FAKE_NVML);
  ASSERT_THAT(nvml, IsOk());
  EXPECT_EQ(nvml->uuid(), "GPU-0b");
  EXPECT_EQ(nvml->sm_clock_mhz(), 0);
  const GpuReading reading = nvml->Read();
  EXPECT_FALSE(reading.utilization || reading.memory_utilization || reading.power_watts ||
               reading.power_limit_watts || reading.energy_joules || reading.memory_bytes ||
               reading.memory_used_bytes || reading.sm_clock_hertz || reading.memory_clock_hertz ||
               reading.temperature_celsius || reading.ecc_corrected || reading.ecc_uncorrected);
}

TEST(NvmlTest, IsShutDownByEachThatInitialisedIt) {
  const absl::StatusOr<DynamicLibrary> library = DynamicLibrary::Load({GEMMD_FAKE_NVML});
  ASSERT_THAT(library, IsOk());
  int (*initialised)() = nullptr;
  ASSERT_THAT(library->Find("fakeNvmlInitialised", initialised), IsOk());
  {
    absl::StatusOr<Nvml> nvml = Nvml::Open("0000:0a:00.0", GEMMD_FAKE_NVML);
    ASSERT_THAT(nvml, IsOk());
    const Nvml moved = *std::move(nvml);
    EXPECT_EQ(initialised(), 1);
  }
  EXPECT_EQ(initialised(), 0);
  EXPECT_FALSE(Nvml::Open("0000:0c:00.0", GEMMD_FAKE_NVML).ok());
  EXPECT_EQ(initialised(), 0);
}

TEST(NvmlTest, SaysWhatIsNotThere) {
  EXPECT_THAT(Nvml::Open("0000:0c:00.0", GEMMD_FAKE_NVML),
              StatusIs(absl::StatusCode::kNotFound,
                       "NVML: no GPU 0000:0c:00.0: nvmlDeviceGetHandleByPciBusId_v2 gave 6"));
  EXPECT_THAT(Nvml::Open("0000:0a:00.0", "libnone.so.1"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("libnone.so.1")));
  EXPECT_THAT(Nvml::Open("0000:0a:00.0", "libm.so.6"),
              StatusIs(absl::StatusCode::kNotFound, "libm.so.6: no function nvmlInit_v2"));
}

}  // namespace
}  // namespace gemmd
