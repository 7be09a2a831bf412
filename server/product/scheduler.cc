// SPDX-License-Identifier: Apache-2.0
#include "server/product/scheduler.h"

#include <pthread.h>

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <string_view>
#include <type_traits>
#include <utility>

#include "absl/hash/hash.h"
#include "kernels/kernel.h"
#include "kernels/matrix/text.h"
#include "kernels/select.h"
#include "server/system/threads.h"

namespace gemmd {

namespace {

// Vectors of up to this many bytes are compared as a part of the key.
constexpr int64_t kMaxVectorBytes = int64_t{16} << 10;

// The maximum bytes that describe where a job's matrices lie (PlacedPart), and those of the gaps
// between matrices.
constexpr int64_t kListedBytes = 128;

// Plain values, one after the other.
class Key {
 public:
  template <typename Value>
  void Add(Value value) {
    static_assert(std::is_arithmetic_v<Value> || std::is_enum_v<Value> || std::is_pointer_v<Value>);
    Append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  void Add(Piece bytes) { Append(reinterpret_cast<const char*>(bytes.data()), bytes.size()); }
  JoinKey Take() { return JoinKey(std::move(bytes_)); }

 private:
  void Append(const char* from, size_t count) { bytes_.insert(bytes_.end(), from, from + count); }

  JoinKey::Bytes bytes_;
};

// Joined jobs are assembled from pieces of host memory, or from tensors, which have such pieces
// wherever they are. A matrix that all jobs read unchanged may be elsewhere.
bool IsOnHost(const Source& source) { return source.block == 0; }

// Vectors are compared byte by byte, because each product brings its own copy of bias and scales.
bool AddVector(const Source& source, Key& key) {
  key.Add(source.bytes);
  if (!IsOnHost(source) || source.bytes > kMaxVectorBytes) return false;
  for (const Piece piece : source.pieces) key.Add(piece);
  return true;
}

void AddPlace(const Source& source, Key& key) {
  key.Add(source.block);
  key.Add(source.offset);
  key.Add(source.bytes);
  if (IsOnHost(source) && !source.pieces.empty()) key.Add(source.pieces.front().data());
}

// Adds a layout without its number of lines and its batch.
void AddForm(const MatrixLayout& layout, Key& key) {
  key.Add(layout.type);
  key.Add(layout.order);
  key.Add(layout.leading_dimension);
}

void AddLayout(const MatrixLayout& layout, Key& key) {
  AddForm(layout, key);
  key.Add(layout.rows);
  key.Add(layout.columns);
}

// The priority, and which matrices are tensors. A device gathers those in its own memory; the
// others are gathered on the host.
Key BeginKey(const Job& job, Priority priority) {
  Key key;
  key.Add(priority);
  for (const OperandRole role : kMatrixRoles) key.Add(job[role].is_resident);
  key.Add(job.d.memory != nullptr);
  return key;
}

bool AddEpilogue(const Job& job, Key& key) {
  const Problem& problem = job.problem;
  key.Add(job.kernel);
  key.Add(job.keeps_kernel);
  key.Add(problem.n);
  key.Add(problem.k);
  key.Add(problem.accumulation);
  key.Add(problem.bit_operation);
  key.Add(problem.alpha);
  key.Add(problem.beta);
  key.Add(problem.bias_axis);
  key.Add(problem.bias_type);
  key.Add(problem.a_scale);
  key.Add(problem.b_scale);
  key.Add(problem.activation);
  if (!AddVector(job.bias, key) || !AddVector(job.a_scale, key)) return false;
  const BlockScale* const blocks = problem.blocks_of_b();
  if (blocks == nullptr) return AddVector(job.b_scale, key);
  key.Add(blocks->type);
  key.Add(blocks->lines);
  key.Add(blocks->depth);
  AddPlace(job.b_scale, key);
  return true;
}

// Whether the matrix has no gaps between its lines.
bool IsWhole(const MatrixLayout& layout) {
  return layout.leading_dimension == layout.line_length() &&
         layout.line_length() * BitsOf(layout.type) % 8 == 0;
}

// Not sparse: operands' indices are checked for each job, and a wrong index must not fail other
// jobs. Not a new tensor: it has no device memory yet. No block factors but those of a resident B:
// they belong to the rows of one product.
bool CanJoin(const Job& job) {
  const Problem& problem = job.problem;
  if (!problem.has_output() || !problem.has_product()) return false;
  const bool has_own_blocks = problem.blocks_of_a() != nullptr ||
                              (problem.blocks_of_b() != nullptr && !job.b_scale.is_resident);
  if (has_own_blocks) return false;
  if (problem.a.is_sparse() || job.d.block != 0 || job.d.is_new) return false;
  return job.d.memory == nullptr || IsWhole(problem.d);
}

// Whether the bytes are rows without gaps, to which further rows can be appended.
bool IsRows(const MatrixLayout& layout, int64_t bytes) {
  return layout.order == Order::kRowMajor && layout.leading_dimension == layout.columns &&
         layout.columns * BitsOf(layout.type) % 8 == 0 &&
         bytes == layout.rows * layout.line_stride_bytes();
}

JoinKey StackedKeyOf(const Job& job, Priority priority) {
  const Problem& problem = job.problem;
  const bool is_stack = problem.batch == 1 && IsOnHost(job.a) && IsRows(problem.a, job.a.bytes) &&
                        IsRows(problem.d, job.d_bytes) && job.b.pieces.size() <= 1 &&
                        (!problem.has_c() || (IsOnHost(job.c) && IsRows(problem.c, job.c.bytes))) &&
                        problem.bias_axis != BiasAxis::kRows &&
                        problem.a_scale != ScaleKind::kVector;
  if (!is_stack) return {};
  Key key = BeginKey(job, priority);
  AddForm(problem.a, key);
  AddLayout(problem.b, key);
  AddPlace(job.b, key);
  if (problem.has_c()) AddForm(problem.c, key);
  AddForm(problem.d, key);
  return AddEpilogue(job, key) ? key.Take() : JoinKey();
}

// Whether the operands of several jobs form one batch: matrices that follow each other without a
// gap, or one matrix on the device for all.
bool AddBatched(const Source& source, const MatrixLayout& layout, int64_t batch, Key& key) {
  AddLayout(layout, key);
  if (IsOnHost(source)) return source.bytes == batch * layout.batch_stride_bytes;
  AddPlace(source, key);
  return batch == 1 || layout.batch_stride_bytes == 0;
}

JoinKey BatchedKeyOf(const Job& job, Priority priority) {
  const Problem& problem = job.problem;
  Key key = BeginKey(job, priority);
  key.Add(problem.m);
  AddLayout(problem.d, key);
  const bool is_batch = AddBatched(job.a, problem.a, problem.batch, key) &&
                        AddBatched(job.b, problem.b, problem.batch, key) &&
                        (!problem.has_c() || AddBatched(job.c, problem.c, problem.batch, key)) &&
                        job.d_bytes == problem.batch * problem.d.batch_stride_bytes &&
                        AddEpilogue(job, key);
  return is_batch ? key.Take() : JoinKey();
}

int64_t CopiedBytes(const Source& source) { return IsOnHost(source) ? source.bytes : 0; }

}  // namespace

JoinKey::JoinKey(Bytes bytes)
    : hash_(absl::HashOf(std::string_view(bytes.data(), bytes.size()))), bytes_(std::move(bytes)) {}

JoinKeys JoinKeysOf(const Job& job, Priority priority) {
  if (!CanJoin(job)) return {};
  if (job.kernel->batch_invariant) {
    // Each matrix of a batch would need its factors.
    const bool may_be_batch = !job.problem.has_block_scales();
    return {.stacked = StackedKeyOf(job, priority),
            .batched = may_be_batch ? BatchedKeyOf(job, priority) : JoinKey()};
  }
  if (!job.may_vary || !job.b.is_resident || !MayVaryJoined(*job.kernel)) return {};
  return {.stacked = StackedKeyOf(job, priority), .batched = {}};
}

bool MayVaryJoined(const Kernel& kernel) {
  return kernel.device_kind == DeviceKind::kCpu && !kernel.batch_invariant;
}

int64_t JoinBytesOf(const Job& job, Joining joining) {
  const int64_t b_bytes = joining == Joining::kStacked ? 0 : CopiedBytes(job.b);
  return CopiedBytes(job.a) + b_bytes + CopiedBytes(job.c) + job.d_bytes + kListedBytes;
}

bool OverwrittenPlaces::Add(const Job& job) {
  const std::byte* const begin = job.d.memory;
  if (begin == nullptr) return true;
  const std::byte* const end = begin + job.d_bytes;
  const auto after = ends_.lower_bound(begin);
  if (after != ends_.end() && after->first == begin) return after->second == end;
  if (after != ends_.end() && after->first < end) return false;
  if (after != ends_.begin() && std::prev(after)->second > begin) return false;
  ends_.emplace_hint(after, begin, end);
  return true;
}

namespace {

absl::Status Cancelled() { return absl::CancelledError("cancelled"); }
absl::Status Expired() { return absl::DeadlineExceededError("the deadline passed"); }

absl::Status Annotated(const absl::Status& why, std::string_view when) {
  return absl::Status(why.code(), Concat(std::string(why.message()), when));
}

// How one of several joined jobs ended, except for its part of D.
JobOutcome OutcomeOfMember(JobOutcome& whole, size_t index) {
  if (!whole.members.empty()) return std::move(whole.members[index]);
  return {.status = whole.status,
          .wait_ns = whole.wait_ns,
          .copy_in_ns = whole.copy_in_ns,
          .compute_ns = whole.compute_ns,
          .copy_out_ns = whole.copy_out_ns,
          .kernel = whole.kernel};
}

// Returns the job to its submitter.
void GiveBack(std::unique_ptr<Submission> job) {
  Submission::Done done = std::move(job->done);
  std::move(done)(std::move(job));
}

}  // namespace

Scheduler::Scheduler(absl::Span<Device* const> devices, const Clock& clock, JoinRules joins,
                     int answering_threads)
    : clock_(clock), joins_(joins), answering_("gemmd-answers", answering_threads) {
  MutexLock lock(&mutex_);
  for (Device* device : devices) {
    states_[device].device = device;
    corrections_[device] = std::make_unique<Corrections>(*device);
  }
}

bool Scheduler::IsEnded(const Launch& launch) {
  return std::all_of(launch.members.begin(), launch.members.end(),
                     [](const Submission* held) { return !held->end.ok(); });
}

// When the device began its oldest launch. For the times of jobs, it works on one launch after the
// other.
int64_t Scheduler::BeginNs(const State& state) {
  return std::max(state.running.front()->launched_ns, state.last_end_ns);
}

// The remaining time of running launches. A launch that exceeds its prediction is expected to take
// as long again as it is late: the longer a prediction has been wrong, the less it is worth. An
// abort takes almost no time.
int64_t Scheduler::RestNs(const State& state, int64_t now_ns) {
  int64_t rest_ns = 0;
  for (const Launch* const launch : state.running) {
    if (IsEnded(*launch)) continue;
    const bool is_first = launch == state.running.front();
    const int64_t ran_ns = is_first ? now_ns - BeginNs(state) : 0;
    rest_ns += std::abs(launch->cost_ns - ran_ns);
  }
  return rest_ns;
}

// Whether to give the device another of the waiting jobs.
bool Scheduler::HasRoom(State& state, int64_t now_ns) const {
  if (state.queue.empty()) return false;
  if (state.running.empty()) return true;
  const int running = static_cast<int>(state.running.size());
  const int depth = state.device->depth();
  if (running >= depth) return false;
  const auto& next = static_cast<const Submission&>(state.queue.first());
  const bool can_join = !next.keys.stacked.empty() || !next.keys.batched.empty();
  if (can_join && running >= (depth < kEnoughRunning ? 1 : kEnoughRunning)) return false;
  const int64_t min_ns = std::min(state.light.MinOfOthers({.caller = next.caller}, now_ns),
                                  state.lone.MinOfOthers(next.flow_id(), now_ns));
  return RestNs(state, now_ns) <= std::clamp(min_ns, kMinAheadNs, kMaxAheadNs);
}

// Admits a product in one step: there is room for it, which it takes, it is within its caller's
// share, and it can finish in time.
Verdict Scheduler::LetIn(const State& state, Submission& job, const FairQueue::Ahead& ahead,
                         Admission& admission, Asked& asked, int64_t now_ns) const {
  const int64_t running_ns = RestNs(state, now_ns);
  asked = {.predicted_ns = job.predicted_ns + job.after_ns,
           .expected_ns = job.expected_ns() + job.after_ns,
           .after_ns = job.after_ns,
           .left_ns = LeftNs(job.deadline_ns, now_ns),
           .running_ns = running_ns,
           .ahead_ns = ahead.waiting_ns + job.after_wait_ns,
           .to_come_ns = ahead.to_come_ns,
           .backlog_ns = state.queue.waiting_ns() + running_ns,
           .answer_bytes = job.answer_bytes};
  // Jobs that wait or run, on all devices.
  const auto own = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    FairQueue::Inside inside;
    for (const auto& [device, other] : states_) {
      const FairQueue::Inside here = other.queue.InsideOf(job.flow_id());
      inside.of_caller += here.of_caller;
      inside.of_connection += here.of_connection;
    }
    return inside;
  };
  return admission.Admit(job.ticket, job.room_bytes, asked, own);
}

void Scheduler::SetTime(Submission& submission, const PredictedTime& predicted) const {
  const Job& job = submission.job;
  submission.job.predicted = predicted;
  submission.predicted_ns = predicted.total_ns();
  submission.correction = CorrectionOf(*submission.device, *job.kernel, job.problem);
}

JobId Scheduler::Submit(std::unique_ptr<Submission> job) {
  if (job->id == 0) job->id = NewId();
  const JobId id = job->id;
  SubmitTogether(Alone(std::move(job)), nullptr);
  return id;
}

std::vector<Scheduler::Refused> Scheduler::SubmitTogether(Company jobs, Admission* admission) {
  for (const std::unique_ptr<Submission>& job : jobs) {
    job->keys = JoinKeysOf(job->job, job->priority);
    if (job->id == 0) job->id = NewId();
  }
  std::vector<Refused> refused;
  DueLaunches due;
  bool is_earlier = false;
  {
    MutexLock lock(&mutex_);
    const int64_t now_ns = clock_.NowNs();
    for (std::unique_ptr<Submission>& job : jobs) {
      State& state = states_.at(job->device);
      // More than this need not be added up.
      const int64_t enough_ns = admission == nullptr ? 0
                                                     : std::min(LeftNs(job->deadline_ns, now_ns),
                                                                admission->limits().max_backlog_ns);
      const FairQueue::Ahead ahead = state.queue.AheadOf(job->flow_id(), job->priority, enough_ns);
      if (admission != nullptr) {
        Asked asked;
        const Verdict verdict = LetIn(state, *job, ahead, *admission, asked, now_ns);
        if (verdict != Verdict::kIn) {
          refused.push_back({std::move(job), verdict, asked});
          continue;
        }
      }
      job->outcome.status = stopped_;
      if (!stopped_.ok()) continue;
      if (Queue(state, std::move(job), ahead.waiting_ns == 0, now_ns)) is_earlier = true;
    }
    for (auto& [device, state] : states_) {
      if (!HasRoom(state, now_ns)) continue;
      TakeNext(state, due.emplace_back(state.device, Next()).second);
    }
  }
  for (std::unique_ptr<Submission>& job : jobs) {
    if (job != nullptr) GiveBack(std::move(job));
  }
  if (is_earlier && deadline_listener_) deadline_listener_();
  for (auto& [device, next] : due) LaunchFrom(*device, std::move(next));
  return refused;
}

// Puts the job into the queue. Returns whether EndExpired must be called earlier for it.
bool Scheduler::Queue(State& state, std::unique_ptr<Submission> job, bool is_promised,
                      int64_t now_ns) {
  Submission& held = *job;
  held.job.id = held.id;
  jobs_.Add(std::move(job));
  held.submitted_ns = now_ns;
  held.is_promised = is_promised;
  const FlowId flow = held.flow_id();
  state.queue.Add(flow, held);
  state.light.Add({.caller = flow.caller}, held.predicted_ns, now_ns);
  if (held.is_lone) state.lone.Add(flow, held.predicted_ns, now_ns);
  state.stacked.Enter(held);
  state.batched.Enter(held);
  ++state.load.queued_requests;
  state.load.queued_bytes += held.bytes;
  if (held.deadline_ns == kNoDeadlineNs) return false;
  deadlines_.Add(held);
  const bool is_earlier = held.deadline_ns < watched_ns_;
  if (is_earlier) watched_ns_ = held.deadline_ns;
  return is_earlier;
}

// The job no longer waits.
void Scheduler::LeaveQueue(State& state, Submission& held) {
  --state.load.queued_requests;
  state.load.queued_bytes -= held.bytes;
  state.stacked.Leave(held);
  state.batched.Leave(held);
}

std::unique_ptr<Submission> Scheduler::Take(Submission& held) {
  deadlines_.Remove(held);
  if (held.launch == nullptr) LeaveQueue(states_.at(held.device), held);
  return jobs_.Take(held);
}

// Ends a job early: at once if it waits, through its device if it runs.
void Scheduler::End(Submission& held, const absl::Status& why, Ended& ended) {
  if (held.launch == nullptr) {
    states_.at(held.device).queue.Remove(held);
    held.outcome.status = Annotated(why, " while it waited for the device");
    ended.dropped.push_back(Take(held));
    return;
  }
  if (!held.end.ok()) return;  // It is being aborted already.
  held.end = Annotated(why, " while it ran");
  // A job on its way to the device is aborted once it is there, and joined jobs once no caller
  // waits for any of them.
  Launch& launch = *held.launch;
  if (!IsEnded(launch)) return;
  launch.unwanted_ns = clock_.NowNs();
  if (launch.is_on_device) ended.aborted.emplace_back(held.device, launch.id);
}

void Scheduler::Finish(Ended ended) const {
  // Abort on devices first: device time is the most expensive.
  for (const auto& [device, id] : ended.aborted) device->Abort(id);
  for (std::unique_ptr<Submission>& held : ended.dropped) {
    held->ended_ns = clock_.NowNs();
    held->queue_ns = held->ended_ns - held->submitted_ns;
    GiveBack(std::move(held));
  }
}

void Scheduler::Cancel(absl::Span<const JobId> ids) {
  Ended ended;
  {
    MutexLock lock(&mutex_);
    const int64_t now_ns = clock_.NowNs();
    for (const JobId id : ids) {
      Submission* const held = jobs_.Find(id);
      if (held == nullptr) continue;
      // gRPC cancels a call whose deadline has passed.
      const bool is_late = held->deadline_ns <= now_ns;
      End(*held, is_late ? Expired() : Cancelled(), ended);
    }
  }
  Finish(std::move(ended));
}

int64_t Scheduler::EndExpired() {
  Ended ended;
  DueLaunches due;
  int64_t next_ns = kNoDeadlineNs;
  {
    MutexLock lock(&mutex_);
    const int64_t now_ns = clock_.NowNs();
    while (Submission* const held = deadlines_.first()) {
      if (held->deadline_ns > now_ns) break;
      deadlines_.Remove(*held);
      End(*held, Expired(), ended);
    }
    if (deadlines_.first() != nullptr) next_ns = deadlines_.first()->deadline_ns;
    for (auto& [device, state] : states_) {
      if (state.held_until_ns <= now_ns) {
        state.held_until_ns = kNoDeadlineNs;
        TakeNext(state, due.emplace_back(state.device, Next()).second);
      }
      next_ns = std::min(next_ns, state.held_until_ns);
    }
    watched_ns_ = next_ns;
  }
  for (auto& [device, next] : due) LaunchFrom(*device, std::move(next));
  Finish(std::move(ended));
  return next_ns;
}

void Scheduler::Stop(const absl::Status& status) {
  Ended ended;
  {
    MutexLock lock(&mutex_);
    stopped_ = status;
    std::vector<Submission*> all;
    jobs_.ForEach([&all](Submission& held) { all.push_back(&held); });
    std::sort(all.begin(), all.end(),
              [](const Submission* a, const Submission* b) { return a->id < b->id; });
    for (Submission* const held : all) End(*held, status, ended);
  }
  Finish(std::move(ended));
}

// The device has the job from now on. It may have been ended on its way there.
void Scheduler::NoteOnDevice(State& state, JobId id, Ended& ended) {
  const std::vector<Launch*>& all = state.running;
  const auto position =
      std::find_if(all.begin(), all.end(), [id](const Launch* launch) { return launch->id == id; });
  if (position == all.end()) return;  // It is done already.
  (*position)->is_on_device = true;
  if (IsEnded(**position)) ended.aborted.emplace_back(state.device, id);
}

// The time that the launch took corrects later predictions.
void Scheduler::Learn(const Launch& launch, const JobOutcome& outcome, int64_t begun_ns,
                      int64_t ended_ns) {
  if (launch.correction == nullptr || !outcome.members.empty()) return;
  if (outcome.status.ok()) {
    // Excludes the latency of reaching the device, and counts overlapping time once.
    const int64_t stages_ns = outcome.copy_in_ns + outcome.compute_ns + outcome.copy_out_ns;
    const int64_t taken_ns = std::min(stages_ns, ended_ns - begun_ns);
    launch.correction->Observe(launch.predicted_ns, taken_ns, /*is_whole=*/true);
  } else if (launch.unwanted_ns.has_value()) {
    launch.correction->Observe(launch.predicted_ns, *launch.unwanted_ns - begun_ns,
                               /*is_whole=*/false);
  }
}

void Scheduler::OnDone(Launch& launch, JobOutcome outcome) {
  Device& device = *launch.members.front()->device;
  std::unique_ptr<JoinedJob> joined;
  EndedLaunch ended;
  Next next;
  int64_t now_ns = 0;
  int64_t ran_ns = 0;
  {
    MutexLock lock(&mutex_);
    State& state = states_.at(&device);
    std::erase(state.running, &launch);
    now_ns = clock_.NowNs();
    // Overlapping time counts once.
    ran_ns = now_ns - std::max(launch.launched_ns, state.last_end_ns);
    state.last_end_ns = now_ns;
    if (launch.unwanted_ns.has_value()) state.aborts.Add(now_ns - *launch.unwanted_ns);
    joined = std::move(launch.joined);
    const auto count = static_cast<int64_t>(launch.members.size());
    ended.jobs.reserve(launch.members.size());
    for (Submission* const held : launch.members) {
      state.queue.End(*held, ran_ns / count);
      held->queue_ns = launch.launched_ns - held->submitted_ns;
      held->joined = count;
      held->ended_ns = now_ns;
      ended.jobs.push_back(Take(*held));
    }
    state.load.busy_ns += ran_ns;
    state.load.completed_requests += count;
    TakeNext(state, next);
  }
  Learn(launch, outcome, now_ns - ran_ns, now_ns);
  // The device gets its next job first, so that it does not wait while this job's answer is made.
  LaunchFrom(device, std::move(next));
  ended.outcome = std::move(outcome);
  if (joined != nullptr && ended.outcome.members.empty()) {
    ended.outcome.kernel = joined->job().kernel;
  }
  Answer(std::move(ended));
}

// Answering fewer takes no longer than waking a thread to do it.
constexpr size_t kMinAnsweredElsewhere = 8;

void Scheduler::Answer(EndedLaunch ended) {
  const size_t count = ended.jobs.size();
  const size_t parts =
      std::min(static_cast<size_t>(answering_.size()), count / kMinAnsweredElsewhere);
  if (parts == 0) return AnswerSome(ended, 0, count, 0);
  // The device's own thread must not wait: it is the only one that receives what the device has
  // finished.
  const auto shared = std::make_shared<EndedLaunch>(std::move(ended));
  size_t d_offset = 0;
  for (size_t part = 0; part < parts; ++part) {
    const size_t first = part * count / parts;
    const size_t end = (part + 1) * count / parts;
    size_t d_bytes = 0;
    for (size_t i = first; i < end; ++i)
      d_bytes += static_cast<size_t>(shared->jobs[i]->job.d_bytes);
    answering_.Run(
        [shared, first, end, d_offset] { AnswerSome(*shared, first, end - first, d_offset); });
    d_offset += d_bytes;
  }
}

void Scheduler::AnswerSome(EndedLaunch& ended, size_t first, size_t count, size_t d_offset) {
  const Deferral deferral;
  const absl::Span<const std::byte> all_d = ended.outcome.d.bytes();
  const bool is_one = ended.jobs.size() == 1;
  for (size_t i = first; i < first + count; ++i) {
    Submission& held = *ended.jobs[i];
    held.outcome = is_one ? std::move(ended.outcome) : OutcomeOfMember(ended.outcome, i);
    absl::Status& status = held.outcome.status;
    if (!is_one && !all_d.empty()) {
      const auto d_bytes = static_cast<size_t>(held.job.d_bytes);
      if (status.ok()) {
        absl::StatusOr<HeldBytes> part = CopyOfPart(all_d.subspan(d_offset, d_bytes));
        status = part.status();
        if (part.ok()) held.outcome.d = *std::move(part);
      }
      d_offset += d_bytes;
    }
    // If the abort came too late, or the device was lost first, the device's own status stands.
    if (absl::IsCancelled(status) && !held.end.ok()) status = std::move(held.end);
    held.queue_ns += held.outcome.wait_ns;
    GiveBack(std::move(ended.jobs[i]));
  }
}

DeviceLoad Scheduler::load(const Device& device) const {
  MutexLock lock(&mutex_);
  const State& state = states_.at(&device);
  DeviceLoad load = state.load;
  load.aborts = state.aborts;
  const int64_t now_ns = clock_.NowNs();
  load.backlog_ns = state.queue.waiting_ns() + RestNs(state, now_ns);
  if (!state.running.empty()) load.busy_ns += now_ns - BeginNs(state);
  return load;
}

// The choice of what a device is given next, and of the jobs joined to it.

namespace {

// The best kernel for the few rows of one job may not be the best for all jobs together.
void ChooseKernel(const DeviceProfile& profile, KernelChoices& choices, JoinedJob& joined) {
  const Job& job = joined.job();
  const auto make = [&](const Kernel& kernel) {
    return KernelChoices::Make(&kernel, job.problem, profile);
  };
  if (job.keeps_kernel) return joined.SetPredicted(make(*job.kernel).predicted);
  KernelChoices::Choice best = choices.Find({.problem = job.problem, .kernel = job.kernel}, [&] {
    return make(FindBestLike(*job.kernel, Catalog(job.kernel->device_kind), job.problem, profile));
  });
  // If the workspace of the best kernel would be too large, the members' kernel runs the whole.
  const bool is_set = best.kernel == job.kernel || joined.SetKernel(*best.kernel).ok();
  joined.SetPredicted(is_set ? best.predicted : make(*job.kernel).predicted);
}

}  // namespace

// Launches `next`, and then as many jobs as the device has room for.
void Scheduler::LaunchFrom(Device& device, Next next) {
  while (true) {
    if (next.is_earlier && deadline_listener_) deadline_listener_();
    if (next.launch == nullptr) break;
    Launch* const launch = next.launch;
    // Joined jobs with tensors are gathered once the tensors are on the device.
    if (launch->joined != nullptr && launch->members.front()->job.tensors == nullptr) {
      launch->joined->Gather().IgnoreError();  // Jobs with one key are all in the same kind of
                                               // place.
    }
    // A copy: once the device has the job, it may end at any time.
    const Job job =
        launch->joined != nullptr ? launch->joined->job() : launch->members.front()->job;
    device.Submit(job, [this, launch](JobOutcome outcome) { OnDone(*launch, std::move(outcome)); });
    Finish(std::exchange(next, {}).ended);
    MutexLock lock(&mutex_);
    State& state = states_.at(&device);
    NoteOnDevice(state, job.id, next.ended);
    TakeNext(state, next);
  }
  Finish(std::move(next.ended));
}

void Scheduler::TakeNext(State& state, Next& next) {
  next.launch = TakeNext(state, next.ended);
  next.is_earlier = state.held_until_ns < watched_ns_;
  if (next.is_earlier) watched_ns_ = state.held_until_ns;
}

// The next launch; null if the device has enough work, or nothing waits.
Launch* Scheduler::TakeNext(State& state, Ended& ended) {
  const int64_t now_ns = clock_.NowNs();
  if (!HasRoom(state, now_ns)) return nullptr;
  if (IsHeldBack(state, now_ns)) return nullptr;
  // It starts when the device has finished its present work.
  const int64_t begin_ns = now_ns + RestNs(state, now_ns);
  const DeviceQueue::Choice choice = state.queue.TakeNext(begin_ns);
  for (DeviceQueue::Job* const job : choice.too_late) {
    auto& late = static_cast<Submission&>(*job);
    const int64_t left_ns = std::max(late.deadline_ns - begin_ns, int64_t{0});
    late.outcome.status = TooLateForDeadline(late.predicted_ns, left_ns);
    ended.dropped.push_back(Take(late));
  }
  if (choice.next == nullptr) return nullptr;
  auto& held = static_cast<Submission&>(*choice.next);
  Launch& launch = held.own_launch;
  state.running.push_back(&launch);
  launch.id = held.id;
  launch.launched_ns = now_ns;
  launch.begin_ns = begin_ns;
  launch.predicted_ns = held.predicted_ns;
  launch.correction = held.correction;
  launch.cost_ns = held.cost_ns;
  launch.members.push_back(&held);
  LeaveQueue(state, held);
  held.launch = &launch;
  Join(Joining::kStacked, state, launch);
  if (launch.joined == nullptr) Join(Joining::kBatched, state, launch);
  const auto others = static_cast<uint64_t>(launch.members.size() - 1);
  ++state.load.launches[std::min<size_t>(std::bit_width(others), kLaunchSizes - 1)];
  return &launch;
}

// Whether the device stays idle for a while, because more jobs may come that can join the next one.
bool Scheduler::IsHeldBack(State& state, int64_t now_ns) {
  state.held_until_ns = kNoDeadlineNs;
  if (joins_.window_ns == 0 || !state.running.empty() || state.queue.empty()) return false;
  const auto& next = static_cast<const Submission&>(state.queue.first());
  const auto size = [](const auto* list) {
    return list == nullptr ? int64_t{0} : static_cast<int64_t>(list->size());
  };
  const int64_t mates = std::max(size(state.stacked.Find(next)), size(state.batched.Find(next)));
  if (mates == 0 || mates >= joins_.limits.max_jobs) return false;
  int64_t until_ns = next.submitted_ns + joins_.window_ns;
  if (next.deadline_ns != kNoDeadlineNs) {
    until_ns = std::min(until_ns, next.deadline_ns - SafeNs(next.cost_ns));
  }
  if (until_ns <= now_ns) return false;
  state.held_until_ns = until_ns;
  return true;
}

// The waiting jobs that can be joined with `first`, oldest first, within the limits. Visits no more
// jobs than may be joined.
std::vector<Submission*> Scheduler::MatesOf(Joining joining, State& state,
                                            const Submission& first) {
  std::vector<Submission*> mates;
  const auto gather = [&](const auto& waiting) {
    const auto* const list = waiting.Find(first);
    if (list == nullptr) return;
    const JoinLimits& limits = joins_.limits;
    OverwrittenPlaces places;
    places.Add(first.job);
    int64_t bytes = JoinBytesOf(first.job, joining);
    mates.reserve(std::min(list->size(), static_cast<size_t>(limits.max_jobs)));
    int64_t jobs = 1;
    for (Submission* mate = list->first(); mate != nullptr; mate = list->After(*mate)) {
      if (++jobs > limits.max_jobs) break;
      bytes += JoinBytesOf(mate->job, joining);
      if (bytes > limits.max_bytes) break;
      if (places.Add(mate->job)) mates.push_back(mate);
    }
  };
  joining == Joining::kStacked ? gather(state.stacked) : gather(state.batched);
  return mates;
}

// Adds waiting jobs to one that is about to be launched.
void Scheduler::Join(Joining joining, State& state, Launch& launch) {
  std::vector<Submission*> mates = MatesOf(joining, state, *launch.members.front());
  // If the whole would take too long, half of them wait for the next turn.
  for (; !mates.empty(); mates.resize(mates.size() / 2)) {
    std::vector<const Job*> jobs;
    jobs.reserve(mates.size() + 1);
    jobs.push_back(&launch.members.front()->job);
    for (const Submission* const mate : mates) jobs.push_back(&mate->job);
    absl::StatusOr<std::unique_ptr<JoinedJob>> joined =
        JoinedJob::Of(joining, NewId(), std::move(jobs));
    if (!joined.ok()) return;
    ChooseKernel(state.device->profile(), state.choices, **joined);
    const Job& job = (*joined)->job();
    const int64_t predicted_ns = job.predicted.total_ns();
    Correction* const correction = CorrectionOf(*state.device, *job.kernel, job.problem);
    const int64_t cost_ns = ExpectedNs(predicted_ns, correction);
    if (!CanRunAs(state, launch, mates, **joined, cost_ns)) continue;
    launch.members.reserve(mates.size() + 1);
    for (Submission* const mate : mates) {
      state.queue.TakeAlso(*mate);
      LeaveQueue(state, *mate);
      mate->launch = &launch;
      launch.members.push_back(mate);
    }
    const auto count = static_cast<int64_t>(launch.members.size());
    (joining == Joining::kStacked ? state.load.stacked_requests : state.load.batched_requests) +=
        count;
    launch.joined = *std::move(joined);
    launch.id = launch.joined->job().id;
    launch.predicted_ns = predicted_ns;
    launch.correction = correction;
    launch.cost_ns = cost_ns;
    return;
  }
}

// Whether all deadlines remain safe, nothing else waits much longer for the device, and the device
// is trusted with the whole, which may be of another shape class than its members.
bool Scheduler::CanRunAs(const State& state, const Launch& launch,
                         absl::Span<Submission* const> mates, const JoinedJob& joined,
                         int64_t cost_ns) const {
  const Submission& first = *launch.members.front();
  const Job& job = joined.job();
  Device& device = *state.device;
  if (!device.trust().CheckLosses(*job.kernel, job.problem, device.info().name).ok()) return false;
  if (cost_ns > std::max(joins_.limits.max_expected_ns, 2 * first.cost_ns)) return false;
  const auto is_safe = [&](const Submission& one) {
    return LeftNs(one.deadline_ns, launch.begin_ns) >= SafeNs(cost_ns);
  };
  return is_safe(first) && std::all_of(mates.begin(), mates.end(),
                                       [&](const Submission* mate) { return is_safe(*mate); });
}

ExpiryTimer::ExpiryTimer(Scheduler& scheduler, const Clock& clock)
    : scheduler_(scheduler), clock_(clock) {
  scheduler_.WatchDeadlines([this] {
    MutexLock lock(&mutex_);
    is_earlier_ = true;
  });
  thread_ = std::thread([this] { Run(); });
}

ExpiryTimer::~ExpiryTimer() {
  {
    MutexLock lock(&mutex_);
    is_over_ = true;
  }
  thread_.join();
  scheduler_.WatchDeadlines(nullptr);
}

void ExpiryTimer::Run() {
  pthread_setname_np(pthread_self(), "gemmd-expiry");
  while (true) {
    const int64_t next_ns = scheduler_.EndExpired();
    const auto is_wanted = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return is_earlier_ || is_over_;
    };
    const int64_t wait_ns = std::max(next_ns - clock_.NowNs(), int64_t{0});
    MutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(is_wanted, absl::Nanoseconds(wait_ns));
    if (is_over_) return;
    is_earlier_ = false;
  }
}

}  // namespace gemmd
