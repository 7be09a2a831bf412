// SPDX-License-Identifier: Apache-2.0
#include "client/load/client_machine.h"

#include <gtest/gtest.h>

#include <cmath>

namespace gemmd {
namespace {

TEST(EndpointTest, KnowsThisMachineInEveryForm) {
  for (const char* address :
       {"unix:/run/gemmd.sock", "unix:///run/gemmd.sock", "unix-abstract:gemmd", "127.0.0.1:8470",
        "localhost:8470", "LOCALHOST:1", "localhost", "[::1]:8470", "::1", "ipv4:127.0.0.1:8470",
        "ipv4:127.0.0.1:1,127.0.0.2:2", "ipv6:[::1]:8470", "dns:localhost:8470",
        "dns:///localhost:8470", "dns://8.8.8.8/localhost:8470", "passthrough:///127.0.0.1:1",
        "thishost:8470", "dns:///thishost:1"}) {
    EXPECT_TRUE(IsThisMachine(address, "thishost")) << address;
  }
  for (const char* address :
       {"unixbox:1", "127.example.org:1", "localhost.example.org:1", "10.0.0.1:8470",
        "dns:///gemmd:8470", "dns://localhost/gemmd:8470", "ipv6:[fe80::1]:1", "otherhost:1"}) {
    EXPECT_FALSE(IsThisMachine(address, "thishost")) << address;
  }
  EXPECT_FALSE(IsThisMachine("gemmd:8470", ""));
}

TEST(CpuUsageTest, ReadsQuotas) {
  EXPECT_DOUBLE_EQ(CoresOfQuota("250000 100000"), 2.5);
  for (const char* none : {"max 100000", "", "x", "-1 100000", "1 0"}) {
    EXPECT_TRUE(std::isinf(CoresOfQuota(none))) << none;
  }
  EXPECT_GT(UsableCores(), 0);
}

}  // namespace
}  // namespace gemmd
