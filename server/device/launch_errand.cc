// SPDX-License-Identifier: Apache-2.0
#include "server/device/launch_errand.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "kernels/cpu/host.h"
#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"
#include "server/system/resources.h"

namespace gemmd {
namespace {

constexpr int64_t kScratchAlignment = 64;

// All tensors in host memory count as one block: a job that writes memory of its caller's runs
// before or after every other job that names tensors.
constexpr uint64_t kTensors = 1;

int64_t Aligned(int64_t bytes) {
  return (bytes + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment;
}

// How much of D the worker must have written, counted from its beginning. D may be in another place
// for the worker, with the same bytes.
int64_t MarkedBytes(const Job& job, const SharedMemory* shared) {
  if (shared == nullptr) return 0;
  // A tensor that is overwritten in its place holds its owner's bytes, and C may be the same.
  const Destination& d = job.d;
  if (d.memory != nullptr && !d.is_new && shared->OffsetOf(d.memory)) return 0;
  // A D with gaps begins with a line that has none.
  const MatrixLayout& layout = job.problem.d;
  if (HasGaps(job.problem)) {
    return std::min(kMarkBytes, layout.line_length() * BitsOf(layout.type) / 8);
  }
  return job.d_bytes;
}

DeviceInfo Describe(const Target& target, int threads) {
  DeviceInfo info;
  info.name = "cpu";
  info.description = ProcessorName();
  if (target.kind == DeviceKind::kSim) {
    const mma::ChipFacts facts = mma::FactsOf(target.chip);
    info.name = Concat("sim:", facts.name);
    info.description = Concat("the matrix instructions of ", facts.architecture, ", simulated on ",
                              info.description);
    info.chip = facts.name;
    info.arithmetic = facts.is_verified ? "verified" : "modelled";
  }
  info.kind = target.kind;
  info.threads = threads > 0 ? threads : UsableProcessors();
  info.memory_bytes = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  return info;
}

}  // namespace

HostSide::HostSide(const Target& of, int threads, bool poisons_freed, SharedMemory* shared_memory)
    : info(Describe(of, threads)),
      target(of),
      shared(shared_memory),
      memory(WarmMemory::kKeptBytes, poisons_freed, shared),
      no_memory_to_join(Concat("job: no memory to join matrices on device ", info.name)),
      poisons_freed_(poisons_freed) {}

std::optional<HeldBytes> HostSide::TakeScratch(int64_t bytes, bool& is_new) {
  is_new = false;
  {
    MutexLock lock(&mutex_);
    for (HeldBytes& spare : spares_) {
      if (static_cast<int64_t>(spare.size()) < bytes) continue;
      std::swap(spare, spares_.back());
      HeldBytes taken = std::move(spares_.back());
      spares_.pop_back();
      return taken;
    }
  }
  // Shorter memory is not shared.
  std::optional<HeldBytes> taken = memory.Take(std::max(bytes, SharedMemory::kMinBytes), &is_new);
  if (taken && shared->OffsetOf(taken->bytes().data())) return taken;
  return std::nullopt;
}

void HostSide::GiveBack(HeldBytes scratch) {
  if (scratch.size() == 0 || scratch.size() > kMaxSpareBytes) return;
  if (poisons_freed_) Poison(scratch.bytes());
  MutexLock lock(&mutex_);
  if (spares_.size() < kMaxSpares) spares_.push_back(std::move(scratch));
}

void HostSide::Cool() {
  absl::InlinedVector<HeldBytes, kMaxSpares> freed;
  {
    MutexLock lock(&mutex_);
    freed.swap(spares_);
  }
  freed.clear();
  memory.Cool();
}

absl::StatusOr<Job> TakenForms::Take(const HostSide& host, AbortFlag abort) {
  Job job = job_;
  RETURN_IF_ERROR(Take(job.a, job.problem.a, mma::Operand::kA, a_, host, abort));
  RETURN_IF_ERROR(Take(job.b, job.problem.b, mma::Operand::kB, b_, host, abort));
  return job;
}

absl::Status TakenForms::Take(Source& source, const MatrixLayout& layout, mma::Operand operand,
                              Taken& taken, const HostSide& host, AbortFlag abort) {
  // Not the number of any other form.
  constexpr uint32_t kCopy = ~uint32_t{0};
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
  const bool is_seen = host.shared == nullptr || source.bytes < SharedMemory::kMinBytes ||
                       source.pieces.size() != 1 || host.shared->OffsetOf(source.pieces[0].data());
  if (is_seen) return absl::OkStatus();
  taken.is_copy = true;
  taken.form =
      job_.forms->TakeForm(source, layout, matrices, {.bytes = source.bytes, .form = kCopy});
  if (taken.form.bytes == nullptr) return absl::OkStatus();
  const auto is_aborted = [abort] { return IsSet(abort); };
  if (!taken.form.is_made && !CopyPieces(source, taken.form.bytes, host.info.threads, is_aborted)) {
    return AbortedLaunch();
  }
  taken.piece = {taken.form.bytes, static_cast<size_t>(source.bytes)};
  source.pieces = absl::MakeConstSpan(&taken.piece, 1);
  return absl::OkStatus();
}

void TakenForms::End(bool are_made) {
  if (job_.forms != nullptr) job_.forms->EndForms(are_made);
}

LaunchErrand::LaunchErrand(const Job& job, Device::Done done, HostSide& host)
    : Errand(Kind::kJob),
      job_(job),
      done_(std::move(done)),
      host_(host),
      forms_(job_),
      gathering_(host.memory, host.info.threads, host.shared) {
  job_id = job.id;
  predicted_ns = job.predicted.kernel_ns;
  prepares_itself = true;
  bool has_tensors = false;
  for (const OperandRole role : kOperandRoles) {
    const Source& source = job_[role];
    has_tensors |= source.is_resident;
    const bool is_in_place = source.pieces.size() == 1 && host.shared != nullptr &&
                             host.shared->OffsetOf(source.pieces[0].data());
    if (!is_in_place) in_bytes += source.bytes;
  }
  if (job.problem.a.is_sparse()) in_bytes += job.a.bytes;  // Its indices are checked.
  out_bytes = MarkedBytes(job, host.shared);
  if (has_tensors || job.d.is_given()) {
    uses = {{.block = kTensors, .is_write = job.d.is_given()}};
  }
}

absl::Status LaunchErrand::Prepare() {
  return OrNoMemory(host_.no_memory_to_join, [this] { return PlaceAll(); });
}

absl::Status LaunchErrand::PlaceAll() {
  ASSIGN_OR_RETURN(const Job placed, forms_.Take(host_, &is_aborted));
  RETURN_IF_ERROR(PlaceOutput());
  ASSIGN_OR_RETURN(operands_, gathering_.TakeAll(placed, &is_aborted));
  RETURN_IF_ERROR(gemmd::CheckOperands(job_.problem, operands_.a.data(), &is_aborted));
  if (is_aborted) return AbortedLaunch();
  if (host_.shared == nullptr) return absl::OkStatus();
  request_.kernel = static_cast<uint32_t>(job_.kernel->position);
  request_.is_a_form_made = forms_.a().is_made ? 1 : 0;
  request_.is_b_form_made = forms_.b().is_made ? 1 : 0;
  request_.workspace_bytes = job_.workspace_bytes;
  request_.problem = job_.problem;
  for (const OperandRole role : kOperandRoles) {
    Add(request_.operands[role], operands_[role].data(), placed[role].bytes, /*is_read=*/true,
        /*is_written=*/false);
  }
  Add(request_.a_form, forms_.a().bytes, forms_.a_bytes(), forms_.a().is_made, !forms_.a().is_made);
  Add(request_.b_form, forms_.b().bytes, forms_.b_bytes(), forms_.b().is_made, !forms_.b().is_made);
  // The bytes between the lines of D are preserved.
  Add(request_.d, d_at_, job_.d_bytes, /*is_read=*/HasGaps(job_.problem), /*is_written=*/true);
  SetWritten(d_at_, is_d_new_);
  return CopyOutside();
}

// Where the kernel writes D.
absl::Status LaunchErrand::PlaceOutput() {
  const Destination& d = job_.d;
  const auto is_in_block = [](const DestinationPart& part) { return part.block != 0; };
  if (d.block != 0 || std::any_of(d.parts.begin(), d.parts.end(), is_in_block)) {
    return absl::InternalError("job: got a block, want host memory");
  }
  d_at_ = d.memory;
  if (d_at_ != nullptr) return absl::OkStatus();
  // The kernel writes all of D except its gaps. Zeros from the system cost no writes.
  std::optional<HeldBytes> memory = HasGaps(job_.problem)
                                        ? HeldBytes::Zeros(job_.d_bytes)
                                        : host_.memory.Take(job_.d_bytes, &is_d_new_);
  if (!memory.has_value()) {
    return absl::ResourceExhaustedError(
        Concat("d: no memory for ", job_.d_bytes, " bytes on device ", host_.info.name));
  }
  d_ = *std::move(memory);
  d_at_ = d_.bytes().data();
  return absl::OkStatus();
}

// Adds a matrix to the request. If it is outside shared memory, it is copied there before the
// launch if `is_read`, and back after it if `is_written`.
void LaunchErrand::Add(ByteRange& range, const std::byte* memory, int64_t bytes, bool is_read,
                       bool is_written) {
  if (memory == nullptr || bytes == 0) return;
  range.bytes = bytes;
  if (const std::optional<int64_t> offset = host_.shared->OffsetOf(memory)) {
    range.offset = *offset;
    return;
  }
  outside_[outside_count_++] = {&range, const_cast<std::byte*>(memory), is_read, is_written};
  scratch_bytes_ += Aligned(bytes);
}

// New memory of more than kMaxMarked bytes gets one mark. It holds no caller's bytes, and its pages
// come from the system faster if the kernel's threads touch them first.
void LaunchErrand::SetWritten(std::byte* memory, bool is_new) {
  if (is_new && out_bytes > kMaxMarked) out_bytes = kMarkBytes;
  written_ = {memory, static_cast<size_t>(out_bytes)};
}

absl::Status LaunchErrand::CopyOutside() {
  if (outside_count_ == 0) return absl::OkStatus();
  bool is_new = false;
  std::optional<HeldBytes> scratch = host_.TakeScratch(scratch_bytes_, is_new);
  if (!scratch) {
    return absl::ResourceExhaustedError(
        Concat("job: no memory for ", scratch_bytes_, " bytes shared with the worker"));
  }
  scratch_ = *std::move(scratch);
  std::byte* at = scratch_.bytes().data();
  for (const Outside& one : absl::MakeSpan(outside_).first(outside_count_)) {
    one.range->offset = *host_.shared->OffsetOf(at);
    if (one.is_read) std::memcpy(at, one.memory, static_cast<size_t>(one.range->bytes));
    if (one.range == &request_.d) SetWritten(at, is_new);
    at += Aligned(one.range->bytes);
  }
  return absl::OkStatus();
}

absl::Status LaunchErrand::Send(Channel& channel) const {
  LaunchRequest request = request_;
  request.id = id;
  request.slot = slot;
  return SendRecord(channel, request);
}

absl::Status LaunchErrand::RunHere(Launcher& launcher) const {
  GemmArgs args = ArgsAt(job_.problem, host_.target, operands_, d_at_, /*workspace=*/{});
  args.abort = &is_aborted;
  args.a_form = forms_.a();
  args.b_form = forms_.b();
  return launcher.Launch(*job_.kernel, args, job_.workspace_bytes);
}

absl::Status LaunchErrand::PlaceResult(Copies& copies) {
  const std::byte* d = d_at_;
  const std::byte* at = scratch_.bytes().data();
  for (const Outside& one : absl::MakeConstSpan(outside_).first(outside_count_)) {
    const auto bytes = static_cast<size_t>(one.range->bytes);
    const bool is_d = one.memory == d_at_;
    // The parts of D are copied from there.
    if (is_d && !job_.d.parts.empty())
      d = at;
    else if (one.is_written)
      copies.push_back({.to = one.memory, .from = at, .bytes = bytes});
    at += Aligned(one.range->bytes);
  }
  for (const DestinationPart& part : job_.d.parts) {
    const auto bytes = static_cast<size_t>(part.bytes);
    if (part.memory != nullptr) copies.push_back({.to = part.memory, .from = d, .bytes = bytes});
    d += bytes;
  }
  return absl::OkStatus();
}

void LaunchErrand::End(const absl::Status& status, const Times& took) {
  forms_.End(status.ok());
  JobOutcome outcome;
  outcome.status = status;
  if (absl::IsResourceExhausted(status) && id != 0) {
    outcome.status = absl::ResourceExhaustedError(
        Concat(std::string(status.message()), " on device ", host_.info.name));
  }
  outcome.wait_ns = took.wait_ns;
  outcome.copy_in_ns = took.copy_in_ns;
  outcome.compute_ns = took.compute_ns;
  outcome.copy_out_ns = took.copy_out_ns;
  if (status.ok() && job_.d.parts.empty()) outcome.d = std::move(d_);
  std::move(done_)(std::move(outcome));
}

}  // namespace gemmd
