// SPDX-License-Identifier: Apache-2.0
#include "server/product/admission.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace gemmd {

namespace {

// Memory is given back if at least this much has been allocated since the last time and is not
// held.
constexpr int64_t kWorthGivingBack = int64_t{16} << 20;

// Memory that was not given back may have been in use by gRPC, which does not report its use. So
// giving back is tried again after this many measurements.
constexpr int kMeasuresToNextTry = 20;

constexpr int64_t kHighPercent = 85;

}  // namespace

std::string_view NameOf(Pressure pressure) {
  constexpr std::string_view kNames[] = {"none", "high", "severe", "critical"};
  return kNames[static_cast<size_t>(pressure)];
}

MemoryPressure::MemoryPressure(int64_t limit_bytes, ReadResidentBytes read,
                               std::function<void()> give_back)
    : limit_bytes_(limit_bytes), read_(std::move(read)), give_back_(std::move(give_back)) {}

// In hundredths of the limit, which cannot overflow.
int64_t MemoryPressure::PercentOf(int64_t bytes) const {
  return bytes / std::max<int64_t>(1, limit_bytes_ / 100);
}

Pressure MemoryPressure::Measure(int64_t held_bytes) {
  std::optional<int64_t> resident = read_();
  if (!resident) return last_;
  if (lowest_bytes_ == 0) floor_bytes_ = lowest_bytes_ = *resident;
  floor_bytes_ = std::min(floor_bytes_, *resident);
  lowest_bytes_ = std::min(lowest_bytes_, *resident);
  ++measures_;
  const bool is_retried = measures_ >= kMeasuresToNextTry;
  const int64_t usual_bytes = is_retried ? lowest_bytes_ : floor_bytes_;
  // Held bytes may not be resident yet, which hides free memory.
  const bool is_short = is_retried && PercentOf(*resident) >= kHighPercent;
  if (is_short || *resident - usual_bytes - held_bytes >= kWorthGivingBack) {
    give_back_();
    measures_ = 0;
    resident = read_();
    if (!resident) return last_;
    floor_bytes_ = std::max<int64_t>(1, *resident - held_bytes);
  }
  used_bytes_ = *resident;
  const int64_t percent = PercentOf(*resident);
  last_ = percent >= 95             ? Pressure::kCritical
          : percent >= 92           ? Pressure::kSevere
          : percent >= kHighPercent ? Pressure::kHigh
                                    : Pressure::kNone;
  return last_;
}

namespace {
constexpr char kRetryAfterPayload[] = "gemmd/retry-after-ms";
}  // namespace

absl::Status WithRetryAfterMs(absl::Status status, int64_t retry_after_ms) {
  status.SetPayload(kRetryAfterPayload, absl::Cord(absl::StrCat(retry_after_ms)));
  return status;
}

std::optional<int64_t> RetryAfterMs(const absl::Status& status) {
  const absl::optional<absl::Cord> payload = status.GetPayload(kRetryAfterPayload);
  int64_t retry_after_ms = 0;
  if (!payload.has_value() || !absl::SimpleAtoi(std::string(*payload), &retry_after_ms)) {
    return std::nullopt;
  }
  return retry_after_ms;
}

Admission::Ticket::Ticket(Ticket&& other) noexcept
    : admission_(std::exchange(other.admission_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      answer_bytes_(std::exchange(other.answer_bytes_, 0)),
      connection_(std::exchange(other.connection_, nullptr)),
      is_request_(std::exchange(other.is_request_, false)) {}

Admission::Ticket& Admission::Ticket::operator=(Ticket&& other) noexcept {
  std::swap(admission_, other.admission_);
  std::swap(bytes_, other.bytes_);
  std::swap(answer_bytes_, other.answer_bytes_);
  std::swap(connection_, other.connection_);
  std::swap(is_request_, other.is_request_);
  return *this;
}

Admission::Ticket::~Ticket() {
  if (admission_ != nullptr) admission_->ReleaseTicket(*this);
}

void Admission::Ticket::MarkAnswered(int64_t bytes) {
  const bool was_request = std::exchange(is_request_, false);
  const int64_t released = bytes_ - std::min(bytes, bytes_);
  if (!was_request && released == 0) return;
  bytes_ -= released;
  admission_->Release(was_request, released);
}

namespace {

// A caller may have up to kShare times as many requests inside as there are free places. Alone it
// gets seven eighths of all places, and the next caller still finds one. In the same way a
// connection may have up to kShare times as many as its caller may still add.
constexpr int64_t kShare = 7;

// The number of requests that a caller with `own` admitted requests may still add to `free` places.
int64_t PlacesLeft(int64_t own, int64_t free) {
  return std::max((kShare * free - own + kShare) / (kShare + 1), int64_t{0});
}

// The bytes that the answers of a connection, which hold `own`, may still add if its caller may add
// `left`. They then hold at most kShare times what the caller may add after them.
int64_t AnswerBytesLeft(int64_t own, int64_t left) {
  return std::max(left - (left + own + kShare) / (kShare + 1), int64_t{0});
}

// The bytes that the answers of the caller may still add to those that they hold.
int64_t AnswerBytesOfCaller(const Asked& asked, const Admission::Limits& limits) {
  return limits.max_bytes / 2 - asked.own_answers.of_caller;
}

}  // namespace

// Refuses the product of a caller that would leave no place for another caller, or of a connection
// that would leave none for the caller's other connections.
Verdict Admission::CheckShare(Asked& asked, absl::FunctionRef<FairQueue::Inside()> own) const {
  const int64_t free = asked.free_requests;
  const int64_t inside = limits_.max_requests - free;
  if (free <= 0 || inside < kShare * PlacesLeft(inside, free)) return Verdict::kIn;
  asked.own = own();
  const int64_t left = PlacesLeft(asked.own.of_caller, free);
  if (left == 0) return Verdict::kCallerShare;
  return asked.own.of_connection < kShare * left ? Verdict::kIn : Verdict::kConnectionShare;
}

Verdict Admission::CheckRoom(Asked& asked) {
  // load_.bytes <= max_bytes always holds, so the difference cannot overflow.
  asked.free_bytes = limits_.max_bytes - load_.bytes;
  if (load_.is_closed) {
    ++load_.refused_when_closed;
    return Verdict::kDraining;
  }
  const int64_t taken_bytes = load_.pressure == Pressure::kNone   ? asked.more_bytes
                              : load_.pressure == Pressure::kHigh ? kLargeBytes
                                                                  : -1;
  if (asked.more_bytes > taken_bytes) {
    ++load_.refused_for_memory;
    return Verdict::kMemory;
  }
  if (asked.more_bytes > asked.free_bytes) {
    ++load_.refused_for_bytes;
    return Verdict::kBytes;
  }
  return Verdict::kIn;
}

// Refuses an answer if those of its caller would hold more than half of all bytes, unless it is the
// only one, and one that would leave none of that half for the caller's other connections, unless
// it is the only one of its connection.
Verdict Admission::CheckAnswers(const Asked& asked) const {
  const auto [of_caller, of_connection] = asked.own_answers;
  if (asked.answer_bytes == 0 || of_caller == 0) return Verdict::kIn;
  const int64_t left = AnswerBytesOfCaller(asked, limits_);
  if (asked.answer_bytes > left) return Verdict::kCallerAnswers;
  if (of_connection == 0 || asked.answer_bytes <= AnswerBytesLeft(of_connection, left)) {
    return Verdict::kIn;
  }
  return Verdict::kConnectionAnswers;
}

template <typename Name, typename Named>
template <typename Key>
Named& Admission::Holders<Name, Named>::Find(const Key& name) {
  const auto found = named_.find(name);
  if (found != named_.end()) return found->second;
  if (named_.size() >= max_) {
    std::erase_if(named_, [](const auto& one) { return one.second.tickets == 0; });
    max_ = 2 * named_.size() + kIdle;
  }
  return named_[Name(name)];
}

Admission::Connection* Admission::Enter(const FlowId& flow) {
  if (flow.caller.empty()) return nullptr;
  Caller& caller = callers_.Find(flow.caller);
  ++caller.tickets;
  Connection& connection = caller.connections.Find(flow.connection);
  ++connection.tickets;
  connection.caller = &caller;
  return &connection;
}

absl::StatusOr<Admission::Ticket> Admission::Hold(int64_t bytes, const FlowId& flow) {
  Asked asked = {.more_bytes = bytes};
  Verdict verdict = Verdict::kIn;
  {
    MutexLock lock(&mutex_);
    verdict = CheckRoom(asked);
    if (verdict == Verdict::kIn) {
      Connection* const connection = Enter(flow);
      ++load_.tickets;
      load_.bytes += bytes;
      return Ticket(this, bytes, connection);
    }
  }
  return RefusalOf(verdict, asked, limits_).status;
}

Verdict Admission::Admit(Ticket& ticket, int64_t bytes, Asked& asked,
                         absl::FunctionRef<FairQueue::Inside()> own) {
  MutexLock lock(&mutex_);
  asked.more_bytes = std::max<int64_t>(0, bytes - ticket.bytes_);
  asked.free_requests = limits_.max_requests - load_.requests;
  Verdict verdict = Verdict::kIn;
  // While the server drains, that is the reason given, whatever else applies.
  if (!load_.is_closed) {
    verdict = CheckShare(asked, own);
    if (asked.free_requests <= 0) {
      ++load_.refused_for_requests;
      return Verdict::kRequests;
    }
  }
  if (verdict == Verdict::kIn) verdict = CheckRoom(asked);
  Connection* const connection = ticket.connection_;
  if (connection != nullptr && verdict == Verdict::kIn) {
    asked.own_answers = {.of_caller = connection->caller->answer_bytes - ticket.answer_bytes_,
                         .of_connection = connection->answer_bytes - ticket.answer_bytes_};
    verdict = CheckAnswers(asked);
  }
  if (verdict == Verdict::kIn) verdict = CheckTime(asked, limits_);
  if (verdict != Verdict::kIn) return verdict;
  if (connection != nullptr) {
    connection->caller->answer_bytes = asked.own_answers.of_caller + asked.answer_bytes;
    connection->answer_bytes = asked.own_answers.of_connection + asked.answer_bytes;
    ticket.answer_bytes_ = asked.answer_bytes;
  }
  if (ticket.admission_ == nullptr) {
    ticket.admission_ = this;
    ++load_.tickets;
  }
  ticket.bytes_ += asked.more_bytes;
  ticket.is_request_ = true;
  ++load_.requests;
  ++load_.admitted;
  load_.bytes += asked.more_bytes;
  return verdict;
}

void Admission::Release(bool is_request, int64_t bytes) {
  MutexLock lock(&mutex_);
  if (is_request) --load_.requests;
  load_.bytes -= bytes;
}

void Admission::ReleaseTicket(const Ticket& ticket) {
  MutexLock lock(&mutex_);
  if (ticket.is_request_) --load_.requests;
  --load_.tickets;
  load_.bytes -= ticket.bytes_;
  if (ticket.connection_ == nullptr) return;
  for (Holder* const holder : {static_cast<Holder*>(ticket.connection_),
                               static_cast<Holder*>(ticket.connection_->caller)}) {
    --holder->tickets;
    holder->answer_bytes -= ticket.answer_bytes_;
  }
}

bool Admission::SetPressure(Pressure pressure) {
  MutexLock lock(&mutex_);
  if (load_.pressure == pressure) return false;
  load_.pressure = pressure;
  ++load_.pressure_changes[static_cast<size_t>(pressure)];
  return true;
}

absl::Status Admission::CheckQuestion() {
  MutexLock lock(&mutex_);
  if (load_.pressure < Pressure::kSevere) return absl::OkStatus();
  ++load_.refused_for_memory;
  return absl::ResourceExhaustedError(
      "memory: the server has little left, and answers only its health and statistics: try again "
      "later");
}

void Admission::Close() {
  MutexLock lock(&mutex_);
  load_.is_closed = true;
}

bool Admission::closed() const {
  MutexLock lock(&mutex_);
  return load_.is_closed;
}

bool Admission::WaitUntilIdle(absl::Duration timeout) {
  MutexLock lock(&mutex_);
  const auto is_over = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return load_.tickets == 0 || waits_no_more_;
  };
  mutex_.AwaitWithTimeout(is_over, timeout);
  return load_.tickets == 0;
}

bool Admission::Pause(absl::Duration duration) {
  MutexLock lock(&mutex_);
  const auto is_over = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return waits_no_more_; };
  return !mutex_.AwaitWithTimeout(is_over, duration);
}

void Admission::StopWaiting() {
  MutexLock lock(&mutex_);
  waits_no_more_ = true;
}

Admission::Load Admission::load() const {
  MutexLock lock(&mutex_);
  return load_;
}

namespace {

constexpr int64_t kMaxRetryMs = 10'000;

std::string Text(int64_t ns) {
  // Rounded to the precision of a prediction.
  const absl::Duration exact = absl::Nanoseconds(ns);
  const absl::Duration unit =
      exact < absl::Milliseconds(10) ? absl::Microseconds(1) : absl::Milliseconds(1);
  return absl::FormatDuration(absl::Trunc(exact, unit));
}

// The wait may be longer by this part, one quarter.
constexpr int64_t kPartOfWait = 4;

absl::Status Busy(const std::string& message, int64_t wait_ns) {
  return WithRetryAfterMs(absl::ResourceExhaustedError(message), RetryMs(wait_ns));
}

}  // namespace

int64_t RetryMs(int64_t wait_ns) {
  return std::clamp(wait_ns / 1'000'000, int64_t{1}, kMaxRetryMs);
}

absl::Status TooLateForDeadline(int64_t predicted_ns, int64_t left_ns) {
  return absl::DeadlineExceededError(absl::StrCat("product: predicted to take ", Text(predicted_ns),
                                                  ", ", Text(std::max(left_ns, int64_t{0})),
                                                  " are left until the deadline"));
}

namespace {

// If nothing waits ahead of it, the product has the next turn, and the prediction is used as it is.
// Otherwise its wait may be longer than predicted: a product that is barely admitted may no longer
// be safe at its turn, other products then precede it until its time is up, and its caller has
// waited for nothing.
int64_t WaitNs(const Asked& asked) { return asked.running_ns + asked.ahead_ns + asked.to_come_ns; }
int64_t NeededNs(const Asked& asked) {
  return asked.ahead_ns == 0 ? asked.predicted_ns
                             : SafeNs(asked.expected_ns) + WaitNs(asked) / kPartOfWait;
}

}  // namespace

Verdict CheckTime(const Asked& asked, const Admission::Limits& limits) {
  if (asked.predicted_ns > limits.max_product_ns) return Verdict::kTooLong;
  if (asked.predicted_ns > asked.left_ns || asked.left_ns <= 0) return Verdict::kTooLate;
  if (asked.left_ns != kNoDeadlineNs && WaitNs(asked) + NeededNs(asked) > asked.left_ns) {
    return Verdict::kWait;
  }
  return asked.ahead_ns > limits.max_backlog_ns ? Verdict::kBacklog : Verdict::kIn;
}

ProductRefusal RefusalOf(Verdict verdict, const Asked& asked, const Admission::Limits& limits) {
  using absl::StrCat;
  switch (verdict) {
    case Verdict::kIn: break;
    case Verdict::kDraining: return {absl::UnavailableError("the server is draining"), {}};
    case Verdict::kRequests:
      return {Busy(StrCat("queue: ", limits.max_requests - asked.free_requests,
                          " requests are in progress, the limit"),
                   asked.backlog_ns),
              {}};
    case Verdict::kMemory:
      return {Busy(StrCat("memory: the server has little left, and the request needs ",
                          asked.more_bytes, " bytes: try again later"),
                   asked.backlog_ns),
              {}};
    case Verdict::kBytes:
      return {Busy(StrCat("queue: the request needs ", asked.more_bytes, " bytes, ",
                          asked.free_bytes, " of ", limits.max_bytes, " are free"),
                   asked.backlog_ns),
              {}};
    case Verdict::kConnectionShare:
      return {Busy(StrCat("queue: the connection has ", asked.own.of_connection,
                          " requests in progress, ",
                          PlacesLeft(asked.own.of_caller, asked.free_requests),
                          " places of its caller are kept for others of its connections"),
                   asked.backlog_ns),
              RefusalReason::kShare};
    case Verdict::kCallerShare:
      return {Busy(StrCat("queue: the caller has ", asked.own.of_caller, " requests in progress, ",
                          asked.free_requests, " of ", limits.max_requests,
                          " places are kept for others"),
                   asked.backlog_ns),
              RefusalReason::kShare};
    case Verdict::kConnectionAnswers: {
      const int64_t own = asked.own_answers.of_connection;
      const int64_t left = AnswerBytesOfCaller(asked, limits);
      return {Busy(StrCat("queue: answers that the connection waits for or has not read yet hold ",
                          own, " bytes, and this one needs ", asked.answer_bytes, ": ",
                          left - AnswerBytesLeft(own, left), " of the ", left,
                          " bytes left to its caller are kept for others of its connections"),
                   asked.backlog_ns),
              RefusalReason::kShare};
    }
    case Verdict::kCallerAnswers:
      return {Busy(StrCat("queue: answers that the caller waits for or has not read yet hold ",
                          asked.own_answers.of_caller, " bytes, and this one needs ",
                          asked.answer_bytes, ": those of one caller may hold ",
                          limits.max_bytes / 2, ", half of --max-queued-bytes"),
                   asked.backlog_ns),
              RefusalReason::kShare};
    case Verdict::kTooLong:
      return {
          absl::ResourceExhaustedError(StrCat(
              "product: predicted to take ", Text(asked.predicted_ns),
              asked.after_ns == 0 ? ""
                                  : StrCat(", ", Text(asked.after_ns), " of it for the check of D"),
              ", at most ", Text(limits.max_product_ns), " is accepted (--max-product-seconds)")),
          RefusalReason::kTooLong};
    case Verdict::kTooLate:
      return {TooLateForDeadline(asked.predicted_ns, asked.left_ns), RefusalReason::kDeadline};
    case Verdict::kWait: {
      const int64_t wait_ns = WaitNs(asked);
      const int64_t needed_ns = NeededNs(asked);
      // The text also gives the number that decided.
      const std::string reckoned =
          needed_ns == asked.predicted_ns
              ? ""
              : StrCat(" (reserved: ", Text(needed_ns), ", because predictions err)");
      return {Busy(StrCat("queue: predicted to wait ", Text(wait_ns), " and to take ",
                          Text(asked.predicted_ns), reckoned, ", ", Text(asked.left_ns),
                          " are left until the deadline"),
                   wait_ns + needed_ns - asked.left_ns),
              RefusalReason::kBacklog};
    }
    case Verdict::kBacklog:
      return {Busy(StrCat("queue: products predicted to take ", Text(asked.ahead_ns),
                          " wait ahead of it, at most ", Text(limits.max_backlog_ns),
                          " may (--max-backlog)"),
                   asked.ahead_ns - limits.max_backlog_ns),
              RefusalReason::kBacklog};
  }
  return {};
}

}  // namespace gemmd
