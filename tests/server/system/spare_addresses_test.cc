// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/resource.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "server/system/resources.h"
#include "tests/testing/lowered_address_space.h"
#include "tests/testing/sanitized.h"

namespace gemmd {
namespace {

size_t DefaultStackBytes() {
  pthread_attr_t attributes;
  EXPECT_EQ(pthread_getattr_default_np(&attributes), 0);
  size_t bytes = 0;
  EXPECT_EQ(pthread_attr_getstacksize(&attributes, &bytes), 0);
  pthread_attr_destroy(&attributes);
  return bytes;
}

TEST(SpareAddressesTest, NothingChangesWhereThereIsNoLimit) {
  rlimit limit = {};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &limit), 0);
  if (limit.rlim_cur != RLIM_INFINITY) GTEST_SKIP() << "there is a limit";
  const size_t before = DefaultStackBytes();
  EXPECT_TRUE(PrepareForFewAddresses().ok());
  EXPECT_EQ(DefaultStackBytes(), before);
}

TEST(SpareAddressesTest, ADaemonNeedsSomeAndHasSmallStacksThere) {
  if (kIsSanitized) GTEST_SKIP() << "sanitizers map terabytes";
  {
    const LoweredAddressSpace lowered(int64_t{64} << 20);
    const absl::Status status = PrepareForFewAddresses();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(std::string(status.message()).rfind("ulimit -v leaves 6", 0), 0) << status;
  }
  const LoweredAddressSpace lowered(int64_t{64} << 30);
  EXPECT_TRUE(PrepareForFewAddresses().ok());
  EXPECT_LE(DefaultStackBytes(), size_t{2} << 20);
}

TEST(SpareAddressesTest, AreSpareWhereTheyAreLeft) {
  if (kIsSanitized) GTEST_SKIP() << "sanitizers map terabytes";
  EXPECT_TRUE(HasSpareAddresses());
  {
    const LoweredAddressSpace lowered(kSpareAddresses / 2);
    EXPECT_FALSE(HasSpareAddresses());
  }
  const LoweredAddressSpace lowered(4 * kSpareAddresses);
  EXPECT_TRUE(HasSpareAddresses());
}

}  // namespace
}  // namespace gemmd
