// SPDX-License-Identifier: Apache-2.0
#include "server/product/admission.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "kernels/status_macros.h"
#include "server/product/queue.h"

namespace gemmd {

namespace {

// Memory is given back where at least so much has come since the last time and is held by nobody.
constexpr int64_t kWorthGivingBack = int64_t{16} << 20;

// What could not be given back may have been in use by gRPC, which says nothing of it: so it is
// tried again after this many measurements.
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

// In a hundredth of the limit, which so cannot overflow.
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
  // What is held may not be resident yet, and so hides what is free.
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
      is_request_(std::exchange(other.is_request_, false)) {}

Admission::Ticket& Admission::Ticket::operator=(Ticket&& other) noexcept {
  std::swap(admission_, other.admission_);
  std::swap(bytes_, other.bytes_);
  std::swap(is_request_, other.is_request_);
  return *this;
}

Admission::Ticket::~Ticket() {
  if (admission_ != nullptr) admission_->ReleaseTicket(is_request_, bytes_);
}

void Admission::Ticket::MarkAnswered(int64_t bytes) {
  const bool was_request = std::exchange(is_request_, false);
  const int64_t released = bytes_ - std::min(bytes, bytes_);
  if (!was_request && released == 0) return;
  bytes_ -= released;
  admission_->Release(was_request, released);
}

void Admission::Ticket::Withdraw() {
  if (std::exchange(is_request_, false)) admission_->Release(/*is_request=*/true, 0);
}

absl::Status Admission::CheckRoom(int64_t more_bytes) {
  if (load_.is_closed) {
    ++load_.refused_when_closed;
    return absl::UnavailableError("the server is draining");
  }
  const int64_t taken_bytes = load_.pressure == Pressure::kNone   ? more_bytes
                              : load_.pressure == Pressure::kHigh ? kLargeBytes
                                                                  : -1;
  if (more_bytes > taken_bytes) {
    ++load_.refused_for_memory;
    return absl::ResourceExhaustedError(
        absl::StrCat("memory: the server has little left, and the request needs ", more_bytes,
                     " bytes: try again later"));
  }
  // load_.bytes <= max_bytes always holds, so the difference cannot overflow.
  if (more_bytes > limits_.max_bytes - load_.bytes) {
    ++load_.refused_for_bytes;
    return absl::ResourceExhaustedError(absl::StrCat("queue: the request needs ", more_bytes,
                                                     " bytes, ", limits_.max_bytes - load_.bytes,
                                                     " of ", limits_.max_bytes, " are free"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Admission::Ticket> Admission::Hold(int64_t bytes) {
  MutexLock lock(&mutex_);
  RETURN_IF_ERROR(CheckRoom(bytes));
  ++load_.tickets;
  load_.bytes += bytes;
  return Ticket(this, bytes);
}

absl::Status Admission::Admit(Ticket& ticket, int64_t bytes) {
  MutexLock lock(&mutex_);
  const int64_t more_bytes = std::max<int64_t>(0, bytes - ticket.bytes_);
  if (!load_.is_closed && load_.requests >= limits_.max_requests) {
    ++load_.refused_for_requests;
    return absl::ResourceExhaustedError(
        absl::StrCat("queue: ", load_.requests, " requests are inside, the limit"));
  }
  RETURN_IF_ERROR(CheckRoom(more_bytes));
  if (ticket.admission_ == nullptr) {
    ticket.admission_ = this;
    ++load_.tickets;
  }
  ticket.bytes_ += more_bytes;
  ticket.is_request_ = true;
  ++load_.requests;
  load_.bytes += more_bytes;
  return absl::OkStatus();
}

void Admission::Release(bool is_request, int64_t bytes) {
  MutexLock lock(&mutex_);
  if (is_request) --load_.requests;
  load_.bytes -= bytes;
}

void Admission::ReleaseTicket(bool is_request, int64_t bytes) {
  MutexLock lock(&mutex_);
  if (is_request) --load_.requests;
  --load_.tickets;
  load_.bytes -= bytes;
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
      "memory: the server has little left, and tells its health and statistics alone: try again "
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

void Admission::StopWaiting() {
  MutexLock lock(&mutex_);
  waits_no_more_ = true;
}

Admission::Load Admission::load() const {
  MutexLock lock(&mutex_);
  Load load = load_;
  load.admitted = admitted_;
  return load;
}

namespace {

constexpr int64_t kMaxRetryMs = 10'000;

std::string Text(int64_t ns) {
  // No more digits than a prediction is worth.
  const absl::Duration exact = absl::Nanoseconds(ns);
  const absl::Duration unit =
      exact < absl::Milliseconds(10) ? absl::Microseconds(1) : absl::Milliseconds(1);
  return absl::FormatDuration(absl::Trunc(exact, unit));
}

// The wait may be longer by one part of so many.
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

TimeRefusal CheckTime(const TimeAsked& asked, const TimeLimits& limits) {
  const int64_t predicted_ns = asked.predicted_ns;
  if (predicted_ns > limits.max_product_ns) {
    return {absl::ResourceExhaustedError(
                absl::StrCat("product: predicted to take ", Text(predicted_ns), ", at most ",
                             Text(limits.max_product_ns), " is accepted (--max-product-seconds)")),
            RefusalReason::kTooLong};
  }
  if (predicted_ns > asked.left_ns || asked.left_ns <= 0) {
    return {TooLateForDeadline(predicted_ns, asked.left_ns), RefusalReason::kDeadline};
  }
  const int64_t wait_ns = asked.running_ns + asked.ahead_ns + asked.to_come_ns;
  // Where nothing waits ahead of it, the product has the next turn and the prediction is taken at
  // its word. Where something does, its wait may be longer, too: what is let in at the edge is no
  // longer safe at its turn, others go before it until its time is up, and its caller has waited
  // for nothing.
  const int64_t needed_ns =
      asked.ahead_ns == 0 ? predicted_ns : SafeNs(asked.expected_ns) + wait_ns / kPartOfWait;
  if (asked.left_ns != kNoDeadlineNs && wait_ns + needed_ns > asked.left_ns) {
    // What decides is told too.
    const std::string reckoned =
        needed_ns == predicted_ns
            ? ""
            : absl::StrCat(" (reckoned with ", Text(needed_ns), ", because predictions err)");
    return {Busy(absl::StrCat("queue: predicted to wait ", Text(wait_ns), " and to take ",
                              Text(predicted_ns), reckoned, ", ", Text(asked.left_ns),
                              " are left until the deadline"),
                 wait_ns + needed_ns - asked.left_ns),
            RefusalReason::kBacklog};
  }
  if (asked.ahead_ns > limits.max_backlog_ns) {
    return {Busy(absl::StrCat("queue: products of ", Text(asked.ahead_ns),
                              " wait ahead of it by prediction, at most ",
                              Text(limits.max_backlog_ns), " may (--max-backlog)"),
                 asked.ahead_ns - limits.max_backlog_ns),
            RefusalReason::kBacklog};
  }
  return {};
}

}  // namespace gemmd
