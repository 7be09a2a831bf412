// SPDX-License-Identifier: Apache-2.0
//
// Workers that fail: who is told what, and that the device is back with the right bits.
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

constexpr absl::StatusCode kAborted = absl::StatusCode::kAborted;
constexpr absl::StatusCode kUnavailable = absl::StatusCode::kUnavailable;
constexpr absl::StatusCode kInternal = absl::StatusCode::kInternal;

void ExpectRightProduct(WorkerRig& rig) {
  SmallProduct product(20, 30, 40);
  EXPECT_THAT(product.Run(rig.device()).status, IsOk());
  EXPECT_TRUE(product.IsRight());
}

// The worker was lost once and has come back.
void ExpectRestarted(WorkerRig& rig, pid_t old_pid) {
  rig.AwaitReady();
  const std::vector<absl::Status> readinesses = rig.readinesses();
  ASSERT_EQ(readinesses.size(), 3u);
  EXPECT_THAT(readinesses[0], IsOk());
  EXPECT_THAT(readinesses[1],
              StatusIs(kUnavailable, HasSubstr("device: cuda:0 is starting again: ")));
  EXPECT_THAT(readinesses[2], IsOk());
  EXPECT_NE(rig.device().worker_pid(), old_pid);
  ExpectRightProduct(rig);
}

TEST(WorkerFailureTest, AWorkerKilledWithoutAJobIsReplaced) {
  WorkerRig rig;
  const pid_t pid = rig.device().worker_pid();
  kill(pid, SIGKILL);
  rig.AwaitReadinesses(3);
  EXPECT_THAT(std::string(rig.readinesses()[1].message()), HasSubstr("(signal 9)"));
  ExpectRestarted(rig, pid);
}

TEST(WorkerFailureTest, SoItIsWhereBothSidesLookForRecordsBeforeTheySleep) {
  WorkerDeviceOptions options = QuickOptions();
  options.command.spin_ns = 5'000'000;
  WorkerRig rig(options);
  const pid_t pid = rig.device().worker_pid();
  for (int i = 0; i < 10; ++i) ExpectRightProduct(rig);
  absl::SleepFor(absl::Milliseconds(50));  // Both sleep now.
  ExpectRightProduct(rig);
  EXPECT_EQ(rig.device().worker_pid(), pid);
  kill(pid, SIGKILL);
  rig.AwaitReadinesses(3);
  ExpectRestarted(rig, pid);
}

TEST(WorkerFailureTest, AWorkerKilledDuringAJobAbortsItAndWhatWaitsIsUnavailable) {
  WorkerRig rig;
  const pid_t pid = rig.device().worker_pid();
  rig.SetScript("Launch 1 hang");
  SmallProduct running(8, 8, 8);
  SmallProduct waiting(8, 8, 8);
  std::future<JobOutcome> outcome = running.Start(rig.device());
  std::future<JobOutcome> waiting_outcome = waiting.Start(rig.device());
  const SteadyClock clock;
  const int64_t submitted_ns = clock.NowNs();
  // Waits until the worker has read its script.
  EXPECT_TRUE(Eventually([&] { return !rig.HasScript(); })) << "the worker reads no script";
  const int64_t killed_ns = clock.NowNs();
  kill(pid, SIGKILL);
  EXPECT_THAT(Awaited(std::move(outcome), "the outcome of the job that ran").status,
              StatusIs(kAborted, AllOf(HasSubstr("device: cuda:0 was lost while the product ran"),
                                       HasSubstr("signal 9"))));
  const JobOutcome waited =
      Awaited(std::move(waiting_outcome), "the outcome of the job that waited");
  EXPECT_THAT(waited.status,
              StatusIs(kUnavailable, HasSubstr("was lost before the product started")));
  EXPECT_GE(waited.wait_ns, killed_ns - submitted_ns);
  ExpectRestarted(rig, pid);
}

TEST(WorkerFailureTest, AJobThatTheWorkerHasNotTakenUpIsUnavailable) {
  WorkerRig rig;
  const pid_t pid = rig.device().worker_pid();
  kill(pid, SIGSTOP);
  SmallProduct product(8, 8, 8);
  std::future<JobOutcome> outcome = product.Start(rig.device());
  kill(pid, SIGKILL);
  EXPECT_THAT(Awaited(std::move(outcome), "the outcome of the job").status,
              StatusIs(kUnavailable, HasSubstr("was lost before the product started")));
  ExpectRestarted(rig, pid);
}

// The kernel hangs, so that the worker cannot end it.
TEST(WorkerFailureTest, AWorkerThatDoesNotEndAnAbortedJobIsReplacedAfterASecond) {
  WorkerRig rig;
  const pid_t pid = rig.device().worker_pid();
  rig.SetScript("Launch 1 hang");
  SmallProduct running(8, 8, 8);
  SmallProduct waiting(8, 8, 8);
  std::future<JobOutcome> outcome = running.Start(rig.device(), 1);
  std::future<JobOutcome> waiting_outcome = waiting.Start(rig.device(), 2);
  EXPECT_TRUE(Eventually([&] { return !rig.HasScript(); })) << "the worker reads no script";
  rig.device().Abort(2);
  EXPECT_THAT(Awaited(std::move(waiting_outcome), "the job that waited").status,
              StatusIs(absl::StatusCode::kCancelled));
  EXPECT_EQ(outcome.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  const absl::Time aborted = absl::Now();
  rig.device().Abort(1);
  EXPECT_THAT(Awaited(std::move(outcome), "the job that ran").status,
              StatusIs(absl::StatusCode::kCancelled));
  EXPECT_GE(absl::Now() - aborted, absl::Seconds(1));
  ExpectRestarted(rig, pid);
}

// 2 * 8 * 32768 * 32 operations are 17 ms at the fake GPU's rates, and tiles are larger.
TEST(WorkerFailureTest, AnAbortedJobEndsAndItsWorkerLives) {
  WorkerRig rig;
  const pid_t pid = rig.device().worker_pid();
  SmallProduct product(8, 32768, 32);
  std::future<JobOutcome> outcome = product.Start(rig.device(), 1);
  rig.device().Abort(1);
  EXPECT_THAT(Awaited(std::move(outcome), "the aborted job").status,
              StatusIs(absl::StatusCode::kCancelled));
  rig.device().Abort(1);
  ExpectRightProduct(rig);
  EXPECT_EQ(rig.device().worker_pid(), pid);
}

TEST(WorkerFailureTest, AWorkerThatHangsIsKilledByTheWatchdog) {
  WorkerDeviceOptions options = QuickOptions();
  options.watchdog_least = absl::Seconds(1);
  WorkerRig rig(options);
  const pid_t pid = rig.device().worker_pid();
  rig.SetScript("IsReached 1 hang");
  SmallProduct product(8, 8, 8);
  const absl::Time start = absl::Now();
  EXPECT_THAT(product.Run(rig.device()).status,
              StatusIs(kAborted, HasSubstr("no answer within 1")));
  EXPECT_GE(absl::Now() - start, absl::Seconds(1));
  ExpectRestarted(rig, pid);
}

// The fake GPU's rates are 1e9: 2 * 512^3 operations take 268 ms.
TEST(WorkerFailureTest, TheWatchdogGivesLongJobsMoreTime) {
  WorkerDeviceOptions options = QuickOptions();
  options.watchdog_least = absl::Seconds(1);
  options.watchdog_factor = 4;
  WorkerRig rig(options);
  rig.SetScript("Launch 1 hang");
  SmallProduct product(512, 512, 512);
  const absl::Time start = absl::Now();
  EXPECT_THAT(product.Run(rig.device()).status, StatusIs(kAborted));
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(1073));
}

// A thousand times 268 ms would be four minutes.
TEST(WorkerFailureTest, TheWatchdogGivesNoJobMoreThanItsMost) {
  WorkerDeviceOptions options = QuickOptions();
  options.watchdog_least = absl::Milliseconds(100);
  options.watchdog_most = absl::Seconds(1);
  options.watchdog_factor = 1000;
  WorkerRig rig(options);
  rig.SetScript("Launch 1 hang");
  SmallProduct product(512, 512, 512);
  const absl::Time start = absl::Now();
  EXPECT_THAT(Awaited(product.Start(rig.device()), "the outcome of the job").status,
              StatusIs(kAborted, HasSubstr("the most that a product may take (--watchdog-most)")));
  EXPECT_GE(absl::Now() - start, absl::Seconds(1));
}

// However small the ceiling is.
TEST(WorkerFailureTest, TheWatchdogGivesEveryJobItsLeast) {
  WorkerDeviceOptions options = QuickOptions();
  options.watchdog_least = absl::Seconds(1);
  options.watchdog_most = absl::Milliseconds(1);
  WorkerRig rig(options);
  rig.SetScript("Launch 1 hang");
  SmallProduct product(8, 8, 8);
  const absl::Time start = absl::Now();
  EXPECT_THAT(product.Run(rig.device()).status, StatusIs(kAborted));
  EXPECT_GE(absl::Now() - start, absl::Seconds(1));
}

struct ScriptedCall {
  std::string function;
  int call;  // Counts the calls that one job makes, from 1.
};

void PrintTo(const ScriptedCall& call, std::ostream* out) {
  *out << call.function << " " << call.call;
}

// Every call that a job makes of the runtime; the product has gaps in D, and more memory is taken
// than for the canary.
class EveryCallTest : public testing::TestWithParam<ScriptedCall> {
 protected:
  EveryCallTest() {
    product_.problem().d.leading_dimension = 16384;
    product_.problem().d.batch_stride_bytes = 40 * 16384 * 4;
  }

  absl::Status RunWith(WorkerRig& rig, const std::string& action) {
    rig.SetScript(absl::StrCat(GetParam().function, " ", GetParam().call, " ", action));
    const absl::Status status = product_.Run(rig.device()).status;
    EXPECT_FALSE(rig.HasScript());
    return status;
  }

  // A job does not fail where memory cannot be freed.
  // So that the block of the canary must go.
  static WorkerDeviceOptions Options() {
    WorkerDeviceOptions options = QuickOptions();
    options.command.memory_limit_bytes = int64_t{4} << 20;
    return options;
  }

  static testing::Matcher<absl::Status> Fails(absl::StatusCode code) {
    if (GetParam().function == "Free") return IsOk();
    return StatusIs(code, HasSubstr(GetParam().function + ": scripted"));
  }

  SmallProduct product_{40, 20, 8};
};

TEST_P(EveryCallTest, WithoutMemoryIsResourceExhausted) {
  WorkerRig rig(Options());
  const pid_t pid = rig.device().worker_pid();
  EXPECT_THAT(RunWith(rig, "memory"), Fails(absl::StatusCode::kResourceExhausted));
  ExpectRightProduct(rig);
  EXPECT_EQ(rig.device().worker_pid(), pid);
  EXPECT_EQ(rig.readinesses().size(), 1u);
}

TEST_P(EveryCallTest, APassingErrorIsInternalAndTheWorkerLives) {
  WorkerRig rig(Options());
  const pid_t pid = rig.device().worker_pid();
  EXPECT_THAT(RunWith(rig, "error"), Fails(kInternal));
  ExpectRightProduct(rig);
  EXPECT_EQ(rig.device().worker_pid(), pid);
}

// Before anything was given to the GPU the caller may try again.
absl::StatusCode LostCode(const std::string& function) {
  return function == "Free" || function == "Allocate" ? kUnavailable : kAborted;
}

TEST_P(EveryCallTest, ALostGpuIsReplaced) {
  WorkerRig rig(Options());
  const pid_t pid = rig.device().worker_pid();
  EXPECT_THAT(RunWith(rig, "lost"),
              StatusIs(LostCode(GetParam().function),
                       AllOf(HasSubstr("device: cuda:0 was lost"), HasSubstr(": scripted"))));
  ExpectRestarted(rig, pid);
}

TEST_P(EveryCallTest, ACrashIsReplaced) {
  WorkerRig rig(Options());
  const pid_t pid = rig.device().worker_pid();
  EXPECT_THAT(RunWith(rig, "exit"),
              StatusIs(LostCode(GetParam().function),
                       AllOf(HasSubstr("device: cuda:0 was lost"), HasSubstr("(exit code 1)"))));
  ExpectRestarted(rig, pid);
}

// A sanitizer takes one of each kind: before the job is taken up, while it runs, and after.
std::vector<ScriptedCall> Calls() {
  if (kIsSanitized) return {{"Allocate", 1}, {"Launch", 1}, {"NanosecondsBetween", 3}};
  return {{"Free", 1},
          {"Allocate", 1},
          {"Mark", 1},
          {"CopyIn", 1},
          {"Clear", 1},
          {"Mark", 2},
          {"Launch", 1},
          {"Mark", 3},
          {"CopyOut", 1},
          {"Mark", 4},
          {"IsReached", 1},
          {"NanosecondsBetween", 1},
          {"NanosecondsBetween", 2},
          {"NanosecondsBetween", 3}};
}

INSTANTIATE_TEST_SUITE_P(Job, EveryCallTest, testing::ValuesIn(Calls()), [](const auto& call) {
  return absl::StrCat(call.param.function, call.param.call);
});

TEST(WorkerFailureTest, AFaultingKernelLosesTheGpu) {
  WorkerRig rig;
  const pid_t pid = rig.device().worker_pid();
  rig.SetScript("Launch 1 illegal_address");
  SmallProduct product(8, 8, 8);
  EXPECT_THAT(product.Run(rig.device()).status,
              StatusIs(kAborted, HasSubstr("the fake GPU is lost")));
  ExpectRestarted(rig, pid);
}

TEST(WorkerFailureTest, AWorkerThatDiesWhileItStartsIsReplaced) {
  for (const std::string script : {"Open 1 error", "Open 1 abort", "RegisterStaging 1 error",
                                   "Allocate 1 error", "IsReached 1 lost"}) {
    SCOPED_TRACE(script);
    WorkerRig rig;
    // Stopped, so that the script is the next worker's.
    kill(rig.device().worker_pid(), SIGSTOP);
    rig.SetScript(script);
    kill(rig.device().worker_pid(), SIGKILL);
    rig.AwaitReadinesses(4);
    EXPECT_THAT(rig.readinesses()[2], StatusIs(kUnavailable, HasSubstr("is starting again")));
    rig.AwaitReady();
    ExpectRightProduct(rig);
  }
}

TEST(WorkerFailureTest, AWorkerWithAWrongProductIsReplaced) {
  WorkerRig rig;
  kill(rig.device().worker_pid(), SIGSTOP);
  rig.SetScript("Launch 2 skip");  // The second launch of its canaries.
  kill(rig.device().worker_pid(), SIGKILL);
  rig.AwaitReadinesses(4);
  EXPECT_THAT(rig.readinesses()[2],
              StatusIs(kUnavailable, AllOf(HasSubstr("canary: kernel "),
                                           HasSubstr("gave a wrong product (signal 9)"))));
  rig.AwaitReady();
  ExpectRightProduct(rig);
  const DeviceCondition condition = rig.device().condition();
  EXPECT_EQ(condition.worker_restarts, 2);
  EXPECT_EQ(condition.canaries_passed, 2);
  EXPECT_EQ(condition.canaries_failed, 1);
}

TEST(WorkerFailureTest, FiveRestartsInAMinuteAreTheLast) {
  WorkerRig rig;
  for (size_t restart = 1; restart <= 5; ++restart) {
    kill(rig.device().worker_pid(), SIGKILL);
    rig.AwaitReadinesses(1 + 2 * restart);
    ExpectRightProduct(rig);
  }
  kill(rig.device().worker_pid(), SIGKILL);
  rig.AwaitReadinesses(12);
  const auto is_out =
      StatusIs(kUnavailable, HasSubstr("device: cuda:0 is out of service after too many starts"));
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
              StatusIs(kUnavailable, HasSubstr("out of service after too many starts, for 1ms: ")));
}

TEST(WorkerFailureTest, AnOperatorEndsARest) {
  WorkerDeviceOptions options = QuickOptions();
  options.restarts.restarts = 0;
  WorkerRig rig(options);
  kill(rig.device().worker_pid(), SIGKILL);
  rig.AwaitReadinesses(2);
  EXPECT_THAT(rig.device().readiness(), StatusIs(kUnavailable, HasSubstr(", for 5m: ")));
  EXPECT_THAT(rig.device().RestartWorker(), IsOk());
  rig.AwaitReadinesses(3);
  ExpectRightProduct(rig);
}

TEST(WorkerFailureTest, AnOperatorReplacesAWorkerThatServes) {
  WorkerRig rig;
  const pid_t before = rig.device().worker_pid();
  for (size_t restart = 1; restart <= 8; ++restart) {  // More than a worker that fails has.
    EXPECT_THAT(rig.device().RestartWorker(), IsOk());
    rig.AwaitReadinesses(1 + 2 * restart);
    ExpectRightProduct(rig);
  }
  EXPECT_NE(rig.device().worker_pid(), before);
  EXPECT_THAT(rig.readinesses()[1],
              StatusIs(kUnavailable, HasSubstr("an operator wants another worker")));
}

TEST(WorkerFailureTest, AKernelThatDoesNothingGivesNoEarlierResult) {
  WorkerRig rig;
  SmallProduct product(8, 8, 8);
  ASSERT_THAT(product.Run(rig.device()).status, IsOk());
  ASSERT_TRUE(product.IsRight());
  rig.SetScript("Launch 1 skip");
  SmallProduct same(8, 8, 8);
  EXPECT_THAT(same.Run(rig.device()).status, IsOk());  // As far as anybody can tell.
  EXPECT_EQ(same.d(), std::string(same.d().size(), '\0'));
}

TEST(WorkerFailureTest, AKernelThatDoesNothingIsFoundByACanary) {
  WorkerDeviceOptions options = QuickOptions();
  options.canary_interval = absl::Milliseconds(1);
  WorkerRig rig(options);
  ExpectRightProduct(rig);
  rig.SetScript("Launch 1 skip\nLaunch 2 skip\nLaunch 3 skip\nLaunch 4 skip");
  rig.AwaitReadinesses(3);
  rig.AwaitReady();
  EXPECT_THAT(rig.readinesses()[1], StatusIs(kUnavailable, HasSubstr("gave a wrong product")));
  EXPECT_GE(rig.device().condition().canaries_failed, 1);
  ExpectRightProduct(rig);
}

TEST(WorkerFailureTest, JobsDuringARestartAreRefusedAtOnce) {
  WorkerDeviceOptions options = QuickOptions();
  options.restarts.first_pause_ns = options.restarts.longest_pause_ns = 3600'000'000'000;
  WorkerRig rig(options);
  kill(rig.device().worker_pid(), SIGKILL);
  rig.AwaitReadinesses(3);
  kill(rig.device().worker_pid(), SIGKILL);  // From now on it pauses for an hour.
  rig.AwaitReadinesses(4);
  for (int i = 0; i < 3; ++i) {
    SmallProduct product(8, 8, 8);
    EXPECT_THAT(product.Run(rig.device()).status,
                StatusIs(kUnavailable, HasSubstr("is starting again")));
  }
}

// Programs that are not workers.
class RogueWorkerTest : public testing::Test {
 protected:
  absl::Status StartOf(const std::string& program) {
    const std::string path = absl::StrCat(testing::TempDir(), "/gemmd-rogue-", getpid());
    std::ofstream(path) << "#!/bin/sh\n" << program << "\n";
    chmod(path.c_str(), 0700);
    WorkerDeviceOptions options = QuickOptions();
    options.command.binary = path;
    options.start_timeout = absl::Milliseconds(300);
    WorkerDevice device(options);
    const absl::Status status = device.WaitUntilStarted();
    EXPECT_THAT(device.readiness(),
                StatusIs(kUnavailable, HasSubstr("device: cuda:0 did not start: ")));
    std::remove(path.c_str());
    return status;
  }
};

TEST_F(RogueWorkerTest, EndsAtOnce) {
  EXPECT_THAT(StartOf("exit 7"), StatusIs(kUnavailable, HasSubstr("is gone")));
}

TEST_F(RogueWorkerTest, TalksNonsense) {
  EXPECT_THAT(StartOf("echo nonsense >&3; exec sleep 1000"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("record.protocol: got ")));
  EXPECT_THAT(StartOf("printf x >&3; exec sleep 1000"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("record: got 1 bytes")));
  EXPECT_THAT(
      StartOf(R"(printf '\003\000\000\000\002\000\000\000' >&3; exec sleep 1000)"),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("record: got kind 2, 8 bytes")));
  EXPECT_THAT(StartOf("dd if=/dev/zero bs=100000 count=1 >&3 2>/dev/null; exec sleep 1000"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("bytes, want at most")));
}

TEST_F(RogueWorkerTest, SaysNothing) {
  EXPECT_THAT(StartOf("exec sleep 1000"),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("said nothing for 300ms")));
}

TEST(WorkerFailureTest, WithoutABinaryThereIsNoDevice) {
  WorkerDeviceOptions options = QuickOptions();
  options.command.binary = "/nonexistent/gemmd-worker";
  WorkerDevice device(options);
  EXPECT_THAT(device.WaitUntilStarted(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("worker-binary: got /nonexistent/gemmd-worker, want")));
}

TEST(WorkerFailureTest, WithoutTheGpuThereIsNoDevice) {
  WorkerDeviceOptions options = QuickOptions();
  options.command.ordinal = 2;
  WorkerDevice device(options);
  EXPECT_THAT(device.WaitUntilStarted(),
              StatusIs(absl::StatusCode::kNotFound, "GPU: got 2, want less than 2"));
}

}  // namespace
}  // namespace gemmd
