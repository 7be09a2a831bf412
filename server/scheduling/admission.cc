// SPDX-License-Identifier: Apache-2.0
#include "server/scheduling/admission.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"

namespace gemmd {
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
  ++load_.admitted;
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
  return load_;
}

}  // namespace gemmd
