// SPDX-License-Identifier: Apache-2.0
#include "server/device/process_launcher.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/time/clock.h"
#include "absl/types/span.h"
#include "kernels/status_macros.h"
#include "kernels/text.h"
#include "server/system/log.h"

namespace gemmd {
namespace {

constexpr int64_t kScratchKeptBytes = int64_t{4} << 20;
constexpr int64_t kScratchAlignment = 64;

// For what takes longer no processor is kept busy: the kernel's threads may need it.
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

  // Notes a matrix; it is copied to the worker before the launch where it is not in shared memory
  // and `is_read`, and back after it where it `is_written`.
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
          Concat("job: no memory for ", scratch_bytes_, " bytes that a worker is to see"));
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
  static constexpr size_t kMost = kOperandRoles.size() + 3;

  ProcessLauncher& launcher_;
  std::array<Copy, kMost> copies_;
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
  // One that is gone or stopped shows when it is asked.
  if (worker_.channel().is_open()) return absl::OkStatus();
  if (worker_.pid() != 0) {
    const std::string end = End();
    // It would write into memory of the next one's launches.
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
  constexpr size_t kMost = size_t{1} << 16;
  RETURN_IF_ERROR(SendRecord(worker_.channel(), MeasureRequest()));
  GpuRates rates;
  size_t all = 0;
  do {
    ASSIGN_OR_RETURN(const Packet packet, worker_.Receive(options_.watchdog_least));
    ASSIGN_OR_RETURN(const RatesPart part, ParseRecord<RatesPart>(packet));
    if (all == 0) all = std::min<size_t>(part.kernels, kMost);
    RETURN_IF_ERROR(AppendRates(part, all, rates));
  } while (rates.kernel_rates.size() < all);
  return std::move(rates.kernel_rates);
}

// Ends the worker, and tells how it ended.
std::string ProcessLauncher::End() {
  worker_.Kill();
  return worker_.AwaitEnd(WorkerProcess::kTimeToDie).value_or("it does not die");
}

// Ends a worker that is of no more use, as the log says, and tells why and how it ended.
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
  // What lies between the lines of D stays as it is.
  passed.Add(request.d, args.d, task.d_bytes, /*is_read=*/true, /*is_written=*/true);
  RETURN_IF_ERROR(passed.CopyIn());
  const absl::Duration most =
      std::max(absl::Nanoseconds(options_.watchdog_factor * static_cast<double>(task.predicted_ns)),
               options_.watchdog_least);
  const bool is_short = task.predicted_ns <= kLongestToSpinForNs;
  ASSIGN_OR_RETURN(const Result result,
                   Ask(request, is_short ? options_.program.spin_ns : 0, most));
  const absl::Status status = result.status.get();
  if (status.ok()) passed.CopyOut();
  if (options_.poisons_freed) Poison(passed.scratch());
  if (scratch_bytes_ > kScratchKeptBytes) Cool();
  return status;
}

// Has a worker answer the request. One that is lost before it begins has a successor, which is
// asked instead.
absl::StatusOr<Result> ProcessLauncher::Ask(LaunchRequest& request, int64_t spin_ns,
                                            absl::Duration most) {
  constexpr int kMostTries = 3;
  std::string why;
  for (int i = 0; i < kMostTries; ++i) {
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

}  // namespace gemmd
