// SPDX-License-Identifier: Apache-2.0
//
// Host kernels in a separate process: they give the same bits as in this one, wherever the matrices
// are, and if the process dies, only the running launch is lost.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <future>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "kernels/cpu/host.h"
#include "kernels/host_rates.h"
#include "kernels/kernel.h"
#include "server/crossing/launcher.h"
#include "server/crossing/shared_memory.h"
#include "server/device/host_device.h"
#include "tests/kernels/product_case.h"
#include "tests/testing/patience.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr std::byte kOnes{0xff};

Target SimulatorTarget() { return {.kind = DeviceKind::kSim, .chip = mma::Chip::kSm90}; }

uint64_t CatalogOf(const std::string& device) {
  return CatalogFingerprint(device == "cpu" ? DeviceKind::kCpu : DeviceKind::kSim);
}

// A worker, and memory that it shares.
class ProcessRig {
 public:
  explicit ProcessRig(const std::string& device, const std::string& binary = GEMMD_HOST_WORKER,
                      uint64_t other_catalog = 0, absl::Duration watchdog_min = absl::Minutes(1))
      : memory_(SharedMemory::Create(int64_t{256} << 20).value()),
        launcher_({.program = {.binary = binary, .device = device},
                   .catalog = CatalogOf(device) ^ other_catalog,
                   .threads = 2,
                   .poisons_freed = true,
                   .watchdog_min = watchdog_min},
                  *memory_) {}

  ProcessLauncher& launcher() { return launcher_; }
  SharedMemory& memory() { return *memory_; }

  // Copies the bytes to shared memory, which lives as long as this object.
  std::byte* Shared(const std::vector<std::byte>& bytes) {
    std::byte* const memory = memory_->Take(static_cast<int64_t>(bytes.size()));
    std::copy(bytes.begin(), bytes.end(), memory);
    return memory;
  }

 private:
  std::unique_ptr<SharedMemory> memory_;
  ProcessLauncher launcher_;
};

// A product with memory for its D, whose bits are all ones.
struct Case {
  Case(const Kernel& row, const Target& of, Product given)
      : kernel(row), target(of), product(std::move(given)) {
    d.assign(static_cast<size_t>(BytesOf("d", product.problem.d, product.problem.batch)->least),
             kOnes);
    args = std::unique_ptr<GemmArgs>(new GemmArgs{.problem = product.problem,
                                                  .target = target,
                                                  .a = product.a.data(),
                                                  .b = product.b.data(),
                                                  .c = product.c.data(),
                                                  .bias = product.bias.data(),
                                                  .a_scale = product.a_scale,
                                                  .b_scale = product.b_scale,
                                                  .d = d.data(),
                                                  .workspace = {},
                                                  .a_factors = product.a_factors.data(),
                                                  .b_factors = product.b_factors.data()});
  }

  LaunchTask Task() const {
    const auto size = [](const auto& bytes) { return static_cast<int64_t>(bytes.size()); };
    constexpr auto kFloat = static_cast<int64_t>(sizeof(float));
    return {.kernel = kernel,
            .args = *args,
            .workspace_bytes = kernel.workspace_bytes(product.problem).value(),
            .bytes = {.a = size(product.a),
                      .b = size(product.b),
                      .c = size(product.c),
                      .bias = size(product.bias),
                      .a_scale = size(product.a_factors) + kFloat * size(product.a_scale),
                      .b_scale = size(product.b_factors) + kFloat * size(product.b_scale)},
            .d_bytes = size(d)};
  }

  const Kernel& kernel;
  const Target target;
  Product product;
  std::vector<std::byte> d;
  std::unique_ptr<GemmArgs> args;
};

std::vector<std::byte> LocalD(const Case& one) {
  Case here(one.kernel, one.target, one.product);
  LocalLauncher launcher(/*poisons_freed=*/true);
  EXPECT_THAT(launcher.Launch(here.Task()), IsOk());
  return here.d;
}

// Puts each matrix at random into memory of this process or into shared memory.
void ExpectTheSameBits(ProcessRig& rig, Case& one, RandomSource& random) {
  const auto place = [&](const std::byte*& matrix, const std::vector<std::byte>& bytes) {
    if (!bytes.empty() && random.Flip()) matrix = rig.Shared(bytes);
  };
  GemmArgs& args = *one.args;
  place(args.a, one.product.a);
  place(args.b, one.product.b);
  place(args.c, one.product.c);
  place(args.bias, one.product.bias);
  place(args.a_factors, one.product.a_factors);
  place(args.b_factors, one.product.b_factors);
  const bool is_d_shared = random.Flip();
  if (is_d_shared) args.d = rig.Shared(one.d);
  ASSERT_THAT(rig.launcher().Launch(one.Task()), IsOk());
  if (is_d_shared) std::copy_n(args.d, one.d.size(), one.d.begin());
  EXPECT_EQ(one.d, LocalD(one));
}

void ExpectTheSameBitsOfRows(const std::string& device, const Target& target, size_t step) {
  RandomSource random;
  ProcessRig rig(device);
  int count = 0;
  const absl::Span<const Kernel> rows = Catalog(target.kind);
  for (size_t i = random.Bits() % step; i < rows.size(); i += step) {
    const Kernel& row = rows[i];
    if (!row.available(target).ok()) continue;
    const Layouts layouts = {.c = kOrders[random.Bits() % 2],
                             .d = kOrders[random.Bits() % 2],
                             .padding = 8 * random.Between(0, 1),
                             .batch = random.Between(1, 2)};
    Problem problem = MakeProblem(row, random.Between(1, 40), random.Between(1, 40),
                                  random.Between(1, 40), layouts);
    if (!Validate(problem).ok() || !row.supports(problem).ok()) continue;
    SCOPED_TRACE(row.name);
    Case one(row, target, FillCase(problem, Pattern::kRandom, random));
    ExpectTheSameBits(rig, one, random);
    ++count;
  }
  EXPECT_GE(count, 10);
  EXPECT_EQ(rig.launcher().restarts(), 0);
}

TEST(ProcessLauncherTest, GivesTheBitsOfALocalLaunchOfLibraries) {
  ExpectTheSameBitsOfRows("cpu", HostTarget(), 1);
}

TEST(ProcessLauncherTest, GivesTheBitsOfALocalLaunchOfTheSimulator) {
  ExpectTheSameBitsOfRows("sim:sm_90", SimulatorTarget(), 7);
}

const Kernel& RowOf(DeviceKind kind, ElementType type) {
  const absl::Span<const Kernel> rows = Catalog(kind);
  return *std::find_if(rows.begin(), rows.end(), [&](const Kernel& row) {
    return row.a == type && row.b == type && row.recipe.block_scaling == BlockScaling::kNone &&
           (row.instruction == nullptr || !row.instruction->is_sparse()) &&
           row.available(kind == DeviceKind::kSim ? SimulatorTarget() : HostTarget()).ok();
  });
}

Case MakeCase(DeviceKind kind, ElementType type, int64_t edge, RandomSource& random) {
  const Kernel& row = RowOf(kind, type);
  const Problem problem = MakeProblem(row, edge, edge, edge, Layouts());
  return {row, kind == DeviceKind::kSim ? SimulatorTarget() : HostTarget(),
          FillCase(problem, Pattern::kRandom, random)};
}

TEST(ProcessLauncherTest, LargeMatricesGoThereAndBack) {
  RandomSource random;
  ProcessRig rig("cpu");
  for (int i = 0; i < 4; ++i) {
    Case one = MakeCase(DeviceKind::kCpu, ElementType::kF32, 500 + i, random);
    ExpectTheSameBits(rig, one, random);
  }
}

TEST(ProcessLauncherTest, MatricesForWhichThereIsNoRoomAreResourceExhausted) {
  RandomSource random;
  const auto memory = SharedMemory::Create(int64_t{64} << 10).value();
  ProcessLauncher launcher(
      {.program = {.binary = GEMMD_HOST_WORKER, .device = "cpu"}, .catalog = CatalogOf("cpu")},
      *memory);
  Case one = MakeCase(DeviceKind::kCpu, ElementType::kF32, 200, random);
  EXPECT_THAT(launcher.Launch(one.Task()),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("no memory for 480000")));
  EXPECT_EQ(std::count(one.d.begin(), one.d.end(), kOnes), std::ssize(one.d));
}

// The form that a launch derives from B exists for the next launch, wherever the form is.
TEST(ProcessLauncherTest, FormsAreMadeOnceAndRead) {
  RandomSource random;
  ProcessRig rig("cpu");
  int count = 0;
  for (const Kernel& row : Catalog(DeviceKind::kCpu)) {
    if (!row.available(HostTarget()).ok() || count == 6) continue;
    const Problem problem = MakeProblem(row, 24, 24, 64, {.b = Order::kColumnMajor});
    if (!Validate(problem).ok() || !row.supports(problem).ok()) continue;
    const absl::StatusOr<DerivedOperand> derived = row.derived(problem, mma::Operand::kB);
    if (!derived.ok() || derived->bytes == 0) continue;
    SCOPED_TRACE(row.name);
    ++count;
    Case one(row, HostTarget(), FillCase(problem, Pattern::kRamps, random));
    const std::vector<std::byte> want = LocalD(one);
    std::vector<std::byte> form(static_cast<size_t>(derived->bytes) + 64, kOnes);
    std::byte* const own = form.data() + (64 - reinterpret_cast<uintptr_t>(form.data()) % 64);
    const bool is_shared = random.Flip();
    one.args->b_form.bytes = is_shared ? rig.Shared(form) : own;
    LaunchTask task = one.Task();
    task.b_form_bytes = derived->bytes;
    ASSERT_THAT(rig.launcher().Launch(task), IsOk());
    EXPECT_EQ(one.d, want);
    // From now on B itself is not read.
    one.args->b_form.is_made = true;
    std::fill(one.product.b.begin(), one.product.b.end(), std::byte{0});
    std::fill(one.d.begin(), one.d.end(), kOnes);
    ASSERT_THAT(rig.launcher().Launch(task), IsOk());
    EXPECT_EQ(one.d, want);
  }
  EXPECT_EQ(count, 6);
}

// The processor time that a process has used, in ticks.
int64_t TicksOf(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  std::string word;
  for (int i = 0; i < 13; ++i) file >> word;
  int64_t user = 0;
  int64_t system = 0;
  file >> user >> system;
  return user + system;
}

// A product that takes seconds, in progress on the simulator.
class LongLaunch {
 public:
  explicit LongLaunch(ProcessRig& rig)
      : case_(MakeCase(DeviceKind::kSim, ElementType::kF16, 2048, random_)) {
    EXPECT_THAT(rig.launcher().Start(), IsOk());
    rig.launcher().SetAborted(false);
    const pid_t worker = rig.launcher().pid();
    const int64_t before = TicksOf(worker);
    status_ = std::async(std::launch::async,
                         [this, &rig] { return rig.launcher().Launch(case_.Task()); });
    constexpr int64_t kTicks = 10;
    EXPECT_TRUE(Eventually([&] { return TicksOf(worker) >= before + kTicks; }));
  }

  absl::Status Await() { return Awaited(std::move(status_), "the end of a launch"); }

 private:
  RandomSource random_;
  Case case_;
  std::future<absl::Status> status_;
};

void ExpectRightProduct(ProcessRig& rig) {
  RandomSource random;
  Case one = MakeCase(DeviceKind::kSim, ElementType::kF16, 30, random);
  ExpectTheSameBits(rig, one, random);
}

TEST(ProcessLauncherTest, TheWorkerMeasures) {
  ProcessRig rig("sim:sm_90");
  const std::vector<double> numbers = rig.launcher().Measure().value();
  const DeviceProfile profile = ProfileOf(SimulatorTarget(), numbers).value();
  EXPECT_FALSE(profile.rates.empty());
  EXPECT_EQ(profile.host->threads, 2);
  ExpectRightProduct(rig);
  kill(rig.launcher().pid(), SIGSTOP);
  EXPECT_THAT(rig.launcher().Measure(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("no rates: it was stopped")));
  EXPECT_THAT(rig.launcher().Measure(), IsOk());
}

TEST(ProcessLauncherTest, AWorkerThatIsLostCostsTheLaunchThatRuns) {
  struct Loss {
    int signal;
    std::string how;
    bool is_own_death;
  };
  ProcessRig rig("sim:sm_90");
  int64_t restarts = 0;
  for (const Loss& loss :
       {Loss{SIGILL, "signal 4", true}, Loss{SIGSEGV, "signal 11", true},
        Loss{SIGKILL, "signal 9", false}, Loss{SIGSTOP, "it was stopped", false}}) {
    SCOPED_TRACE(loss.how);
    LongLaunch launch(rig);
    const pid_t lost = rig.launcher().pid();
    kill(lost, loss.signal);
    EXPECT_THAT(launch.Await(),
                StatusIs(absl::StatusCode::kAborted,
                         AllOf(HasSubstr("device: sim:sm_90 was lost while the product ran"),
                               HasSubstr(loss.how))));
    EXPECT_EQ(rig.launcher().died_of_launch(), loss.is_own_death);
    ExpectRightProduct(rig);
    EXPECT_FALSE(rig.launcher().died_of_launch());
    EXPECT_NE(rig.launcher().pid(), lost);
    EXPECT_EQ(rig.launcher().restarts(), ++restarts);
  }
}

TEST(ProcessLauncherTest, AWorkerThatGivesNoAnswerInTimeDiedOfTheLaunch) {
  ProcessRig rig("sim:sm_90", GEMMD_HOST_WORKER, 0, absl::Milliseconds(200));
  RandomSource random;
  // It takes seconds. If the worker is slow to begin it, that does not count.
  Case one = MakeCase(DeviceKind::kSim, ElementType::kF16, 2048, random);
  absl::Status status;
  do {
    status = rig.launcher().Launch(one.Task());
    EXPECT_EQ(rig.launcher().died_of_launch(), absl::IsAborted(status));
  } while (absl::IsUnavailable(status));
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kAborted, HasSubstr("no answer within")));
}

TEST(ProcessLauncherTest, AWorkerThatIsLostBetweenLaunchesCostsNone) {
  ProcessRig rig("sim:sm_90");
  ExpectRightProduct(rig);
  for (const int signal : {SIGILL, SIGKILL, SIGSTOP}) {
    kill(rig.launcher().pid(), signal);
    ExpectRightProduct(rig);
  }
  EXPECT_EQ(rig.launcher().restarts(), 3);
  ASSERT_THAT(rig.launcher().Restart(), IsOk());
  ExpectRightProduct(rig);
  EXPECT_EQ(rig.launcher().restarts(), 4);
}

TEST(ProcessLauncherTest, AnAbortEndsTheLaunchAndKeepsTheWorker) {
  ProcessRig rig("sim:sm_90");
  LongLaunch launch(rig);
  const pid_t worker = rig.launcher().pid();
  rig.launcher().SetAborted(true);
  EXPECT_THAT(launch.Await(), StatusIs(absl::StatusCode::kCancelled));
  rig.launcher().SetAborted(false);
  ExpectRightProduct(rig);
  EXPECT_EQ(rig.launcher().pid(), worker);
}

TEST(ProcessLauncherTest, AnAbortHoldsForTheNextWorker) {
  ProcessRig rig("sim:sm_90");
  ExpectRightProduct(rig);
  rig.launcher().SetAborted(true);
  kill(rig.launcher().pid(), SIGKILL);
  RandomSource random;
  Case one = MakeCase(DeviceKind::kSim, ElementType::kF16, 2048, random);
  EXPECT_THAT(rig.launcher().Launch(one.Task()), StatusIs(absl::StatusCode::kCancelled));
  EXPECT_EQ(rig.launcher().restarts(), 1);
}

TEST(ProcessLauncherTest, SaysWhyThereIsNoWorker) {
  ProcessRig nothing("cpu", "/nowhere/gemmd-host-worker");
  EXPECT_THAT(nothing.launcher().Start(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("/nowhere/gemmd-host")));
  // As after an upgrade while the daemon runs: the numbers of kernels have another meaning.
  ProcessRig other("cpu", GEMMD_HOST_WORKER, /*other_catalog=*/1);
  EXPECT_THAT(other.launcher().Start(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("with other kernels")));
  ProcessRig unknown("tpu:0");
  EXPECT_THAT(unknown.launcher().Start(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("exit code 2")));
}

}  // namespace
}  // namespace gemmd
