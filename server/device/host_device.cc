// SPDX-License-Identifier: Apache-2.0
#include "server/device/host_device.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/types/span.h"
#include "kernels/cpu/host.h"
#include "kernels/host_rates.h"
#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"
#include "server/crossing/protocol.h"
#include "server/device/held_bytes.h"
#include "server/device/operands.h"
#include "server/system/log.h"
#include "server/system/resources.h"

namespace gemmd {

namespace {

constexpr int64_t kScratchKeptBytes = int64_t{4} << 20;
constexpr int64_t kScratchAlignment = 64;

// Longer waits do not spin: the kernel's threads may need the processor.
constexpr int64_t kLongestToSpinForNs = 100'000;

WorkerProcess::Options Supervised(const ProcessLauncher::Options& options) {
  WorkerProcess::Options worker = {.device = options.program.device,
                                   .program = options.program,
                                   .catalog = options.catalog,
                                   .restarts = {.restarts = std::numeric_limits<int>::max(),
                                                .window_ns = 10'000'000'000,
                                                .longest_pause_ns = 1'000'000'000}};
  worker.program.kind_arguments = {options.threads, options.poisons_freed ? 1 : 0};
  return worker;
}

int64_t Aligned(int64_t bytes) {
  return (bytes + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment;
}

}  // namespace

// The matrices of one launch, as the worker sees them.
class ProcessLauncher::Passed {
 public:
  explicit Passed(ProcessLauncher& launcher) : launcher_(launcher) {}

  // Registers a matrix. If it is not in shared memory, it is copied to the worker before the launch
  // if `is_read`, and back after it if `is_written`.
  void Add(SharedRange& range, const std::byte* memory, int64_t bytes, bool is_read,
           bool is_written) {
    if (memory == nullptr || bytes == 0) return;
    range.bytes = bytes;
    if (const std::optional<int64_t> offset = launcher_.memory_.OffsetOf(memory)) {
      range.offset = *offset;
      return;
    }
    copies_[used_++] = {&range, const_cast<std::byte*>(memory), is_read, is_written};
    scratch_bytes_ += Aligned(bytes);
  }

  // Errors: ResourceExhausted.
  absl::Status CopyIn() {
    if (used_ == 0) return absl::OkStatus();
    std::byte* at = launcher_.TakeScratch(scratch_bytes_);
    if (at == nullptr) {
      return absl::ResourceExhaustedError(
          Concat("job: no memory for ", scratch_bytes_, " bytes shared with the worker"));
    }
    for (const Copy& copy : absl::MakeSpan(copies_).first(used_)) {
      const auto bytes = static_cast<size_t>(copy.range->bytes);
      copy.range->offset = *launcher_.memory_.OffsetOf(at);
      if (copy.is_read) std::memcpy(at, copy.memory, bytes);
      at += Aligned(copy.range->bytes);
    }
    return absl::OkStatus();
  }

  void CopyOut() const {
    const std::byte* at = launcher_.scratch_;
    for (const Copy& copy : absl::MakeConstSpan(copies_).first(used_)) {
      if (copy.is_written) std::memcpy(copy.memory, at, static_cast<size_t>(copy.range->bytes));
      at += Aligned(copy.range->bytes);
    }
  }

  absl::Span<std::byte> scratch() const {
    return {launcher_.scratch_, static_cast<size_t>(scratch_bytes_)};
  }

 private:
  struct Copy {
    SharedRange* range = nullptr;
    std::byte* memory = nullptr;
    bool is_read = false;
    bool is_written = false;
  };
  static constexpr size_t kMax = kOperandRoles.size() + 3;

  ProcessLauncher& launcher_;
  std::array<Copy, kMax> copies_;
  size_t used_ = 0;
  int64_t scratch_bytes_ = 0;
};

ProcessLauncher::ProcessLauncher(Options options, SharedMemory& memory)
    : options_(std::move(options)),
      memory_(memory),
      worker_(Supervised(options_), mutex_, [this](int64_t until_ns) { return Wait(until_ns); }) {}

ProcessLauncher::~ProcessLauncher() {
  End();
  Cool();
}

void ProcessLauncher::SetAborted(bool is_aborted) {
  MutexLock lock(&mutex_);
  is_aborted_ = is_aborted;
  if (worker_.channel().is_open()) worker_.channel().control().is_aborted = is_aborted;
}

pid_t ProcessLauncher::pid() const {
  MutexLock lock(&mutex_);
  return worker_.pid();
}

absl::Status ProcessLauncher::Start() {
  // A worker that has exited or stopped is detected when asked.
  if (worker_.channel().is_open()) return absl::OkStatus();
  if (worker_.pid() != 0) {
    const std::string end = End();
    // Otherwise it could write to memory of the next worker's launches.
    if (worker_.pid() != 0) {
      return absl::UnavailableError(Concat("device: ", options_.program.device,
                                           " is out of service: its worker was killed, and ", end));
    }
  }
  if (worker_.was_started()) {
    absl::SleepFor(absl::Nanoseconds(worker_.policy().Next(clock_.NowNs()).ns));
  }
  absl::StatusOr<Hello> hello = worker_.Start(memory_.descriptor());
  if (!hello.ok()) {
    const bool has_process = worker_.pid() != 0;
    const std::string end = End();
    if (!has_process || !absl::IsUnavailable(hello.status())) return hello.status();
    return absl::UnavailableError(Concat("worker: ", end));
  }
  hello_ = *std::move(hello);
  {
    MutexLock lock(&mutex_);
    worker_.channel().control().is_aborted = is_aborted_;
  }
  if (std::exchange(is_lost_, false)) {
    spdlog::info("event=device_ready device={}", LogValue(options_.program.device));
  }
  return absl::OkStatus();
}

absl::Status ProcessLauncher::Restart() {
  Lose("an operator wants another worker");
  return Start();
}

absl::StatusOr<std::vector<double>> ProcessLauncher::Measure() {
  RETURN_IF_ERROR(Start());
  absl::StatusOr<std::vector<double>> numbers = TakeNumbers();
  if (numbers.ok()) return numbers;
  return absl::UnavailableError(
      Concat("worker: no rates: ", Lose(std::string(numbers.status().message()))));
}

absl::StatusOr<std::vector<double>> ProcessLauncher::TakeNumbers() {
  constexpr size_t kMax = size_t{1} << 16;
  RETURN_IF_ERROR(SendRecord(worker_.channel(), MeasureRequest()));
  GpuRates rates;
  size_t all = 0;
  do {
    ASSIGN_OR_RETURN(const Packet packet, worker_.Receive(options_.watchdog_min));
    ASSIGN_OR_RETURN(const RatesPart part, ParseRecord<RatesPart>(packet));
    if (all == 0) all = std::min<size_t>(part.kernels, kMax);
    RETURN_IF_ERROR(AppendRates(part, all, rates));
  } while (rates.kernel_rates.size() < all);
  return std::move(rates.kernel_rates);
}

// Ends the worker, and returns how it ended.
std::string ProcessLauncher::End() {
  worker_.Kill();
  return worker_.AwaitEnd(WorkerProcess::kTimeToDie).value_or("it could not be killed");
}

// Ends an unusable worker, logs it, and returns why and how it ended.
std::string ProcessLauncher::Lose(const std::string& reason) {
  const std::string why = Concat(reason, " (", End(), ")");
  is_lost_ = true;
  spdlog::error("event=device_not_ready device={} reason={}", LogValue(options_.program.device),
                LogValue(std::string(worker_.NotReady(why).message())));
  return why;
}

std::byte* ProcessLauncher::TakeScratch(int64_t bytes) {
  if (bytes <= scratch_bytes_) return scratch_;
  Cool();
  scratch_ = memory_.Take(bytes);
  scratch_bytes_ = scratch_ == nullptr ? 0 : bytes;
  return scratch_;
}

void ProcessLauncher::Cool() {
  if (scratch_ != nullptr) memory_.GiveBack(scratch_, scratch_bytes_);
  scratch_ = nullptr;
  scratch_bytes_ = 0;
}

absl::Status ProcessLauncher::Launch(const LaunchTask& task) {
  died_of_launch_ = false;
  const GemmArgs& args = task.args;
  LaunchRequest request;
  request.kernel = static_cast<uint32_t>(task.kernel.position);
  request.is_a_form_made = args.a_form.is_made ? 1 : 0;
  request.is_b_form_made = args.b_form.is_made ? 1 : 0;
  request.workspace_bytes = task.workspace_bytes;
  request.problem = args.problem;
  Passed passed(*this);
  const auto scale = [](const std::byte* factors, absl::Span<const float> floats) {
    return factors != nullptr ? factors : reinterpret_cast<const std::byte*>(floats.data());
  };
  const PerOperand<const std::byte*> operands = {.a = args.a,
                                                 .b = args.b,
                                                 .c = args.c,
                                                 .bias = args.bias,
                                                 .a_scale = scale(args.a_factors, args.a_scale),
                                                 .b_scale = scale(args.b_factors, args.b_scale)};
  for (const OperandRole role : kOperandRoles) {
    passed.Add(request.operands[role], operands[role], task.bytes[role], /*is_read=*/true,
               /*is_written=*/false);
  }
  passed.Add(request.a_form, args.a_form.bytes, task.a_form_bytes, args.a_form.is_made,
             !args.a_form.is_made);
  passed.Add(request.b_form, args.b_form.bytes, task.b_form_bytes, args.b_form.is_made,
             !args.b_form.is_made);
  // The bytes between the lines of D are preserved.
  passed.Add(request.d, args.d, task.d_bytes, /*is_read=*/HasGaps(args.problem),
             /*is_written=*/true);
  RETURN_IF_ERROR(passed.CopyIn());
  const absl::Duration most =
      std::max(absl::Nanoseconds(options_.watchdog_factor * static_cast<double>(task.predicted_ns)),
               options_.watchdog_min);
  const bool is_short = task.predicted_ns <= kLongestToSpinForNs;
  ASSIGN_OR_RETURN(const Result result,
                   Ask(request, is_short ? options_.program.spin_ns : 0, most));
  const absl::Status status = result.status.get();
  if (status.ok()) passed.CopyOut();
  if (options_.poisons_freed) Poison(passed.scratch());
  if (scratch_bytes_ > kScratchKeptBytes) Cool();
  return status;
}

// Sends the request to a worker and waits. If the worker is lost before it begins, asks its
// successor instead.
absl::StatusOr<Result> ProcessLauncher::Ask(LaunchRequest& request, int64_t spin_ns,
                                            absl::Duration most) {
  constexpr int kMaxTries = 3;
  std::string why;
  for (int i = 0; i < kMaxTries; ++i) {
    RETURN_IF_ERROR(Start());
    request.id = ++last_id_;
    const absl::Status sent = SendRecord(worker_.channel(), request);
    const absl::StatusOr<Result> result = sent.ok() ? Await(request.id, spin_ns, most) : sent;
    if (result.ok()) return result;
    why = Lose(std::string(result.status().message()));
    if (worker_.channel().control().started_id == request.id) {
      died_of_launch_ = absl::IsDeadlineExceeded(result.status()) || !worker_.was_killed();
      return worker_.LostProduct(/*was_started=*/true, why);
    }
  }
  return worker_.LostProduct(/*was_started=*/false, why);
}

// Errors: why the worker will not answer.
absl::StatusOr<Result> ProcessLauncher::Await(uint64_t id, int64_t spin_ns, absl::Duration most) {
  spin_until_ns_ = clock_.NowNs() + spin_ns;
  const absl::StatusOr<Packet> packet = worker_.Receive(most);
  if (absl::IsDeadlineExceeded(packet.status())) {
    return absl::DeadlineExceededError(Concat("no answer within ", absl::FormatDuration(most)));
  }
  RETURN_IF_ERROR(packet.status());
  ASSIGN_OR_RETURN(const Result result, ParseRecord<Result>(*packet));
  if (result.id != id) return absl::InternalError("it answered what was not asked");
  return result;
}

absl::Status ProcessLauncher::Wait(int64_t until_ns) {
  if (clock_.NowNs() < spin_until_ns_) {
    PauseProcessor();
    return absl::OkStatus();
  }
  worker_.Sleep(until_ns);
  const bool is_stopped = !worker_.channel().HasNews() && worker_.IsStopped();
  return is_stopped ? absl::UnavailableError("it was stopped") : absl::OkStatus();
}

namespace {

// The name in tools: at most 15 bytes.
std::string ThreadName(const std::string& device) {
  constexpr size_t kLongest = 15;
  return absl::StrCat("gemmd-", device).substr(0, kLongest);
}

DeviceInfo DescribeCpu() {
  DeviceInfo info;
  info.name = "cpu";
  info.description = ProcessorName();
  return info;
}

DeviceInfo DescribeSimulator(mma::Chip chip) {
  const mma::ChipFacts facts = mma::FactsOf(chip);
  DeviceInfo info;
  info.name = absl::StrCat("sim:", std::string(facts.name));
  info.description = absl::StrCat("the matrix instructions of ", std::string(facts.architecture),
                                  ", simulated on ", ProcessorName());
  info.chip = facts.name;
  info.arithmetic = facts.is_verified ? "verified" : "modelled";
  return info;
}

// Copies D's parts to their destinations.
void PutParts(absl::Span<const DestinationPart> parts, JobOutcome& outcome) {
  const HeldBytes d = std::move(outcome.d);
  const std::byte* from = d.bytes().data();
  for (const DestinationPart& part : parts) {
    const auto bytes = static_cast<size_t>(part.bytes);
    if (part.memory != nullptr) std::memcpy(part.memory, from, bytes);
    from += bytes;
  }
  outcome.d = HeldBytes();
}

}  // namespace

// Forms of resident A and B (FormKeeper): the kernel's derived data or, if there is none and the
// worker cannot access the bytes, a copy of the bytes.
class HostDevice::TakenForms {
 public:
  // Borrows the job.
  explicit TakenForms(const Job& job) : job_(job) {}
  ~TakenForms() {
    if (job_.forms != nullptr) job_.forms->EndForms(is_ok_);
  }
  TakenForms(const TakenForms&) = delete;
  TakenForms& operator=(const TakenForms&) = delete;

  // Copies the operands' bytes to `shared`, unless they are there. Returns the job to run, valid
  // during the lifetime of this object. Errors: Cancelled if aborted.
  absl::StatusOr<Job> Take(const SharedMemory* shared, int threads, AbortFlag abort) {
    Job job = job_;
    RETURN_IF_ERROR(Take(job.a, job.problem.a, mma::Operand::kA, a_, shared, threads, abort));
    RETURN_IF_ERROR(Take(job.b, job.problem.b, mma::Operand::kB, b_, shared, threads, abort));
    return job;
  }

  // Sets the derived data of the launch.
  void Fill(GemmArgs& args, LaunchTask& task) const {
    if (!a_.is_copy) args.a_form = a_.form;
    if (!b_.is_copy) args.b_form = b_.form;
    task.a_form_bytes = a_.bytes;
    task.b_form_bytes = b_.bytes;
  }

  // All forms were made.
  void SetMade() { is_ok_ = true; }

 private:
  struct Taken {
    OperandForm form;
    int64_t bytes = 0;
    bool is_copy = false;
    Piece piece;  // The copy.
  };
  // Not the number of any other form.
  static constexpr uint32_t kCopy = ~uint32_t{0};

  absl::Status Take(Source& source, const MatrixLayout& layout, mma::Operand operand, Taken& taken,
                    const SharedMemory* shared, int threads, AbortFlag abort) {
    if (job_.forms == nullptr) return absl::OkStatus();
    const absl::StatusOr<DerivedOperand> derived = job_.kernel->derived(job_.problem, operand);
    if (!derived.ok()) return absl::OkStatus();
    const int64_t matrices = layout.batch_stride_bytes == 0 ? 1 : job_.problem.batch;
    if (derived->bytes > 0) {
      taken.bytes = derived->bytes;
      taken.form = job_.forms->TakeForm(source, layout, matrices, *derived);
      if (taken.form.is_made) source = Source();  // Not used.
      return absl::OkStatus();
    }
    const bool is_seen = shared == nullptr || source.bytes < SharedMemory::kMinBytes ||
                         source.pieces.size() != 1 || shared->OffsetOf(source.pieces[0].data());
    if (is_seen) return absl::OkStatus();
    taken.is_copy = true;
    taken.form =
        job_.forms->TakeForm(source, layout, matrices, {.bytes = source.bytes, .form = kCopy});
    if (taken.form.bytes == nullptr) return absl::OkStatus();
    const auto is_aborted = [abort] { return IsSet(abort); };
    if (!taken.form.is_made && !CopyPieces(source, taken.form.bytes, threads, is_aborted)) {
      return AbortedLaunch();
    }
    taken.piece = {taken.form.bytes, static_cast<size_t>(source.bytes)};
    source.pieces = absl::MakeConstSpan(&taken.piece, 1);
    return absl::OkStatus();
  }

  const Job& job_;
  Taken a_;
  Taken b_;
  bool is_ok_ = false;
};

HostDevice::HostDevice(const Target& target, int threads, bool poisons_freed,
                       const WorkerProgram* program)
    : info_(target.kind == DeviceKind::kSim ? DescribeSimulator(target.chip) : DescribeCpu()),
      shared_(program == nullptr ? nullptr : SharedMemory::OfProcess()),
      memory_(WarmMemory::kKeptBytes, poisons_freed, shared_) {
  no_memory_to_join_ = absl::StrCat("job: no memory to join matrices on device ", info_.name);
  info_.kind = target.kind;
  info_.threads = threads > 0 ? threads : UsableProcessors();
  info_.memory_bytes = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  if (program == nullptr) {
    launcher_ = std::make_unique<LocalLauncher>(poisons_freed);
  } else {
    ProcessLauncher::Options options = {.program = *program,
                                        .catalog = CatalogFingerprint(target.kind),
                                        .threads = info_.threads,
                                        .poisons_freed = poisons_freed};
    options.program.device = info_.name;
    auto process = std::make_unique<ProcessLauncher>(std::move(options), *shared_);
    process_ = process.get();
    launcher_ = std::move(process);
  }
  thread_ = std::thread([this, target] { Run(target); });
  MutexLock lock(&mutex_);
  mutex_.Await([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return measured_; });
}

HostDevice::~HostDevice() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

void HostDevice::Submit(const Job& job, Done done) {
  MutexLock lock(&mutex_);
  if (spare_.empty()) spare_.emplace_back();
  spare_.front() = {job, std::move(done), clock_.NowNs()};
  pending_.splice(pending_.end(), spare_, spare_.begin());
}

void HostDevice::Abort(JobId id) {
  if (id == 0) return;
  MutexLock lock(&mutex_);
  if (id == running_id_) SetAborted(true);
  for (Pending& pending : pending_) {
    if (pending.job.id == id) pending.is_aborted = true;
  }
}

// The worker has its own flag.
void HostDevice::SetAborted(bool is_aborted) {
  abort_.store(is_aborted, std::memory_order_relaxed);
  if (process_ != nullptr) process_->SetAborted(is_aborted);
}

// If there is a worker, it measures, so that a crash does not affect the daemon.
absl::Status HostDevice::Measure(const Target& target) {
  profile_.target = target;
  if (process_ == nullptr) {
    profile_ = MeasureRates(target);
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const std::vector<double> numbers, process_->Measure());
  ASSIGN_OR_RETURN(profile_, ProfileOf(target, numbers));
  return absl::OkStatus();
}

void HostDevice::Run(const Target& target) {
  pthread_setname_np(pthread_self(), ThreadName(info_.name).c_str());
  SetThreads(info_.threads);
  // The constructor waits for `measured_`, so nothing reads the profile before it is complete.
  started_ = Measure(target);
  if (process_ != nullptr && started_.ok()) {
    const Hello& hello = process_->hello();
    info_.is_confined = hello.is_confined != 0;
    info_.confinement = hello.confinement.view();
    info_.unconfined = hello.unconfined.view();
  }
  {
    MutexLock lock(&mutex_);
    measured_ = true;
  }
  Pending next;
  while (TakeNext(next)) {
    JobOutcome outcome = Execute(next);
    bool needs_worker = absl::IsAborted(outcome.status);
    {
      MutexLock lock(&mutex_);
      running_id_ = 0;
      needs_worker = needs_worker && !stopping_;
    }
    std::move(next.done)(std::move(outcome));
    if (needs_worker)
      process_->Start().IgnoreError();  // The next launch retries and reports the error.
  }
  launcher_.reset();  // The worker ends with this thread.
}

DeviceCondition HostDevice::condition() const {
  DeviceCondition now;
  if (process_ != nullptr) now.worker_restarts = process_->restarts();
  return now;
}

int64_t HostDevice::worker_memory_bytes() const {
  return process_ == nullptr ? 0 : OwnResidentBytes(worker_pid());
}

absl::Status HostDevice::RestartWorker() {
  if (process_ == nullptr) return Device::RestartWorker();
  trust().ForgetLosses();
  MutexLock lock(&mutex_);
  is_restart_asked_ = true;
  return absl::OkStatus();
}

// Waits for a job. Returns false if the device stops and no job is left.
bool HostDevice::TakeNext(Pending& next) {
  MutexLock lock(&mutex_);
  const auto has_work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopping_ || !pending_.empty() || is_restart_asked_;
  };
  if (!mutex_.AwaitWithTimeout(has_work, WarmMemory::kKeptFor)) {
    memory_.Cool();
    launcher_->Cool();
    mutex_.Await(has_work);
  }
  while (std::exchange(is_restart_asked_, false)) {
    mutex_.Unlock();
    process_->Restart().IgnoreError();  // The next launch retries and reports the error.
    mutex_.Lock();
    mutex_.Await(has_work);
  }
  if (pending_.empty()) return false;
  next = std::move(pending_.front());
  spare_.splice(spare_.begin(), pending_, pending_.begin());
  running_id_ = next.job.id;
  SetAborted(next.is_aborted);
  return true;
}

JobOutcome HostDevice::Execute(const Pending& pending) {
  const Job& job = pending.job;
  JobOutcome outcome;
  const int64_t start_ns = clock_.NowNs();
  outcome.wait_ns = start_ns - pending.submitted_ns;
  outcome.status = CheckLosses(job);
  if (!outcome.status.ok()) return outcome;
  TakenForms forms(job);
  absl::StatusOr<Job> placed = forms.Take(shared_, info_.threads, &abort_);
  Gathering gathering(memory_, info_.threads, shared_);
  absl::StatusOr<GemmArgs> args = OrNoMemory(no_memory_to_join_, [&]() -> absl::StatusOr<GemmArgs> {
    RETURN_IF_ERROR(placed.status());
    return Prepare(*placed, gathering, outcome.d);
  });
  const int64_t ready_ns = clock_.NowNs();
  outcome.copy_in_ns = ready_ns - start_ns;
  outcome.status = args.status();
  if (!outcome.status.ok()) {
    outcome.d = HeldBytes();
    return outcome;
  }

  outcome.status = Launch(*placed, forms, *args);
  outcome.compute_ns = clock_.NowNs() - ready_ns;
  if (outcome.status.ok()) forms.SetMade();
  if (outcome.status.ok() && !job.d.parts.empty()) PutParts(job.d.parts, outcome);
  if (!outcome.status.ok()) outcome.d = HeldBytes();
  return outcome;
}

absl::Status HostDevice::Launch(const Job& job, const TakenForms& forms, GemmArgs& args) {
  LaunchTask task = {.kernel = *job.kernel,
                     .args = args,
                     .workspace_bytes = job.workspace_bytes,
                     .predicted_ns = job.predicted.kernel_ns,
                     .d_bytes = job.d_bytes};
  for (const OperandRole role : kOperandRoles) task.bytes[role] = job[role].bytes;
  forms.Fill(args, task);
  absl::Status status = launcher_->Launch(task);
  if (process_ != nullptr && process_->died_of_launch()) AddLoss(*job.kernel, job.problem);
  if (!absl::IsResourceExhausted(status)) return status;
  return absl::ResourceExhaustedError(absl::StrCat(status.message(), " on device ", info_.name));
}

// The arguments of a launch.
absl::StatusOr<GemmArgs> HostDevice::Prepare(const Job& job, Gathering& gathering, HeldBytes& d) {
  ASSIGN_OR_RETURN(std::byte* const to, PlaceOutput(job, d));
  ASSIGN_OR_RETURN(GemmArgs args, ArgsOf(job, profile_.target, {}, to, &abort_, gathering));
  RETURN_IF_ERROR(CheckOperands(job.problem, args.a, &abort_));
  if (IsSet(&abort_)) return AbortedLaunch();
  return args;
}

// Where the kernel writes D.
absl::StatusOr<std::byte*> HostDevice::PlaceOutput(const Job& job, HeldBytes& d) {
  const auto is_in_block = [](const DestinationPart& part) { return part.block != 0; };
  if (job.d.block != 0 || std::any_of(job.d.parts.begin(), job.d.parts.end(), is_in_block)) {
    return absl::InternalError("job: got a block, want host memory");
  }
  if (job.d.memory != nullptr) return job.d.memory;
  // The kernel writes all of D except its gaps. Zeros from the system cost no writes.
  std::optional<HeldBytes> memory =
      HasGaps(job.problem) ? HeldBytes::Zeros(job.d_bytes) : memory_.Take(job.d_bytes);
  if (!memory.has_value()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("d: no memory for ", job.d_bytes, " bytes on device ", info_.name));
  }
  d = *std::move(memory);
  return d.bytes().data();
}

}  // namespace gemmd
