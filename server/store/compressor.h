// SPDX-License-Identifier: Apache-2.0
//
// Compresses tensors: on the device that has them, or on a thread of its own, where several at once
// take turns, each for a step.
#pragma once

#include <atomic>
#include <memory>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "server/store/background.h"
#include "server/store/compression.h"
#include "server/store/device_compression.h"
#include "server/store/tensor_store.h"
#include "server/system/mutex.h"

namespace gemmd {

class Compressor {
 public:
  // At work at once: of all sessions, and of one.
  static constexpr int kMost = 64;
  static constexpr int kMostOfSession = 8;

  // Called once, from the compressor's thread or from that of Abort.
  using Done = absl::AnyInvocable<void(absl::StatusOr<TensorState>) &&>;

  // A tensor that is being compressed. It and its mask stay until it is over.
  class Task {
   public:
    explicit Task(Done done) : done_(std::move(done)) {}
    // Ends it with Cancelled, now, unless it has ended; what it holds is given back at its next
    // turn. Threads: any.
    void Abort() ABSL_LOCKS_EXCLUDED(mutex_);

   private:
    friend class Compressor;
    struct Work;

    // Null from the second call on: the first one ends the task.
    Done TakeDone() ABSL_LOCKS_EXCLUDED(mutex_);
    bool is_over() const ABSL_LOCKS_EXCLUDED(mutex_);

    std::shared_ptr<Work> work_;  // Owned by the compressor's thread.
    mutable Mutex mutex_;
    Done done_ ABSL_GUARDED_BY(mutex_);
  };

  struct Request {
    TensorName tensor;
    std::optional<TensorName> mask = {};
    Keeping keep = {};
  };

  // Borrows the store. A device reads about so many bytes in one step.
  explicit Compressor(TensorStore& store,
                      int64_t device_step_bytes = DeviceCompression::kStepBytes);
  // Ends what is under way with Unavailable.
  ~Compressor();

  // Takes the new tensor's room and begins. Errors, after which `done` is not called: NotFound;
  // InvalidArgument, as PlanCompression; ResourceExhausted a quota, or too many at once;
  // Unavailable once the store is closed. It may still end with InvalidArgument for what the mask
  // says, with FailedPrecondition where a tensor is lost, and with Unavailable once the store is
  // closed. Threads: any.
  absl::StatusOr<std::weak_ptr<Task>> Begin(TensorStore::SessionUse session, const Request& request,
                                            Done done) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // One of the places of those at work, given back by the destructor.
  class Place;

  absl::Status TakePlace(const RandomId& session) ABSL_LOCKS_EXCLUDED(mutex_);
  void GiveBackPlace(const RandomId& session) ABSL_LOCKS_EXCLUDED(mutex_);
  void Bring(const std::shared_ptr<Task>& task) ABSL_LOCKS_EXCLUDED(mutex_);
  // On the device that has the tensor.
  void CompressOn(const std::shared_ptr<DeviceCopies>& place, const std::shared_ptr<Task>& task);
  void EndOnDevice(const std::shared_ptr<Task>& task, const absl::Status& status);
  void BringToHost(const std::shared_ptr<Task>& task);
  void EndBringing(const std::shared_ptr<Task>& task, const absl::Status& status)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void Post(std::shared_ptr<Task> task);
  void TakeTurn(std::shared_ptr<Task> task);
  // Ends the task; where `result` is OK, the tensor is shown to its session first.
  void End(Task& task, const absl::Status& result);

  TensorStore& store_;
  const int64_t device_step_bytes_;
  std::atomic<bool> is_stopping_ = false;
  Mutex mutex_;
  int at_work_ ABSL_GUARDED_BY(mutex_) = 0;
  int being_brought_ ABSL_GUARDED_BY(mutex_) = 0;  // Devices are at work for them.
  absl::flat_hash_map<RandomId, int> of_sessions_ ABSL_GUARDED_BY(mutex_);
  Compression::Scratch scratch_;  // Owned by the background's thread.
  // The last member: its thread uses the others.
  Background background_;
};

}  // namespace gemmd
