// SPDX-License-Identifier: Apache-2.0
//
// The CPU device, the scripted device and the canary.
#include "server/device/device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstring>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cpu/host.h"
#include "kernels/kernel.h"
#include "server/device/operands.h"
#include "server/system/clock.h"
#include "tests/server/device/local_device.h"
#include "tests/server/device/scripted_device.h"
#include "tests/server/device/shared_host.h"
#include "tests/testing/patience.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_kernel.h"
#include "tests/testing/units.h"

namespace gemmd {
namespace {

using ::testing::Each;
using ::testing::Field;
using ::testing::Gt;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

JobOutcome RunOn(Device& device, const Job& job) {
  std::promise<JobOutcome> outcome;
  device.Submit(job, [&](JobOutcome result) { outcome.set_value(std::move(result)); });
  return outcome.get_future().get();
}

Problem ProblemOf(int64_t m, int64_t n, int64_t k) {
  Problem problem;
  problem.m = m;
  problem.n = n;
  problem.k = k;
  problem.d = TightLayout("d", ElementType::kF32, Order::kRowMajor, m, n).value();
  return problem;
}

TEST(DeviceTrustTest, AKernelOfWhichTwoWorkersDiedIsRefusedForItsClass) {
  const Kernel& kernel = Catalog(DeviceKind::kCpu)[0];
  const Kernel& other = Catalog(DeviceKind::kCpu)[1];
  const Problem small = ProblemOf(8, 8, 8);
  const Problem large = ProblemOf(400, 400, 400);
  DeviceTrust trust;
  EXPECT_FALSE(trust.AddLoss(kernel, large));
  EXPECT_FALSE(trust.AddLoss(kernel, small));
  EXPECT_FALSE(trust.AddLoss(other, large));
  EXPECT_THAT(trust.distrusted(large, "cpu"), IsEmpty());
  EXPECT_TRUE(trust.AddLoss(kernel, ProblemOf(500, 500, 500)));
  EXPECT_FALSE(trust.AddLoss(kernel, large)) << "it is refused already";
  EXPECT_THAT(trust.CheckLosses(kernel, large, "cpu"),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       testing::AllOf(HasSubstr(std::string(kernel.name)),
                                      HasSubstr("refused for large products on cpu"),
                                      HasSubstr("`gemmctl restart-device cpu` clears this"))));
  EXPECT_THAT(trust.CheckLosses(kernel, small, "cpu"), IsOk());
  EXPECT_THAT(trust.CheckLosses(other, large, "cpu"), IsOk());
  EXPECT_THAT(trust.distrusted(small, "cpu"), IsEmpty());
  const std::vector<DistrustedKernel> distrusted = trust.distrusted(large, "cpu");
  ASSERT_EQ(distrusted.size(), 1u);
  EXPECT_EQ(distrusted[0].kernel, &kernel);
  EXPECT_THAT(distrusted[0].why, StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(trust.status(), IsOk()) << "the device serves";
  trust.AddWrongAnswer(other);
  trust.ForgetLosses();
  EXPECT_THAT(trust.CheckLosses(kernel, large, "cpu"), IsOk());
  EXPECT_EQ(trust.distrusted(large, "cpu").size(), 1u) << "a wrong answer is not forgotten";
  EXPECT_FALSE(trust.AddLoss(kernel, large));
}

TEST(LocalDeviceTest, KnowsItselfAndItsRates) {
  LocalDevice& device = SharedHost();
  EXPECT_EQ(device.info().name, "cpu");
  EXPECT_EQ(device.info().threads, 1);
  EXPECT_GT(device.info().memory_bytes, 0);
  EXPECT_NE(device.info().description, "");
  EXPECT_THAT(device.profile().rates, Not(IsEmpty()));
  EXPECT_THAT(device.profile().rates, Each(Field(&EngineRate::operations_per_second, Gt(0))));
}

TEST(LocalDeviceTest, RunsAJobAndTimesIt) {
  LocalDevice& device = SharedHost();
  std::string d = "left over from before";
  const JobOutcome outcome = RunOn(device, TestJob(&d));
  EXPECT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_EQ(d, "\xff\xff\xff\xff");
  EXPECT_GE(outcome.copy_in_ns, 0);
  EXPECT_GE(outcome.compute_ns, 0);
  EXPECT_EQ(outcome.copy_out_ns, 0);
}

TEST(LocalDeviceTest, RefusesIndicesThatDoNotIncrease) {
  LocalDevice& device = SharedHost();
  std::string d;
  Job job = TestJob(&d);
  job.problem.a = TightSparseLayout("a", ElementType::kF16, 4, 6).value();
  std::string a(4 * 8 + 4, '\x44');
  SourcePieces pieces;
  job.a = pieces.Add(PieceOf(a));
  EXPECT_TRUE(RunOn(device, job).status.ok());
  a.back() = 0x40;
  EXPECT_EQ(
      RunOn(device, job).status,
      absl::InvalidArgumentError("a.data: row 3, group 0: got indices 0, 0, want increasing"));
}

// Pieces of odd lengths at odd addresses, as from a network; some are long.
TEST(CopyPiecesTest, PutsPiecesTogetherAndLetsGoOfEachOnce) {
  class Keeper final : public PieceKeeper {
   public:
    explicit Keeper(size_t count) : let_go_(count) {}
    void Release(size_t first, size_t count) override {
      for (size_t i = first; i < first + count; ++i) ++let_go_[i];
    }
    int times(size_t i) const { return let_go_[i]; }

   private:
    std::vector<std::atomic<int>> let_go_;
  };
  std::vector<std::byte> bytes(size_t{50} << 20);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7 + i / 65537);
  for (const size_t longest : {size_t{100}, size_t{70'000}, size_t{30} << 20}) {
    const size_t whole = longest == 100 ? 10'000 : bytes.size() - 3;
    PieceList list;
    for (size_t at = 3, i = 1; at < 3 + whole; ++i) {
      const size_t size = std::min(1 + i * 999'983 % longest, 3 + whole - at);
      list.push_back(absl::MakeConstSpan(bytes).subspan(at, size));
      at += size;
    }
    for (const int threads : {1, 4}) {
      Keeper keeper(list.size());
      SourcePieces pieces;
      const Source source = pieces.Add(list, &keeper);
      EXPECT_EQ(source.bytes, static_cast<int64_t>(whole));
      std::vector<std::byte> copy(whole + 1, std::byte{9});
      EXPECT_TRUE(CopyPieces(source, copy.data(), threads, [] { return false; }));
      EXPECT_TRUE(std::equal(copy.begin(), copy.end() - 1, bytes.begin() + 3));
      EXPECT_EQ(copy.back(), std::byte{9});
      for (size_t i = 0; i < list.size(); ++i) {
        // Several threads may copy parts of a long piece, so it is not released early.
        ASSERT_EQ(keeper.times(i), list[i].size() <= (size_t{4} << 20) ? 1 : 0) << i;
      }
      EXPECT_FALSE(CopyPieces(source, copy.data(), threads, [] { return true; }));
    }
  }
}

TEST(LocalDeviceTest, TakesOperandsInPieces) {
  LocalDevice& device = SharedHost();
  const std::vector<float> a = {1, 2, 3, 4};
  const std::vector<float> b = {5, 6, 7, 8};
  std::string d(16, '\0');
  Job job = TestJob(&d);
  Problem& problem = job.problem;
  problem.m = problem.n = problem.k = 2;
  problem.a = problem.b = problem.d = *TightLayout("a", ElementType::kF32, Order::kRowMajor, 2, 2);
  job.kernel = Choose(Catalog(DeviceKind::kCpu), problem, {}, device.profile()).value();
  job.workspace_bytes = job.kernel->workspace_bytes(problem).value();
  job.d_bytes = 16;
  job.d.memory = nullptr;
  SourcePieces pieces;
  job.a = pieces.Add({PieceOf(a).first(5), PieceOf(a).subspan(5)});
  job.b = pieces.Add(PieceOf(b));
  const JobOutcome outcome = RunOn(device, job);
  ASSERT_THAT(outcome.status, IsOk());
  EXPECT_EQ(Piece(outcome.d.bytes()), PieceOf(std::vector<float>{19, 22, 43, 50}));
}

// The kernel does not write gaps, and the memory belonged to another product before.
TEST(LocalDeviceTest, GapsOfAResultAreZero) {
  LocalDevice& device = SharedHost();
  const std::vector<float> ones(2048 * 2048, 1);
  SourcePieces pieces;
  std::string unused;
  Job job = TestJob(&unused);
  Problem& problem = job.problem;
  problem.m = problem.n = 2048;
  problem.a = *TightLayout("a", ElementType::kF32, Order::kRowMajor, 2048, 1);
  problem.b = *TightLayout("b", ElementType::kF32, Order::kRowMajor, 1, 2048);
  problem.d = *TightLayout("d", ElementType::kF32, Order::kRowMajor, 2048, 2048);
  job.kernel = Choose(Catalog(DeviceKind::kCpu), problem, {}, device.profile()).value();
  job.workspace_bytes = job.kernel->workspace_bytes(problem).value();
  job.d.memory = nullptr;
  job.a = pieces.Add(PieceOf(ones).first(4 * 2048));
  job.b = pieces.Add(PieceOf(ones).first(4 * 2048));
  for (const int64_t leading_dimension : {2048, 2050}) {
    problem.d.leading_dimension = leading_dimension;
    problem.d.batch_stride_bytes = 4 * 2048 * leading_dimension;
    job.d_bytes = BytesWritten(problem);
    const JobOutcome outcome = RunOn(device, job);
    ASSERT_THAT(outcome.status, IsOk());
    const auto* const d = reinterpret_cast<const float*>(outcome.d.bytes().data());
    for (int64_t i = 0; i < job.d_bytes / 4; ++i) {
      ASSERT_EQ(d[i], i % leading_dimension < 2048 ? 1 : 0) << i;
    }
  }
}

// A kernel that takes as long as the test says: each launch ends when the device's clock reaches
// that time.
class SlowKernel {
 public:
  SlowKernel() {
    family_.launch = [](const Kernel&, const GemmArgs& args) {
      const SteadyClock clock;
      const int64_t until_ns = clock.NowNs() + kTakesNs;
      while (clock.NowNs() < until_ns) {
      }
      std::memset(args.d, 0xff, static_cast<size_t>(BytesWritten(args.problem)));
      return absl::OkStatus();
    };
    kernel_.family = &family_;
  }
  static constexpr int64_t kTakesNs = 20'000'000;

  Job JobInto(std::string* d) const {
    Job job = TestJob(d);
    job.kernel = &kernel_;
    return job;
  }

 private:
  KernelFamily family_ = *TestKernel().family;
  Kernel kernel_ = TestKernel();
};

// The second of two jobs waits while the first is computed.
TEST(LocalDeviceTest, TimesTheWaitAndTheComputingApart) {
  const SteadyClock clock;
  const SlowKernel slow;
  LocalDevice& device = SharedHost();
  std::array<std::string, 2> d;
  std::array<std::promise<JobOutcome>, 2> ends;
  const int64_t start_ns = clock.NowNs();
  for (size_t i = 0; i < 2; ++i) {
    device.Submit(slow.JobInto(&d[i]),
                  [&, i](JobOutcome outcome) { ends[i].set_value(std::move(outcome)); });
  }
  const int64_t submitted_ns = clock.NowNs();
  const JobOutcome first = ends[0].get_future().get();
  const JobOutcome second = ends[1].get_future().get();
  const int64_t took_ns = clock.NowNs() - start_ns;
  for (const JobOutcome* const outcome : {&first, &second}) {
    EXPECT_GE(outcome->compute_ns, SlowKernel::kTakesNs);
    EXPECT_GE(outcome->wait_ns, 0);
    EXPECT_GE(outcome->copy_in_ns, 0);
    EXPECT_LE(outcome->wait_ns + outcome->copy_in_ns + outcome->compute_ns, took_ns);
  }
  // The second was submitted after the first, whose computation started no earlier than its
  // submission.
  EXPECT_GE(second.wait_ns, SlowKernel::kTakesNs - (submitted_ns - start_ns));
  EXPECT_LE(first.compute_ns + second.compute_ns, took_ns);
}

TEST(LocalDeviceTest, GivesKernelsAlignedWorkspaceOfTheSizeAskedFor) {
  static int64_t seen_bytes;
  static uintptr_t seen_address;
  Kernel kernel = TestKernel();
  KernelFamily family = *kernel.family;
  kernel.family = &family;
  family.launch = [](const Kernel&, const GemmArgs& args) {
    seen_bytes = static_cast<int64_t>(args.workspace.size());
    seen_address = reinterpret_cast<uintptr_t>(args.workspace.data());
    args.workspace.front() = args.workspace.back() = std::byte{1};
    return absl::OkStatus();
  };
  LocalDevice& device = SharedHost();
  std::string d;
  Job job = TestJob(&d);
  job.kernel = &kernel;
  for (const int64_t bytes : {int64_t{1}, int64_t{100}, int64_t{65} << 20, int64_t{7}}) {
    job.workspace_bytes = bytes;
    ASSERT_TRUE(RunOn(device, job).status.ok());
    EXPECT_GE(seen_bytes, bytes);
    EXPECT_EQ(seen_address % 64, 0u);
  }
}

TEST(LocalDeviceTest, WithoutMemoryIsResourceExhausted) {
  LocalDevice& device = SharedHost();
  std::string d;
  Job job = TestJob(&d);
  job.workspace_bytes = int64_t{1} << 60;
  EXPECT_EQ(RunOn(device, job).status.code(), absl::StatusCode::kResourceExhausted);
  job.workspace_bytes = 0;
  EXPECT_TRUE(RunOn(device, job).status.ok());
}

TEST(LocalDeviceTest, PassesOnTheKernelsStatus) {
  Kernel kernel = TestKernel();
  KernelFamily family = *kernel.family;
  kernel.family = &family;
  family.launch = [](const Kernel&, const GemmArgs&) {
    return absl::InternalError("the library failed");
  };
  LocalDevice& device = SharedHost();
  std::string d;
  Job job = TestJob(&d);
  job.kernel = &kernel;
  EXPECT_EQ(RunOn(device, job).status, absl::InternalError("the library failed"));
}

TEST(LocalDeviceTest, FinishesItsJobsInOrderBeforeItGoes) {
  std::vector<int> ended;
  std::vector<std::string> outputs(20);
  {
    LocalDevice device(HostTarget(), 1);
    for (int i = 0; i < 20; ++i) {
      device.Submit(TestJob(&outputs[static_cast<size_t>(i)]),
                    [&ended, i](JobOutcome) { ended.push_back(i); });
    }
  }
  ASSERT_EQ(ended.size(), 20u);
  EXPECT_TRUE(std::is_sorted(ended.begin(), ended.end()));
}

TEST(CanaryTest, IsRightOnTheCpuDevice) {
  LocalDevice& device = SharedHost();
  EXPECT_EQ(RunCanary(device, kPatience), absl::OkStatus());
}

TEST(CanaryTest, FindsASingleWrongBit) {
  ScriptedDevice corrupting(SharedHost());
  corrupting.on_submit = [](const Job&, Device::Done& done) {
    done = [done = std::move(done)](JobOutcome outcome) mutable {
      outcome.d.bytes().back() ^= std::byte{1};
      std::move(done)(std::move(outcome));
    };
  };
  const absl::Status status = RunCanary(corrupting, kPatience);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("gave a wrong product"));
}

TEST(CanaryTest, GivesUpOnASilentDevice) {
  ScriptedDevice device("silent", {.target = HostTarget(), .rates = {}});
  EXPECT_EQ(RunCanary(device, absl::Milliseconds(20)).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(device.held(), 1);
}

TEST(CanaryTest, PassesOnTheDevicesOwnFailure) {
  ScriptedDevice device("broken", {.target = HostTarget(), .rates = {}});
  std::thread breaker([&] {
    ASSERT_TRUE(device.WaitForHeld(1, kPatience));
    device.CompleteNext(absl::InternalError("on fire"));
  });
  EXPECT_EQ(RunCanary(device, kPatience), absl::InternalError("on fire"));
  breaker.join();
}

TEST(ScriptedDeviceTest, RunsJobsWhenToldTo) {
  ScriptedDevice device("fake", {});
  device.RunJobs(true);
  std::string d;
  EXPECT_TRUE(RunOn(device, TestJob(&d)).status.ok());
  EXPECT_EQ(d, "\xff\xff\xff\xff");
  EXPECT_EQ(device.submitted(), 1);
  EXPECT_EQ(device.held(), 0);
}

}  // namespace
}  // namespace gemmd
