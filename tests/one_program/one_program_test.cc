// SPDX-License-Identifier: Apache-2.0
//
// The daemon, gemmctl and gemmload as one program, which has every object file of theirs: the
// server runs here, and both tools call it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "client/gemmctl/activity.h"
#include "client/load/load_command_line.h"
#include "client/load/tally.h"
#include "server/crossing/protocol.h"
#include "server/scheduling/product.h"
#include "tests/client/gemmctl/gemmctl_runner.h"
#include "tests/server/wire/running_server.h"

namespace gemmd {
namespace {

// These were of one name each.
static_assert(kCallStages == kStages + 2);
static_assert(sizeof(ActivityRates) != sizeof(GpuRates));

TEST(OneProgramTest, GemmctlMultipliesOnTheServer) {
  RunningServer server(TestDevice::kCpu);
  const Outcome outcome = RunGemmctl(
      {"multiply", "--random=33,34,35", "--type=f32", "--verify", "--json"}, server.tcp_address());
  EXPECT_EQ(outcome.code, ExitCode::kOk) << outcome.err;
  EXPECT_THAT(outcome.out, testing::HasSubstr("\"copy_in"));
}

TEST(OneProgramTest, GemmloadLoadsTheServer) {
  RunningServer server(TestDevice::kCpu);
  const StopRequests stop = 0;
  std::FILE* const out = std::tmpfile();
  std::FILE* const err = std::tmpfile();
  EXPECT_EQ(RunGemmload({"--shape=8,8,8", "--type=f32", "--count=20", "--warmup=0s", "--quiet"},
                        server.tcp_address(), {stdin, out, err, "gemmload"}, false, stop),
            ExitCode::kOk);
  EXPECT_GT(std::ftell(out), 0);
  std::fclose(out);
  std::fclose(err);
}

}  // namespace
}  // namespace gemmd
