// SPDX-License-Identifier: Apache-2.0
//
// What the worker answers: whether it can be true, where results go, and what becomes of those who
// wait for an answer that does not come.
#include <algorithm>
#include <utility>

#include "kernels/status_macros.h"
#include "kernels/text.h"
#include "server/device/worker_device.h"

namespace gemmd {
namespace {

// Copying so much takes no longer than waking a thread.
constexpr size_t kMostCopiedHere = size_t{256} << 10;

constexpr char kNotWritten[] = "the worker did not write the result that it told of";

size_t BytesOf(const std::vector<CopiedBytes>& copies) {
  size_t bytes = 0;
  for (const CopiedBytes& copy : copies) bytes += copy.bytes;
  return bytes;
}

}  // namespace

// Takes all that is there. Errors: the reason for which the worker cannot go on.
absl::Status WorkerDevice::TakeResults() {
  Packet packet;
  while (true) {
    const absl::Status received = ReceivePacket(process_.socket(), /*should_wait=*/false, packet);
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
    const bool is_looked_at_here =
        result.status.get().ok() && (*slot)->out_bytes <= Errand::kMostMarked;
    if (is_looked_at_here && stamps_.AreLeft((*slot)->written(), (*slot)->marked_bytes)) {
      return absl::InternalError(kNotWritten);
    }
    errand = std::move(*slot);
    FreeSlot(*errand);
  }
  last_answer_ns_ = clock_.NowNs();
  spin_until_ns_ = last_answer_ns_ + options_.command.spin_ns;
  Errand::Times& times = errand->times;
  const int64_t stages_ns = result.copy_in_ns + result.compute_ns + result.copy_out_ns;
  const int64_t idle_ns = last_answer_ns_ - errand->sent_ns - stages_ns;
  times.wait_ns = errand->begun_ns - errand->submitted_ns + std::max(idle_ns, int64_t{0});
  times.copy_in_ns = errand->sent_ns - errand->begun_ns + result.copy_in_ns;
  times.compute_ns = result.compute_ns;
  times.copy_out_ns = result.copy_out_ns;
  Finish(std::move(errand), result.status.get());
  return absl::OkStatus();
}

// Errors: the answer cannot be true.
absl::Status WorkerDevice::CheckTimes(const Errand& errand, const Result& result) const {
  // A GPU's clock and that of the host differ a little.
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

// Takes the result, which a thread that copies does where it is large.
void WorkerDevice::Finish(std::unique_ptr<Errand> errand, const absl::Status& answer) {
  absl::Status status = answer;
  std::vector<CopiedBytes> copies;
  const absl::Span<const std::byte> written = errand->written();
  if (errand->is_ended) status = AbortedLaunch();
  if (status.ok()) status = errand->PlaceResult(copies);
  const bool is_large = written.size() > static_cast<size_t>(Errand::kMostMarked) ||
                        BytesOf(copies) > kMostCopiedHere;
  if (status.ok() && is_large) return FinishLarge(std::move(errand), written, std::move(copies));
  if (status.ok() && !copies.empty()) {
    CopyAll(copies);
    errand->times.copy_out_ns += clock_.NowNs() - last_answer_ns_;
  }
  End(std::move(errand), status);
}

void WorkerDevice::FinishLarge(std::unique_ptr<Errand> errand, absl::Span<const std::byte> written,
                               std::vector<CopiedBytes> copies) {
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
                          if (stopping_ || is_checking_) waker_->Wake();
                        });
  });
}

// How long the worker may take over what should take so long.
absl::Duration WorkerDevice::LongestRun(int64_t predicted_ns) const {
  const absl::Duration wanted =
      absl::Nanoseconds(options_.watchdog_factor * static_cast<double>(predicted_ns));
  return std::max(std::min(wanted, options_.watchdog_most), options_.watchdog_least);
}

// The worker works on all that it has; what it has had for the longest must end in the time that
// all of it may take. Errors: the worker has not answered in time, or not truly.
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
    if (sent->is_aborted && WasStarted(*sent) && now_ns >= sent->abort_deadline_ns) {
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
  const std::string_view limit = waited >= options_.watchdog_most
                                     ? ", the most that a product may take (--watchdog-most)"
                                     : ", ten times what was predicted or more";
  return absl::DeadlineExceededError(
      Concat("no answer within ", absl::FormatDuration(absl::Trunc(waited, absl::Milliseconds(1))),
             limit));
}

// Answers what a worker had that has ended.
void WorkerDevice::EndLost(std::string_view reason) {
  const absl::Status not_started = absl::UnavailableError(
      Concat("device: ", info_.name, " was lost before the product started: ", reason));
  const absl::Status started = absl::AbortedError(
      Concat("device: ", info_.name, " was lost while the product ran: ", reason));
  Errands lost;
  {
    MutexLock lock(&mutex_);
    for (const auto& [errand, owner] : copied_) errand->verdict = not_started;
    lost.swap(false_);
    for (std::unique_ptr<Errand>& sent : sent_) {
      if (sent == nullptr) continue;
      FreeSlot(*sent);
      lost.push_back(std::move(sent));
    }
  }
  for (std::unique_ptr<Errand>& one : lost) {
    const absl::Status& status = WasStarted(*one) ? started : not_started;
    const absl::Status answer = one->is_aborted ? AbortedLaunch() : status;
    End(std::move(one), answer);
  }
}

}  // namespace gemmd
