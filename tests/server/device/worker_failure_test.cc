// SPDX-License-Identifier: Apache-2.0
//
// Workers that fail: which job gets which status, and that the device then works again with the
// right bits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/select.h"
#include "server/system/clock.h"
#include "server/worker/run.h"
#include "tests/server/worker/small_product.h"
#include "tests/server/worker/worker_rig.h"
#include "tests/testing/patience.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/units.h"

namespace gemmd {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;

// Enough for everything that does not hang.
constexpr absl::Duration kWatchdog = absl::Seconds(3);

// Whether all threads of a process sleep, except the calling one.
bool Sleeps(pid_t pid) {
  std::error_code error;
  const std::filesystem::path tasks = absl::StrCat("/proc/", pid, "/task");
  for (const auto& task : std::filesystem::directory_iterator(tasks, error)) {
    if (task.path().filename() == std::to_string(gettid())) continue;
    std::ifstream file(task.path() / "stat");
    std::string line;
    std::getline(file, line);
    const size_t name_end = line.rfind(')');
    if (name_end == line.npos || line.compare(name_end, 3, ") S") != 0) return false;
  }
  return !error;
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
  options.program.spin_ns = 5'000'000;
  WorkerRig rig(options);
  const pid_t pid = rig.device().worker_pid();
  for (int i = 0; i < 10; ++i) ExpectRightProduct(rig);
  EXPECT_TRUE(Eventually([&] { return Sleeps(getpid()) && Sleeps(pid); })) << "one looks for ever";
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
              StatusIs(absl::StatusCode::kAborted,
                       AllOf(HasSubstr("device: cuda:0 was lost while the product ran"),
                             HasSubstr("signal 9"))));
  const JobOutcome waited =
      Awaited(std::move(waiting_outcome), "the outcome of the job that waited");
  EXPECT_THAT(waited.status, StatusIs(absl::StatusCode::kUnavailable,
                                      HasSubstr("was lost before the product started")));
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
  EXPECT_THAT(
      Awaited(std::move(outcome), "the outcome of the job").status,
      StatusIs(absl::StatusCode::kUnavailable, HasSubstr("was lost before the product started")));
  ExpectRestarted(rig, pid);
}

// The kernel hangs, so the worker cannot end the job.
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
  const SteadyClock clock;
  const int64_t aborted_ns = clock.NowNs();
  rig.device().Abort(1);
  EXPECT_THAT(Awaited(std::move(outcome), "the job that ran").status,
              StatusIs(absl::StatusCode::kCancelled));
  EXPECT_GE(clock.NowNs() - aborted_ns, 1'000 * kMs);
  ExpectRestarted(rig, pid);
}

// 2 * 8 * 32768 * 32 operations take 17 ms at the fake GPU's rates, and tiles are larger.
void AbortAJob(WorkerRig& rig) {
  SmallProduct product(8, 32768, 32);
  std::future<JobOutcome> outcome = product.Start(rig.device(), 1);
  rig.device().Abort(1);
  EXPECT_THAT(Awaited(std::move(outcome), "the aborted job").status,
              StatusIs(absl::StatusCode::kCancelled));
  rig.device().Abort(1);
}

// The worker may be the same, or another one if the abort took more than a second.
TEST(WorkerFailureTest, AnAbortedJobEndsAndTheNextOneIsRight) {
  WorkerRig rig;
  AbortAJob(rig);
  EXPECT_TRUE(Eventually([&] {
    SmallProduct next(20, 30, 40);
    return next.Run(rig.device()).status.ok() && next.IsRight();
  }));
}

TEST(WorkerFailureTimed, AnAbortedJobEndsAndItsWorkerLives) {
  WorkerRig rig;
  const pid_t pid = rig.device().worker_pid();
  AbortAJob(rig);
  ExpectRightProduct(rig);
  EXPECT_EQ(rig.device().worker_pid(), pid);
}

// One tile with a long k is one launch, within which the kernel checks for the abort. The worker
// gets a second before it is replaced, because its tensors would be lost.
TEST(WorkerFailureTimed, AWorkerMayTakeAWhileToEndAnAbortedLaunch) {
  WorkerRig rig;
  const pid_t pid = rig.device().worker_pid();
  SmallProduct product(8, 8, 40000);
  const Job job = product.JobFor(rig.device());
  const int64_t predicted_ns = job.predicted.kernel_ns;
  ASSERT_EQ(DivideLaunch(job.problem, predicted_ns).count(), 1);
  rig.SetScript("Launch 1 stop");
  std::future<JobOutcome> outcome = product.Start(rig.device(), 1);
  EXPECT_TRUE(Eventually([&] {
    siginfo_t stopped = {};
    const auto child = static_cast<id_t>(pid);
    return waitid(P_PID, child, &stopped, WSTOPPED | WNOHANG | WNOWAIT) == 0 && stopped.si_pid != 0;
  })) << "the worker does not stop";
  rig.device().Abort(1);
  EXPECT_EQ(outcome.wait_for(std::chrono::milliseconds(300)), std::future_status::timeout);
  kill(pid, SIGCONT);
  EXPECT_THAT(Awaited(std::move(outcome), "the job").status,
              StatusIs(absl::StatusCode::kCancelled));
  ExpectRightProduct(rig);
  EXPECT_EQ(rig.device().worker_pid(), pid);
}

TEST(WorkerFailureTest, AWorkerThatHangsIsKilledByTheWatchdog) {
  WorkerDeviceOptions options = QuickOptions();
  options.watchdog_min = kWatchdog;
  WorkerRig rig(options);
  const pid_t pid = rig.device().worker_pid();
  rig.SetScript("IsReached 1 hang");
  SmallProduct product(8, 8, 8);
  const SteadyClock clock;
  const int64_t start_ns = clock.NowNs();
  EXPECT_THAT(product.Run(rig.device()).status,
              StatusIs(absl::StatusCode::kAborted, HasSubstr("no answer within ")));
  EXPECT_GE(clock.NowNs() - start_ns, absl::ToInt64Nanoseconds(kWatchdog));
  ExpectRestarted(rig, pid);
}

// The fake GPU's rates are 1e9: 2 * 512^3 operations take 268 ms, and twelve times that is 3.22 s.
TEST(WorkerFailureTest, TheWatchdogGivesLongJobsMoreTime) {
  WorkerDeviceOptions options = QuickOptions();
  options.watchdog_min = kWatchdog;
  options.watchdog_factor = 12;
  WorkerRig rig(options);
  rig.SetScript("Launch 1 hang");
  SmallProduct product(512, 512, 512);
  const SteadyClock clock;
  const int64_t start_ns = clock.NowNs();
  EXPECT_THAT(product.Run(rig.device()).status, StatusIs(absl::StatusCode::kAborted));
  EXPECT_GE(clock.NowNs() - start_ns, 3'221 * kMs);
}

// Some data make f32 take 16 times as long as usual, so it gets that much time.
TEST(WorkerFailureTest, TheWatchdogGivesSplitF32MoreTime) {
  WorkerDeviceOptions options = QuickOptions();
  options.watchdog_min = kWatchdog;
  options.watchdog_factor = 0.75;
  WorkerRig rig(options);
  rig.SetScript("Launch 1 hang");
  SmallProduct product(512, 512, 1024);  // In f32, half the k takes as many bytes.
  Problem& problem = product.problem();
  problem.k = 512;
  problem.a = TightLayout("a", ElementType::kF32, problem.a.order, 512, 512).value();
  problem.b = TightLayout("b", ElementType::kF32, problem.b.order, 512, 512).value();
  const SteadyClock clock;
  const int64_t start_ns = clock.NowNs();
  EXPECT_THAT(product.Run(rig.device()).status, StatusIs(absl::StatusCode::kAborted));
  EXPECT_GE(clock.NowNs() - start_ns, 3'221 * kMs);
}

// A thousand times 268 ms would be four minutes.
TEST(WorkerFailureTest, TheWatchdogGivesNoJobMoreThanItsMost) {
  WorkerDeviceOptions options = QuickOptions();
  options.watchdog_min = absl::Seconds(1);
  options.watchdog_max = kWatchdog;
  options.watchdog_factor = 1000;
  WorkerRig rig(options);
  rig.SetScript("Launch 1 hang");
  SmallProduct product(512, 512, 512);
  const SteadyClock clock;
  const int64_t start_ns = clock.NowNs();
  EXPECT_THAT(
      Awaited(product.Start(rig.device()), "the outcome of the job").status,
      StatusIs(absl::StatusCode::kAborted,
               HasSubstr("the most that a product may take (five times --max-product-seconds)")));
  EXPECT_GE(clock.NowNs() - start_ns, absl::ToInt64Nanoseconds(kWatchdog));
}

// However small the maximum is.
TEST(WorkerFailureTest, TheWatchdogGivesEveryJobItsLeast) {
  WorkerDeviceOptions options = QuickOptions();
  options.watchdog_min = kWatchdog;
  options.watchdog_max = absl::Milliseconds(1);
  WorkerRig rig(options);
  rig.SetScript("Launch 1 hang");
  SmallProduct product(8, 8, 8);
  const SteadyClock clock;
  const int64_t start_ns = clock.NowNs();
  EXPECT_THAT(product.Run(rig.device()).status, StatusIs(absl::StatusCode::kAborted));
  EXPECT_GE(clock.NowNs() - start_ns, absl::ToInt64Nanoseconds(kWatchdog));
}

// The worker dies while a product runs: as the script says, or because of `kill_it`.
void LoseTheWorker(
    WorkerRig& rig, const std::string& script, const std::function<void()>& kill_it = [] {}) {
  rig.AwaitReady();
  rig.SetScript(script);
  SmallProduct product(8, 8, 8);
  std::future<JobOutcome> outcome = product.Start(rig.device());
  EXPECT_TRUE(Eventually([&] { return !rig.HasScript(); })) << "the worker reads no script";
  kill_it();
  EXPECT_THAT(Awaited(std::move(outcome), "the product").status,
              StatusIs(absl::StatusCode::kAborted));
  rig.AwaitReady();
}

TEST(WorkerFailureTest, AKernelOfWhichTwoWorkersDiedIsRefusedForItsClass) {
  WorkerRig rig;
  LoseTheWorker(rig, "Launch 1 abort");
  ExpectRightProduct(rig);
  LoseTheWorker(rig, "Launch 1 lost");
  const pid_t pid = rig.device().worker_pid();
  SmallProduct refused(16, 8, 8);
  const std::string kernel(refused.JobFor(rig.device()).kernel->name);
  EXPECT_THAT(refused.Run(rig.device()).status,
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr(kernel), HasSubstr("for small products on cuda:0"))));
  SmallProduct large(128, 128, 64);
  EXPECT_THAT(large.Run(rig.device()).status, IsOk());
  EXPECT_EQ(rig.device().worker_pid(), pid);
  // The operator's restart clears it.
  const size_t readinesses = rig.readinesses().size();
  EXPECT_THAT(rig.device().RestartWorker(), IsOk());
  rig.AwaitReadinesses(readinesses + 2);
  ExpectRightProduct(rig);
  LoseTheWorker(rig, "Launch 1 exit");
  ExpectRightProduct(rig);
}

TEST(WorkerFailureTest, AKernelIsNotBlamedForWhatOthersDoToAWorker) {
  WorkerDeviceOptions options = QuickOptions();
  options.watchdog_min = kWatchdog;
  options.restarts.restarts = 100;
  WorkerRig rig(options);
  for (int i = 0; i < 2; ++i) {
    SCOPED_TRACE(i);
    LoseTheWorker(rig, "Launch 1 hang", [&] { kill(rig.device().worker_pid(), SIGKILL); });
    LoseTheWorker(rig, "Launch 1 hang", [&] { kill(rig.device().worker_pid(), SIGSTOP); });
  }
  ExpectRightProduct(rig);
  // A product ended by an operator counts as neither of the two losses.
  LoseTheWorker(rig, "Launch 1 hang", [&] { EXPECT_THAT(rig.device().RestartWorker(), IsOk()); });
  LoseTheWorker(rig, "Launch 1 abort");
  ExpectRightProduct(rig);
}

// Each takes two launches of at most 10 ms at the fake GPU's rates, and the second one's operands
// are copied between those of the first.
TEST(WorkerFailureTest, OfTwoProductsThatHadBegunNoneIsBlamed) {
  WorkerRig rig;
  for (int i = 0; i < 2; ++i) {
    SCOPED_TRACE(i);
    rig.AwaitReady();
    const pid_t pid = rig.device().worker_pid();
    SmallProduct one(480, 512, 24);
    SmallProduct two(480, 512, 24);
    kill(pid, SIGSTOP);
    rig.SetScript("CopyIn 2 abort");
    std::future<JobOutcome> first = one.Start(rig.device());
    std::future<JobOutcome> second = two.Start(rig.device());
    kill(pid, SIGCONT);
    for (std::future<JobOutcome>* outcome : {&first, &second}) {
      EXPECT_THAT(Awaited(std::move(*outcome), "a product").status,
                  StatusIs(absl::StatusCode::kAborted));
    }
  }
  rig.AwaitReady();
  SmallProduct next(480, 512, 24);
  EXPECT_THAT(next.Run(rig.device()).status, IsOk());
}

TEST(WorkerFailureTest, AFaultingKernelLosesTheGpu) {
  WorkerRig rig;
  const pid_t pid = rig.device().worker_pid();
  rig.SetScript("Launch 1 illegal_address");
  SmallProduct product(8, 8, 8);
  EXPECT_THAT(product.Run(rig.device()).status,
              StatusIs(absl::StatusCode::kAborted, HasSubstr("the fake GPU is lost")));
  ExpectRestarted(rig, pid);
}

}  // namespace
}  // namespace gemmd
