// SPDX-License-Identifier: Apache-2.0
//
// Queues jobs per device, in fair turns of their callers, hands each device as many as it works on
// at once, and ends those that nobody waits for any longer. Jobs that wait together and can run as
// one are handed over as one (JoinedJob).
//
// A device that takes several (Device::depth) has little work beside the job that it began first,
// because what it has is no longer in turns: no more than kMaxAheadNs, and where other callers are
// there, or connections of the same one that wait for each answer, no more than the lightest
// product of theirs takes, so that this one waits no longer for that than it takes itself. Its jobs
// count as if it worked on them one after the other: each has the time from the end of the one
// before, so that what overlaps shows as shorter jobs, and predictions learn that.
//
// A job waits, then is launched, then is done. It is dropped while it waits, or aborted while it
// runs, where its caller cancels, its deadline passes or the server stops; it is also dropped where
// it can no longer be in time. Its callback is called exactly once in every case, never under a
// lock. The scheduler has no thread: it runs in its functions and in the devices' callbacks.
// ExpiryTimer calls EndExpired when a deadline passes.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "server/device/device.h"
#include "server/device/job.h"
#include "server/product/admission.h"
#include "server/product/counts.h"
#include "server/product/prediction.h"
#include "server/product/queue.h"
#include "server/system/clock.h"
#include "server/system/mutex.h"
#include "server/system/threads.h"

namespace gemmd {

// Jobs that run as one. These parts know no queue, no clock and no lock.

// What one job of several may take together. A longer one would keep the device from an abort, and
// a larger one gains nothing.
struct JoinLimits {
  int64_t max_jobs = 256;
  int64_t max_bytes = int64_t{16} << 20;  // Operands that are copied, and D.
  // All of them are expected to take at most so long, or twice as long as the first one alone.
  int64_t max_expected_ns = 5'000'000;
};

// What jobs that run as one have in common: equal keys mean that they can. Empty if a job cannot
// run with others in this way. Keys without vectors fit in without an allocation.
using JoinKey = absl::InlinedVector<char, 320>;
struct JoinKeys {
  JoinKey stacked;
  JoinKey batched;
};
JoinKeys JoinKeysOf(const Job& job);

// Whether the bits of a D that may vary (Job::may_vary) depend on what is stacked with it, where B
// is a tensor: on `cpu`, for kernels whose bits depend on m. To read a B once for many rows is
// worth more to most callers than the order in which a library adds. Such products are never
// batched.
bool MayVaryJoined(const Kernel& kernel);

// The bytes of a job that count against JoinLimits.
int64_t JoinBytesOf(const Job& job, Joining joining);

// Places of the host's memory that D's of several jobs overwrite together.
class OverwrittenPlaces {
 public:
  // Notes the place of the job's D, if it is given one. False, and nothing is noted, where that
  // shares bytes with another place but is not the same.
  bool Add(const Job& job);

 private:
  std::map<const std::byte*, const std::byte*> ends_;  // By where they begin.
};

struct Submission;

// What a device was given at once. It is kept by the first of its jobs.
struct Launch {
  JobId id = 0;  // The device's: that of the job, or a new one for several.
  absl::InlinedVector<Submission*, 1> members;  // Empty while the job waits.
  std::unique_ptr<JoinedJob> joined;            // Null for one job.
  int64_t launched_ns = 0;
  int64_t begin_ns = 0;                // When the device should have done what it has.
  int64_t predicted_ns = 0;            // For all members as one,
  Correction* correction = nullptr;    //   with that of such products.
  int64_t cost_ns = 0;                 // The time that it is expected to take.
  bool is_on_device = false;           // It is not on its way there any longer.
  std::optional<int64_t> unwanted_ns;  // Since when nobody waits for any member.
};

// A job, from Submit to its end. Its first members are set before, the last ones at its end.
struct Submission : DeviceQueue::Job {
  using Done = absl::AnyInvocable<void(std::unique_ptr<Submission>) &&>;

  Submission() = default;
  virtual ~Submission() = default;
  FlowId flow_id() const { return {.caller = caller, .connection = connection}; }

  Device* device = nullptr;  // One of the scheduler's devices.
  gemmd::Job job;            // Its time is set with Scheduler::SetTime.
  int64_t bytes = 0;         // Only for the statistics.
  // Its room among the requests, and how many bytes it is to have: message, result and scratch
  // together.
  Admission::Ticket ticket;
  int64_t room_bytes = 0;
  // What its answer takes after the device, a check of D, is expected to take, and to wait for.
  int64_t after_ns = 0;
  int64_t after_wait_ns = 0;
  std::string caller;  // Whose turn it takes. `connection` is the one that has a part of it.
  Done done;

  // The scheduler's own.
  JoinKeys keys;
  JobLinks<Submission> stacked;  // Among the jobs that wait, by the same keys.
  JobLinks<Submission> batched;
  int64_t submitted_ns = 0;
  Launch own_launch;
  Launch* launch = nullptr;  // Null while it waits.
  absl::Status end;          // Why it is aborted; OK if it is not.

  // How it ended: as the device says, or Cancelled, DeadlineExceeded, or the status of Stop. The
  // message says whether it had been launched; what was aborted has no result.
  JobOutcome outcome;
  int64_t queue_ns = 0;  // From Submit to the start on the device, or to the drop.
  int64_t ended_ns = 0;  // When the device was done with it, or it was dropped.
  int64_t joined = 1;    // So many jobs ran as one, whose stages these are.
};

// Jobs that are submitted together.
using Company = absl::InlinedVector<std::unique_ptr<Submission>, 1>;
inline Company Alone(std::unique_ptr<Submission> job) {
  Company company;
  company.push_back(std::move(job));
  return company;
}

inline constexpr size_t kLaunchSizes = 9;

struct DeviceLoad {
  int64_t queued_requests = 0;
  int64_t queued_bytes = 0;
  int64_t backlog_ns = 0;  // The expected time of waiting jobs, and the rest of those that run.
  int64_t completed_requests = 0;
  int64_t busy_ns = 0;  // The time that jobs had the device, up to now.
  // From when nobody wanted any more what the device had, to when it was done with it.
  LatencyHistogram::Snapshot aborts = {};
  // Launches by how many jobs ran as one: 1, 2, 3 to 4, 5 to 8 and so on; the last counts all more.
  std::array<int64_t, kLaunchSizes> launches = {};
  int64_t stacked_requests = 0;  // That ran as one with others, in either way.
  int64_t batched_requests = 0;
};

// How long jobs may wait for others with which they run as one.
struct JoinRules {
  JoinLimits limits;
  // A job that finds its device idle waits so long for others. 0: only what waits anyway joins.
  int64_t window_ns = 0;
};

class Scheduler {
 public:
  // Borrows the devices and the clock; both outlive it. There must be no job left when it is
  // destroyed. `answering_threads` answer the jobs of launches of many; with none of them, a
  // device's own thread answers all of its jobs.
  Scheduler(absl::Span<Device* const> devices, const Clock& clock, JoinRules joins = {},
            int answering_threads = 0);

  // A number that no other job has.
  JobId NewId() { return ++last_id_; }

  // What products of the kernel and the problem's shape class took on one of the devices; null for
  // a kernel of others. Threads: any.
  Correction* CorrectionOf(const Device& device, const Kernel& kernel,
                           const Problem& problem) const {
    return corrections_.at(&device)->Find(kernel, problem);
  }
  // The job's device, kernel and problem are set. All that asks for its time from then on gets this
  // prediction, or what it is by the products of the day. Threads: any.
  void SetTime(Submission& submission, const PredictedTime& predicted) const;

  // Queues jobs before it launches any, so that those that can run as one do; each goes to its
  // `done` at its end. Their ids are 0, to be set here, or those of jobs that are done. A job takes
  // its place of `admission` as it is queued, behind those before it. One that is not let in is
  // given back with what RefusalOf needs, and its `done` is not called. Null: the jobs are the
  // daemon's own or have their places. Threads: any.
  struct Refused {
    std::unique_ptr<Submission> job;
    Verdict why = Verdict::kIn;
    Asked asked;
  };
  std::vector<Refused> SubmitTogether(Company jobs, Admission* admission)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // The same for one job that needs no place. Returns its id.
  JobId Submit(std::unique_ptr<Submission> job) ABSL_LOCKS_EXCLUDED(mutex_);

  // Ends the job: where it waits, its callback is called with Cancelled before this returns; where
  // it runs, the device is told to abort it. Does nothing for other jobs. Threads: any.
  void Cancel(JobId id) ABSL_LOCKS_EXCLUDED(mutex_) { Cancel(absl::MakeConstSpan(&id, 1)); }
  // All at once, so that none of them is launched in place of another.
  void Cancel(absl::Span<const JobId> ids) ABSL_LOCKS_EXCLUDED(mutex_);

  // Ends every job whose deadline has passed, as Cancel does, with DeadlineExceeded, and launches
  // what has waited long enough for others. Returns when it is to be called again. Threads: any.
  int64_t EndExpired() ABSL_LOCKS_EXCLUDED(mutex_);

  // Calls the listener when EndExpired is wanted earlier than its last call said. Set before the
  // first Submit; called from any thread.
  void WatchDeadlines(std::function<void()> listener) { deadline_listener_ = std::move(listener); }

  // Drops every waiting job and aborts every running one; their callbacks get `status`, and so does
  // what is submitted later.
  void Stop(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);

  // Whether jobs run as one at all.
  bool joins() const { return joins_.limits.max_jobs > 1; }

  DeviceLoad load(const Device& device) const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  using Jobs = absl::flat_hash_map<JobId, std::unique_ptr<Submission>>;
  // Jobs that wait and have a key.
  template <JobLinks<Submission> Submission::*kLinks>
  using Waiting = absl::flat_hash_map<JoinKey, LinkedJobs<Submission, kLinks>>;
  struct State {
    Device* device = nullptr;
    DeviceQueue queue;
    LightFlows light;              // The lightest callers,
    LightFlows lone;               // and of connections that wait for each answer.
    std::vector<Launch*> running;  // In the order of their launches.
    Waiting<&Submission::stacked> stacked;
    Waiting<&Submission::batched> batched;
    int64_t last_end_ns = 0;
    int64_t held_until_ns = kNoDeadlineNs;  // The device is idle so long, for jobs to come.
    DeviceLoad load;
    LatencyHistogram aborts;
    KernelChoices choices;  // For several jobs as one.
  };
  // What has to be done once the lock is given up.
  struct Ended {
    std::vector<std::unique_ptr<Submission>> dropped;
    std::vector<std::pair<Device*, JobId>> aborted;
  };

  // As long as the work that a device has is expected to take less than this, it gets more.
  static constexpr int64_t kMaxAheadNs = 20'000'000;
  // It gets so much however light the products of other callers are, to hide the way to it.
  static constexpr int64_t kMinAheadNs = 300'000;
  // With so many launches it does all that it can at once: copies in, computes, copies out. What
  // could run as one with others waits for more of them meanwhile, because a launch of a few costs
  // the thread of the device as much as one of many.
  static constexpr size_t kEnoughRunning = 3;

  Verdict LetIn(const State& state, Submission& job, const FairQueue::Ahead& ahead,
                Admission& admission, Asked& asked, int64_t now_ns) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Queue(State& state, std::unique_ptr<Submission> job, bool is_promised, int64_t now_ns)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What is to be launched now, if anything.
  struct Next {
    Launch* launch = nullptr;
    bool is_earlier = false;  // EndExpired is wanted earlier than its last call said.
    Ended ended;
  };
  void LaunchAll(Device& device) ABSL_LOCKS_EXCLUDED(mutex_);
  void LaunchFrom(Device& device, Next next) ABSL_LOCKS_EXCLUDED(mutex_);
  void TakeNext(State& state, Next& next) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Launch* TakeNext(State& state, Ended& ended) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsHeldBack(State& state, int64_t now_ns) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Join(Joining joining, State& state, Launch& launch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool CanRunAs(const State& state, const Launch& launch, absl::Span<Submission* const> mates,
                const JoinedJob& joined, int64_t cost_ns) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<Submission*> MatesOf(Joining joining, State& state, const Submission& first)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static void LeaveQueue(State& state, Submission& held);
  static void NoteOnDevice(State& state, JobId id, Ended& ended);
  static void Learn(const Launch& launch, const JobOutcome& outcome, int64_t begun_ns,
                    int64_t ended_ns);
  void OnDone(Launch& launch, JobOutcome outcome) ABSL_LOCKS_EXCLUDED(mutex_);
  using EndedJobs = absl::InlinedVector<std::unique_ptr<Submission>, 1>;
  // Jobs that ended together.
  struct EndedLaunch {
    EndedJobs jobs;
    JobOutcome outcome;  // With the D of them all, if there are several.
  };
  void Answer(EndedLaunch ended);
  // Answers jobs from `first` on. The part of the first of them in D begins at `d_offset`.
  static void AnswerSome(EndedLaunch& ended, size_t first, size_t count, size_t d_offset);
  static bool IsEnded(const Launch& launch);
  // Takes a job out of everything; it has been taken out of its queue.
  std::unique_ptr<Submission> Take(Submission& held) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void End(Submission& held, const absl::Status& why, Ended& ended)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Finish(Ended ended) const ABSL_LOCKS_EXCLUDED(mutex_);
  static int64_t BeginNs(const State& state);
  static int64_t RestNs(const State& state, int64_t now_ns);
  bool HasRoom(State& state, int64_t now_ns) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Clock& clock_;
  const JoinRules joins_;
  std::map<const Device*, std::unique_ptr<Corrections>> corrections_;  // Constant.
  std::function<void()> deadline_listener_;
  mutable Mutex mutex_;
  Jobs jobs_ ABSL_GUARDED_BY(mutex_);
  std::map<const Device*, State> states_ ABSL_GUARDED_BY(mutex_);
  // Those of jobs that have not been ended, in order of time.
  absl::btree_set<std::pair<int64_t, JobId>> deadlines_ ABSL_GUARDED_BY(mutex_);
  int64_t watched_ns_ ABSL_GUARDED_BY(mutex_) = kNoDeadlineNs;  // What EndExpired returned last.
  absl::Status stopped_ ABSL_GUARDED_BY(mutex_);                // OK until Stop.
  std::atomic<JobId> last_id_ = 0;
  ThreadPool answering_;  // Ends first.
};

// Ends jobs when their deadlines pass, with no other event needed: a thread that calls
// Scheduler::EndExpired.
class ExpiryTimer {
 public:
  // Borrows the scheduler, to which nothing has been submitted yet, and its clock; both outlive the
  // timer. The clock must tell true time, since the timer sleeps by it.
  ExpiryTimer(Scheduler& scheduler, const Clock& clock);

  // Nothing may be submitted any longer.
  ~ExpiryTimer();

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);

  Scheduler& scheduler_;
  const Clock& clock_;
  Mutex mutex_;
  bool is_earlier_ ABSL_GUARDED_BY(mutex_) = false;  // There is an earlier deadline.
  bool is_over_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace gemmd
