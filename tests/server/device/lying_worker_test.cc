// SPDX-License-Identifier: Apache-2.0
//
// Workers whose answers cannot be true: they are replaced, and nobody is told what they said.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/server/worker/small_product.h"
#include "tests/server/worker/worker_rig.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using testing::HasSubstr;

class LyingWorkerTest : public testing::TestWithParam<std::string> {};

TEST_P(LyingWorkerTest, IsReplaced) {
  WorkerDeviceOptions options = QuickOptions();
  options.command.binary = GEMMD_LYING_WORKER;
  WorkerRig rig(options);
  ASSERT_THAT(rig.device().readiness(), IsOk());
  SmallProduct product(8, 8, 8);
  ASSERT_THAT(product.Run(rig.device()).status, IsOk());  // It can tell the truth.

  rig.SetScript(GetParam());
  SmallProduct lied_about(8, 8, 8);
  ASSERT_THAT(lied_about.Run(rig.device()).status,
              StatusIs(absl::StatusCode::kAborted,
                       HasSubstr("device: cuda:0 was lost while the product ran: "
                                 "the worker answered what was not asked")));

  rig.AwaitReadinesses(3);
  rig.AwaitReady();
  SmallProduct after(8, 8, 8);
  EXPECT_THAT(after.Run(rig.device()).status, IsOk());
  EXPECT_TRUE(after.IsRight());
}

TEST(LyingWorkerTest, OneThatDoesNothingIsNotBelieved) {
  WorkerDeviceOptions options = QuickOptions();
  options.command.binary = GEMMD_LYING_WORKER;
  WorkerRig rig(options);
  SmallProduct product(8, 8, 8);
  ASSERT_THAT(product.Run(rig.device()).status, IsOk());
  rig.SetScript("done");
  SmallProduct same(8, 8, 8);  // Whose result would be right if the one before were left.
  EXPECT_THAT(same.Run(rig.device()).status,
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("the worker did not write the result that it told of")));
  rig.AwaitReadinesses(3);
  rig.AwaitReady();
}

INSTANTIATE_TEST_SUITE_P(Lies, LyingWorkerTest,
                         testing::Values("id", "copy_in", "compute", "copy_out", "longer",
                                         "longest"),
                         [](const auto& lie) { return lie.param; });

}  // namespace
}  // namespace gemmd
