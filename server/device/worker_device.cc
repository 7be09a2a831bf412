// SPDX-License-Identifier: Apache-2.0
#include "server/device/worker_device.h"

#include <poll.h>
#include <pthread.h>
#include <time.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "kernels/host_rates.h"
#include "kernels/kernel.h"
#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"
#include "kernels/mma/chip.h"
#include "server/device/device.h"
#include "server/device/errand.h"
#include "server/device/large_job.h"
#include "server/system/log.h"

namespace gemmd {
namespace {

// Copying this much takes no longer than waking a thread: the submitting thread copies operands,
// and the device's thread results.
constexpr int64_t kMaxCopiedIn = int64_t{512} << 10;
constexpr size_t kMaxCopiedHere = size_t{256} << 10;

constexpr char kNotWritten[] = "the worker did not write the result that it told of";

size_t BytesOf(const Copies& copies) {
  size_t bytes = 0;
  for (const CopiedBytes& copy : copies) bytes += copy.bytes;
  return bytes;
}

// A panel leaves 1/16 of the memory to concurrent small jobs and canaries.
int64_t PanelBytes(int64_t bytes) { return bytes - bytes / 16; }

constexpr absl::Duration kTimeToEnd = absl::Seconds(5);

absl::Status Stopped() { return absl::UnavailableError("it was stopped"); }

// Chunks in flight take at most a third of the part for jobs.
int64_t ChunkBytes(int64_t staging_bytes) {
  constexpr int64_t kMaxBytes = int64_t{4} << 20;
  constexpr int64_t kChunks = 24;
  const int64_t bytes = StagingArea::BytesForJobs(staging_bytes) / kChunks;
  return std::clamp(bytes / kJobAlignment * kJobAlignment, kJobAlignment, kMaxBytes);
}

std::string VersionText(int32_t version) {
  return Concat(version / 1000, ".", version % 1000 / 10);
}

DeviceInfo DescribeGpu(int ordinal) {
  DeviceInfo info;
  info.name = Concat("cuda:", ordinal);
  info.kind = DeviceKind::kCuda;
  return info;
}

// A host device's product takes less, unless the processors are busy.
constexpr double kHostWatchdogFactor = 20;

// After answers to longer jobs the device's thread does not spin: kernels may need the processor.
constexpr int64_t kMaxNsToSpinAfter = 100'000;

WorkerProcess::Options Supervised(const WorkerDeviceOptions& options, const DeviceInfo& info) {
  WorkerProcess::Options worker = {.device = info.name,
                                   .program = options.program,
                                   .catalog = CatalogFingerprint(info.kind),
                                   .start_timeout = options.start_timeout,
                                   .restarts = options.restarts};
  if (info.kind == DeviceKind::kCuda) {
    worker.program.device = std::to_string(options.ordinal);
    worker.program.kind_arguments = {options.memory_limit_bytes, options.tensor_limit_bytes};
  } else {
    worker.program.device = info.name;
    worker.program.kind_arguments = {info.threads, options.poisons_freed ? 1 : 0};
  }
  return worker;
}

std::unique_ptr<HostSide> HostSideOf(const WorkerDeviceOptions& options) {
  if (options.target.kind == DeviceKind::kCuda) return nullptr;
  return std::make_unique<HostSide>(options.target, options.threads, options.poisons_freed,
                                    options.shared);
}

}  // namespace

WorkerDeviceOptions WorkerDeviceOptions::OfHost(const Target& target, int threads,
                                                SharedMemory& shared) {
  WorkerDeviceOptions options;
  options.target = target;
  options.threads = threads;
  options.shared = &shared;
  options.copy_threads = 1;
  options.watchdog_factor = kHostWatchdogFactor;
  options.watchdog_min = absl::Minutes(1);
  options.watchdog_max = absl::InfiniteDuration();
  options.time_to_abort = absl::InfiniteDuration();
  // No rest, and short pauses.
  options.restarts = {.restarts = std::numeric_limits<int>::max(),
                      .window_ns = 10'000'000'000,
                      .longest_pause_ns = 1'000'000'000};
  // A launch could still write to memory that its caller has back.
  options.time_to_tell = WorkerProcess::kTimeToDie;
  return options;
}

WorkerDevice::WorkerDevice(WorkerDeviceOptions options)
    : options_(std::move(options)),
      host_(HostSideOf(options_)),
      info_(is_host() ? host_->info : DescribeGpu(options_.ordinal)),
      memory_([this](Errands errands) { Give(std::move(errands)); },
              ChunkBytes(options_.staging_bytes)),
      worker_(Supervised(options_, info_), mutex_,
              [this](int64_t until_ns) { return WaitForWorker(until_ns); }),
      copy_threads_(std::make_unique<CopyThreads>(options_.copy_threads)) {
  thread_ = std::thread([this] { Run(); });
}

WorkerDevice::~WorkerDevice() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  waker_->Wake();
  thread_.join();
}

absl::Status WorkerDevice::WaitUntilStarted() {
  MutexLock lock(&mutex_);
  mutex_.Await([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return started_.has_value(); });
  return *started_;
}

// Requests of callers, and waiting.

void WorkerDevice::Submit(const Job& job, Done done) {
  absl::Status refused = CheckLosses(job);
  // Jobs in parts are small (JoinLimits), and small jobs are not divided.
  const bool is_in_parts =
      !job.d.parts.empty() || !job.a.parts.empty() || !job.b.parts.empty() || !job.c.parts.empty();
  if (refused.ok() && !is_in_parts && !is_host() &&
      (SubmitPaneled(job, done, refused) || SubmitStreamed(job, done))) {
    return;
  }
  const int64_t submitted_ns = clock_.NowNs();
  std::unique_ptr<Errand> errand = MakeJobErrand(job, std::move(done));
  if (!refused.ok()) errand->verdict = std::move(refused);
  errand->submitted_ns = submitted_ns;
  Errand* begun = nullptr;  // Its operands must still be copied.
  {
    MutexLock lock(&mutex_);
    const bool may_begin = is_up_ && !is_checking_ && !errand->verdict &&
                           errand->in_bytes <= kMaxCopiedIn &&
                           errand->out_bytes <= Errand::kMaxMarked && queue_.MayBegin(*errand) &&
                           TakeRoom(*errand) == ErrandQueue::Room::kTaken;
    if (may_begin) {
      queue_.Enter(*errand);
      errand->begun_ns = submitted_ns;  // It did not wait.
      if (errand->is_small()) return BeginSmall(std::move(errand));
      begun = errand.get();
      copied_[begun->slot] = std::move(errand);
    } else {
      queue_.Add(std::move(errand));
    }
  }
  begun != nullptr ? CopyHere(*begun) : waker_->Wake();
}

void WorkerDevice::Give(Errands errands) {
  {
    MutexLock lock(&mutex_);
    for (std::unique_ptr<Errand>& errand : errands) {
      errand->submitted_ns = clock_.NowNs();
      queue_.Add(std::move(errand));
    }
  }
  waker_->Wake();
}

void WorkerDevice::Abort(JobId id) {
  if (id == 0) return;
  {
    MutexLock lock(&mutex_);
    for (const std::shared_ptr<PaneledJob>& paneled : paneled_) {
      if (paneled->id() == id) paneled->Abort();
    }
    for (const std::unique_ptr<Errand>& sent : sent_) {
      if (sent == nullptr || sent->job_id != id) continue;
      sent->is_aborted = true;
      sent->aborted_ns = clock_.NowNs();
      TellAborted(*sent);
      if (WasStarted(*sent)) return;
    }
    for (const std::shared_ptr<StreamedJob>& stream : streams_) {
      if (stream->id() == id) stream->Abort();
    }
    for (const std::shared_ptr<StreamedJob>& stream : streams_waiting_) {
      if (stream->id() == id) stream->Abort();
    }
    for (const std::unique_ptr<Errand>& copied : copied_) {
      if (copied != nullptr && copied->job_id == id) copied->is_aborted = true;
    }
    std::unique_ptr<Errand> waiting = queue_.TakeJob(id);
    if (waiting != nullptr) aborted_.push_back(std::move(waiting));
  }
  waker_->Wake();
}

std::unique_ptr<Errand> WorkerDevice::MakeJobErrand(const Job& job, Done done) {
  if (is_host()) return std::make_unique<LaunchErrand>(job, std::move(done), *host_);
  auto errand = std::make_unique<JobErrand>(job, std::move(done), results_);
  if (errand->verdict) return errand;
  absl::Status status = CheckStaged(errand->in_bytes + errand->out_bytes);
  for (const auto& [range, place] : errand->InBlocks()) {
    status.Update(memory_.ledger().Check(place.block, place.offset, range.bytes));
  }
  if (status.ok() && errand->is_small()) status = errand->Prepare();
  if (!status.ok()) errand->verdict = std::move(status);
  return errand;
}

void WorkerDevice::End(std::unique_ptr<Errand> errand, const absl::Status& status) {
  if (is_host() && errand->id != 0) {
    MutexLock lock(&mutex_);
    queue_.Leave(*errand);
  }
  if (!status.ok()) errand->times = {.wait_ns = clock_.NowNs() - errand->submitted_ns};
  // Freed first: the caller may need the space at once.
  errand->in = StagingRange();
  errand->out = StagingRange();
  if (!errand->is_ended) errand->End(status, errand->times);
}

// Refuses all waiting errands, including new ones.
void WorkerDevice::RefuseWaiting() {
  EndAborted();
  while (true) {
    std::unique_ptr<Errand> refused;
    absl::Status status;
    {
      MutexLock lock(&mutex_);
      refused = queue_.TakeAny();
      if (refused == nullptr) return;
      status = readiness_.ok() ? absl::UnavailableError("stopping") : readiness_;
    }
    // Errands waiting for a lost worker may have named its blocks.
    for (const BlockUse& use : refused->uses) {
      const absl::Status now = memory_.ledger().Check(use.block, 0, 0);
      if (absl::IsFailedPrecondition(now)) status = now;
    }
    if (refused->verdict) status = *refused->verdict;
    End(std::move(refused), status);
  }
}

// Answers jobs that were aborted while waiting, here or at the worker, which may not reach them
// soon.
void WorkerDevice::EndAborted() {
  Errands aborted;
  std::vector<Errand*> at_worker;
  {
    MutexLock lock(&mutex_);
    aborted.swap(aborted_);
    for (const std::unique_ptr<Errand>& sent : sent_) {
      if (sent == nullptr || !sent->is_aborted || sent->is_ended || WasStarted(*sent)) continue;
      sent->is_ended = true;
      at_worker.push_back(sent.get());
    }
  }
  for (std::unique_ptr<Errand>& one : aborted) End(std::move(one), AbortedLaunch());
  // Only this thread removes errands from the worker's list.
  for (Errand* const one : at_worker) {
    one->End(AbortedLaunch(), {.wait_ns = clock_.NowNs() - one->submitted_ns});
  }
}

bool WorkerDevice::WasStarted(const Errand& errand) const {
  if (is_host()) return worker_.channel().control().started_ids[errand.slot] == errand.id;
  const std::atomic<uint64_t>& started = staging_->control().started_ids[errand.slot];
  return started.load(std::memory_order_acquire) == errand.id;
}

void WorkerDevice::TellAborted(const Errand& errand) {
  if (is_host()) {
    worker_.channel().control().are_aborted[errand.slot] = true;
  } else {
    staging_->control().aborted_ids[errand.slot].store(errand.id, std::memory_order_relaxed);
  }
}

// Whether no errand is in progress.
bool WorkerDevice::IsIdle() const {
  MutexLock lock(&mutex_);
  return jobs_under_way_ == 0 && memory_under_way_ == 0 && finishing_ == 0;
}

// Whether no errand is in progress or waiting.
bool WorkerDevice::IsFinished() const {
  if (!IsIdle()) return false;
  MutexLock lock(&mutex_);
  return queue_.is_empty() && aborted_.empty() && false_.empty() && streams_.empty() &&
         streams_waiting_.empty() && paneled_.empty();
}

absl::Status WorkerDevice::readiness() const {
  if (is_ready_) return absl::OkStatus();
  MutexLock lock(&mutex_);
  return readiness_;
}

DeviceCondition WorkerDevice::condition() const {
  MutexLock lock(&mutex_);
  DeviceCondition now = condition_;
  now.thread_turn_ns = turn_ns_;
  now.worker_restarts = worker_.restarts();
  if (staging_ != nullptr) now.staging_used_bytes = staging_->taken_bytes();
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
    is_ready_ = new_readiness.ok();
    is_up_ = new_readiness.ok();
  }
  if (listener_) listener_(new_readiness);
}

// Waits until the worker sends something, the thread is woken, or the time is reached; at most a
// tick.
WorkerDevice::Event WorkerDevice::WaitForEvent(int64_t until_ns) {
  turn_ns_ = clock_.NowNs();
  const Channel& channel = worker_.channel();
  while (clock_.NowNs() < spin_until_ns_) {
    if (channel.HasNews()) return Event::kRecord;
    if (waker_->TakeWake()) return Event::kWoken;
    PauseProcessor();
  }
  pollfd waker = {.fd = waker_->descriptor(), .events = POLLIN, .revents = 0};
  worker_.Sleep(until_ns, &waker);
  if (channel.HasNews()) return Event::kRecord;
  return waker_->TakeWake() ? Event::kWoken : Event::kTime;
}

// Beginning errands: space, operands, record.

ErrandQueue::Room WorkerDevice::TakeRoom(Errand& errand) {
  const bool is_job = errand.kind == Errand::Kind::kJob;
  int& under_way = is_job ? jobs_under_way_ : memory_under_way_;
  if (under_way >= (is_job ? kDepth : kMemoryErrands)) return ErrandQueue::Room::kNoSlot;
  if (!is_host() && !staging_->Take(errand.in_bytes, errand.out_bytes, errand.out_may_stay,
                                    errand.in, errand.out)) {
    return ErrandQueue::Room::kNoStaging;
  }
  const auto slot = std::find(is_slot_taken_.begin(), is_slot_taken_.end(), false);
  *slot = true;
  errand.slot = static_cast<uint32_t>(slot - is_slot_taken_.begin());
  ++under_way;
  return ErrandQueue::Room::kTaken;
}

void WorkerDevice::FreeSlot(const Errand& errand) {
  is_slot_taken_[errand.slot] = false;
  --(errand.kind == Errand::Kind::kJob ? jobs_under_way_ : memory_under_way_);
}

// Begins errands while there is space.
void WorkerDevice::BeginNext() {
  EndAborted();
  while (std::unique_ptr<Errand> next = TakeNext()) {
    if (next->verdict) {
      const absl::Status verdict = *next->verdict;
      End(std::move(next), verdict);
    } else {
      Begin(std::move(next));
    }
  }
}

std::unique_ptr<Errand> WorkerDevice::TakeNext() {
  MutexLock lock(&mutex_);
  if (is_checking_) return nullptr;
  std::unique_ptr<Errand> next = queue_.TakeNext(
      [this](Errand& errand) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return TakeRoom(errand); });
  if (next != nullptr && next->verdict) queue_.Leave(*next);
  return next;
}

// Copies the operands to the staging area and sends the errand to the worker. The socket reveals a
// dead worker.
void WorkerDevice::Begin(std::unique_ptr<Errand> errand) {
  if (!errand->is_small()) return BeginLarge(std::move(errand));
  MutexLock lock(&mutex_);
  errand->begun_ns = clock_.NowNs();
  BeginSmall(std::move(errand));
}

// The copies into the staging area. They leave the marks, which are put before them.
Copies WorkerDevice::CopiesIn(Errand& errand) const {
  Copies copies = errand.CopiesIn();
  stamps_.Put(errand.staged_mark());
  stamps_.Put(errand.written());
  return copies;
}

void WorkerDevice::BeginSmall(std::unique_ptr<Errand> errand) {
  CopyAll(CopiesIn(*errand));
  Send(std::move(errand));
}

void WorkerDevice::BeginLarge(std::unique_ptr<Errand> owner) {
  Errand* const errand = owner.get();
  errand->begun_ns = clock_.NowNs();
  {
    MutexLock lock(&mutex_);
    copied_[errand->slot] = std::move(owner);
  }
  const bool is_short = errand->in_bytes <= kMaxCopiedIn && errand->out_bytes <= Errand::kMaxMarked;
  if (errand->prepares_itself && is_short) return CopyHere(*errand);
  copy_threads_->Run([this, errand] {
    absl::Status checked = errand->Prepare();
    if (!checked.ok()) return OnCopiedIn(errand, checked);
    copy_threads_->Copy(CopiesIn(*errand), errand->is_aborted,
                        [this, errand] { OnCopiedIn(errand, absl::OkStatus()); });
  });
}

// It is in `copied_`.
void WorkerDevice::CopyHere(Errand& errand) {
  const absl::Status checked = errand.Prepare();
  if (checked.ok()) CopyAll(CopiesIn(errand));
  OnCopiedIn(&errand, checked);
}

// Called from copy threads.
void WorkerDevice::OnCopiedIn(Errand* errand, const absl::Status& checked) {
  std::unique_ptr<Errand> ended;
  absl::Status status = checked;
  bool is_waited_for = true;
  {
    MutexLock lock(&mutex_);
    ended = std::move(copied_[errand->slot]);
    if (errand->is_aborted) status = AbortedLaunch();
    if (errand->verdict) status = *errand->verdict;
    if (status.ok()) {
      Send(std::move(ended));
      is_waited_for = !queue_.is_empty();
    } else {
      queue_.Leave(*ended);
      FreeSlot(*ended);
    }
  }
  if (ended != nullptr) End(std::move(ended), status);
  if (is_waited_for) waker_->Wake();
}

void WorkerDevice::Send(std::unique_ptr<Errand> errand) {
  errand->id = ++last_id_;
  errand->sent_ns = clock_.NowNs();
  if (!is_host()) {
    queue_.Leave(*errand);
    errand->Send(worker_.channel()).IgnoreError();
  } else if (is_up_) {  // Otherwise the next worker gets it.
    worker_.channel().control().are_aborted[errand->slot] = false;
    errand->Send(worker_.channel()).IgnoreError();
  }
  sent_[errand->slot] = std::move(errand);
}

// The next worker gets what the one before had not started.
void WorkerDevice::SendAgain() {
  MutexLock lock(&mutex_);
  is_up_ = true;
  Errands all;
  for (std::unique_ptr<Errand>& sent : sent_) {
    if (sent != nullptr) all.push_back(std::move(sent));
  }
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a->id < b->id; });
  for (std::unique_ptr<Errand>& one : all) {
    Errand& errand = *one;
    Send(std::move(one));
    if (errand.is_aborted) TellAborted(errand);
  }
}

// Answers of the worker: plausibility, placement of results, and errands whose answer does not
// come.

// Takes all available results. Errors: why the worker cannot continue.
absl::Status WorkerDevice::TakeResults() {
  Packet packet;
  while (true) {
    const absl::Status received = worker_.channel().TryReceive(packet);
    if (absl::IsNotFound(received)) return absl::OkStatus();
    RETURN_IF_ERROR(received);
    ASSIGN_OR_RETURN(const Result result, ParseRecord<Result>(packet));
    RETURN_IF_ERROR(TakeAnswer(result));
    if (IsIdle()) return absl::OkStatus();
  }
}

absl::Status WorkerDevice::TakeAnswer(const Result& result) {
  std::unique_ptr<Errand> errand;
  {
    MutexLock lock(&mutex_);
    const auto slot =
        std::find_if(sent_.begin(), sent_.end(), [&result](const std::unique_ptr<Errand>& sent) {
          return sent != nullptr && sent->id == result.id;
        });
    if (slot == sent_.end()) {
      return absl::InternalError("the worker answered what was not asked");
    }
    RETURN_IF_ERROR(CheckTimes(**slot, result));
    if (result.is_lost != 0) return result.status.get();
    errand = std::move(*slot);
    FreeSlot(*errand);
  }
  const bool is_looked_at_here =
      result.status.get().ok() && errand->out_bytes <= Errand::kMaxMarked;
  if (is_looked_at_here && stamps_.AreLeft(errand->written(), errand->marked_bytes)) {
    MutexLock lock(&mutex_);
    false_.push_back(std::move(errand));
    return absl::InternalError(kNotWritten);
  }
  spin_.Saw(std::max(errand->submitted_ns - last_answer_ns_, int64_t{0}));
  last_answer_ns_ = clock_.NowNs();
  spin_until_ns_ = last_answer_ns_ + SpinAfter(*errand);
  Errand::Times& times = errand->times;
  const int64_t stages_ns = result.copy_in_ns + result.compute_ns + result.copy_out_ns;
  const int64_t idle_ns = last_answer_ns_ - errand->sent_ns - stages_ns;
  times.wait_ns = errand->begun_ns - errand->submitted_ns + std::max(idle_ns, int64_t{0});
  times.copy_in_ns = errand->sent_ns - errand->begun_ns + result.copy_in_ns;
  times.compute_ns = result.compute_ns;
  times.copy_out_ns = result.copy_out_ns;
  errand->made_forms = result.made_forms != 0;
  Finish(std::move(errand), result.status.get());
  return absl::OkStatus();
}

// How long the thread spins for what comes next.
int64_t WorkerDevice::SpinAfter(const Errand& errand) const {
  if (!is_host()) return spin_.ns();
  return errand.predicted_ns <= kMaxNsToSpinAfter ? options_.program.spin_ns : 0;
}

// Errors if the answer is implausible.
absl::Status WorkerDevice::CheckTimes(const Errand& errand, const Result& result) const {
  // Clocks of GPU and host differ slightly.
  constexpr int64_t kSlackNs = 1'000'000;
  constexpr int64_t kSlackPart = 100;
  const int64_t passed_ns = clock_.NowNs() - errand.sent_ns;
  int64_t left_ns = passed_ns + passed_ns / kSlackPart + kSlackNs;
  for (const int64_t stage_ns : {result.copy_in_ns, result.compute_ns, result.copy_out_ns}) {
    if (stage_ns < 0 || stage_ns > left_ns) {
      return absl::InternalError("the worker answered what was not asked");
    }
    left_ns -= stage_ns;
  }
  return absl::OkStatus();
}

// Takes the result; a copy thread does so if it is large.
void WorkerDevice::Finish(std::unique_ptr<Errand> errand, const absl::Status& answer) {
  absl::Status status = answer;
  Copies copies;
  const absl::Span<const std::byte> written = errand->written();
  if (errand->is_ended) status = AbortedLaunch();
  if (status.ok()) status = errand->PlaceResult(copies);
  const bool is_large =
      written.size() > static_cast<size_t>(Errand::kMaxMarked) || BytesOf(copies) > kMaxCopiedHere;
  if (status.ok() && is_large) return FinishLarge(std::move(errand), written, std::move(copies));
  if (status.ok() && !copies.empty()) {
    CopyAll(copies);
    errand->times.copy_out_ns += clock_.NowNs() - last_answer_ns_;
  }
  End(std::move(errand), status);
}

void WorkerDevice::FinishLarge(std::unique_ptr<Errand> errand, absl::Span<const std::byte> written,
                               Copies copies) {
  {
    MutexLock lock(&mutex_);
    ++finishing_;
  }
  copy_threads_->Run([this, written, errand = std::move(errand), copies = std::move(copies),
                      begun_ns = last_answer_ns_]() mutable {
    if (stamps_.AreLeft(written, errand->marked_bytes)) {
      {
        MutexLock lock(&mutex_);
        --finishing_;
        false_.push_back(std::move(errand));
      }
      waker_->Wake();
      return;
    }
    const std::atomic<bool>& is_aborted = errand->is_aborted;
    copy_threads_->Copy(std::move(copies), is_aborted,
                        [this, begun_ns, errand = std::move(errand)]() mutable {
                          errand->times.copy_out_ns += clock_.NowNs() - begun_ns;
                          End(std::move(errand), absl::OkStatus());
                          MutexLock lock(&mutex_);
                          --finishing_;
                          const bool is_waited_for = is_host() && !queue_.is_empty();
                          if (stopping_ || is_checking_ || is_waited_for) waker_->Wake();
                        });
  });
}

// The timeout of work with this predicted time.
absl::Duration WorkerDevice::LongestRun(int64_t predicted_ns) const {
  const absl::Duration wanted =
      absl::Nanoseconds(options_.watchdog_factor * static_cast<double>(predicted_ns));
  return std::max(std::min(wanted, options_.watchdog_max), options_.watchdog_min);
}

// The worker may work on all its errands at once, so the oldest must end within the time allowed
// for all. Errors: the worker did not answer in time, or answered falsely.
absl::Status WorkerDevice::CheckTime() {
  MutexLock lock(&mutex_);
  if (!false_.empty()) return absl::InternalError(kNotWritten);
  const int64_t now_ns = clock_.NowNs();
  const Errand* oldest = nullptr;
  int64_t predicted_ns = 0;
  for (const std::unique_ptr<Errand>& sent : sent_) {
    if (sent == nullptr) continue;
    if (oldest == nullptr || sent->id < oldest->id) oldest = sent.get();
    predicted_ns += sent->predicted_ns;
    const absl::Duration since_abort = absl::Nanoseconds(now_ns - sent->aborted_ns);
    if (sent->is_aborted && WasStarted(*sent) && since_abort >= options_.time_to_abort) {
      return absl::DeadlineExceededError("the worker did not end an aborted product in time");
    }
  }
  if (oldest == nullptr) return absl::OkStatus();
  if (oldest->id != oldest_id_) {
    oldest_id_ = oldest->id;
    oldest_since_ns_ = std::max(oldest->sent_ns, last_answer_ns_);
  }
  const absl::Duration waited = absl::Nanoseconds(now_ns - oldest_since_ns_);
  if (waited < LongestRun(predicted_ns)) return absl::OkStatus();
  const std::string limit =
      waited >= options_.watchdog_max
          ? ", the most that a product may take (five times --max-product-seconds)"
          : Concat(", ", static_cast<int>(options_.watchdog_factor),
                   " times what was predicted or more");
  return absl::DeadlineExceededError(
      Concat("no answer within ", absl::FormatDuration(absl::Trunc(waited, absl::Milliseconds(1))),
             limit));
}

// The only job that the worker had begun and not ended rightly; null if there are several such
// errands, or the job was aborted.
std::unique_ptr<const Job> WorkerDevice::OnlyStarted() const {
  MutexLock lock(&mutex_);
  const Errand* only = nullptr;
  for (const auto errands : {absl::MakeConstSpan(sent_), absl::MakeConstSpan(false_)}) {
    for (const std::unique_ptr<Errand>& errand : errands) {
      if (errand == nullptr || !WasStarted(*errand)) continue;
      if (only != nullptr) return nullptr;
      only = errand.get();
    }
  }
  if (only == nullptr || only->kind != Errand::Kind::kJob) return nullptr;
  // It may only have been slow to end; blaming it would let a caller get a kernel refused for
  // everybody.
  if (only->is_aborted) return nullptr;
  return std::make_unique<const Job>(*only->job());
}

// Answers the errands of a worker that has ended. If `keeps_waiting`, those that it had not started
// wait for the next one.
void WorkerDevice::EndLost(std::string_view reason, bool keeps_waiting) {
  const absl::Status not_started = worker_.LostProduct(/*was_started=*/false, reason);
  const absl::Status started = worker_.LostProduct(/*was_started=*/true, reason);
  std::vector<std::pair<std::unique_ptr<Errand>, absl::Status>> lost;
  const auto lose = [&](std::unique_ptr<Errand> errand) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const absl::Status& status = WasStarted(*errand) ? started : not_started;
    lost.emplace_back(std::move(errand), errand->is_aborted ? AbortedLaunch() : status);
  };
  {
    MutexLock lock(&mutex_);
    for (std::unique_ptr<Errand>& one : false_) lose(std::move(one));
    false_.clear();
    for (const std::unique_ptr<Errand>& copied : copied_) {
      if (copied != nullptr && !keeps_waiting) copied->verdict = not_started;
    }
    for (std::unique_ptr<Errand>& sent : sent_) {
      if (sent == nullptr) continue;
      if (keeps_waiting && !sent->is_aborted && !WasStarted(*sent)) continue;
      FreeSlot(*sent);
      lose(std::move(sent));
    }
  }
  for (auto& [errand, status] : lost) End(std::move(errand), status);
}

// Jobs larger than the staging area, which go through it in parts, and jobs larger than the GPU's
// memory, which are computed in panels.

absl::Status WorkerDevice::Fits(const Problem& problem, const JobPlaces& places,
                                const Kernel* kernel, int64_t max_bytes) const {
  const absl::Status planned =
      PanelPlan::Of(problem, places, kernel, PanelBytes(max_bytes)).status();
  if (!absl::IsResourceExhausted(planned)) return planned;
  return absl::ResourceExhaustedError(
      Concat("device: ", info_.name, " has ", info_.memory_limit_bytes,
             " bytes for products and tensors (--gpu-memory-bytes), ", max_bytes,
             " of them for this product: ", std::string(planned.message())));
}

absl::Status WorkerDevice::CheckSize(const Problem& problem) const {
  if (is_host()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const int64_t bytes, MemoryOf(problem, {}, nullptr));
  if (bytes <= info_.memory_limit_bytes) return absl::OkStatus();
  return Fits(problem, {}, nullptr, info_.memory_limit_bytes);
}

// Errors: ResourceExhausted if the staging area is too small.
absl::Status WorkerDevice::CheckStaged(int64_t bytes) const {
  const int64_t max_bytes = StagingArea::BytesForJobs(options_.staging_bytes);
  if (bytes <= max_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(Concat(
      "device: ", info_.name, " takes at most ", max_bytes,
      " bytes of operands and result at once (two thirds of --gpu-staging-bytes), got ", bytes));
}

// First tries the memory that tensors can never take: such panels do not displace new tensors. Then
// tries the memory that tensors leave now.
absl::StatusOr<PanelPlan> WorkerDevice::PlanPanels(const Job& job, int64_t left_bytes) const {
  const JobPlaces places = JobErrand::PlacesOf(job);
  const int64_t sure_bytes = info_.memory_limit_bytes - memory_.capacity_bytes();
  absl::StatusOr<PanelPlan> plan =
      PanelPlan::Of(job.problem, places, job.kernel, PanelBytes(sure_bytes));
  if (!absl::IsResourceExhausted(plan.status())) return plan;
  plan = PanelPlan::Of(job.problem, places, job.kernel, PanelBytes(left_bytes));
  if (!absl::IsResourceExhausted(plan.status())) return plan;
  return Fits(job.problem, places, job.kernel, left_bytes);
}

// Returns false, without effect, if the job fits the memory that tensors leave, or if it never
// will; `size` then says so.
bool WorkerDevice::SubmitPaneled(const Job& job, Done& done, absl::Status& size) {
  const int64_t left_bytes = info_.memory_limit_bytes - memory_.used_bytes();
  const absl::StatusOr<JobLayout> all = LayOutJob(job.problem);
  // Shortcut for small jobs, whose matrices would fit twice.
  if (!all.ok() || all->end <= (left_bytes - job.workspace_bytes) / 2) return false;
  const JobPlaces places = JobErrand::PlacesOf(job);
  const absl::StatusOr<JobLayout> layout = LayOutJob(job.problem, places);
  if (!layout.ok() || !JobErrand::CheckSources(job, *layout).ok()) return false;
  const absl::StatusOr<int64_t> bytes = MemoryOf(job.problem, places, job.kernel);
  if (bytes.ok() && *bytes <= left_bytes) return false;
  const absl::StatusOr<PanelPlan> plan = PlanPanels(job, left_bytes);
  // A single panel is the job itself, which the worker then answers.
  if (!plan.ok() || plan->count() <= 1) {
    size = plan.status();
    return false;
  }
  auto paneled = std::make_shared<PaneledJob>(job, places, *plan, std::move(done), PanelCalls());
  {
    MutexLock lock(&mutex_);
    paneled_.push_back(paneled);
  }
  paneled->Start();
  return true;
}

PaneledJob::Calls WorkerDevice::PanelCalls() {
  return {.submit = [this](const Job& panel, Done done) { Submit(panel, std::move(done)); },
          .abort = [this](JobId id) { Abort(id); },
          .work = [this](CopyThreads::Work work) { copy_threads_->Run(std::move(work)); },
          .ended =
              [this](const PaneledJob& ended) {
                {
                  MutexLock lock(&mutex_);
                  std::erase_if(paneled_, [&ended](const std::shared_ptr<PaneledJob>& one) {
                    return one.get() == &ended;
                  });
                }
                waker_->Wake();
              }};
}

// Returns false, without effect, if the job fits the staging area, or does not fit the memory.
bool WorkerDevice::SubmitStreamed(const Job& job, Done& done) {
  const absl::StatusOr<JobLayout> layout = LayOutJob(job.problem, JobErrand::PlacesOf(job));
  if (!layout.ok() || layout->end > info_.memory_limit_bytes) return false;
  if (CheckStaged(layout->staged_in_bytes() + layout->staged_out_bytes()).ok()) return false;
  if (!JobErrand::CheckSources(job, *layout).ok()) return false;
  const auto ended = [this](const StreamedJob& ended_job) {
    {
      MutexLock lock(&mutex_);
      std::erase_if(streams_, [&ended_job](const std::shared_ptr<StreamedJob>& one) {
        return one.get() == &ended_job;
      });
    }
    StartStreamed();
    waker_->Wake();
  };
  const auto submit = [this](const Job& inner, Done inner_done) {
    Submit(inner, std::move(inner_done));
  };
  auto stream = std::make_shared<StreamedJob>(job, std::move(done), layout->end, memory_, clock_,
                                              submit, ended);
  {
    MutexLock lock(&mutex_);
    streams_waiting_.push_back(std::move(stream));
  }
  StartStreamed();
  return true;
}

// Begins the next streamed job for which there is memory besides the others.
void WorkerDevice::StartStreamed() {
  std::shared_ptr<StreamedJob> next;
  {
    MutexLock lock(&mutex_);
    if (streams_waiting_.empty()) return;
    int64_t bytes = streams_waiting_.front()->bytes();
    for (const std::shared_ptr<StreamedJob>& one : streams_) bytes += one->bytes();
    const int64_t max_bytes = info_.memory_limit_bytes - memory_.capacity_bytes();
    if (!streams_.empty() && bytes > max_bytes) return;
    next = std::move(streams_waiting_.front());
    streams_waiting_.pop_front();
    streams_.push_back(next);
  }
  copy_threads_->Run([next = std::move(next)] { next->Start(); });
}

// The life cycle of workers.

// The device as used by the canary before all others, on the device's own thread.
class WorkerDevice::Checked final : public Device {
 public:
  explicit Checked(WorkerDevice& device) : device_(device) {}
  const DeviceInfo& info() const override { return device_.info_; }
  const DeviceProfile& profile() const override { return device_.profile_; }

  void Submit(const Job& job, Done done) override {
    std::unique_ptr<Errand> errand = device_.MakeJobErrand(job, std::move(done));
    errand->submitted_ns = device_.clock_.NowNs();
    if (errand->verdict) {
      const absl::Status verdict = *errand->verdict;
      device_.End(std::move(errand), verdict);
      return;
    }
    {
      MutexLock lock(&device_.mutex_);
      if (device_.TakeRoom(*errand) == ErrandQueue::Room::kTaken) {
        errand->begun_ns = errand->submitted_ns;
        device_.BeginSmall(std::move(errand));
      }
    }
    // Nothing else is in progress, so there is space.
    if (errand != nullptr) device_.End(std::move(errand), absl::InternalError("canary: no room"));
    while (!device_.IsIdle()) {
      const absl::Status status = device_.Step();
      if (!status.ok()) device_.EndLost(std::string(status.message()), /*keeps_waiting=*/false);
    }
  }

 private:
  WorkerDevice& device_;
};

bool WorkerDevice::stopping() const {
  MutexLock lock(&mutex_);
  return stopping_;
}

pid_t WorkerDevice::worker_pid() const {
  MutexLock lock(&mutex_);
  return worker_.pid();
}

void WorkerDevice::Run() {
  constexpr size_t kLongestName = 15;
  pthread_setname_np(pthread_self(), Concat("gemmd-", info_.name).substr(0, kLongestName).c_str());
  absl::Status started = StartWorker();
  if (absl::IsUnavailable(started) && worker_.pid() != 0) {
    worker_.Kill();
    const std::optional<std::string> end = worker_.AwaitEnd(options_.time_to_tell);
    if (end) {
      started = absl::UnavailableError(Concat(std::string(started.message()), " (", *end, ")"));
    }
  }
  SetReadiness(started.ok()
                   ? started
                   : absl::UnavailableError(Concat("device: ", info_.name, " did not start: ",
                                                   std::string(started.message()))));
  {
    MutexLock lock(&mutex_);
    started_ = started;
  }
  bool is_alive = started.ok();
  while (is_alive) {
    const absl::Status end = Serve();
    if (end.ok()) break;
    is_alive = Restart(end);
  }
  EndWorker(is_alive ? kTimeToEnd : absl::ZeroDuration());
  if (started.ok()) EndLost("stopping", /*keeps_waiting=*/false);
  while (!stopping()) {
    WaitForEvent(kNoDeadlineNs);
    RefuseWaiting();
  }
  RefuseWaiting();
}

// Errors: why the worker is unusable. OK if the device stops and everything is done.
absl::Status WorkerDevice::Serve() {
  while (true) {
    if (IsRestartDue()) return absl::CancelledError("an operator wants another worker");
    RETURN_IF_ERROR(CheckCanaryIfDue());
    BeginNext();
    if (stopping() && IsFinished()) return absl::OkStatus();
    RETURN_IF_ERROR(Step());
  }
}

// Waits for one event and handles it.
absl::Status WorkerDevice::Step() {
  switch (WaitForEvent(kNoDeadlineNs)) {
    case Event::kRecord: RETURN_IF_ERROR(TakeResults()); break;
    case Event::kWoken:
      if (!readiness().ok()) RefuseWaiting();
      break;
    case Event::kTime:
      if (is_host() && !IsIdle() && worker_.IsStopped()) return Stopped();
      if (clock_.NowNs() - last_answer_ns_ > absl::ToInt64Nanoseconds(WarmMemory::kKeptFor)) {
        is_host() ? host_->Cool() : results_.Cool();
      }
      break;
  }
  return CheckTime();
}

// Ends the worker, answers its errands, and starts another worker when allowed. The errands that it
// had not started, and those that wait, are answered too, unless the device is of the host and its
// worker starts at the first try. Returns false if the device stops before.
bool WorkerDevice::Restart(absl::Status reason) {
  bool keeps_waiting = is_host();
  while (true) {
    const bool was_stopped = worker_.IsStopped();
    worker_.Kill();
    spin_until_ns_ = 0;
    const std::optional<std::string> end = worker_.AwaitEnd(options_.time_to_tell);
    const std::string why =
        Concat(std::string(reason.message()), end ? Concat(" (", *end, ")") : "");
    if (absl::IsCancelled(reason)) worker_.policy().Forget();
    const RestartPolicy::Pause pause = worker_.policy().Next(clock_.NowNs());
    {
      MutexLock lock(&mutex_);
      is_checking_ = false;
      is_up_ = false;
    }
    const absl::Status not_ready = worker_.NotReady(why, pause);
    if (keeps_waiting) {
      spdlog::error("event=device_not_ready device={} reason={}", LogValue(info_.name),
                    LogValue(std::string(not_ready.message())));
    } else {
      SetReadiness(not_ready);
    }
    memory_.ledger().Lose();
    const std::unique_ptr<const Job> suspect =
        absl::IsCancelled(reason) || was_stopped ? nullptr : OnlyStarted();
    // The socket closes if the worker exits on its own, or is killed by an external SIGKILL.
    const auto blame = [&] {
      const bool was_killed = absl::IsUnavailable(reason) && worker_.was_killed();
      if (suspect != nullptr && !was_killed) AddLoss(*suspect->kernel, suspect->problem);
    };
    if (end) blame();  // Before its caller may try again.
    EndLost(why, keeps_waiting);
    if (!keeps_waiting) RefuseWaiting();
    // A worker that hangs in the driver may never die, and holds the GPU until then.
    while (!end && !worker_.AwaitEnd(WorkerProcess::kTimeToDie)) {
      SetReadiness(absl::UnavailableError(Concat(
          "device: ", info_.name, " is out of service: its worker could not be killed: ", why)));
      if (!Pause(worker_.policy().rest_ns())) return false;
    }
    if (!end) blame();
    if (!Pause(pause.ns)) return false;
    TakeRestartRequest();  // This restart fulfils the request.
    reason = StartWorker();
    if (reason.ok()) break;
    keeps_waiting = false;
  }
  if (is_host()) SendAgain();
  if (keeps_waiting) {
    spdlog::info("event=device_ready device={}", LogValue(info_.name));
  } else {
    SetReadiness(absl::OkStatus());
  }
  return true;
}

// Starts a worker. OK once it has opened its GPU and passed the canary.
absl::Status WorkerDevice::StartWorker() {
  if (!waker_->is_open()) return absl::ResourceExhaustedError("no file descriptor is left");
  if (staging_ == nullptr && !is_host()) {
    ASSIGN_OR_RETURN(std::shared_ptr<StagingArea> staging,
                     StagingArea::Create(options_.staging_bytes, waker_, options_.poisons_freed));
    MutexLock lock(&mutex_);
    staging_ = std::move(staging);
    condition_.staging_bytes = staging_->bytes();
  }
  ASSIGN_OR_RETURN(const Hello hello,
                   worker_.Start(is_host() ? host_->shared->descriptor() : staging_->descriptor()));
  if (!is_measured_) {
    RETURN_IF_ERROR(Describe(hello));
    RETURN_IF_ERROR(Measure());
  }
  is_measured_ = true;
  return is_host() ? absl::OkStatus() : CheckCanary();
}

absl::Status WorkerDevice::CheckCanary() {
  Checked checked(*this);
  absl::Status canary = RunCanary(checked, options_.canary_timeout);
  next_canary_ns_ = clock_.NowNs() + absl::ToInt64Nanoseconds(options_.canary_interval);
  MutexLock lock(&mutex_);
  ++(canary.ok() ? condition_.canaries_passed : condition_.canaries_failed);
  return canary;
}

// Once the canary is due, holds back errands, and runs the canary when nothing is in progress.
// Errors: those of RunCanary; the worker is then unusable.
absl::Status WorkerDevice::CheckCanaryIfDue() {
  if (is_host()) return absl::OkStatus();
  if (clock_.NowNs() < next_canary_ns_) return absl::OkStatus();
  {
    MutexLock lock(&mutex_);
    is_checking_ = !stopping_;
    if (stopping_) return absl::OkStatus();
  }
  if (!IsIdle()) return absl::OkStatus();
  absl::Status canary = CheckCanary();
  MutexLock lock(&mutex_);
  is_checking_ = false;
  return canary;
}

// Whether to restart the worker now, as asked. On the host, errands under way end before.
bool WorkerDevice::IsRestartDue() {
  MutexLock lock(&mutex_);
  if (!is_restart_asked_) return false;
  is_checking_ = is_host() && jobs_under_way_ + finishing_ > 0;
  return !is_checking_ && std::exchange(is_restart_asked_, false);
}

bool WorkerDevice::TakeRestartRequest() {
  MutexLock lock(&mutex_);
  return std::exchange(is_restart_asked_, false);
}

absl::Status WorkerDevice::RestartWorker() {
  {
    MutexLock lock(&mutex_);
    if (!started_.has_value() || !started_->ok()) {
      return absl::FailedPreconditionError(
          Concat("device: ", info_.name, " did not start with the server"));
    }
    trust().ForgetLosses();
    is_restart_asked_ = true;
  }
  waker_->Wake();
  return absl::OkStatus();
}

absl::Status WorkerDevice::Describe(const Hello& hello) {
  info_.is_confined = hello.is_confined != 0;
  info_.confinement = hello.confinement.view();
  info_.unconfined = hello.unconfined.view();
  if (is_host()) {
    profile_.target = host_->target;
    return absl::OkStatus();
  }
  bool is_known = false;
  for (const mma::Chip chip : mma::kAllChips) {
    if (mma::CapabilityOf(chip) != hello.capability) continue;
    profile_.target = {
        .kind = DeviceKind::kCuda, .chip = chip, .multiprocessors = hello.multiprocessors};
    is_known = true;
  }
  if (!is_known) {
    return absl::UnimplementedError(
        GotWant("compute capability", Concat(hello.capability), "a chip with tensor cores"));
  }
  info_.description = hello.description.view();
  info_.chip = mma::NameOf(profile_.target.chip);
  info_.multiprocessors = hello.multiprocessors;
  info_.memory_bytes = hello.memory_bytes;
  info_.memory_limit_bytes = hello.memory_limit_bytes;
  memory_.ledger().SetCapacity(hello.tensor_limit_bytes);
  info_.clock_khz = hello.clock_khz;
  info_.memory_clock_khz = hello.memory_clock_khz;
  info_.driver = VersionText(hello.driver_version);
  info_.runtime = VersionText(hello.runtime_version);
  info_.pci_bus_id = hello.pci_bus_id.view();
  return absl::OkStatus();
}

absl::Status WorkerDevice::Measure() {
  constexpr size_t kMaxNumbers = size_t{1} << 16;
  RETURN_IF_ERROR(SendRecord(worker_.channel(), MeasureRequest()));
  const absl::Span<const Kernel> kernels = Catalog(info_.kind);
  GpuRates rates;
  // A worker of the host says how many numbers its profile has.
  size_t all = is_host() ? kMaxNumbers : kernels.size();
  while (rates.kernel_rates.size() < all) {
    ASSIGN_OR_RETURN(const Packet packet, worker_.Receive(options_.start_timeout));
    ASSIGN_OR_RETURN(const RatesPart part, ParseRecord<RatesPart>(packet));
    if (is_host() && rates.kernel_rates.empty()) all = std::min<size_t>(part.kernels, kMaxNumbers);
    RETURN_IF_ERROR(AppendRates(part, all, rates));
  }
  if (is_host()) {
    ASSIGN_OR_RETURN(profile_, ProfileOf(host_->target, rates.kernel_rates));
    return absl::OkStatus();
  }
  profile_.kernel_rates = std::move(rates.kernel_rates);
  profile_.memory_bytes_per_second = rates.memory_bytes_per_second;
  profile_.copied_bytes_per_second = rates.copied_bytes_per_second;
  // An engine is as fast as its fastest kernel; the kernels of an engine are adjacent.
  for (const Kernel& kernel : kernels) {
    const double rate = profile_.kernel_rates[kernel.position];
    if (!(rate > 0)) continue;
    if (profile_.rates.empty() || profile_.rates.back().engine != kernel.engine) {
      profile_.rates.push_back({std::string(kernel.engine), rate});
    }
    EngineRate& engine = profile_.rates.back();
    engine.operations_per_second = std::max(engine.operations_per_second, rate);
  }
  return absl::OkStatus();
}

// Waits up to `patience` for the worker to exit on its own.
void WorkerDevice::EndWorker(absl::Duration patience) {
  if (worker_.AwaitEnd(patience)) return;
  worker_.Kill();
  worker_.AwaitEnd(WorkerProcess::kTimeToDie);
}

// Errors: Unavailable if the device stops.
absl::Status WorkerDevice::WaitForWorker(int64_t until_ns) {
  WaitForEvent(until_ns);
  if (!readiness().ok()) RefuseWaiting();
  if (is_host() && !worker_.channel().HasNews() && worker_.IsStopped()) return Stopped();
  return stopping() ? absl::UnavailableError("stopping") : absl::OkStatus();
}

// Returns false if the device stops meanwhile. An operator's restart request ends the pause.
bool WorkerDevice::Pause(int64_t pause_ns) {
  const int64_t until_ns = clock_.NowNs() + pause_ns;
  while (!stopping()) {
    bool is_over = clock_.NowNs() >= until_ns;
    if (TakeRestartRequest()) {
      worker_.policy().Forget();
      is_over = true;
    }
    if (is_over) return true;
    WaitForEvent(until_ns);
    readiness().ok() ? EndAborted() : RefuseWaiting();
  }
  return false;
}

}  // namespace gemmd
