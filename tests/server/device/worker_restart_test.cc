// SPDX-License-Identifier: Apache-2.0
//
// Workers that fail again and again or never become ready, and operators who replace them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/system/clock.h"
#include "tests/server/worker/small_product.h"
#include "tests/server/worker/worker_rig.h"
#include "tests/testing/patience.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;

TEST(WorkerFailureTest, AWorkerThatDiesWhileItStartsIsReplaced) {
  for (const std::string script : {"Open 1 error", "Open 1 abort", "RegisterStaging 1 error",
                                   "Allocate 1 error", "IsReached 1 lost"}) {
    SCOPED_TRACE(script);
    WorkerRig rig;
    // Stopped, so that the next worker reads the script.
    kill(rig.device().worker_pid(), SIGSTOP);
    rig.SetScript(script);
    kill(rig.device().worker_pid(), SIGKILL);
    rig.AwaitReadinesses(4);
    EXPECT_THAT(rig.readinesses()[2],
                StatusIs(absl::StatusCode::kUnavailable, HasSubstr("is starting again")));
    rig.AwaitReady();
    ExpectRightProduct(rig);
  }
}

TEST(WorkerFailureTest, AWorkerWithAWrongProductIsReplaced) {
  WorkerRig rig;
  kill(rig.device().worker_pid(), SIGSTOP);
  rig.SetScript("Launch 2 flip");  // The second launch of its canaries.
  kill(rig.device().worker_pid(), SIGKILL);
  rig.AwaitReadinesses(4);
  EXPECT_THAT(rig.readinesses()[2], StatusIs(absl::StatusCode::kUnavailable,
                                             AllOf(HasSubstr("canary: kernel "),
                                                   HasSubstr("gave a wrong product (signal 9)"))));
  rig.AwaitReady();
  ExpectRightProduct(rig);
  const DeviceCondition condition = rig.device().condition();
  EXPECT_EQ(condition.worker_restarts, 2);
  EXPECT_EQ(condition.canaries_passed, 2);
  EXPECT_EQ(condition.canaries_failed, 1);
}

TEST(WorkerFailureTest, FiveRestartsInTheWindowAreTheLast) {
  WorkerRig rig;
  for (size_t restart = 1; restart <= 5; ++restart) {
    kill(rig.device().worker_pid(), SIGKILL);
    rig.AwaitReadinesses(1 + 2 * restart);
    ExpectRightProduct(rig);
  }
  kill(rig.device().worker_pid(), SIGKILL);
  rig.AwaitReadinesses(12);
  const auto is_out = StatusIs(absl::StatusCode::kUnavailable,
                               HasSubstr("device: cuda:0 is out of service after too many starts"));
  EXPECT_THAT(rig.readinesses().back(), is_out);
  EXPECT_THAT(rig.device().readiness(), is_out);
  SmallProduct product(8, 8, 8);
  EXPECT_THAT(product.Run(rig.device()).status, is_out);
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1) << "a process is left";
  rig.Stop();
}

TEST(WorkerFailureTest, AfterARestItIsTriedAgain) {
  WorkerDeviceOptions options = QuickOptions();
  options.restarts.restarts = 1;
  options.restarts.rest_ns = 1'000'000;
  WorkerRig rig(options);
  for (size_t restart = 1; restart <= 4; ++restart) {
    kill(rig.device().worker_pid(), SIGKILL);
    rig.AwaitReadinesses(1 + 2 * restart);
    ExpectRightProduct(rig);
  }
  EXPECT_THAT(rig.readinesses()[3],
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("out of service after too many starts, for 1ms: ")));
}

TEST(WorkerFailureTest, AnOperatorEndsARest) {
  WorkerDeviceOptions options = QuickOptions();
  options.restarts.restarts = 0;
  WorkerRig rig(options);
  kill(rig.device().worker_pid(), SIGKILL);
  rig.AwaitReadinesses(2);
  EXPECT_THAT(rig.device().readiness(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr(", for 5m: ")));
  EXPECT_THAT(rig.device().RestartWorker(), IsOk());
  rig.AwaitReadinesses(3);
  ExpectRightProduct(rig);
}

TEST(WorkerFailureTest, AnOperatorReplacesAWorkerThatServes) {
  WorkerRig rig;
  const pid_t before = rig.device().worker_pid();
  for (size_t restart = 1; restart <= 8; ++restart) {  // More launches than a failing worker makes.
    EXPECT_THAT(rig.device().RestartWorker(), IsOk());
    rig.AwaitReadinesses(1 + 2 * restart);
    ExpectRightProduct(rig);
  }
  EXPECT_NE(rig.device().worker_pid(), before);
  EXPECT_THAT(rig.readinesses()[1], StatusIs(absl::StatusCode::kUnavailable,
                                             HasSubstr("an operator wants another worker")));
}

TEST(WorkerFailureTest, AKernelThatDoesNothingIsFoundOut) {
  for (const bool is_in_block : {false, true}) {
    WorkerDeviceOptions options = QuickOptions();
    options.tensor_limit_bytes = 1 << 20;
    WorkerRig rig(options);
    SmallProduct product(8, 8, 8);
    Job job = product.JobFor(rig.device());
    if (is_in_block) job.d = {.block = AllocateBlock(rig.device(), 4096), .offset = 12};
    const auto run = [&] {
      return Awaited(StartJob(rig.device(), job), "the outcome of a job").status;
    };
    ASSERT_THAT(run(), IsOk());
    rig.SetScript("Launch 1 skip");
    EXPECT_THAT(run(), StatusIs(absl::StatusCode::kAborted, HasSubstr("did not write the result")));
    rig.AwaitReadinesses(3);
    rig.AwaitReady();
  }
}

// A result of one number has no mark. The result of an earlier job is not there either.
TEST(WorkerFailureTest, AKernelThatDoesNothingGivesNoEarlierResult) {
  WorkerRig rig;
  SmallProduct product(1, 1, 8);
  ASSERT_THAT(product.Run(rig.device()).status, IsOk());
  ASSERT_TRUE(product.IsRight());
  rig.SetScript("Launch 1 skip");
  SmallProduct same(1, 1, 8);
  EXPECT_THAT(same.Run(rig.device()).status, IsOk());  // Nobody could tell the difference.
  EXPECT_EQ(same.d(), std::string(same.d().size(), '\0'));
}

TEST(WorkerFailureTest, AKernelWithAWrongBitIsFoundByACanary) {
  WorkerDeviceOptions options = QuickOptions();
  options.canary_interval = absl::Milliseconds(1);
  WorkerRig rig(options);
  ExpectRightProduct(rig);
  rig.SetScript("Launch 1 flip\nLaunch 2 flip\nLaunch 3 flip\nLaunch 4 flip");
  rig.AwaitReadinesses(3);
  rig.AwaitReady();
  EXPECT_THAT(rig.readinesses()[1],
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("gave a wrong product")));
  EXPECT_GE(rig.device().condition().canaries_failed, 1);
  ExpectRightProduct(rig);
}

TEST(WorkerFailureTest, CanariesComeEachIntervalWithoutProductsToo) {
  WorkerDeviceOptions options = QuickOptions();
  options.canary_interval = absl::Milliseconds(1);
  WorkerRig rig(options);
  const int64_t before = rig.device().condition().canaries_passed;
  EXPECT_TRUE(Eventually([&] { return rig.device().condition().canaries_passed >= before + 20; }));
}

TEST(WorkerFailureTest, WithinAnIntervalProductsBringNoCanary) {
  WorkerDeviceOptions options = QuickOptions();
  options.canary_interval = absl::Hours(1);
  WorkerRig rig(options);
  const int64_t before = rig.device().condition().canaries_passed;
  for (int i = 0; i < 20; ++i) ExpectRightProduct(rig);
  EXPECT_EQ(rig.device().condition().canaries_passed, before);
}

TEST(WorkerFailureTest, JobsDuringARestartAreRefusedAtOnce) {
  WorkerDeviceOptions options = QuickOptions();
  options.restarts.first_pause_ns = options.restarts.longest_pause_ns = 3600'000'000'000;
  WorkerRig rig(options);
  kill(rig.device().worker_pid(), SIGKILL);
  rig.AwaitReadinesses(3);
  kill(rig.device().worker_pid(), SIGKILL);  // From now on the device pauses for an hour.
  rig.AwaitReadinesses(4);
  for (int i = 0; i < 3; ++i) {
    SmallProduct product(8, 8, 8);
    EXPECT_THAT(product.Run(rig.device()).status,
                StatusIs(absl::StatusCode::kUnavailable, HasSubstr("is starting again")));
  }
}

// Programs that are not workers.
class RogueWorkerTest : public testing::Test {
 protected:
  absl::Status StartOf(const std::string& program, absl::Duration timeout = kPatience) {
    const std::string path = absl::StrCat(testing::TempDir(), "/gemmd-rogue-", getpid());
    std::ofstream(path) << "#!/bin/sh\n" << program << "\n";
    chmod(path.c_str(), 0700);
    WorkerDeviceOptions options = QuickOptions();
    options.program.binary = path;
    options.start_timeout = timeout;
    WorkerDevice device(options);
    const absl::Status status = device.WaitUntilStarted();
    EXPECT_THAT(device.readiness(), StatusIs(absl::StatusCode::kUnavailable,
                                             HasSubstr("device: cuda:0 did not start: ")));
    std::remove(path.c_str());
    return status;
  }
};

TEST_F(RogueWorkerTest, EndsAtOnce) {
  EXPECT_THAT(StartOf("exit 7"), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("is gone")));
}

TEST_F(RogueWorkerTest, TalksNonsense) {
  EXPECT_THAT(StartOf("echo nonsense >&3; exec sleep 1000"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("record.protocol: got ")));
  EXPECT_THAT(StartOf("printf x >&3; exec sleep 1000"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("record: got 1 bytes")));
  // Only a header: the protocol, in octal, and a kind of record, four bytes each.
  EXPECT_THAT(
      StartOf(absl::StrCat("printf '\\0", kWorkerProtocol / 8, kWorkerProtocol % 8,
                           R"(\000\000\000\002\000\000\000' >&3; exec sleep 1000)")),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("record: got kind 2, 8 bytes")));
  EXPECT_THAT(StartOf("dd if=/dev/zero bs=100000 count=1 >&3 2>/dev/null; exec sleep 1000"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("bytes, want at most")));
}

TEST_F(RogueWorkerTest, SaysNothing) {
  EXPECT_THAT(StartOf("exec sleep 1000", absl::Milliseconds(300)),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr("no message from the worker for 300ms")));
}

TEST(WorkerFailureTest, WithoutABinaryThereIsNoDevice) {
  WorkerDeviceOptions options = QuickOptions();
  options.program.binary = "/nonexistent/gemmd-worker";
  WorkerDevice device(options);
  EXPECT_THAT(device.WaitUntilStarted(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("worker-binary: got /nonexistent/gemmd-worker, want")));
}

TEST(WorkerFailureTest, WithoutTheGpuThereIsNoDevice) {
  WorkerDeviceOptions options = QuickOptions();
  options.ordinal = 2;
  WorkerDevice device(options);
  EXPECT_THAT(device.WaitUntilStarted(),
              StatusIs(absl::StatusCode::kNotFound, "GPU: got 2, want less than 2"));
}

}  // namespace
}  // namespace gemmd
