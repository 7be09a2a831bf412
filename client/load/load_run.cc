// SPDX-License-Identifier: Apache-2.0
#include "client/load/load_run.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "gemmd/multiply_stream.h"
#include "gemmd/v1/gemm.pb.h"

namespace gemmd {
namespace {

// Delay before a stream is reopened, so that a server that ends streams at once is not flooded.
constexpr absl::Duration kPause = absl::Milliseconds(100);

// Sends calls of a load over a stream: MultiplyStream puts waiting calls into one message. A stream
// that the server has ended is reopened. Senders hold `stream_mutex_` for reading while they use
// the stream, so that no call enters an ended stream.
class StreamCalls {
 public:
  using Done = absl::AnyInvocable<void(absl::StatusOr<v1::MultiplyResponse>) &&>;

  // Borrows the client.
  explicit StreamCalls(Client& client)
      : client_(client), stream_(Open()), receiver_([this] { Run(); }) {}

  // Waits for the end of all calls. Nothing is sent meanwhile.
  ~StreamCalls() {
    {
      absl::MutexLock lock(&mutex_);
      is_closing_ = true;
    }
    {
      absl::ReaderMutexLock lock(&stream_mutex_);
      stream_->CloseSending();
    }
    receiver_.join();
  }
  StreamCalls(const StreamCalls&) = delete;
  StreamCalls& operator=(const StreamCalls&) = delete;

  // `done` is called exactly once, on the stream's thread, and may send further products. Blocks
  // while the connection takes no more bytes.
  void Send(const v1::MultiplyRequest& request, Done done) {
    v1::MultiplyRequest named = request;
    absl::ReaderMutexLock lock(&stream_mutex_);
    {
      absl::MutexLock calls_lock(&mutex_);
      named.set_request_id(absl::StrCat(++last_id_));
      calls_[named.request_id()] = std::move(done);
    }
    const absl::Status sent = stream_->Send(named);
    if (sent.ok()) return;
    absl::MutexLock calls_lock(&mutex_);
    unsent_.emplace_back(named.request_id(), sent);
  }

  // Cancels all calls in progress. Nothing is sent afterwards.
  void Cancel() {
    {
      absl::MutexLock lock(&mutex_);
      is_closing_ = true;
    }
    absl::ReaderMutexLock lock(&stream_mutex_);
    stream_->Cancel();
  }

 private:
  std::unique_ptr<MultiplyStream> Open() {
    // The stream lasts as long as the load.
    return client_.OpenMultiplyStream({.timeout = absl::InfiniteDuration()});
  }

  void Run() {
    while (true) {
      Receive();
      const absl::Status status = stream_->Finish();
      EndUnsent();
      EndAll(status.ok() ? absl::CancelledError("stream: the server has ended it") : status);
      if (AwaitClosing(kPause)) return;
      absl::WriterMutexLock lock(&stream_mutex_);
      stream_ = Open();
      if (IsClosing()) stream_->Cancel();
    }
  }

  void Receive() {
    while (std::optional<StreamAnswer> answer = stream_->Receive()) {
      if (answer->response.ok()) {
        End(answer->request_id, std::move(**answer->response));
      } else {
        End(answer->request_id, answer->response.status());
      }
      EndUnsent();
    }
  }

  void End(const std::string& id, absl::StatusOr<v1::MultiplyResponse> result) {
    Done done;
    {
      absl::MutexLock lock(&mutex_);
      const auto call = calls_.find(id);
      if (call == calls_.end()) return;
      done = std::move(call->second);
      calls_.erase(call);
    }
    std::move(done)(std::move(result));
  }

  void EndUnsent() {
    std::vector<std::pair<std::string, absl::Status>> unsent;
    {
      absl::MutexLock lock(&mutex_);
      unsent.swap(unsent_);
    }
    for (auto& [id, status] : unsent) End(id, std::move(status));
  }

  void EndAll(const absl::Status& status) {
    absl::flat_hash_map<std::string, Done> calls;
    {
      absl::MutexLock lock(&mutex_);
      calls.swap(calls_);
    }
    for (auto& [id, done] : calls) std::move(done)(status);
  }

  bool AwaitClosing(absl::Duration timeout) {
    absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(&is_closing_), timeout);
  }
  bool IsClosing() {
    absl::MutexLock lock(&mutex_);
    return is_closing_;
  }

  Client& client_;
  absl::Mutex stream_mutex_;
  std::unique_ptr<MultiplyStream> stream_;  // Changed by the receiver, under the lock.

  absl::Mutex mutex_;
  uint64_t last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<std::string, Done> calls_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::pair<std::string, absl::Status>> unsent_ ABSL_GUARDED_BY(mutex_);
  bool is_closing_ ABSL_GUARDED_BY(mutex_) = false;

  std::thread receiver_;
};

constexpr int64_t kMillisecondNs = 1'000'000;
constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

double Seconds(int64_t ns) { return static_cast<double>(ns) * 1e-9; }

// Starts slightly in the future, so that the first call is not late.
LoadWindow WindowOf(const LoadStep& step) {
  LoadWindow window;
  window.start_ns = SteadyNowNs() + kMillisecondNs;
  window.from_ns = window.start_ns + step.warmup_ns;
  window.to_ns = window.from_ns + step.duration_ns;
  window.count = step.count;
  return window;
}

class Run {
 public:
  Run(LoadTargets& targets, const LoadStep& step, const StopRequests& stop,
      const LoadProgress& progress)
      : targets_(targets),
        step_(step),
        stop_(stop),
        progress_(progress),
        window_(WindowOf(step)),
        recorder_(window_.from_ns, window_.to_ns) {
    for (Client& client : targets.clients) {
      for (int i = 0; i < targets.streams; ++i) {
        streams_.push_back(std::make_unique<StreamCalls>(client));
      }
    }
  }

  StepResult ToEnd() {
    std::thread monitor([this] { Monitor(); });
    const auto* const open = std::get_if<OpenLoop>(&step_.loop);
    open != nullptr ? RunOpen(*open) : RunClosed(std::get<ClosedLoop>(step_.loop));
    recorder_.EndWindow(ended_ns_);
    cpu_to_ns_ = ProcessCpuNs();
    WaitForAnswers();
    {
      absl::MutexLock lock(&mutex_);
      is_done_ = true;
    }
    monitor.join();
    return Result();
  }

 private:
  // A call between its turn and its answer. For the times, see CallSample.
  struct Call {
    uint64_t number = 0;
    size_t product = 0;
    int64_t intended_ns = 0;
    int64_t admitted_ns = 0;
    int64_t sent_ns = 0;
    ResultSlot* slot = nullptr;  // Where D is kept until checked; null if it is not kept.
  };

  void RunOpen(const OpenLoop& open) {
    OpenSender sender(open, window_, stop_, in_flight_,
                      [this](int64_t intended_ns, int64_t admitted_ns) {
                        Send({.intended_ns = intended_ns, .admitted_ns = admitted_ns});
                      });
    sender.Run();
    unsent_ = sender.unsent();
    due_until_ns_ = std::min(sender.next_due_ns(), window_.to_ns);
    // A count ends with its last answer, not when the next call would be due.
    const bool is_whole = sender.is_out_of_calls() ? in_flight_.WaitForNone(window_.to_ns, 0, stop_)
                                                   : SleepUntil(window_.to_ns, stop_);
    EndWindow(is_whole && !(stop_.load() > 0 && unsent_ > 0));
    if (was_interrupted_ || !sender.is_out_of_calls()) due_until_ns_ = ended_ns_;
  }

  void RunClosed(const ClosedLoop& closed) {
    SleepUntil(window_.start_ns, stop_);
    for (int i = 0; i < closed.concurrency; ++i) {
      in_flight_.Enter();
      if (!TakeTurn(SteadyNowNs())) in_flight_.Leave();
    }
    // Answers keep the loop going; it ends by itself at the end of the window.
    const bool is_idle = in_flight_.WaitForNone(window_.to_ns, 0, stop_);
    EndWindow(is_idle && IsOutOfTurns());
    due_until_ns_ = ended_ns_;
  }

  // Calls that end later do not count towards the rate.
  void EndWindow(bool is_whole) {
    const int64_t now = SteadyNowNs();
    was_interrupted_ = !is_whole && now < window_.to_ns;
    ended_ns_ = std::clamp(now, window_.from_ns, window_.to_ns);
  }

  // Sends the next call of a closed loop; returns false at the end of the loop.
  bool TakeTurn(int64_t due_ns) {
    if (stop_.load(std::memory_order_relaxed) > 0 || due_ns >= window_.to_ns) return false;
    const bool is_counted = due_ns >= window_.from_ns && step_.count > 0;
    if (is_counted && counted_.fetch_add(1, std::memory_order_relaxed) >= step_.count) return false;
    absl::ReaderMutexLock lock(&clients_mutex_);
    if (targets_.clients.empty()) return false;  // The run was cancelled meanwhile.
    Send({.intended_ns = due_ns, .admitted_ns = due_ns});
    return true;
  }

  bool IsOutOfTurns() const { return step_.count > 0 && counted_.load() > step_.count; }

  // The caller has entered the call into in_flight_.
  void Send(Call call) {
    call.number = next_number_.fetch_add(1, std::memory_order_relaxed);
    call.product = targets_.picker->Pick(call.number);
    const size_t client = call.number % targets_.clients.size();
    call.sent_ns = SteadyNowNs();
    const int64_t late_ns = call.sent_ns - call.admitted_ns;
    if (late_ns > kMillisecondNs && call.intended_ns >= window_.from_ns) {
      sent_late_.fetch_add(1, std::memory_order_relaxed);
    }
    const Payload& payload = (*targets_.payloads)[call.product];
    // A resident result is overwritten by the next call, unless it has a slot of its own.
    if (!payload.answers_inline && targets_.verifier->Wants(call.product, call.number)) {
      call.slot = payload.TakeSlot(client);
    }
    const auto& request = call.slot != nullptr ? call.slot->request : payload.RequestFor(client);
    auto done = [this, call](absl::StatusOr<v1::MultiplyResponse> response) {
      OnAnswer(call, std::move(response));
    };
    if (!streams_.empty()) {
      const auto of_client = static_cast<size_t>(targets_.streams);
      const size_t turn = next_stream_.fetch_add(1, std::memory_order_relaxed) % of_client;
      streams_[client * of_client + turn]->Send(*request, std::move(done));
    } else {
      targets_.clients[client].MultiplyAsync(request, std::move(done), {.timeout = step_.timeout});
    }
  }

  // Runs on a gRPC thread or a stream's thread.
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
                         .bytes = payload.wire_bytes()};
    if (response.ok()) {
      sample.timing = response->timing();
      sample.kernel = response->kernel();
      sample.device = response->device();
    }
    recorder_.Add(sample);
    if (!response.ok() && call.intended_ns >= window_.from_ns) KeepMessage(response.status());
    const bool is_checked = payload.answers_inline ? response.ok() && targets_.verifier->Wants(
                                                                          call.product, call.number)
                                                   : call.slot != nullptr;
    if (is_checked && response.ok()) {
      targets_.verifier->Offer(call.product, *std::move(response));
    } else if (is_checked) {
      call.slot->is_taken = false;
    }
    // The next call of a closed loop takes this one's place.
    const bool is_closed = std::holds_alternative<ClosedLoop>(step_.loop);
    if (!is_closed || !TakeTurn(ended_ns)) in_flight_.Leave();
  }

  void KeepMessage(const absl::Status& status) {
    absl::MutexLock lock(&mutex_);
    first_messages_.emplace(status.code(), status.message());
  }

  void WaitForAnswers() {
    if (!in_flight_.WaitForNone(kNever, 1, stop_)) {
      for (const auto& stream : streams_) stream->Cancel();
      std::vector<Client> given_up;
      {
        absl::WriterMutexLock lock(&clients_mutex_);
        given_up.swap(targets_.clients);
      }
      given_up.clear();  // Cancels the calls and waits for their callbacks.
    }
    // A callback whose new call has already ended may still hold the lock.
    absl::WriterMutexLock lock(&clients_mutex_);
    streams_.clear();
  }

  // Divides the finished calls into intervals.
  void Monitor() {
    // Intervals are aligned so that one begins at the start of the window.
    const int64_t before = step_.warmup_ns / step_.interval_ns * step_.interval_ns;
    int64_t from_ns = window_.start_ns;
    int64_t to_ns = window_.from_ns - before;
    if (to_ns <= window_.start_ns) to_ns += step_.interval_ns;
    recorder_.SetIntervalEnd(to_ns);
    while (true) {
      const bool is_last = WaitUntil(to_ns);
      if (to_ns == window_.from_ns) cpu_from_ns_.store(ProcessCpuNs());
      const int64_t now = is_last ? SteadyNowNs() : to_ns;
      const IntervalTally tally =
          is_last ? recorder_.TakeRest() : recorder_.TakeInterval(to_ns + step_.interval_ns);
      const LoadInterval interval = {.from_ns = from_ns - window_.from_ns,
                                     .to_ns = now - window_.from_ns,
                                     .in_flight = in_flight_.now(),
                                     .ok = tally.ok(),
                                     .failed = tally.failed(),
                                     .p50_ns = tally.latency.ValueAt(0.5),
                                     .p99_ns = tally.latency.ValueAt(0.99),
                                     .max_ns = tally.latency.max_ns()};
      if (progress_) progress_(interval, tally);
      if (from_ns >= window_.from_ns) intervals_.push_back(interval);
      if (is_last) return;
      from_ns = to_ns;
      to_ns += step_.interval_ns;
    }
  }

  // Whether the run ended before that time.
  bool WaitUntil(int64_t time_ns) {
    absl::MutexLock lock(&mutex_);
    const absl::Duration left = absl::Nanoseconds(time_ns - SteadyNowNs());
    return mutex_.AwaitWithTimeout(absl::Condition(&is_done_), left);
  }

  StepResult Result() {
    StepResult result;
    result.tally = recorder_.Total();
    result.window_s = Seconds(ended_ns_ - window_.from_ns);
    result.unsent = unsent_;
    result.sent_late = sent_late_.load();
    if (result.window_s > 0) {
      result.rate = static_cast<double>(recorder_.EndedInWindow()) / result.window_s;
      result.client_cores = Seconds(cpu_to_ns_ - cpu_from_ns_.load()) / result.window_s;
    }
    if (due_until_ns_ > window_.from_ns) {
      result.offered = static_cast<double>(result.tally.calls() + unsent_) /
                       Seconds(due_until_ns_ - window_.from_ns);
    }
    result.usable_cores = UsableCores();
    result.max_in_flight = in_flight_.max_in_flight();
    result.was_interrupted = was_interrupted_;
    result.intervals = std::move(intervals_);
    absl::MutexLock lock(&mutex_);
    result.first_messages = first_messages_;
    return result;
  }

  // Constant after construction.
  LoadTargets& targets_;
  const LoadStep& step_;
  const StopRequests& stop_;
  const LoadProgress& progress_;
  const LoadWindow window_;

  // Used by any thread.
  Recorder recorder_;
  InFlight in_flight_;
  std::atomic<uint64_t> next_number_ = 0;
  std::atomic<int64_t> counted_ =
      0;  // Turns taken in the window, including attempts beyond the limit.
  std::atomic<int64_t> sent_late_ = 0;
  std::atomic<int64_t> cpu_from_ns_ = ProcessCpuNs();
  // Held for reading by callbacks that send to the clients of `targets_`; GiveUp removes the
  // clients.
  absl::Mutex clients_mutex_;
  std::vector<std::unique_ptr<StreamCalls>> streams_;  // By client. Empty for unary calls.
  std::atomic<uint64_t> next_stream_ = 0;

  // Used by the sending thread until the end.
  int64_t due_until_ns_ = 0;  // When the next call would have been due, or the window's end.
  int64_t ended_ns_ = 0;
  int64_t cpu_to_ns_ = 0;
  int64_t unsent_ = 0;
  bool was_interrupted_ = false;

  // Used by the monitor until the end.
  std::vector<LoadInterval> intervals_;

  absl::Mutex mutex_;
  std::map<absl::StatusCode, std::string> first_messages_ ABSL_GUARDED_BY(mutex_);
  bool is_done_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace

StepResult RunLoad(LoadTargets& targets, const LoadStep& step, const StopRequests& stop,
                   const LoadProgress& progress) {
  return Run(targets, step, stop, progress).ToEnd();
}

}  // namespace gemmd
