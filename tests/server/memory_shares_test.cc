// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdint>

#include "server/server.h"
#include "server/system/resources.h"
#include "server/wire/transport.h"
#include "tests/testing/lowered_address_space.h"
#include "tests/testing/sanitized.h"

namespace gemmd {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

TEST(MemorySharesTest, LeaveAQuarterToTheDaemon) {
  ServerOptions options;
  options.memory_limit_bytes = 8 * kGiB;
  const ServerOptions shares = WithMemoryShares(options);
  EXPECT_EQ(shares.admission.max_bytes, 3 * kGiB);
  EXPECT_EQ(shares.transport.memory_quota_bytes, 2 * kGiB);
  EXPECT_EQ(shares.tensors.max_bytes, kGiB);
  EXPECT_EQ(shares.tensors.max_session_bytes, kGiB / 2);
  options.memory_limit_bytes = 64 * kGiB;
  EXPECT_EQ(WithMemoryShares(options).admission.max_bytes, 4 * kGiB);
}

TEST(MemorySharesTest, KeepWhatWasAskedFor) {
  ServerOptions options;
  options.memory_limit_bytes = 8 * kGiB;
  options.admission.max_bytes = 1;
  options.transport.memory_quota_bytes = 2;
  options.tensors.max_bytes = 3;
  options.tensors.max_session_bytes = 4;
  const ServerOptions shares = WithMemoryShares(options);
  EXPECT_EQ(shares.admission.max_bytes, 1);
  EXPECT_EQ(shares.transport.memory_quota_bytes, 2);
  EXPECT_EQ(shares.tensors.max_bytes, 3);
  EXPECT_EQ(shares.tensors.max_session_bytes, 4);
  EXPECT_GE(shares.tensors.session_device_share, 1);
  options.tensors.max_bytes = 8;
  EXPECT_EQ(WithMemoryShares(options).tensors.session_device_share, 0.5);
  options.tensors.max_session_bytes = 0;
  EXPECT_EQ(WithMemoryShares(options).tensors.session_device_share, 1) << "no limit unless asked";
}

TEST(MemorySharesTest, FitTheAddressesThatAreLeft) {
  if (kIsSanitized) GTEST_SKIP() << "sanitizers map terabytes";
  EXPECT_EQ(WithMemoryShares({}).memory_limit_bytes, MemoryLimitBytes());
  const LoweredAddressSpace lowered(kGiB);
  ServerOptions options;
  options.memory_limit_bytes = 1000 * kGiB;
  const int64_t limit = WithMemoryShares(options).memory_limit_bytes;
  EXPECT_LE(limit, kGiB + *ResidentBytes());
  EXPECT_GT(limit, kGiB / 2);
  // What can be resident is capped by one of the limits, and not by the other.
  const auto resident = static_cast<double>(*ResidentBytes());
  EXPECT_NEAR(static_cast<double>(*UsedBytes(limit / 2, 0)), resident, 0.01 * kGiB);
  EXPECT_NEAR(static_cast<double>(*UsedBytes(4 * kGiB, 0)), 4 * kGiB * resident / (resident + kGiB),
              0.04 * kGiB);
}

}  // namespace
}  // namespace gemmd
