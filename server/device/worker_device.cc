// SPDX-License-Identifier: Apache-2.0
//
// The life of jobs and of the device's thread; that of a worker is in worker_device_life.cc.
#include "server/device/worker_device.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <optional>
#include <utility>

#include "kernels/catalog.h"
#include "kernels/status_macros.h"
#include "kernels/text.h"
#include "server/device/copy_pieces.h"
#include "server/device/operand_check.h"

namespace gemmd {
namespace {

// How often the thread looks at the clock for a job that another thread has handed over.
constexpr int64_t kTickNs = 100'000'000;

// Copying so much takes some 2 ms.
constexpr size_t kCopiedAtOnce = size_t{8} << 20;

// How long a worker may take to end a job that nobody wants any more.
constexpr int64_t kTimeToAbortNs = 1'000'000'000;

// A source that were too short would leave bytes of an earlier job in its place.
absl::Status CheckSources(const Job& job, const JobLayout& layout) {
  const std::pair<const Source*, const JobRange*> matrices[] = {{&job.a, &layout.a},
                                                                {&job.b, &layout.b},
                                                                {&job.c, &layout.c},
                                                                {&job.bias, &layout.bias},
                                                                {&job.a_scale, &layout.a_scale},
                                                                {&job.b_scale, &layout.b_scale}};
  for (const auto& [source, range] : matrices) {
    if (source->block == 0 && source->bytes == range->bytes) continue;
    return absl::InternalError(Concat("job: got a matrix of ", source->bytes, " bytes, want ",
                                      range->bytes, " in memory of the host"));
  }
  return absl::OkStatus();
}

absl::Span<std::byte> Place(absl::Span<std::byte> staging, const JobRange& range) {
  return staging.subspan(static_cast<size_t>(range.offset), static_cast<size_t>(range.bytes));
}

}  // namespace

// Copying so much takes less time than waking the device's thread.
bool WorkerDevice::Pending::is_small() const { return layout.input_bytes() <= (int64_t{64} << 10); }

void WorkerDevice::Submit(const Job& job, Done done) {
  auto pending = MakePending(job, std::move(done));
  {
    MutexLock lock(&mutex_);
    const bool is_idle =
        readiness_.ok() && current_ == nullptr && pending_.empty() && !is_checking_;
    if (is_idle && pending->refusal.ok() && pending->is_small()) {
      MakeCurrent(std::move(pending));
      HandOver(*current_);
      return;
    }
    pending_.push_back(std::move(pending));
  }
  Wake();
}

void WorkerDevice::Abort(JobId id) {
  if (id == 0) return;
  {
    MutexLock lock(&mutex_);
    if (current_ != nullptr && current_->job.id == id) {
      aborted_id_.store(current_->id, std::memory_order_relaxed);
      staging_.control().aborted_id.store(current_->id, std::memory_order_relaxed);
      abort_deadline_ns_ = clock_.NowNs() + kTimeToAbortNs;
      return;
    }
    const auto found =
        std::find_if(pending_.begin(), pending_.end(),
                     [id](const std::unique_ptr<Pending>& one) { return one->job.id == id; });
    if (found == pending_.end()) return;
    aborted_.push_back(std::move(*found));
    pending_.erase(found);
  }
  Wake();
}

bool WorkerDevice::IsAborted(const Pending& pending) const {
  return aborted_id_.load(std::memory_order_relaxed) == pending.id;
}

absl::Status WorkerDevice::CheckSize(const Problem& problem) const {
  return LayOut(problem).status();
}

// Errors: ResourceExhausted where the staging area is too small.
absl::StatusOr<JobLayout> WorkerDevice::LayOut(const Problem& problem) const {
  ASSIGN_OR_RETURN(const JobLayout layout, LayOutJob(problem));
  if (layout.end > options_.staging_bytes) {
    return absl::ResourceExhaustedError(
        Concat("device: ", info_.name, " is given at most ", options_.staging_bytes,
               " bytes of operands and result at once (--gpu-staging-bytes), got ", layout.end));
  }
  return layout;
}

std::unique_ptr<WorkerDevice::Pending> WorkerDevice::MakePending(const Job& job, Done done) const {
  auto pending = std::make_unique<Pending>();
  pending->job = job;
  pending->done = std::move(done);
  pending->submitted_ns = clock_.NowNs();
  const absl::StatusOr<JobLayout> layout = LayOut(job.problem);
  if (layout.ok()) {
    pending->layout = *layout;
    pending->refusal = CheckSources(job, *layout);
  } else {
    pending->refusal = layout.status();
  }
  if (pending->refusal.ok() && pending->is_small()) pending->refusal = CheckOperands(job);
  return pending;
}

void WorkerDevice::MakeCurrent(std::unique_ptr<Pending> pending) {
  pending->id = ++last_id_;
  current_ = std::move(pending);
}

// How long the worker may take over a job.
absl::Duration WorkerDevice::LongestRun(const Job& job) const {
  const double predicted_ns = static_cast<double>(PredictedNs(*job.kernel, job.problem, profile_)) +
                              static_cast<double>(PredictedCopyNs(job.problem, profile_));
  const absl::Duration wanted = absl::Nanoseconds(options_.watchdog_factor * predicted_ns);
  return std::max(std::min(wanted, options_.watchdog_most), options_.watchdog_least);
}

// Leaves nothing of an earlier job between this matrix and the next one. False where the job was
// aborted meanwhile.
bool WorkerDevice::CopyInChunks(const Pending& pending, const JobRange& range,
                                const Source& from) const {
  std::byte* const to = staging_.matrices().data() + range.offset;
  const auto is_aborted = [&] { return IsAborted(pending); };
  if (!CopyPieces(from, to, /*threads=*/4, is_aborted)) return false;
  const auto bytes = static_cast<size_t>(range.bytes);
  std::memset(to + bytes, 0, -bytes % static_cast<size_t>(kJobAlignment));
  return true;
}

// Copies the operands where the worker finds them and tells it of the job, whether it was aborted
// or not: the worker then says so. A worker that is gone shows in the socket.
void WorkerDevice::HandOver(Pending& pending) const {
  const Job& job = pending.job;
  const JobLayout& layout = pending.layout;
  pending.begun_ns = clock_.NowNs();
  [[maybe_unused]] const bool is_whole =
      CopyInChunks(pending, layout.a, job.a) && CopyInChunks(pending, layout.b, job.b) &&
      CopyInChunks(pending, layout.c, job.c) && CopyInChunks(pending, layout.bias, job.bias) &&
      CopyInChunks(pending, layout.a_scale, job.a_scale) &&
      CopyInChunks(pending, layout.b_scale, job.b_scale);
  stamps_.Put(Place(staging_.matrices(), layout.d));
  JobRequest request;
  request.id = pending.id;
  request.kernel = static_cast<uint32_t>(job.kernel->position);
  request.problem = job.problem;
  request.predicted_ns = PredictedNs(*job.kernel, job.problem, profile_);
  pending.sent_ns = clock_.NowNs();
  pending.deadline_ns = pending.sent_ns + absl::ToInt64Nanoseconds(LongestRun(job));
  SendRecord(process_.socket(), request).IgnoreError();
}

// Gives the worker its next job, where it has none and one waits.
void WorkerDevice::HandOverNext() {
  AnswerAborted();
  while (Pending* const next = TakeNext()) {
    // Not locked: this may be long. Nobody else touches the current job meanwhile.
    if (next->refusal.ok() && !next->is_small()) next->refusal = CheckOperands(next->job);
    if (next->refusal.ok()) {
      HandOver(*next);
      return;
    }
    std::unique_ptr<Pending> refused;
    {
      MutexLock lock(&mutex_);
      refused = std::move(current_);
    }
    Answer(*refused, refused->refusal);
  }
}

// Makes the next job the current one, where there is none. Null where none waits.
WorkerDevice::Pending* WorkerDevice::TakeNext() {
  MutexLock lock(&mutex_);
  if (current_ != nullptr || pending_.empty()) return nullptr;
  MakeCurrent(std::move(pending_.front()));
  pending_.pop_front();
  return current_.get();
}

void WorkerDevice::Answer(Pending& pending, const absl::Status& status) const {
  JobOutcome outcome;
  outcome.status = status;
  outcome.wait_ns = clock_.NowNs() - pending.submitted_ns;
  std::move(pending.done)(std::move(outcome));
}

// Errors: the reason for which the worker cannot go on.
absl::Status WorkerDevice::TakeResult() {
  Packet packet;
  const absl::Status received = ReceivePacket(process_.socket(), /*should_wait=*/false, packet);
  if (absl::IsNotFound(received)) return absl::OkStatus();
  RETURN_IF_ERROR(received);
  ASSIGN_OR_RETURN(const Result result, ParseRecord<Result>(packet));
  Pending* const current = this->current();
  if (current == nullptr) return absl::InternalError("the worker answered what was not asked");
  RETURN_IF_ERROR(CheckResult(*current, result));
  if (result.is_lost != 0) return result.status.get();
  JobOutcome outcome = Finish(*current, result);
  spin_until_ns_ = clock_.NowNs() + options_.command.spin_ns;
  std::unique_ptr<Pending> finished;
  {
    MutexLock lock(&mutex_);
    finished = std::move(current_);
  }
  std::move(finished->done)(std::move(outcome));
  return absl::OkStatus();
}

// Errors: the answer cannot be true.
absl::Status WorkerDevice::CheckResult(const Pending& pending, const Result& result) const {
  // A GPU's clock and that of the host differ a little.
  constexpr int64_t kSlackNs = 1'000'000;
  constexpr int64_t kSlackPart = 100;
  const int64_t passed_ns = clock_.NowNs() - pending.sent_ns;
  int64_t left_ns = passed_ns + passed_ns / kSlackPart + kSlackNs;
  bool is_possible = result.id == pending.id;
  for (const int64_t stage_ns : {result.copy_in_ns, result.compute_ns, result.copy_out_ns}) {
    is_possible = is_possible && stage_ns >= 0 && stage_ns <= left_ns;
    if (is_possible) left_ns -= stage_ns;
  }
  if (!is_possible) return absl::InternalError("the worker answered what was not asked");
  const bool is_ok = result.is_lost == 0 && result.status.get().ok();
  if (is_ok && stamps_.AreLeft(Place(staging_.matrices(), pending.layout.d))) {
    return absl::InternalError("the worker did not write the result that it told of");
  }
  return absl::OkStatus();
}

JobOutcome WorkerDevice::Finish(const Pending& pending, const Result& result) const {
  const int64_t received_ns = clock_.NowNs();
  JobOutcome outcome;
  outcome.wait_ns = pending.begun_ns - pending.submitted_ns;
  outcome.copy_in_ns = pending.sent_ns - pending.begun_ns + result.copy_in_ns;
  outcome.compute_ns = result.compute_ns;
  outcome.status = result.status.get();
  if (!outcome.status.ok()) return outcome;
  outcome.status = TakeOutput(pending, outcome.d);
  if (!outcome.status.ok()) outcome.d = HeldBytes();
  outcome.copy_out_ns = result.copy_out_ns + clock_.NowNs() - received_ns;
  return outcome;
}

// Copies D out of the staging area.
absl::Status WorkerDevice::TakeOutput(const Pending& pending, HeldBytes& d) const {
  const JobRange& range = pending.layout.d;
  const Piece from = Place(staging_.matrices(), range);
  std::byte* to = pending.job.d.memory;
  if (to == nullptr) {
    std::optional<HeldBytes> zeros = HeldBytes::Zeros(range.bytes);
    if (!zeros.has_value()) {
      return absl::ResourceExhaustedError(
          Concat("d: no memory for ", range.bytes, " bytes of a result of device ", info_.name));
    }
    d = *std::move(zeros);
    to = d.bytes().data();
  }
  for (size_t at = 0; at < from.size(); at += kCopiedAtOnce) {
    if (IsAborted(pending)) return AbortedLaunch();
    std::memcpy(to + at, from.data() + at, std::min(kCopiedAtOnce, from.size() - at));
  }
  return absl::OkStatus();
}

// Errors: the worker has not answered in time.
absl::Status WorkerDevice::CheckTime() const {
  const Pending* const current = this->current();
  if (current == nullptr) return absl::OkStatus();
  if (IsAborted(*current)) {
    MutexLock lock(&mutex_);
    if (clock_.NowNs() >= abort_deadline_ns_) {
      return absl::DeadlineExceededError("the worker did not end an aborted product in a second");
    }
  }
  if (clock_.NowNs() < current->deadline_ns) return absl::OkStatus();
  const absl::Duration waited = absl::Nanoseconds(clock_.NowNs() - current->sent_ns);
  const std::string_view limit = waited >= options_.watchdog_most
                                     ? ", the most that a product may take (--watchdog-most)"
                                     : ", ten times what was predicted or more";
  return absl::DeadlineExceededError(
      Concat("no answer within ", absl::FormatDuration(absl::Trunc(waited, absl::Milliseconds(1))),
             limit));
}

// Answers the job of a worker that has ended.
void WorkerDevice::AnswerLost(std::string_view reason) {
  std::unique_ptr<Pending> lost;
  {
    MutexLock lock(&mutex_);
    lost = std::move(current_);
  }
  if (lost == nullptr) return;
  if (IsAborted(*lost)) {
    Answer(*lost, AbortedLaunch());
    return;
  }
  const bool was_started =
      staging_.control().started_id.load(std::memory_order_acquire) == lost->id;
  Answer(*lost,
         was_started
             ? absl::AbortedError(
                   Concat("device: ", info_.name, " was lost while the product ran: ", reason))
             : absl::UnavailableError(Concat("device: ", info_.name,
                                             " was lost before the product started: ", reason)));
}

// Answers all jobs that wait, and those that come in meanwhile.
void WorkerDevice::RefusePending() {
  AnswerAborted();
  while (true) {
    std::unique_ptr<Pending> refused;
    absl::Status status;
    {
      MutexLock lock(&mutex_);
      if (pending_.empty()) return;
      refused = std::move(pending_.front());
      pending_.pop_front();
      status = readiness_.ok() ? absl::UnavailableError("stopping") : readiness_;
    }
    Answer(*refused, refused->refusal.ok() ? status : refused->refusal);
  }
}

// Answers the jobs that were aborted while they waited.
void WorkerDevice::AnswerAborted() {
  std::vector<std::unique_ptr<Pending>> aborted;
  {
    MutexLock lock(&mutex_);
    aborted.swap(aborted_);
  }
  for (const std::unique_ptr<Pending>& one : aborted) Answer(*one, AbortedLaunch());
}

WorkerDevice::Pending* WorkerDevice::current() const {
  MutexLock lock(&mutex_);
  return current_.get();
}

absl::Status WorkerDevice::readiness() const {
  MutexLock lock(&mutex_);
  return readiness_;
}

DeviceCondition WorkerDevice::condition() const {
  MutexLock lock(&mutex_);
  DeviceCondition now = condition_;
  now.thread_turn_ns = turn_ns_;
  if (current_ != nullptr) now.staging_used_bytes = current_->layout.end;
  return now;
}

void WorkerDevice::WatchReadiness(Listener listener) {
  MutexLock lock(&listener_mutex_);
  listener_ = std::move(listener);
  if (listener_) listener_(readiness());
}

void WorkerDevice::SetReadiness(absl::Status new_readiness) {
  MutexLock lock(&listener_mutex_);
  {
    MutexLock state_lock(&mutex_);
    readiness_ = new_readiness;
  }
  if (listener_) listener_(new_readiness);
}

void WorkerDevice::Wake() const {
  const uint64_t one = 1;
  // It fails only where the count is full, and then the thread is awake.
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof(one));
}

// Waits until the worker has sent something, somebody woke the thread, or the time is reached; at
// most a tick.
WorkerDevice::Event WorkerDevice::WaitForEvent(int64_t until_ns) const {
  turn_ns_ = clock_.NowNs();
  while (clock_.NowNs() < spin_until_ns_) {
    const Event event = Poll(0);
    if (event != Event::kTime) return event;
  }
  return Poll(std::clamp(until_ns - clock_.NowNs(), int64_t{0}, kTickNs));
}

WorkerDevice::Event WorkerDevice::Poll(int64_t wait_ns) const {
  const timespec limit = {.tv_sec = 0, .tv_nsec = wait_ns};
  // A closed socket has the number -1, which is left out.
  pollfd files[] = {{.fd = process_.socket(), .events = POLLIN, .revents = 0},
                    {.fd = wake_.get(), .events = POLLIN, .revents = 0}};
  if (ppoll(files, std::size(files), &limit, nullptr) <= 0) return Event::kTime;
  if (files[0].revents != 0) return Event::kRecord;
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t size = read(wake_.get(), &count, sizeof(count));
  return Event::kWoken;
}

}  // namespace gemmd
