// SPDX-License-Identifier: Apache-2.0
#include "server/device/host_device.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/host.h"
#include "kernels/host_rates.h"
#include "kernels/or_no_memory.h"
#include "kernels/status_macros.h"
#include "server/device/held_bytes.h"
#include "server/device/operands.h"
#include "server/system/resources.h"

namespace gemmd {
namespace {

constexpr size_t kWorkspaceAlignment = 64;  // GemmArgs::workspace.

// A workspace larger than this goes back to the system after the job that needed it.
constexpr int64_t kKeptWorkspaceBytes = int64_t{64} << 20;

// Whether there are bits between the elements of D that no kernel writes.
bool HasGaps(const Problem& problem) {
  const MatrixLayout& d = problem.d;
  const int64_t line_bits = d.line_length() * BitsOf(d.type);
  if (line_bits != 8 * d.line_stride_bytes()) return true;
  return problem.batch > 1 && d.batch_stride_bytes != d.lines() * d.line_stride_bytes();
}

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

// Has the launch derive what it can from operands that stay where the next one finds it.
void TakeForms(const Job& job, GemmArgs& args) {
  if (job.forms == nullptr) return;
  const auto take = [&](const Source& source, const MatrixLayout& layout, mma::Operand operand) {
    const absl::StatusOr<DerivedOperand> derived = job.kernel->derived(job.problem, operand);
    if (!derived.ok() || derived->bytes == 0) return OperandForm();
    return job.forms->TakeForm(source, layout, *derived);
  };
  args.a_form = take(job.a, job.problem.a, mma::Operand::kA);
  args.b_form = take(job.b, job.problem.b, mma::Operand::kB);
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

void HostDevice::FreeDeleter::operator()(std::byte* memory) const { std::free(memory); }

HostDevice::HostDevice(const Target& target, int threads, bool poisons_freed)
    : poisons_freed_(poisons_freed),
      info_(target.kind == DeviceKind::kSim ? DescribeSimulator(target.chip) : DescribeCpu()),
      memory_(WarmMemory::kKeptBytes, poisons_freed) {
  info_.kind = target.kind;
  info_.threads = threads > 0 ? threads : UsableProcessors();
  info_.memory_bytes = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
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
  if (id == running_id_) abort_.store(true, std::memory_order_relaxed);
  for (Pending& pending : pending_) {
    if (pending.job.id == id) pending.is_aborted = true;
  }
}

void HostDevice::Run(const Target& target) {
  pthread_setname_np(pthread_self(), ThreadName(info_.name).c_str());
  SetThreads(info_.threads);
  // The constructor waits for `measured_`, so nothing reads the profile before it is complete.
  profile_ = MeasureRates(target);
  {
    MutexLock lock(&mutex_);
    measured_ = true;
  }
  Pending next;
  while (TakeNext(next)) {
    JobOutcome outcome = Execute(next);
    {
      MutexLock lock(&mutex_);
      running_id_ = 0;
    }
    std::move(next.done)(std::move(outcome));
  }
}

// Waits for a job. False where there is none left and the device stops.
bool HostDevice::TakeNext(Pending& next) {
  MutexLock lock(&mutex_);
  const auto has_work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopping_ || !pending_.empty();
  };
  if (!mutex_.AwaitWithTimeout(has_work, WarmMemory::kKeptFor)) {
    memory_.Cool();
    DropWorkspace();
    mutex_.Await(has_work);
  }
  if (pending_.empty()) return false;
  next = std::move(pending_.front());
  spare_.splice(spare_.begin(), pending_, pending_.begin());
  running_id_ = next.job.id;
  abort_.store(next.is_aborted, std::memory_order_relaxed);
  return true;
}

JobOutcome HostDevice::Execute(const Pending& pending) {
  const Job& job = pending.job;
  JobOutcome outcome;
  const int64_t start_ns = clock_.NowNs();
  outcome.wait_ns = start_ns - pending.submitted_ns;
  Gathering gathering(memory_, info_.threads);
  absl::StatusOr<GemmArgs> args =
      OrNoMemory(absl::StrCat("job: no memory to put matrices together on device ", info_.name),
                 [&] { return Prepare(job, gathering, outcome.d); });
  const int64_t ready_ns = clock_.NowNs();
  outcome.copy_in_ns = ready_ns - start_ns;
  outcome.status = args.status();
  if (!outcome.status.ok()) {
    outcome.d = HeldBytes();
    return outcome;
  }

  outcome.status =
      OrNoMemory(absl::StrCat("kernel: no memory for its scratch on device ", info_.name), [&] {
        TakeForms(job, *args);
        return job.kernel->launch(*args);
      });
  outcome.compute_ns = clock_.NowNs() - ready_ns;
  if (job.forms != nullptr) job.forms->EndForms(outcome.status.ok());
  if (outcome.status.ok() && !job.d.parts.empty()) PutParts(job.d.parts, outcome);
  if (!outcome.status.ok()) outcome.d = HeldBytes();
  if (workspace_bytes_ > kKeptWorkspaceBytes) DropWorkspace();
  if (poisons_freed_) Poison({workspace_.get(), static_cast<size_t>(workspace_bytes_)});
  return outcome;
}

// What a launch needs beside its code.
absl::StatusOr<GemmArgs> HostDevice::Prepare(const Job& job, Gathering& gathering, HeldBytes& d) {
  RETURN_IF_ERROR(ReserveWorkspace(job.workspace_bytes));
  const auto workspace = absl::MakeSpan(workspace_.get(), static_cast<size_t>(workspace_bytes_));
  ASSIGN_OR_RETURN(std::byte* const to, PlaceOutput(job, d));
  ASSIGN_OR_RETURN(GemmArgs args, ArgsOf(job, profile_.target, workspace, to, &abort_, gathering));
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

void HostDevice::DropWorkspace() {
  workspace_.reset();
  workspace_bytes_ = 0;
}

absl::Status HostDevice::ReserveWorkspace(int64_t bytes) {
  if (bytes <= workspace_bytes_) return absl::OkStatus();
  DropWorkspace();
  void* memory = nullptr;
  const bool is_there =
      posix_memalign(&memory, kWorkspaceAlignment, static_cast<size_t>(bytes)) == 0;
  workspace_.reset(static_cast<std::byte*>(memory));
  if (!is_there || (bytes >= WarmMemory::kLeastBytes && !HasSpareAddresses())) {
    DropWorkspace();
    return absl::ResourceExhaustedError(
        absl::StrCat("workspace: no memory for ", bytes, " bytes on device ", info_.name));
  }
  workspace_bytes_ = bytes;
  return absl::OkStatus();
}

}  // namespace gemmd
