// SPDX-License-Identifier: Apache-2.0
//
// A device with a worker that works: description, products, limits, shutdown.
#include "server/device/worker_device.h"

#include <dirent.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>

#include <cerrno>
#include <fstream>

#include "kernels/kernel.h"
#include "server/crossing/protocol.h"
#include "server/system/clock.h"
#include "tests/server/device/shared_host.h"
#include "tests/server/worker/small_product.h"
#include "tests/server/worker/worker_rig.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using testing::AllOf;
using testing::HasSubstr;

size_t OpenFiles() {
  DIR* folder = opendir("/proc/self/fd");
  size_t count = 0;
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

TEST(WorkerDeviceTest, DescribesItsGpu) {
  WorkerRig rig;
  ASSERT_THAT(rig.device().readiness(), IsOk());
  const DeviceInfo& info = rig.device().info();
  EXPECT_EQ(info.name, "cuda:0");
  EXPECT_EQ(info.kind, DeviceKind::kCuda);
  EXPECT_EQ(info.description, "fake GPU");
  EXPECT_EQ(info.chip, "sm_90");
  EXPECT_EQ(info.multiprocessors, 7);
  EXPECT_EQ(info.memory_bytes, int64_t{128} << 20);
  EXPECT_EQ(info.memory_limit_bytes, (int64_t{64} << 20) / 10 * 9);
  EXPECT_EQ(info.clock_khz, 1980000);
  EXPECT_EQ(info.memory_clock_khz, 3201000);
  EXPECT_EQ(info.driver, "13.1");
  EXPECT_EQ(info.runtime, "12.8");
  EXPECT_EQ(info.pci_bus_id, "0000:0a:00.0");
  const DeviceProfile& profile = rig.device().profile();
  EXPECT_EQ(profile.target.chip, mma::Chip::kSm90);
  EXPECT_EQ(profile.target.multiprocessors, 7);
  EXPECT_EQ(profile.kernel_rates.size(), Catalog(DeviceKind::kCuda).size());
  EXPECT_EQ(profile.copied_bytes_per_second, 5e9);
  ASSERT_FALSE(profile.rates.empty());
  EXPECT_EQ(profile.rates.front().engine, Catalog(DeviceKind::kCuda).front().engine);
}

TEST(WorkerDeviceTest, TellsItsConditionWhileItRuns) {
  WorkerDeviceOptions options = QuickOptions();
  options.staging_bytes = int64_t{1} << 20;
  options.watchdog_min = absl::Seconds(3);
  WorkerRig rig(options);
  EXPECT_EQ(rig.device().condition().worker_restarts, 0);
  EXPECT_EQ(rig.device().condition().canaries_passed, 1);
  EXPECT_EQ(rig.device().condition().canaries_failed, 0);
  EXPECT_EQ(rig.device().condition().staging_bytes, options.staging_bytes);
  EXPECT_EQ(rig.device().condition().staging_used_bytes, 0);
  rig.SetScript("Launch 1 hang");
  SmallProduct product(16, 16, 16);
  std::future<JobOutcome> outcome = product.Start(rig.device());
  EXPECT_GE(rig.device().condition().staging_used_bytes, 16 * 16 * (2 + 2 + 2));
  EXPECT_FALSE(outcome.get().status.ok());
}

TEST(WorkerDeviceTest, MultipliesAndTellsTheTimes) {
  WorkerRig rig;
  SmallProduct product(33, 65, 130);
  ExpectRightWhereverItGoes(rig, product);
}

// The second of two jobs waits while the worker is stopped during the first.
TEST(WorkerDeviceTest, TellsHowLongAJobWaitedForAnother) {
  constexpr int64_t kStoppedNs = 20'000'000;
  const SteadyClock clock;
  WorkerRig rig;
  kill(rig.device().worker_pid(), SIGSTOP);
  SmallProduct first(8, 8, 8);
  SmallProduct second(8, 8, 8);
  const int64_t start_ns = clock.NowNs();
  std::future<JobOutcome> first_outcome = first.Start(rig.device());
  std::future<JobOutcome> second_outcome = second.Start(rig.device());
  const int64_t until_ns = clock.NowNs() + kStoppedNs;
  while (clock.NowNs() < until_ns) sched_yield();
  kill(rig.device().worker_pid(), SIGCONT);
  const JobOutcome waited = second_outcome.get();
  const int64_t took_ns = clock.NowNs() - start_ns;
  EXPECT_THAT(first_outcome.get().status, IsOk());
  EXPECT_THAT(waited.status, IsOk());
  EXPECT_GE(waited.wait_ns, kStoppedNs);
  EXPECT_LE(waited.wait_ns + waited.copy_in_ns + waited.compute_ns + waited.copy_out_ns, took_ns);
}

// The submitting thread copies one of them, and another thread the other.
TEST(WorkerDeviceTest, ManyAtOnceComeInOrder) {
  WorkerRig rig;
  std::vector<std::unique_ptr<SmallProduct>> products;
  std::vector<std::future<JobOutcome>> outcomes;
  for (int i = 0; i < 12; ++i) {
    const int64_t k = i % 2 == 0 ? 20 : 1000;
    products.push_back(std::make_unique<SmallProduct>(16 + i, 24, k));
    outcomes.push_back(products.back()->Start(rig.device()));
  }
  for (size_t i = 0; i < products.size(); ++i) {
    EXPECT_THAT(outcomes[i].get().status, IsOk());
    EXPECT_TRUE(products[i]->IsRight()) << i;
  }
}

// Everything that a job can contain, compared with the simulator on the host.
TEST(WorkerDeviceTest, PassesOnEveryOperand) {
  WorkerRig rig;
  LocalDevice& sim = SharedSimulator();
  Job job;
  Problem& problem = job.problem;
  problem.m = 5;
  problem.n = 7;
  problem.k = 33;
  problem.batch = 3;
  problem.a = TightLayout("a", ElementType::kE4m3, Order::kRowMajor, 5, 33).value();
  problem.b = TightLayout("b", ElementType::kE5m2, Order::kColumnMajor, 33, 7).value();
  problem.b.batch_stride_bytes = 0;
  problem.c = TightLayout("c", ElementType::kF16, Order::kColumnMajor, 5, 7).value();
  problem.d = TightLayout("d", ElementType::kBf16, Order::kRowMajor, 5, 7).value();
  problem.d.leading_dimension = 9;  // With gaps.
  problem.d.batch_stride_bytes = 100;
  problem.alpha = 0.75;
  problem.beta = -2;
  problem.bias_axis = BiasAxis::kRows;
  problem.bias_type = ElementType::kF32;
  problem.a_scale = ScaleKind::kVector;
  problem.b_scale = ScaleKind::kTensor;
  problem.activation = Activation::kRelu;
  ASSERT_THAT(Validate(problem), IsOk());
  std::vector<std::byte> bytes(5000);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 37 % 120);
  const std::vector<float> bias = {1, -2, 30, 4, 500};
  const std::vector<float> a_scale = {0.5, 1, 2, 3, 4};
  const float b_scale = 0.25;
  const auto part = [&](size_t at, const MatrixLayout& layout) {
    return absl::MakeConstSpan(bytes).subspan(
        at, static_cast<size_t>(BytesOf("", layout, problem.batch)->least));
  };
  SourcePieces pieces;
  job.a = pieces.Add({part(0, problem.a).first(100), part(0, problem.a).subspan(100)});
  job.b = pieces.Add(part(1000, problem.b));
  job.c = pieces.Add(part(2000, problem.c));
  job.bias = pieces.Add(PieceOf(bias));
  job.a_scale = pieces.Add(PieceOf(a_scale));
  job.b_scale = pieces.Add(PieceOf(absl::MakeConstSpan(&b_scale, 1)));
  job.d_bytes = BytesWritten(problem);
  HeldBytes got;
  HeldBytes want;
  Constraints constraints;  // The simulator uses the instruction of the worker's row.
  for (auto& [device, d] : {std::pair<Device*, HeldBytes*>(&rig.device(), &got), {&sim, &want}}) {
    job.kernel =
        Choose(Catalog(device->info().kind), problem, constraints, device->profile()).value();
    constraints.kernel = job.kernel;
    job.workspace_bytes = job.kernel->workspace_bytes(problem).value();
    std::promise<JobOutcome> outcome;
    device->Submit(job, [&](JobOutcome result) { outcome.set_value(std::move(result)); });
    JobOutcome ended = outcome.get_future().get();
    ASSERT_THAT(ended.status, IsOk());
    *d = std::move(ended.d);
  }
  EXPECT_EQ(std::ssize(got.bytes()), job.d_bytes);
  EXPECT_EQ(got.bytes(), want.bytes());
}

// For a job that the submitting thread hands over, and for one that waits for the device's thread.
TEST(WorkerDeviceTest, RefusesIndicesThatDoNotIncrease) {
  WorkerRig rig;
  for (const int64_t extent : {16, 400}) {
    SmallProduct product(extent, extent, extent);
    SmallProduct next(extent, extent, extent);
    Job job = product.JobFor(rig.device());
    // Two indices of 0 are invalid; they are the zeros among the integers.
    job.problem.a = TightSparseLayout("a", ElementType::kF16, extent, extent).value();
    SourcePieces pieces;
    const int64_t sparse_bytes = BytesOf("a", job.problem.a, 1)->least;
    job.a = pieces.Add(job.a.pieces[0].first(static_cast<size_t>(sparse_bytes)));
    std::promise<JobOutcome> outcome;
    rig.device().Submit(job, [&](JobOutcome result) { outcome.set_value(std::move(result)); });
    std::future<JobOutcome> after = next.Start(rig.device());
    EXPECT_THAT(Awaited(outcome.get_future(), "the outcome of a job").status,
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("want increasing")));
    EXPECT_THAT(Awaited(std::move(after), "the outcome of a job").status, IsOk());
    EXPECT_TRUE(next.IsRight());
  }
}

TEST(WorkerDeviceTest, EmptyProductsAndProductsOfNothing) {
  WorkerRig rig;
  for (const auto& [m, n, k] : {std::tuple(0, 5, 5), {5, 0, 5}, {3, 4, 0}, {0, 0, 0}}) {
    SmallProduct product(m, n, k);
    ASSERT_THAT(product.Run(rig.device()).status, IsOk());
    EXPECT_TRUE(product.IsRight());
  }
}

TEST(WorkerDeviceTest, OutOfMemoryIsResourceExhaustedAndTheWorkerLives) {
  WorkerRig rig;
  const pid_t pid = rig.device().worker_pid();
  rig.SetScript("Allocate 1 memory\nAllocate 2 memory");
  SmallProduct large(700, 800, 16);  // Larger than the slab that the canary left.
  EXPECT_THAT(large.Run(rig.device()).status,
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("scripted: memory")));
  SmallProduct small(70, 80, 16);
  EXPECT_THAT(small.Run(rig.device()).status, IsOk());
  EXPECT_TRUE(small.IsRight());
  EXPECT_EQ(rig.device().worker_pid(), pid);
}

TEST(WorkerDeviceTest, FinishesItsJobsBeforeItGoes) {
  std::vector<std::unique_ptr<SmallProduct>> products;
  std::vector<std::future<JobOutcome>> outcomes;
  {
    WorkerRig rig;
    for (int i = 0; i < 10; ++i) {
      products.push_back(std::make_unique<SmallProduct>(100, 100, 100));
      outcomes.push_back(products.back()->Start(rig.device()));
    }
  }
  for (size_t i = 0; i < products.size(); ++i) {
    EXPECT_THAT(outcomes[i].get().status, IsOk());
    EXPECT_TRUE(products[i]->IsRight());
  }
}

TEST(WorkerDeviceTest, LeavesNoProcessAndNoFileBehind) {
  const size_t before = OpenFiles();
  {
    WorkerRig rig;
    SmallProduct product(8, 8, 8);
    EXPECT_THAT(product.Run(rig.device()).status, IsOk());
    EXPECT_GT(OpenFiles(), before);
  }
  EXPECT_EQ(OpenFiles(), before);
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
  EXPECT_EQ(errno, ECHILD);
}

TEST(WorkerDeviceTest, TellsTheMemoryThatItsWorkerHasForItself) {
  WorkerRig rig;
  EXPECT_GT(rig.device().worker_memory_bytes(), 100'000);
  EXPECT_LT(rig.device().worker_memory_bytes(), 1'000'000'000);
}

// Only the files that it was given, whatever files the daemon has open.
TEST(WorkerDeviceTest, TheWorkerInheritsNoOtherFile) {
  const FileDescriptor not_closed_on_exec(dup(0));
  WorkerRig rig;
  const std::string files = "/proc/" + std::to_string(rig.device().worker_pid()) + "/fd";
  DIR* folder = opendir(files.c_str());
  ASSERT_NE(folder, nullptr);
  while (const dirent* entry = readdir(folder)) {
    EXPECT_LE(std::atoi(entry->d_name), kLastWorkerFile);
  }
  closedir(folder);
}

// The worker ignores signals that service managers and terminals send to all processes of a
// service.
TEST(WorkerDeviceTest, TheWorkerIsEndedByItsFrontAlone) {
  WorkerRig rig;
  const pid_t pid = rig.device().worker_pid();
  kill(pid, SIGTERM);
  kill(pid, SIGINT);
  SmallProduct product(8, 8, 8);
  EXPECT_THAT(product.Run(rig.device()).status, IsOk());
  EXPECT_EQ(rig.device().worker_pid(), pid);
}

}  // namespace
}  // namespace gemmd
