// SPDX-License-Identifier: Apache-2.0
#include "server/store/compressor.h"

#include <utility>

#include "kernels/or_no_memory.h"
#include "kernels/status_macros.h"
#include "kernels/text.h"

namespace gemmd {
namespace {

// There is nothing to be done now and then.
constexpr absl::Duration kPause = absl::Hours(1);

absl::Status Draining() { return absl::UnavailableError("the server is draining"); }

}  // namespace

class Compressor::Place {
 public:
  Place(Compressor& compressor, const RandomId& session)
      : compressor_(compressor), session_(session) {}
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;
  ~Place() { compressor_.GiveBackPlace(session_); }

 private:
  Compressor& compressor_;
  const RandomId session_;
};

// What a task holds until it is over.
struct Compressor::Task::Work {
  std::unique_ptr<Place> place;
  TensorStore::SessionUse session;
  TensorStore::TensorUse tensor;
  TensorStore::TensorUse mask;
  TensorDraft draft;
  CompressionPlan plan;
  std::optional<Compression> compression;
};

void Compressor::Task::Abort() {
  Done done = TakeDone();
  if (done) std::move(done)(absl::CancelledError("compress: the caller gave it up"));
}

Compressor::Done Compressor::Task::TakeDone() {
  MutexLock lock(&mutex_);
  return std::exchange(done_, nullptr);
}

bool Compressor::Task::is_over() const {
  MutexLock lock(&mutex_);
  return done_ == nullptr;
}

Compressor::Compressor(TensorStore& store, int64_t device_step_bytes)
    : store_(store),
      device_step_bytes_(device_step_bytes),
      background_("gemmd-compress", kPause, [] {}) {}

Compressor::~Compressor() {
  is_stopping_ = true;
  {
    // Devices answer, and outlive this.
    MutexLock lock(&mutex_);
    mutex_.Await([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return being_brought_ == 0; });
  }
  background_.Stop();
}

absl::Status Compressor::TakePlace(const RandomId& session) {
  MutexLock lock(&mutex_);
  int& own = of_sessions_[session];
  const bool is_own_full = own >= kMostOfSession;
  if (!is_own_full && at_work_ < kMost) {
    ++own;
    ++at_work_;
    return absl::OkStatus();
  }
  const int count = is_own_full ? own : at_work_;
  const int most = is_own_full ? kMostOfSession : kMost;
  if (own == 0) of_sessions_.erase(session);
  return absl::ResourceExhaustedError(Concat("compress: got ", count, " tensors at once",
                                             is_own_full ? " of the session" : "",
                                             ", want at most ", most, ": try again later"));
}

void Compressor::GiveBackPlace(const RandomId& session) {
  MutexLock lock(&mutex_);
  --at_work_;
  const auto own = of_sessions_.find(session);
  if (--own->second == 0) of_sessions_.erase(own);
}

absl::StatusOr<std::weak_ptr<Compressor::Task>> Compressor::Begin(TensorStore::SessionUse session,
                                                                  const Request& request,
                                                                  Done done) {
  auto work = std::make_shared<Task::Work>();
  ASSIGN_OR_RETURN(work->tensor, store_.Find(session, request.tensor));
  if (request.mask) {
    ASSIGN_OR_RETURN(work->mask, store_.Find(session, *request.mask));
  }
  const Tensor& dense = *work->tensor.tensor();
  const Tensor* const mask = work->mask.tensor().get();
  ASSIGN_OR_RETURN(work->plan,
                   PlanCompression(dense.spec, mask == nullptr ? nullptr : &mask->spec));
  const CompressionPlan& plan = work->plan;
  RETURN_IF_ERROR(TakePlace(session.token()));
  work->place = std::make_unique<Place>(*this, session.token());
  ASSIGN_OR_RETURN(work->draft, store_.MakeDraft(session, plan.result, request.keep));
  work->compression.emplace(plan, dense.bytes->host(),
                            mask == nullptr ? nullptr : mask->bytes->host(),
                            work->draft.bytes->host());
  work->session = std::move(session);
  auto task = std::make_shared<Task>(std::move(done));
  task->work_ = std::move(work);
  Bring(task);
  return std::weak_ptr<Task>(task);
}

void Compressor::Bring(const std::shared_ptr<Task>& task) {
  {
    MutexLock lock(&mutex_);
    ++being_brought_;
  }
  const Task::Work& work = *task->work_;
  std::shared_ptr<DeviceCopies> place = work.tensor->bytes->FindDevice();
  const bool is_there = place != nullptr && work.plan.result.bytes > 0;
  is_there ? CompressOn(place, task) : BringToHost(task);
}

void Compressor::CompressOn(const std::shared_ptr<DeviceCopies>& place,
                            const std::shared_ptr<Task>& task) {
  const Task::Work& work = *task->work_;
  DeviceCompression::Tensors tensors = {
      .dense = work.tensor->bytes, .mask = nullptr, .result = work.draft.bytes};
  if (work.mask.tensor() != nullptr) tensors.mask = work.mask->bytes;
  auto goes_on = [this, task] {
    if (task->is_over()) return absl::CancelledError("compress: the caller gave it up");
    if (is_stopping_ || store_.is_closed()) return Draining();
    return absl::OkStatus();
  };
  std::make_shared<DeviceCompression>(
      place, work.plan, std::move(tensors), device_step_bytes_, std::move(goes_on),
      [this, task](const absl::Status& status) { EndOnDevice(task, status); })
      ->Start();
}

// Where the device has no room, or is lost, the host does it, if it has the tensor.
void Compressor::EndOnDevice(const std::shared_ptr<Task>& task, const absl::Status& status) {
  const bool is_said = status.ok() || absl::IsInvalidArgument(status) || task->is_over() ||
                       is_stopping_ || store_.is_closed();
  if (!is_said) {
    // What the device has of the result is of no use.
    PlacedBytes& result = *task->work_->draft.bytes;
    result.TakeWriting(nullptr, [] {});
    result.BeginWriting(nullptr);
    result.EndWriting(nullptr, /*has_begun=*/true, /*is_ok=*/true);
    return BringToHost(task);
  }
  background_.Post([this, task, status] { End(*task, status); });
  MutexLock lock(&mutex_);
  --being_brought_;
}

// What a device alone has comes to memory of the host first.
void Compressor::BringToHost(const std::shared_ptr<Task>& task) {
  task->work_->tensor->bytes->BringToHost([this, task](const absl::Status& status) {
    const Task::Work& work = *task->work_;
    if (!status.ok()) return EndBringing(task, WithName(status, *work.tensor.tensor()));
    if (work.mask.tensor() == nullptr) return EndBringing(task, absl::OkStatus());
    work.mask->bytes->BringToHost([this, task](const absl::Status& mask_status) {
      EndBringing(task, WithName(mask_status, *task->work_->mask.tensor()));
    });
  });
}

void Compressor::EndBringing(const std::shared_ptr<Task>& task, const absl::Status& status) {
  if (status.ok()) {
    Post(task);
  } else {
    background_.Post([this, task, status] { End(*task, status); });
  }
  MutexLock lock(&mutex_);
  --being_brought_;
}

void Compressor::Post(std::shared_ptr<Task> task) {
  background_.Post([this, task = std::move(task)]() mutable { TakeTurn(std::move(task)); });
}

void Compressor::TakeTurn(std::shared_ptr<Task> task) {
  if (task->is_over()) {
    task->work_.reset();
    return;
  }
  if (is_stopping_ || store_.is_closed()) {
    return End(*task, Draining());
  }
  const absl::StatusOr<bool> is_done =
      OrNoMemory("compress: no memory for one more step, try again later",
                 [&] { return task->work_->compression->Step(scratch_); });
  if (is_done.ok() && !*is_done) return Post(std::move(task));
  End(*task, is_done.status());
}

void Compressor::End(Task& task, const absl::Status& result) {
  // Whoever has begun another one by the time that this one is told has its room.
  const std::shared_ptr<Task::Work> work = std::move(task.work_);
  Done done = task.TakeDone();
  if (!done) return;
  absl::StatusOr<TensorState> state =
      result.ok() ? store_.Publish(work->session, std::move(work->draft)) : result;
  if (state.ok()) store_.KeepOnHost(*state);
  work->place.reset();
  work->tensor = TensorStore::TensorUse();
  work->mask = TensorStore::TensorUse();
  work->draft = TensorDraft();
  std::move(done)(std::move(state));
}

}  // namespace gemmd
