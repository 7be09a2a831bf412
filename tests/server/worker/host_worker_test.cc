// SPDX-License-Identifier: Apache-2.0
//
// Devices of the host, whose kernels run in a worker process: they give the same bits as in this
// one, wherever the matrices are, and if the process dies, only the running job is lost.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cpu/host.h"
#include "kernels/kernel.h"
#include "server/crossing/launcher.h"
#include "server/crossing/shared_memory.h"
#include "server/device/worker_device.h"
#include "server/system/clock.h"
#include "tests/kernels/product_case.h"
#include "tests/testing/patience.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr std::byte kOnes{0xff};

Target SimulatorTarget() { return {.kind = DeviceKind::kSim, .chip = mma::Chip::kSm90}; }
Target TargetOf(DeviceKind kind) {
  return kind == DeviceKind::kSim ? SimulatorTarget() : HostTarget();
}

// A device, and memory that it shares with its worker.
class HostRig {
 public:
  using Change = void (*)(WorkerDeviceOptions&);

  explicit HostRig(
      DeviceKind kind, Change change = [](WorkerDeviceOptions&) {},
      int64_t bytes = int64_t{256} << 20)
      : memory_(SharedMemory::Create(bytes).value()) {
    WorkerDeviceOptions options = WorkerDeviceOptions::OfHost(TargetOf(kind), 2, *memory_);
    options.program.binary = GEMMD_HOST_WORKER;
    options.poisons_freed = true;
    change(options);
    device_ = std::make_unique<WorkerDevice>(std::move(options));
  }

  WorkerDevice& device() { return *device_; }
  // Waits for the worker.
  WorkerDevice& started() {
    EXPECT_THAT(device_->WaitUntilStarted(), IsOk());
    return *device_;
  }
  // Finishes all jobs.
  void Destroy() { device_.reset(); }

  std::future<JobOutcome> Start(const Job& job) {
    auto ended = std::make_unique<std::promise<JobOutcome>>();
    std::future<JobOutcome> outcome = ended->get_future();
    device_->Submit(job, [ended = std::move(ended)](JobOutcome result) {
      ended->set_value(std::move(result));
    });
    return outcome;
  }
  JobOutcome Run(const Job& job) { return Awaited(Start(job), "the end of a job"); }

  // Copies the bytes to shared memory, which lives as long as this object.
  std::byte* Shared(const std::vector<std::byte>& bytes) {
    std::byte* const memory = memory_->Take(static_cast<int64_t>(bytes.size()));
    std::copy(bytes.begin(), bytes.end(), memory);
    return memory;
  }

 private:
  std::unique_ptr<SharedMemory> memory_;
  std::unique_ptr<WorkerDevice> device_;
};

// A product as a job whose D, of ones, is given.
class Case {
 public:
  Case(const Kernel& row, Product given) : kernel_(row), product_(std::move(given)) {
    const Problem& problem = product_.problem;
    d_.assign(static_cast<size_t>(BytesOf("d", problem.d, problem.batch)->least), kOnes);
    job_.kernel = &kernel_;
    job_.problem = problem;
    job_.workspace_bytes = kernel_.workspace_bytes(problem).value();
    job_.d_bytes = static_cast<int64_t>(d_.size());
    job_.d.memory = d_.data();
    Place(OperandRole::kA, product_.a);
    Place(OperandRole::kB, product_.b);
    Place(OperandRole::kC, product_.c);
    Place(OperandRole::kBias, product_.bias);
    PlaceScale(OperandRole::kAScale, product_.a_factors, product_.a_scale);
    PlaceScale(OperandRole::kBScale, product_.b_factors, product_.b_scale);
  }
  Case(const Case&) = delete;
  Case& operator=(const Case&) = delete;

  Job& job() { return job_; }
  Product& product() { return product_; }
  std::vector<std::byte>& d() { return d_; }

  // Puts each matrix at random into memory of this process or into shared memory.
  void Spread(HostRig& rig, RandomSource& random) {
    for (const OperandRole role : kOperandRoles) {
      Source& source = job_[role];
      if (source.bytes == 0 || random.Flip()) continue;
      const Piece piece = source.pieces.front();
      whole_[static_cast<size_t>(role)] = {rig.Shared({piece.begin(), piece.end()}), piece.size()};
      source.pieces = absl::MakeConstSpan(&whole_[static_cast<size_t>(role)], 1);
    }
    if (random.Flip()) job_.d.memory = rig.Shared(d_);
  }
  // Where the job wrote it.
  std::vector<std::byte> Written() const { return {job_.d.memory, job_.d.memory + job_.d_bytes}; }

  // The D of a launch in this process.
  std::vector<std::byte> LocalD() {
    std::vector<std::byte> d(d_.size(), kOnes);
    HostSide host(TargetOf(kernel_.device_kind), 1, /*poisons_freed=*/true, /*shared=*/nullptr);
    Launcher launcher(/*poisons_freed=*/true);
    Job here = job_;
    here.d.memory = d.data();
    here.forms = nullptr;
    LaunchErrand errand(
        here, [](JobOutcome) {}, host);
    EXPECT_THAT(errand.Prepare(), IsOk());
    EXPECT_THAT(errand.RunHere(launcher), IsOk());
    return d;
  }

 private:
  void Place(OperandRole role, const std::vector<std::byte>& bytes) {
    if (!bytes.empty()) job_[role] = pieces_.Add(Piece(bytes));
  }
  void PlaceScale(OperandRole role, const std::vector<std::byte>& factors,
                  const std::vector<float>& scale) {
    if (!factors.empty()) {
      Place(role, factors);
    } else if (!scale.empty()) {
      job_[role] = pieces_.Add(PieceOf(scale));
    }
  }

  const Kernel& kernel_;
  Product product_;
  SourcePieces pieces_;
  std::array<Piece, kOperandRoles.size()> whole_;
  std::vector<std::byte> d_;
  Job job_;
};

void ExpectTheSameBits(HostRig& rig, Case& one, RandomSource& random) {
  one.Spread(rig, random);
  ASSERT_THAT(rig.Run(one.job()).status, IsOk());
  EXPECT_EQ(one.Written(), one.LocalD());
}

void ExpectTheSameBitsOfRows(DeviceKind kind, size_t step) {
  RandomSource random;
  HostRig rig(kind);
  rig.started();
  int count = 0;
  const absl::Span<const Kernel> rows = Catalog(kind);
  for (size_t i = random.Bits() % step; i < rows.size(); i += step) {
    const Kernel& row = rows[i];
    if (!row.available(TargetOf(kind)).ok()) continue;
    const Layouts layouts = {.c = kOrders[random.Bits() % 2],
                             .d = kOrders[random.Bits() % 2],
                             .padding = 8 * random.Between(0, 1),
                             .batch = random.Between(1, 2)};
    Problem problem = MakeProblem(row, random.Between(1, 40), random.Between(1, 40),
                                  random.Between(1, 40), layouts);
    if (!Validate(problem).ok() || !row.supports(problem).ok()) continue;
    SCOPED_TRACE(row.name);
    Case one(row, FillCase(problem, Pattern::kRandom, random));
    ExpectTheSameBits(rig, one, random);
    ++count;
  }
  EXPECT_GE(count, 10);
  EXPECT_EQ(rig.device().condition().worker_restarts, 0);
}

TEST(HostWorkerTest, GivesTheBitsOfALocalLaunchOfLibraries) {
  ExpectTheSameBitsOfRows(DeviceKind::kCpu, 1);
}

TEST(HostWorkerTest, GivesTheBitsOfALocalLaunchOfTheSimulator) {
  ExpectTheSameBitsOfRows(DeviceKind::kSim, 7);
}

const Kernel& RowOf(DeviceKind kind, ElementType type) {
  const absl::Span<const Kernel> rows = Catalog(kind);
  return *std::find_if(rows.begin(), rows.end(), [&](const Kernel& row) {
    return row.a == type && row.b == type && row.recipe.block_scaling == BlockScaling::kNone &&
           (row.instruction == nullptr || !row.instruction->is_sparse()) &&
           row.available(TargetOf(kind)).ok();
  });
}

std::unique_ptr<Case> MakeCase(DeviceKind kind, ElementType type, int64_t edge,
                               RandomSource& random) {
  const Kernel& row = RowOf(kind, type);
  const Problem problem = MakeProblem(row, edge, edge, edge, Layouts());
  return std::make_unique<Case>(row, FillCase(problem, Pattern::kRandom, random));
}

TEST(HostWorkerTest, LargeMatricesGoThereAndBack) {
  RandomSource random;
  HostRig rig(DeviceKind::kCpu);
  rig.started();
  for (int i = 0; i < 4; ++i) {
    const auto one = MakeCase(DeviceKind::kCpu, ElementType::kF32, 500 + i, random);
    ExpectTheSameBits(rig, *one, random);
  }
}

TEST(HostWorkerTest, MatricesForWhichThereIsNoRoomAreResourceExhausted) {
  RandomSource random;
  HostRig rig(
      DeviceKind::kCpu, [](WorkerDeviceOptions&) {}, int64_t{64} << 10);
  rig.started();
  const auto one = MakeCase(DeviceKind::kCpu, ElementType::kF32, 200, random);
  EXPECT_THAT(rig.Run(one->job()).status,
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("no memory for ")));
  EXPECT_EQ(std::count(one->d().begin(), one->d().end(), kOnes), std::ssize(one->d()));
}

// Keeps the form of the operand that begins at an address.
class KeptForm final : public FormKeeper {
 public:
  KeptForm(const std::byte* of, std::byte* memory) : of_(of), memory_(memory) {}
  OperandForm TakeForm(const Source& source, const MatrixLayout& /*layout*/, int64_t /*matrices*/,
                       const DerivedOperand& /*derived*/) override {
    if (source.pieces.front().data() != of_) return {};
    return {.bytes = memory_, .is_made = is_made_};
  }
  void EndForms(bool is_ok) override {
    is_made_ |= is_ok;
    ++ends_;
  }
  bool is_made() const { return is_made_; }
  int ends() const { return ends_; }

 private:
  const std::byte* const of_;
  std::byte* const memory_;
  bool is_made_ = false;
  int ends_ = 0;
};

// The form that a launch derives from B exists for the next launch, wherever the form is.
TEST(HostWorkerTest, FormsAreMadeOnceAndRead) {
  RandomSource random;
  HostRig rig(DeviceKind::kCpu);
  rig.started();
  int count = 0;
  for (const Kernel& row : Catalog(DeviceKind::kCpu)) {
    if (!row.available(HostTarget()).ok() || count == 6) continue;
    const Problem problem = MakeProblem(row, 24, 24, 64, {.b = Order::kColumnMajor});
    if (!Validate(problem).ok() || !row.supports(problem).ok()) continue;
    const absl::StatusOr<DerivedOperand> derived = row.derived(problem, mma::Operand::kB);
    if (!derived.ok() || derived->bytes == 0) continue;
    SCOPED_TRACE(row.name);
    ++count;
    Case one(row, FillCase(problem, Pattern::kRamps, random));
    const std::vector<std::byte> want = one.LocalD();
    std::vector<std::byte> form(static_cast<size_t>(derived->bytes) + 64, kOnes);
    std::byte* const own = form.data() + (64 - reinterpret_cast<uintptr_t>(form.data()) % 64);
    KeptForm kept(one.product().b.data(), random.Flip() ? rig.Shared(form) : own);
    one.job().forms = &kept;
    ASSERT_THAT(rig.Run(one.job()).status, IsOk());
    EXPECT_EQ(one.d(), want);
    EXPECT_TRUE(kept.is_made());
    // From now on B itself is not read.
    std::fill(one.product().b.begin(), one.product().b.end(), std::byte{0});
    std::fill(one.d().begin(), one.d().end(), kOnes);
    ASSERT_THAT(rig.Run(one.job()).status, IsOk());
    EXPECT_EQ(one.d(), want);
    EXPECT_EQ(kept.ends(), 2);
  }
  EXPECT_EQ(count, 6);
}

// D goes to its parts, wherever it was computed.
TEST(HostWorkerTest, PartsOfDGoToTheirPlaces) {
  RandomSource random;
  HostRig rig(DeviceKind::kCpu);
  rig.started();
  for (const int64_t edge : {20, 200}) {  // Outside shared memory, and there.
    const auto one = MakeCase(DeviceKind::kCpu, ElementType::kF32, edge, random);
    const std::vector<std::byte> want = one->LocalD();
    const int64_t half = one->job().d_bytes / 2;
    std::vector<std::byte> first(static_cast<size_t>(half), kOnes);
    const std::array<DestinationPart, 2> parts = {
        {{.memory = first.data(), .bytes = half}, {.bytes = half}}};
    one->job().d.memory = nullptr;
    one->job().d.parts = parts;
    const JobOutcome outcome = rig.Run(one->job());
    ASSERT_THAT(outcome.status, IsOk());
    EXPECT_EQ(outcome.d.size(), 0u);
    EXPECT_TRUE(std::equal(first.begin(), first.end(), want.begin()));
  }
}

// A tensor that is small is copied for each launch: not before an earlier job has written it, nor
// after a later one has.
TEST(HostWorkerTest, JobsOfTensorsKeepTheirOrder) {
  RandomSource random;
  HostRig rig(DeviceKind::kSim);
  rig.started();
  for (int round = 0; round < 100; ++round) {
    const auto first = MakeCase(DeviceKind::kSim, ElementType::kF32, 24, random);
    const auto second = MakeCase(DeviceKind::kSim, ElementType::kF32, 24, random);
    const std::vector<std::byte> first_d = first->LocalD();
    // The second product's A is the first one's D.
    second->product().a = first_d;
    const std::vector<std::byte> want = second->LocalD();
    const Piece written(first->d());
    second->job().a.pieces = absl::MakeConstSpan(&written, 1);
    second->job().a.is_resident = true;
    std::future<JobOutcome> one = rig.Start(first->job());
    std::future<JobOutcome> other = rig.Start(second->job());
    ASSERT_THAT(Awaited(std::move(one), "the first").status, IsOk());
    ASSERT_THAT(Awaited(std::move(other), "the second").status, IsOk());
    ASSERT_EQ(first->d(), first_d);
    ASSERT_EQ(second->d(), want) << "round " << round;
  }
}

// The second job waits at the worker until the first has been computed.
TEST(HostWorkerTest, TimesTheWaitAndTheComputingApart) {
  RandomSource random;
  HostRig rig(DeviceKind::kSim);
  rig.started();
  const auto first = MakeCase(DeviceKind::kSim, ElementType::kF16, 300, random);
  const auto second = MakeCase(DeviceKind::kSim, ElementType::kF16, 300, random);
  for (Case* const one : {first.get(), second.get()}) one->job().d.memory = nullptr;  // No turns.
  const SteadyClock clock;
  const int64_t begin_ns = clock.NowNs();
  std::future<JobOutcome> first_end = rig.Start(first->job());
  std::future<JobOutcome> second_end = rig.Start(second->job());
  const int64_t submission_ns = clock.NowNs() - begin_ns;
  const JobOutcome one = Awaited(std::move(first_end), "the first");
  const JobOutcome other = Awaited(std::move(second_end), "the second");
  const int64_t passed_ns = clock.NowNs() - begin_ns;
  ASSERT_THAT(one.status, IsOk());
  ASSERT_THAT(other.status, IsOk());
  EXPECT_GT(one.compute_ns, 0);
  EXPECT_LE(one.compute_ns + other.compute_ns, passed_ns);
  EXPECT_GE(other.wait_ns, one.compute_ns - submission_ns);
  for (const JobOutcome* const end : {&one, &other}) {
    EXPECT_LE(end->wait_ns + end->copy_in_ns + end->compute_ns + end->copy_out_ns, passed_ns);
  }
}

TEST(HostWorkerTest, FinishesItsJobsBeforeItGoes) {
  RandomSource random;
  HostRig rig(DeviceKind::kCpu);
  rig.started();
  std::vector<std::unique_ptr<Case>> cases;
  std::vector<std::future<JobOutcome>> ends;
  for (int i = 0; i < 20; ++i) {
    cases.push_back(MakeCase(DeviceKind::kCpu, ElementType::kF32, random.Between(1, 300), random));
    ends.push_back(rig.Start(cases.back()->job()));
  }
  rig.Destroy();
  for (std::future<JobOutcome>& end : ends) {
    EXPECT_THAT(Awaited(std::move(end), "the end of a job").status, IsOk());
  }
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

constexpr JobId kLong = 1;
constexpr JobId kShort = 2;

// A product that takes seconds, in progress on the simulator.
class LongJob {
 public:
  explicit LongJob(HostRig& rig)
      : case_(MakeCase(DeviceKind::kSim, ElementType::kF16, 2048, random_)) {
    const pid_t worker = rig.started().worker_pid();
    const int64_t before = TicksOf(worker);
    case_->job().id = kLong;
    outcome_ = rig.Start(case_->job());
    constexpr int64_t kTicks = 10;
    EXPECT_TRUE(Eventually([&] { return TicksOf(worker) >= before + kTicks; }));
  }

  const Job& job() const { return case_->job(); }
  bool is_over() const {
    return outcome_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }
  absl::Status Await() { return Awaited(std::move(outcome_), "the end of a job").status; }

 private:
  RandomSource random_;
  std::unique_ptr<Case> case_;
  std::future<JobOutcome> outcome_;
};

void ExpectRightProduct(HostRig& rig) {
  RandomSource random;
  const auto one = MakeCase(DeviceKind::kSim, ElementType::kF16, 30, random);
  ExpectTheSameBits(rig, *one, random);
}

TEST(HostWorkerTest, TheWorkerMeasures) {
  HostRig rig(DeviceKind::kSim);
  const DeviceProfile& profile = rig.started().profile();
  EXPECT_FALSE(profile.rates.empty());
  EXPECT_EQ(profile.host->threads, 2);
  EXPECT_EQ(rig.device().info().threads, 2);
  EXPECT_EQ(rig.device().info().name, "sim:sm_90");
  EXPECT_TRUE(rig.device().info().is_confined);
  EXPECT_EQ(rig.device().memory(), nullptr);
  ExpectRightProduct(rig);
}

TEST(HostWorkerTest, AWorkerThatIsStoppedBeforeItHasMeasuredIsNotWaitedFor) {
  const bool was_stopped_in_time = Eventually([] {
    HostRig rig(DeviceKind::kSim);
    EXPECT_TRUE(Eventually([&] { return rig.device().worker_pid() != 0; }));
    kill(rig.device().worker_pid(), SIGSTOP);
    const absl::Status started = rig.device().WaitUntilStarted();
    if (started.ok()) return false;
    EXPECT_THAT(started, StatusIs(absl::StatusCode::kUnavailable, HasSubstr("it was stopped")));
    return true;
  });
  EXPECT_TRUE(was_stopped_in_time);
}

// Whether a loss was counted against the kernel of the job; forgets it.
bool WasBlamed(WorkerDevice& device, const Job& job) {
  const bool is_second = device.trust().AddLoss(*job.kernel, job.problem);
  device.trust().ForgetLosses();
  return is_second;
}

TEST(HostWorkerTest, AWorkerThatIsLostCostsTheJobThatRuns) {
  struct Loss {
    int signal;
    std::string how;
    bool is_own_death;
  };
  HostRig rig(DeviceKind::kSim);
  int64_t restarts = 0;
  for (const Loss& loss :
       {Loss{SIGILL, "signal 4", true}, Loss{SIGSEGV, "signal 11", true},
        Loss{SIGKILL, "signal 9", false}, Loss{SIGSTOP, "it was stopped", false}}) {
    SCOPED_TRACE(loss.how);
    RandomSource random;
    LongJob job(rig);
    const pid_t lost = rig.device().worker_pid();
    // At the worker, which has not started it: its successor does.
    const auto waits = MakeCase(DeviceKind::kSim, ElementType::kF16, 30, random);
    std::future<JobOutcome> waiting = rig.Start(waits->job());
    kill(lost, loss.signal);
    EXPECT_THAT(job.Await(),
                StatusIs(absl::StatusCode::kAborted,
                         AllOf(HasSubstr("device: sim:sm_90 was lost while the product ran"),
                               HasSubstr(loss.how))));
    EXPECT_THAT(Awaited(std::move(waiting), "the job that waited").status, IsOk());
    EXPECT_EQ(waits->d(), waits->LocalD());
    EXPECT_EQ(WasBlamed(rig.device(), job.job()), loss.is_own_death);
    EXPECT_THAT(rig.device().readiness(), IsOk());
    ExpectRightProduct(rig);
    EXPECT_NE(rig.device().worker_pid(), lost);
    EXPECT_EQ(rig.device().condition().worker_restarts, ++restarts);
  }
}

TEST(HostWorkerTest, AWorkerThatGivesNoAnswerInTimeDiedOfTheJob) {
  HostRig rig(DeviceKind::kSim,
              [](WorkerDeviceOptions& options) { options.watchdog_min = absl::Milliseconds(200); });
  rig.started();
  RandomSource random;
  // It takes seconds. If the worker is slow to begin it, that does not count.
  const auto one = MakeCase(DeviceKind::kSim, ElementType::kF16, 2048, random);
  const absl::Status status = rig.Run(one->job()).status;
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kAborted, HasSubstr("no answer within")));
  EXPECT_TRUE(WasBlamed(rig.device(), one->job()));
}

TEST(HostWorkerTest, AWorkerThatIsLostBetweenJobsCostsNone) {
  HostRig rig(DeviceKind::kSim);
  rig.started();
  ExpectRightProduct(rig);
  for (const int signal : {SIGILL, SIGKILL, SIGSTOP}) {
    kill(rig.device().worker_pid(), signal);
    ExpectRightProduct(rig);
  }
  EXPECT_EQ(rig.device().condition().worker_restarts, 3);
  ASSERT_THAT(rig.device().RestartWorker(), IsOk());
  EXPECT_TRUE(Eventually([&] { return rig.device().condition().worker_restarts == 4; }));
  ExpectRightProduct(rig);
}

// An operator's restart costs no job.
TEST(HostWorkerTest, ARestartWaitsForTheJobsUnderWay) {
  HostRig rig(DeviceKind::kSim);
  LongJob job(rig);
  ASSERT_THAT(rig.device().RestartWorker(), IsOk());
  RandomSource random;
  const auto next = MakeCase(DeviceKind::kSim, ElementType::kF16, 30, random);
  std::future<JobOutcome> waits = rig.Start(next->job());
  EXPECT_EQ(rig.device().condition().worker_restarts, 0);
  EXPECT_THAT(job.Await(), IsOk());
  EXPECT_THAT(Awaited(std::move(waits), "the next job").status, IsOk());
  EXPECT_EQ(rig.device().condition().worker_restarts, 1);
}

TEST(HostWorkerTest, AnAbortEndsTheJobAndKeepsTheWorker) {
  HostRig rig(DeviceKind::kSim);
  LongJob job(rig);
  const pid_t worker = rig.device().worker_pid();
  rig.device().Abort(kLong);
  EXPECT_THAT(job.Await(), StatusIs(absl::StatusCode::kCancelled));
  ExpectRightProduct(rig);
  EXPECT_EQ(rig.device().worker_pid(), worker);
}

// The worker has it already, and does not touch its matrices when it comes to it.
TEST(HostWorkerTest, AJobThatIsAbortedBeforeItsTurnEndsAtOnce) {
  RandomSource random;
  HostRig rig(DeviceKind::kSim);
  LongJob job(rig);
  const auto waits = MakeCase(DeviceKind::kSim, ElementType::kF16, 200, random);
  waits->Spread(rig, random);
  waits->job().id = kShort;
  std::future<JobOutcome> waiting = rig.Start(waits->job());
  rig.device().Abort(kShort);
  EXPECT_THAT(Awaited(std::move(waiting), "the aborted job").status,
              StatusIs(absl::StatusCode::kCancelled));
  EXPECT_FALSE(job.is_over());
  rig.device().Abort(kLong);
  EXPECT_THAT(job.Await(), StatusIs(absl::StatusCode::kCancelled));
  ExpectRightProduct(rig);
  EXPECT_EQ(waits->Written(), std::vector<std::byte>(waits->d().size(), kOnes));
}

TEST(HostWorkerTest, AnAbortHoldsForTheNextWorker) {
  HostRig rig(DeviceKind::kSim);
  rig.started();
  ExpectRightProduct(rig);
  RandomSource random;
  const auto one = MakeCase(DeviceKind::kSim, ElementType::kF16, 2048, random);
  one->job().id = kLong;
  // It cannot start the job.
  kill(rig.device().worker_pid(), SIGSTOP);
  std::future<JobOutcome> outcome = rig.Start(one->job());
  rig.device().Abort(kLong);
  EXPECT_THAT(Awaited(std::move(outcome), "the aborted job").status,
              StatusIs(absl::StatusCode::kCancelled));
  ExpectRightProduct(rig);
  EXPECT_EQ(rig.device().condition().worker_restarts, 1);
}

// A worker that answers OK without computing, which gives no caller the bytes that a result's
// memory held before.
class LyingHostWorkerTest : public testing::Test {
 protected:
  static void Lie(WorkerDeviceOptions& options) {
    options.program.binary = GEMMD_LYING_HOST_WORKER;
    options.poisons_freed = false;  // An earlier result stays in memory that is reused.
  }

  LyingHostWorkerTest() {
    setenv("GEMMD_WORKER_SCRIPT", script_.c_str(), 1);  // NOLINT(concurrency-mt-unsafe)
    rig_ = std::make_unique<HostRig>(DeviceKind::kCpu, Lie);
    rig_->started();
  }
  ~LyingHostWorkerTest() override { std::remove(script_.c_str()); }

  std::unique_ptr<Case> MakeFloats(int64_t m, int64_t n, int64_t padding = 0) {
    const Kernel& row = RowOf(DeviceKind::kCpu, ElementType::kF32);
    const Problem problem = MakeProblem(row, m, n, 8, {.padding = padding});
    auto one = std::make_unique<Case>(row, FillCase(problem, Pattern::kRandom, random_));
    one->job().d.memory = nullptr;  // Returned by the device.
    return one;
  }

  // The next worker lies until it is replaced. When this returns, the device has given back the
  // memory of what ended before.
  void ReplaceWorker(const std::string& lie) {
    const int64_t restarts = rig_->device().condition().worker_restarts;
    std::ofstream(script_) << lie;
    kill(rig_->device().worker_pid(), SIGKILL);
    EXPECT_TRUE(
        Eventually([&] { return rig_->device().condition().worker_restarts == restarts + 1; }));
  }

  // Runs the job with an honest worker, then again with one that does nothing. The second run would
  // find the result of the first one.
  void ExpectFoundOut(const Job& job, const std::string& lie = "done",
                      absl::StatusCode code = absl::StatusCode::kUnavailable) {
    const int64_t restarts = rig_->device().condition().worker_restarts;
    ASSERT_THAT(rig_->Run(job).status, IsOk());
    ReplaceWorker(lie);
    EXPECT_THAT(rig_->Run(job).status,
                StatusIs(code, HasSubstr("the worker did not write the result that it told of")));
    EXPECT_THAT(rig_->Run(job).status, IsOk());
    EXPECT_EQ(rig_->device().condition().worker_restarts, restarts + 2);
  }

  const std::string script_ = testing::TempDir() + "/gemmd-host-script-" + std::to_string(getpid());
  RandomSource random_;
  std::unique_ptr<HostRig> rig_;
};

TEST_F(LyingHostWorkerTest, IsNotBelievedOfASmallResult) {
  ExpectFoundOut(MakeFloats(8, 8)->job());
  ExpectFoundOut(MakeFloats(1, 3)->job());
}

TEST_F(LyingHostWorkerTest, IsNotBelievedOfAResultInSharedMemory) {
  ExpectFoundOut(MakeFloats(200, 200)->job());
}

// A result this large is checked by the threads that copy.
TEST_F(LyingHostWorkerTest, IsNotBelievedOfAMegabyte) {
  ExpectFoundOut(MakeFloats(512, 520)->job());
}

TEST_F(LyingHostWorkerTest, IsNotBelievedOfAResultWithGaps) {
  ExpectFoundOut(MakeFloats(20, 20, 8)->job());
}

TEST_F(LyingHostWorkerTest, IsNotBelievedOfATensorThatIsNotShared) {
  const auto one = MakeFloats(200, 200);
  one->job().d.memory = one->d().data();
  ExpectFoundOut(one->job());
}

TEST_F(LyingHostWorkerTest, IsNotBelievedOfANewTensor) {
  const auto one = MakeFloats(200, 200);
  one->job().d = {.memory = rig_->Shared(one->d()), .is_new = true};
  ExpectFoundOut(one->job());
}

TEST_F(LyingHostWorkerTest, IsNotBelievedOfPartsOfAResult) {
  for (const int64_t edge : {20, 200}) {
    const auto one = MakeFloats(edge, edge);
    const int64_t half = one->job().d_bytes / 2;
    const std::array<DestinationPart, 2> parts = {
        {{.memory = one->d().data(), .bytes = half}, {.bytes = half}}};
    one->job().d.parts = parts;
    ExpectFoundOut(one->job());
  }
}

// A tensor that is overwritten keeps its bytes, which may be those of C.
TEST_F(LyingHostWorkerTest, ChangesNoTensorInSharedMemory) {
  const auto one = MakeFloats(200, 200);
  one->job().d.memory = rig_->Shared(one->d());
  ASSERT_THAT(rig_->Run(one->job()).status, IsOk());
  const std::vector<std::byte> before = one->Written();
  ReplaceWorker("done");
  EXPECT_THAT(rig_->Run(one->job()).status, IsOk());
  EXPECT_EQ(one->Written(), before);
}

// A result of one number is shorter than a mark.
TEST_F(LyingHostWorkerTest, GivesZerosInPlaceOfOneNumber) {
  const auto one = MakeFloats(1, 1);
  {
    const JobOutcome before = rig_->Run(one->job());
    ASSERT_THAT(before.status, IsOk());
    ASSERT_THAT(before.d.bytes(), testing::Not(testing::Each(std::byte{0})));
  }
  ReplaceWorker("done");
  const JobOutcome outcome = rig_->Run(one->job());
  ASSERT_THAT(outcome.status, IsOk());
  EXPECT_THAT(outcome.d.bytes(), testing::Each(std::byte{0}));
}

TEST_F(LyingHostWorkerTest, KernelThatDidNotWriteIsBlamed) {
  for (const int64_t edge : {8, 520}) {
    const auto one = MakeFloats(edge, edge);
    ExpectFoundOut(one->job(), "started", absl::StatusCode::kAborted);
    EXPECT_TRUE(WasBlamed(rig_->device(), one->job()));
  }
}

TEST(HostWorkerTest, SaysWhyThereIsNoWorker) {
  HostRig nothing(DeviceKind::kCpu, [](WorkerDeviceOptions& options) {
    options.program.binary = "/nowhere/gemmd-host-worker";
  });
  EXPECT_THAT(nothing.device().WaitUntilStarted(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("/nowhere/gemmd-host")));
  HostRig ended(DeviceKind::kCpu,
                [](WorkerDeviceOptions& options) { options.program.binary = "/bin/false"; });
  EXPECT_THAT(ended.device().WaitUntilStarted(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("exit code 1")));
}

}  // namespace
}  // namespace gemmd
