// SPDX-License-Identifier: Apache-2.0
//
// The CPU device with several threads. Separate from device_test.cc, because the OpenMP library
// that provides the threads is not built for ThreadSanitizer.
#include <gtest/gtest.h>

#include "absl/time/time.h"
#include "kernels/cpu/host.h"
#include "server/device/device.h"
#include "tests/server/device/local_device.h"

namespace gemmd {
namespace {

TEST(CpuThreadsTest, TakesEveryAllowedCoreByDefault) {
  LocalDevice device(HostTarget(), 0);
  EXPECT_GE(device.info().threads, 1);
  EXPECT_EQ(RunCanary(device, absl::Seconds(60)), absl::OkStatus());
}

TEST(CpuThreadsTest, IsRightWithMoreThreadsThanCores) {
  LocalDevice device(HostTarget(), 7);
  EXPECT_EQ(device.info().threads, 7);
  EXPECT_EQ(RunCanary(device, absl::Seconds(60)), absl::OkStatus());
}

}  // namespace
}  // namespace gemmd
