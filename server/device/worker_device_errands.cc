// SPDX-License-Identifier: Apache-2.0
//
// How errands begin: room for them, their operands, their record.
#include <algorithm>
#include <utility>

#include "server/device/worker_device.h"

namespace gemmd {

ErrandQueue::Room WorkerDevice::TakeRoom(Errand& errand) {
  const bool is_job = errand.kind == Errand::Kind::kJob;
  int& under_way = is_job ? jobs_under_way_ : memory_under_way_;
  if (under_way >= (is_job ? kDepth : kMemoryErrands)) return ErrandQueue::Room::kNoSlot;
  if (!staging_->Take(errand.in_bytes, errand.out_bytes, errand.out_may_stay, errand.in,
                      errand.out)) {
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

// Begins what there is room for.
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

// Copies the operands where the worker finds them and tells it of the errand. A worker that is gone
// shows in the socket.
void WorkerDevice::Begin(std::unique_ptr<Errand> errand) {
  if (!errand->is_small()) return BeginLarge(std::move(errand));
  MutexLock lock(&mutex_);
  errand->begun_ns = clock_.NowNs();
  BeginSmall(std::move(errand));
}

void WorkerDevice::BeginSmall(std::unique_ptr<Errand> errand) {
  CopyAll(errand->CopiesIn());
  stamps_.Put(errand->staged_mark());
  stamps_.Put(errand->written());
  Send(std::move(errand));
}

void WorkerDevice::BeginLarge(std::unique_ptr<Errand> owner) {
  Errand* const errand = owner.get();
  errand->begun_ns = clock_.NowNs();
  {
    MutexLock lock(&mutex_);
    copied_[errand] = std::move(owner);
  }
  copy_threads_->Run([this, errand] {
    absl::Status checked = errand->CheckOperands();
    if (!checked.ok()) return OnCopiedIn(errand, checked);
    copy_threads_->Copy(errand->CopiesIn(), errand->is_aborted, [this, errand] {
      stamps_.Put(errand->staged_mark());
      stamps_.Put(errand->written());
      OnCopiedIn(errand, absl::OkStatus());
    });
  });
}

// Calls from threads that copy.
void WorkerDevice::OnCopiedIn(Errand* errand, const absl::Status& checked) {
  std::unique_ptr<Errand> ended;
  absl::Status status = checked;
  bool is_waited_for = true;
  {
    MutexLock lock(&mutex_);
    ended = std::move(copied_.extract(errand).mapped());
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
  queue_.Leave(*errand);
  errand->Send(process_.socket()).IgnoreError();
  sent_[errand->slot] = std::move(errand);
}

}  // namespace gemmd
