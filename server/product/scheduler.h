// SPDX-License-Identifier: Apache-2.0
//
// Queues jobs per device in fair turns of their callers, hands each device as many jobs as it can
// work on at once, and ends jobs whose callers have left. Waiting jobs that can run as one
// are launched as one (JoinedJob).
//
// Jobs that a device has been given no longer take turns. So a device that takes several jobs
// (Device::depth) is given little work in addition to the job that it began first: at most
// kMaxAheadNs, and if there are other callers, or connections of the same caller that wait for each
// answer, at most as much as their shortest product takes, so that this product waits for that work
// no longer than it takes itself. Times are measured as if the device worked on its jobs one after
// the other: each job's time starts at the end of the one before, so overlap shows as shorter jobs,
// from which predictions learn.
//
// A job waits, then is launched, then is done. If its caller cancels, its deadline passes or the
// server stops, a waiting job is dropped and a running one is aborted. A job that can no longer
// meet its deadline is dropped too. Its callback is always called exactly once, never under a lock.
// The scheduler has no thread: it runs in its callers and in the devices' callbacks. ExpiryTimer
// calls EndExpired when a deadline passes.
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
#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "server/device/device.h"
#include "server/device/job.h"
#include "server/product/admission.h"
#include "server/product/counts.h"
#include "server/product/job_table.h"
#include "server/product/prediction.h"
#include "server/product/queue.h"
#include "server/system/clock.h"
#include "server/system/mutex.h"
#include "server/system/threads.h"

namespace gemmd {

// Jobs that run as one. This part has no queue, no clock and no lock.

// The limits of one job made of several. A longer one would delay aborts on the device, and a
// larger one gains nothing.
struct JoinLimits {
  int64_t max_jobs = 256;
  int64_t max_bytes = int64_t{16} << 20;  // Of operands that are copied, and of D.
  // The maximum expected time of the whole; if the first job alone takes longer than half of this,
  // twice its time.
  int64_t max_expected_ns = 5'000'000;
};

// What jobs that run as one must have in common: jobs with equal keys can run as one. Empty if a
// job cannot run with others in this way.
class JoinKey {
 public:
  using Bytes = absl::InlinedVector<char, 320>;  // Without vectors, no allocation.

  JoinKey() = default;
  explicit JoinKey(Bytes bytes);

  bool empty() const { return bytes_.empty(); }
  uint64_t hash() const { return hash_; }
  friend bool operator==(const JoinKey&, const JoinKey&) = default;

 private:
  uint64_t hash_ = 0;  // Of all bytes.
  Bytes bytes_;
};
struct JoinKeys {
  JoinKey stacked;
  JoinKey batched;
};
JoinKeys JoinKeysOf(const Job& job, Priority priority = Priority::kNormal);

// Whether the bits of a D that may vary (Job::may_vary) depend on the jobs that are stacked with
// it, if B is a tensor. True on `cpu`, for kernels whose bits depend on m. Reading a B once for
// many rows is worth more to most callers than the order in which a library adds. Such products are
// never batched.
bool MayVaryJoined(const Kernel& kernel);

// The bytes of a job that count towards JoinLimits.
int64_t JoinBytesOf(const Job& job, Joining joining);

// The memory ranges on the host that several jobs overwrite with their D's.
class OverwrittenPlaces {
 public:
  // Adds the range of the job's D, if it was given one. Returns false and adds nothing if the range
  // overlaps another one without being the same.
  bool Add(const Job& job);

 private:
  absl::btree_map<const std::byte*, const std::byte*> ends_;  // By beginning.
};

struct Submission;

// What a device is given as one: a job, or several joined. Owned by its first member.
struct Launch {
  JobId id = 0;  // The device's id for it: that of the job, or a new one for several.
  absl::InlinedVector<Submission*, 1> members;  // Empty while the job waits.
  std::unique_ptr<JoinedJob> joined;            // Null for a single job.
  int64_t launched_ns = 0;
  int64_t begin_ns = 0;                // When the device should have finished its earlier work.
  int64_t predicted_ns = 0;            // For all members as one.
  Correction* correction = nullptr;    // For products like the whole.
  int64_t cost_ns = 0;                 // The expected time.
  bool is_on_device = false;           // The device has it; false on the way there.
  std::optional<int64_t> unwanted_ns;  // Since when nobody waits for any member.
};

// A job, from Submit to its end. The submitter sets the first members; the last ones are set at its
// end.
struct Submission : DeviceQueue::Job {
  using Done = absl::AnyInvocable<void(std::unique_ptr<Submission>) &&>;

  Submission() = default;
  virtual ~Submission() = default;
  FlowId flow_id() const { return {.caller = caller, .connection = connection}; }

  Device* device = nullptr;  // One of the scheduler's devices.
  gemmd::Job job;            // Its time is set with Scheduler::SetTime.
  int64_t bytes = 0;         // Only for the statistics.
  // Its ticket from admission, and how many bytes the ticket is to hold: message, result and
  // scratch memory together.
  Admission::Ticket ticket;
  int64_t room_bytes = 0;
  int64_t answer_bytes = 0;  // Those of D, if the answer has it.
  // The expected time, and the expected wait, of what follows on the host: a check of D.
  int64_t after_ns = 0;
  int64_t after_wait_ns = 0;
  std::string caller;  // The caller and the connection whose turns it takes.
  Done done;

  // Used by the scheduler itself.
  JoinKeys keys;
  JobLinks<Submission> stacked;  // Links among the waiting jobs with the same key.
  JobLinks<Submission> batched;
  int64_t submitted_ns = 0;
  Launch own_launch;
  Launch* launch = nullptr;  // Null while it waits.
  Submission* next_of_slot = nullptr;
  size_t deadline_place = kNotInHeap;
  absl::Status end;  // Why it is being aborted; OK if it is not.

  // How it ended: as the device reports, or Cancelled, DeadlineExceeded, or the status of Stop. The
  // message says whether it had been launched. An aborted job has no result.
  JobOutcome outcome;
  int64_t queue_ns = 0;  // From Submit to the start on the device or to the drop.
  int64_t ended_ns = 0;  // When the device finished it or it was dropped.
  int64_t joined = 1;    // The number of jobs that ran as one; the stages are those of the whole.
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
  int64_t backlog_ns = 0;  // The expected time of waiting jobs and the remaining time of running
                           // ones.
  int64_t completed_requests = 0;
  int64_t busy_ns = 0;  // The time for which jobs have had the device so far.
  // From the moment when the last caller of a launch had left until the device had finished it.
  LatencyHistogram aborts = {};
  // Launches by the number of jobs that ran as one: 1, 2, 3 to 4, 5 to 8 and so on; the last
  // element counts all larger ones.
  std::array<int64_t, kLaunchSizes> launches = {};
  int64_t stacked_requests = 0;  // Products that ran as one with others, stacked or batched.
  int64_t batched_requests = 0;
};

// How jobs are joined to run as one.
struct JoinRules {
  JoinLimits limits;
  // How long a job that finds its device idle waits for others. 0: only jobs that wait anyway are
  // joined.
  int64_t window_ns = 0;
};

class Scheduler {
 public:
  // Borrows the devices and the clock, which must outlive the scheduler. No job may be left when it
  // is destroyed. `answering_threads` threads answer the jobs of large launches; if 0, each
  // device's own thread answers all of its jobs.
  Scheduler(absl::Span<Device* const> devices, const Clock& clock, JoinRules joins = {},
            int answering_threads = 0);

  // An id that no other job has.
  JobId NewId() { return ++last_id_; }

  // The correction from the times that products of the kernel and the problem's shape class took on
  // one of the devices; null for a kernel of another device. Threads: any.
  Correction* CorrectionOf(const Device& device, const Kernel& kernel,
                           const Problem& problem) const {
    return corrections_.at(&device)->Find(kernel, problem);
  }
  // Sets the predicted time of a job whose device, kernel and problem are set. From then on, its
  // expected time is this prediction with its current correction. Threads: any.
  void SetTime(Submission& submission, const PredictedTime& predicted) const;

  // Queues all jobs before it launches any, so that those that can run as one do. Each job is
  // passed to its `done` at its end. Their ids are 0, to be set here, or those of jobs that have
  // ended. Each job is admitted by `admission` as it is queued, after those before it. A job that
  // is not admitted is returned with what RefusalOf needs, and its `done` is not called. Null: the
  // jobs are the daemon's own or have been admitted. Threads: any.
  struct Refused {
    std::unique_ptr<Submission> job;
    Verdict why = Verdict::kIn;
    Asked asked;
  };
  std::vector<Refused> SubmitTogether(Company jobs, Admission* admission)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // The same for one job that needs no admission. Returns its id.
  JobId Submit(std::unique_ptr<Submission> job) ABSL_LOCKS_EXCLUDED(mutex_);

  // Ends the job. If it waits, its callback is called with Cancelled before this returns; if it
  // runs, the device is told to abort it. Does nothing for other jobs. Threads: any.
  void Cancel(JobId id) ABSL_LOCKS_EXCLUDED(mutex_) { Cancel(absl::MakeConstSpan(&id, 1)); }
  // Ends all at once, so that none of them is launched in place of another.
  void Cancel(absl::Span<const JobId> ids) ABSL_LOCKS_EXCLUDED(mutex_);

  // Ends every job whose deadline has passed, as Cancel does but with DeadlineExceeded, and
  // launches jobs that have waited long enough for others. Returns the time at which it must be
  // called again. Threads: any.
  int64_t EndExpired() ABSL_LOCKS_EXCLUDED(mutex_);

  // `listener` is called when EndExpired must be called earlier than its last call returned. Set it
  // before the first Submit. It is called from any thread.
  void WatchDeadlines(std::function<void()> listener) { deadline_listener_ = std::move(listener); }

  // Drops every waiting job and aborts every running one. Their callbacks get `status`, and so do
  // those of jobs submitted later.
  void Stop(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);

  // Whether jobs are joined at all.
  bool joins() const { return joins_.limits.max_jobs > 1; }

  DeviceLoad load(const Device& device) const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // Waiting jobs by their key of one kind. Compares and copies no whole keys but one for each job
  // that comes.
  template <JobLinks<Submission> Submission::*kLinks, JoinKey JoinKeys::*kKey>
  class Waiting {
   public:
    using List = LinkedJobs<Submission, kLinks>;

    // No effect on a job without a key. A job whose key has the hash of another waiting key does
    // not enter, and runs alone.
    void Enter(Submission& job) {
      const JoinKey& key = job.keys.*kKey;
      if (key.empty()) return;
      List& list = lists_[key.hash()];
      if (list.empty() || list.first()->keys.*kKey == key) list.Insert(job);
    }
    // No effect on a job that has not entered.
    void Leave(Submission& job) {
      const auto position = lists_.find((job.keys.*kKey).hash());
      if (position == lists_.end() || !position->second.Remove(job)) return;
      if (position->second.empty()) lists_.erase(position);
    }
    // The jobs that wait with the job's key; null if there are none.
    const List* Find(const Submission& job) const {
      const JoinKey& key = job.keys.*kKey;
      const auto position = lists_.find(key.hash());
      if (position == lists_.end() || position->second.first()->keys.*kKey != key) return nullptr;
      return &position->second;
    }

   private:
    absl::flat_hash_map<uint64_t, List> lists_;  // By hash.
  };
  struct State {
    Device* device = nullptr;
    DeviceQueue queue;
    LightFlows light;              // The shortest products by caller,
    LightFlows lone;               // and by connection, of those that wait for each answer.
    std::vector<Launch*> running;  // In the order of their launches.
    Waiting<&Submission::stacked, &JoinKeys::stacked> stacked;
    Waiting<&Submission::batched, &JoinKeys::batched> batched;
    int64_t last_end_ns = 0;
    int64_t held_until_ns = kNoDeadlineNs;  // Until then the device stays idle, for jobs to join.
    DeviceLoad load;
    LatencyHistogram aborts;
    KernelChoices choices;  // For joined jobs.
  };
  // What has to be done after the lock is released.
  struct Ended {
    std::vector<std::unique_ptr<Submission>> dropped;
    std::vector<std::pair<Device*, JobId>> aborted;
  };

  // A device is given more work while its work is expected to take less than this.
  static constexpr int64_t kMaxAheadNs = 20'000'000;
  // A device is always given this much, however short the products of other callers are, to hide
  // the latency of reaching the device.
  static constexpr int64_t kMinAheadNs = 300'000;
  // With this many launches a device does all that it can at once: it copies in, computes and
  // copies out. Jobs that could be joined wait for more of them meanwhile, because a small launch
  // costs the device's thread as much time as a large one. A device that takes fewer launches, as
  // one of the host does, computes one after the other.
  static constexpr int kEnoughRunning = 3;

  Verdict LetIn(const State& state, Submission& job, const FairQueue::Ahead& ahead,
                Admission& admission, Asked& asked, int64_t now_ns) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Queue(State& state, std::unique_ptr<Submission> job, bool is_promised, int64_t now_ns)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The launch to make now, if any.
  struct Next {
    Launch* launch = nullptr;
    bool is_earlier = false;  // EndExpired must be called earlier than its last call returned.
    Ended ended;
  };
  using DueLaunches = absl::InlinedVector<std::pair<Device*, Next>, 1>;
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
    JobOutcome outcome;  // With the D's of all jobs, if there are several.
  };
  void Answer(EndedLaunch ended);
  // Answers `count` jobs from `first` on. The first one's part of D begins at `d_offset`.
  static void AnswerSome(EndedLaunch& ended, size_t first, size_t count, size_t d_offset);
  static bool IsEnded(const Launch& launch);
  // Removes a job, already removed from its queue, from all other tables.
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
  JobTable<Submission, &Submission::next_of_slot> jobs_ ABSL_GUARDED_BY(mutex_);
  std::map<const Device*, State> states_ ABSL_GUARDED_BY(mutex_);
  // Jobs with deadlines that have not passed.
  DeadlineHeap<Submission, &Submission::deadline_place> deadlines_ ABSL_GUARDED_BY(mutex_);
  int64_t watched_ns_ ABSL_GUARDED_BY(mutex_) = kNoDeadlineNs;  // The last result of EndExpired.
  absl::Status stopped_ ABSL_GUARDED_BY(mutex_);                // OK until Stop.
  std::atomic<JobId> last_id_ = 0;
  ThreadPool answering_;  // Destroyed first.
};

// A thread that calls Scheduler::EndExpired when deadlines pass, so that jobs end without another
// event.
class ExpiryTimer {
 public:
  // Borrows the scheduler, to which nothing has been submitted yet, and its clock. Both must
  // outlive the timer. The clock must run in real time, since the timer sleeps by it.
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
