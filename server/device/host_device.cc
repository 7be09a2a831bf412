// SPDX-License-Identifier: Apache-2.0
#include "server/device/host_device.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/host.h"
#include "kernels/host_rates.h"
#include "kernels/or_no_memory.h"
#include "kernels/status_macros.h"
#include "server/crossing/protocol.h"
#include "server/device/held_bytes.h"
#include "server/device/operands.h"
#include "server/system/resources.h"

namespace gemmd {
namespace {

// What tools show: 15 bytes at most.
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

// Takes D to where its parts belong.
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

// What launches derive from A and B that stay (FormKeeper): what the kernel tells of, or, where
// that is nothing and the bytes are not where a worker sees them, the bytes themselves.
class HostDevice::TakenForms {
 public:
  // Borrows the job.
  explicit TakenForms(const Job& job) : job_(job) {}
  ~TakenForms() {
    if (job_.forms != nullptr) job_.forms->EndForms(is_ok_);
  }
  TakenForms(const TakenForms&) = delete;
  TakenForms& operator=(const TakenForms&) = delete;

  // Copies the bytes of the operands for `shared`, unless they are there. The job is the one to run
  // from then on, for as long as this lives.
  // Errors: Cancelled where it was aborted.
  absl::StatusOr<Job> Take(const SharedMemory* shared, int threads, AbortFlag abort) {
    Job job = job_;
    RETURN_IF_ERROR(Take(job.a, job.problem.a, mma::Operand::kA, a_, shared, threads, abort));
    RETURN_IF_ERROR(Take(job.b, job.problem.b, mma::Operand::kB, b_, shared, threads, abort));
    return job;
  }

  // For the launch, what the kernel derives.
  void Fill(GemmArgs& args, LaunchTask& task) const {
    if (!a_.is_copy) args.a_form = a_.form;
    if (!b_.is_copy) args.b_form = b_.form;
    task.a_form_bytes = a_.bytes;
    task.b_form_bytes = b_.bytes;
  }

  // All that was to be made is made.
  void SetMade() { is_ok_ = true; }

 private:
  struct Taken {
    OperandForm form;
    int64_t bytes = 0;
    bool is_copy = false;
    Piece piece;  // The copy.
  };
  // The number of no other form.
  static constexpr uint32_t kCopy = ~uint32_t{0};

  absl::Status Take(Source& source, const MatrixLayout& layout, mma::Operand operand, Taken& taken,
                    const SharedMemory* shared, int threads, AbortFlag abort) {
    if (job_.forms == nullptr) return absl::OkStatus();
    const absl::StatusOr<DerivedOperand> derived = job_.kernel->derived(job_.problem, operand);
    if (!derived.ok()) return absl::OkStatus();
    if (derived->bytes > 0) {
      taken.bytes = derived->bytes;
      taken.form = job_.forms->TakeForm(source, layout, *derived);
      if (taken.form.is_made) source = Source();  // Nobody looks at it.
      return absl::OkStatus();
    }
    const bool is_seen = shared == nullptr || source.bytes < SharedMemory::kLeastBytes ||
                         source.pieces.size() != 1 || shared->OffsetOf(source.pieces[0].data());
    if (is_seen) return absl::OkStatus();
    taken.is_copy = true;
    taken.form = job_.forms->TakeForm(source, layout, {.bytes = source.bytes, .form = kCopy});
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

// The worker has a flag of its own.
void HostDevice::SetAborted(bool is_aborted) {
  abort_.store(is_aborted, std::memory_order_relaxed);
  if (process_ != nullptr) process_->SetAborted(is_aborted);
}

// Where there is a worker, what measuring does to its process costs the daemon nothing.
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
    if (needs_worker) process_->Start().IgnoreError();  // The next launch tries again, and tells.
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

// Waits for a job. False where there is none left and the device stops.
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
    process_->Restart().IgnoreError();  // The next launch tries again, and tells.
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
  absl::StatusOr<GemmArgs> args =
      OrNoMemory(absl::StrCat("job: no memory to put matrices together on device ", info_.name),
                 [&]() -> absl::StatusOr<GemmArgs> {
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

// What a launch needs beside its code.
absl::StatusOr<GemmArgs> HostDevice::Prepare(const Job& job, Gathering& gathering, HeldBytes& d) {
  ASSIGN_OR_RETURN(std::byte* const to, PlaceOutput(job, d));
  ASSIGN_OR_RETURN(GemmArgs args, ArgsOf(job, profile_.target, {}, to, &abort_, gathering));
  RETURN_IF_ERROR(CheckOperands(job.problem, args.a, &abort_));
  if (IsSet(&abort_)) return AbortedLaunch();
  return args;
}

// Where the kernel leaves D.
absl::StatusOr<std::byte*> HostDevice::PlaceOutput(const Job& job, HeldBytes& d) {
  const auto is_in_block = [](const DestinationPart& part) { return part.block != 0; };
  if (job.d.block != 0 || std::any_of(job.d.parts.begin(), job.d.parts.end(), is_in_block)) {
    return absl::InternalError("job: a block is no memory of the host");
  }
  if (job.d.memory != nullptr) return job.d.memory;
  // The kernel writes all of D but its gaps. Zeros that the system gives are not written at all.
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
