// SPDX-License-Identifier: Apache-2.0
#include "client/load/load_run.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "client/load/cpu_usage.h"

namespace gemmd {
namespace {

constexpr int64_t kMillisecondNs = 1'000'000;
constexpr double kSecondNs = 1e9;
// How far behind the first sender of an open loop the second one looks: about the time in which
// the first is awake.
constexpr int64_t kSecondSenderNs = 60'000;

class Run {
 public:
  Run(LoadTargets& targets, const LoadStep& step, const StopRequests& stop,
      const LoadProgress& progress)
      : targets_(targets),
        step_(step),
        stop_(stop),
        progress_(progress),
        // A little later than now, so that the first call is not late already.
        start_ns_(SteadyNowNs() + kMillisecondNs),
        window_from_ns_(start_ns_ + step.warmup_ns),
        window_to_ns_(window_from_ns_ + step.duration_ns),
        recorder_(window_from_ns_, window_to_ns_) {}

  StepResult ToEnd() {
    std::thread monitor([this] { Monitor(); });
    const auto* const open = std::get_if<OpenLoop>(&step_.loop);
    open != nullptr ? SendOpen(*open) : SendClosed(std::get<ClosedLoop>(step_.loop));
    EndWindow();
    WaitForAnswers();
    {
      absl::MutexLock lock(&mutex_);
      is_done_ = true;
    }
    monitor.join();
    return Result();
  }

 private:
  // A call between its turn and its answer. Times as in CallSample.
  struct Call {
    uint64_t number = 0;
    size_t client = 0;
    size_t product = 0;
    int64_t intended_ns = 0;
    int64_t admitted_ns = 0;
    int64_t sent_ns = 0;
  };

  // Whether a call that is due then belongs to the run, and to count it where it does.
  bool Takes(int64_t due_ns) {
    if (stop_.load(std::memory_order_relaxed) > 0 || due_ns >= window_to_ns_) return false;
    if (due_ns < window_from_ns_ || step_.count == 0) return true;
    return counted_.fetch_add(1, std::memory_order_relaxed) < step_.count;
  }

  // What the senders of an open loop share: the call that is due next.
  struct Pacing {
    explicit Pacing(const ArrivalPlan& plan) : arrivals(plan) {}
    absl::Mutex mutex;
    Arrivals arrivals ABSL_GUARDED_BY(mutex);
    int64_t due_ns ABSL_GUARDED_BY(mutex) = 0;
    int64_t freed_ns ABSL_GUARDED_BY(mutex) = 0;  // When the limit last let a call pass.
    bool is_over ABSL_GUARDED_BY(mutex) = false;
  };

  // Two threads wait for each call, and the first one awake sends it: a thread that the machine
  // wakes late, or that still sends the call before, delays nothing.
  void SendOpen(const OpenLoop& open) {
    Pacing pacing(open.arrivals);
    {
      absl::MutexLock lock(&pacing.mutex);
      NextDue(pacing);
    }
    std::thread second([&] { SendWhatIsDue(open.most_in_flight, kSecondSenderNs, pacing); });
    SendWhatIsDue(open.most_in_flight, 0, pacing);
    second.join();
    absl::MutexLock lock(&pacing.mutex);
    last_due_ns_ = pacing.due_ns;
    // What was due and could not be sent any more.
    while (pacing.freed_ns >= window_to_ns_ && pacing.due_ns < window_to_ns_) {
      unsent_ += pacing.due_ns >= window_from_ns_;
      pacing.due_ns = start_ns_ + pacing.arrivals.NextNs();
    }
  }

  void NextDue(Pacing& pacing) ABSL_EXCLUSIVE_LOCKS_REQUIRED(pacing.mutex) {
    pacing.due_ns = start_ns_ + pacing.arrivals.NextNs();
    pacing.is_over = !Takes(pacing.due_ns);
  }

  // Looks for a call `behind_ns` after the time at which it is due.
  void SendWhatIsDue(int64_t most_in_flight, int64_t behind_ns, Pacing& pacing) {
    WakeThisThreadOnTime();
    while (true) {
      pacing.mutex.Lock();
      const int64_t due_ns = pacing.due_ns;
      const bool is_due = !pacing.is_over && due_ns <= SteadyNowNs();
      const std::optional<Call> call = is_due ? Admit(most_in_flight, pacing) : std::nullopt;
      const bool is_over = pacing.is_over;
      pacing.mutex.Unlock();
      if (call.has_value()) {
        Send(*call);
      } else if (is_over || !SleepUntil(due_ns + behind_ns, stop_)) {
        return;
      }
    }
  }

  // The call that is due, entered, once the limit of calls in flight lets it pass; none where the
  // run ends before.
  std::optional<Call> Admit(int64_t most_in_flight, Pacing& pacing)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(pacing.mutex) {
    if (WaitForRoom(most_in_flight)) pacing.freed_ns = SteadyNowNs();
    if (pacing.freed_ns >= window_to_ns_ || stop_.load() > 0) {
      pacing.is_over = true;
      return std::nullopt;
    }
    Call call;
    call.number = next_number_.fetch_add(1, std::memory_order_relaxed);
    call.client = call.number % targets_.clients.size();
    call.intended_ns = pacing.due_ns;
    call.admitted_ns = std::max(pacing.due_ns, pacing.freed_ns);
    Enter();
    NextDue(pacing);
    return call;
  }

  void SendClosed(const ClosedLoop& closed) {
    SleepUntil(start_ns_, stop_);
    for (int i = 0; i < closed.concurrency; ++i) {
      Enter();
      if (!TakeTurn(static_cast<size_t>(i) % targets_.clients.size(), SteadyNowNs())) Leave();
    }
    absl::MutexLock lock(&mutex_);
    // Answers keep the loop going; it ends by itself at the end of the window.
    while (in_flight_ > 0 && stop_.load() == 0 && SteadyNowNs() < window_to_ns_) {
      mutex_.AwaitWithTimeout(absl::Condition(this, &Run::IsIdle), absl::Milliseconds(20));
    }
  }

  // Sends the next call of a closed loop; false where that is over.
  bool TakeTurn(size_t client, int64_t due_ns) {
    if (!Takes(due_ns)) return false;
    Call call;
    call.number = next_number_.fetch_add(1, std::memory_order_relaxed);
    call.client = client;
    call.intended_ns = due_ns;
    call.admitted_ns = due_ns;
    Send(call);
    return true;
  }

  void Enter() {
    absl::MutexLock lock(&mutex_);
    ++in_flight_;
    most_in_flight_ = std::max(most_in_flight_, in_flight_);
  }

  // The run may be gone behind this.
  void Leave() {
    absl::MutexLock lock(&mutex_);
    --in_flight_;
  }

  // The caller has entered the call.
  void Send(Call call) {
    call.product = targets_.picker->Pick(call.number);
    call.sent_ns = SteadyNowNs();
    const int64_t late_ns = call.sent_ns - call.admitted_ns;
    if (late_ns > kMillisecondNs && call.intended_ns >= window_from_ns_) {
      sent_late_.fetch_add(1, std::memory_order_relaxed);
    }
    targets_.clients[call.client].MultiplyAsync(
        (*targets_.payloads)[call.product].request,
        [this, call](absl::StatusOr<v1::MultiplyResponse> response) {
          OnAnswer(call, std::move(response));
        },
        {.timeout = step_.timeout});
  }

  // On a thread of gRPC.
  void OnAnswer(const Call& call, absl::StatusOr<v1::MultiplyResponse> response) {
    const int64_t ended_ns = SteadyNowNs();
    const Payload& payload = (*targets_.payloads)[call.product];
    CallSample sample = {.product = call.product,
                         .intended_ns = call.intended_ns,
                         .admitted_ns = call.admitted_ns,
                         .sent_ns = call.sent_ns,
                         .ended_ns = ended_ns,
                         .code = response.status().code(),
                         .operations = payload.operations,
                         .bytes = payload.sent_bytes + payload.answer_bytes};
    if (response.ok()) sample.timing = response->timing();
    recorder_.Add(sample);
    if (!response.ok()) KeepMessage(response.status());
    if (response.ok() && targets_.verifier->Wants(call.product, call.number)) {
      targets_.verifier->Offer(call.product, *std::move(response));
    }
    // The next call of a closed loop takes this one's place.
    const bool is_closed = std::holds_alternative<ClosedLoop>(step_.loop);
    if (!is_closed || !TakeTurn(call.client, ended_ns)) Leave();
  }

  void KeepMessage(const absl::Status& status) {
    absl::MutexLock lock(&mutex_);
    first_messages_.emplace(status.code(), status.message());
  }

  bool IsIdle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return in_flight_ == 0; }

  // Whether it had to wait.
  bool WaitForRoom(int64_t most) {
    absl::MutexLock lock(&mutex_);
    if (in_flight_ < most) return false;
    const auto has_room = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return in_flight_ < most; };
    while (stop_.load() == 0 && SteadyNowNs() < window_to_ns_ &&
           !mutex_.AwaitWithTimeout(absl::Condition(&has_room), absl::Milliseconds(20))) {
    }
    return true;
  }

  // Calls that end from now on do not count for the rate.
  void EndWindow() {
    const int64_t now = SteadyNowNs();
    was_interrupted_ = stop_.load() > 0;
    const bool is_out_of_calls = step_.count > 0 && counted_.load() > step_.count;
    int64_t to_ns = std::min(now, window_to_ns_);
    if (std::holds_alternative<OpenLoop>(step_.loop) && !was_interrupted_) {
      // The pacer knows that nothing is due any more before the window has ended.
      to_ns = is_out_of_calls ? last_due_ns_ : window_to_ns_;
    }
    SleepUntil(to_ns, stop_);
    ended_ns_ = std::max(to_ns, window_from_ns_);
    recorder_.EndWindow(ended_ns_);
    cpu_to_ns_ = ProcessCpuNs();
  }

  void WaitForAnswers() {
    absl::MutexLock lock(&mutex_);
    while (!mutex_.AwaitWithTimeout(absl::Condition(this, &Run::IsIdle), absl::Milliseconds(20))) {
      if (stop_.load() < 2) continue;
      mutex_.Unlock();
      targets_.clients.clear();  // Cancels the calls and waits for their callbacks.
      mutex_.Lock();
    }
  }

  // Cuts the calls that have ended into intervals.
  void Monitor() {
    // From the beginning of the window backwards, so that the window begins with an interval.
    const int64_t before = step_.warmup_ns / step_.interval_ns * step_.interval_ns;
    int64_t from_ns = start_ns_;
    int64_t to_ns = window_from_ns_ - before;
    if (to_ns <= start_ns_) to_ns += step_.interval_ns;
    while (true) {
      const bool is_last = WaitUntil(to_ns);
      if (to_ns == window_from_ns_) cpu_from_ns_.store(ProcessCpuNs());
      const int64_t now = is_last ? SteadyNowNs() : to_ns;
      LoadInterval interval = {.from_ns = from_ns - window_from_ns_,
                               .to_ns = now - window_from_ns_,
                               .in_flight = InFlight(),
                               .tally = recorder_.TakeInterval()};
      if (progress_) progress_(interval);
      if (from_ns >= window_from_ns_) intervals_.push_back(std::move(interval));
      if (is_last) return;
      from_ns = to_ns;
      to_ns += step_.interval_ns;
    }
  }

  // Whether the run is done before.
  bool WaitUntil(int64_t time_ns) {
    absl::MutexLock lock(&mutex_);
    const absl::Duration left = absl::Nanoseconds(time_ns - SteadyNowNs());
    return mutex_.AwaitWithTimeout(absl::Condition(&is_done_), left);
  }

  int64_t InFlight() {
    absl::MutexLock lock(&mutex_);
    return in_flight_;
  }

  StepResult Result() {
    StepResult result;
    result.tally = recorder_.Total();
    result.window_s = static_cast<double>(ended_ns_ - window_from_ns_) / kSecondNs;
    result.unsent = unsent_;
    result.sent_late = sent_late_.load();
    if (result.window_s > 0) {
      result.rate = static_cast<double>(recorder_.EndedInWindow()) / result.window_s;
      result.offered = static_cast<double>(result.tally.calls() + unsent_) / result.window_s;
      const int64_t cpu_from_ns = cpu_from_ns_.load();
      result.client_cores =
          static_cast<double>(cpu_to_ns_ - cpu_from_ns) / kSecondNs / result.window_s;
    }
    result.usable_cores = UsableCores();
    result.was_interrupted = was_interrupted_;
    result.intervals = std::move(intervals_);
    absl::MutexLock lock(&mutex_);
    result.most_in_flight = most_in_flight_;
    result.first_messages = first_messages_;
    return result;
  }

  // Constant after construction.
  LoadTargets& targets_;
  const LoadStep& step_;
  const StopRequests& stop_;
  const LoadProgress& progress_;
  const int64_t start_ns_;
  const int64_t window_from_ns_;
  const int64_t window_to_ns_;

  // Of any thread.
  Recorder recorder_;
  std::atomic<uint64_t> next_number_ = 0;
  std::atomic<int64_t> counted_ = 0;  // Calls of the window, and the tries beyond their number.
  std::atomic<int64_t> sent_late_ = 0;
  std::atomic<int64_t> cpu_from_ns_ = ProcessCpuNs();

  // Of the sending thread until the end.
  int64_t last_due_ns_ = 0;
  int64_t ended_ns_ = 0;
  int64_t cpu_to_ns_ = 0;
  int64_t unsent_ = 0;
  bool was_interrupted_ = false;

  // Of the monitor until the end.
  std::vector<LoadInterval> intervals_;

  absl::Mutex mutex_;
  int64_t in_flight_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t most_in_flight_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<absl::StatusCode, std::string> first_messages_ ABSL_GUARDED_BY(mutex_);
  bool is_done_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace

StepResult RunLoad(LoadTargets& targets, const LoadStep& step, const StopRequests& stop,
                   const LoadProgress& progress) {
  return Run(targets, step, stop, progress).ToEnd();
}

}  // namespace gemmd
