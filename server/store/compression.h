// SPDX-License-Identifier: Apache-2.0
//
// Tensors.Compress: a 2:4 tensor of a dense one, on the device that has it or on the host.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/matrix/sparse24.h"
#include "server/store/placed_bytes.h"
#include "server/store/tensor.h"
#include "server/store/tensor_store.h"
#include "server/system/mutex.h"
#include "server/system/threads.h"

namespace gemmd {

// What is compressed, and into what.
struct CompressionPlan {
  MatrixLayout dense;
  std::optional<MatrixLayout> mask;
  SparseLayout sparse;  // Each matrix by itself.
  TensorSpec result;
};

// Null as `mask`: the units of the largest magnitude are kept. Errors: InvalidArgument where there
// is no sparse form of the tensor, where its factors would not hold, or where the mask does not
// fit.
absl::StatusOr<CompressionPlan> PlanCompression(const TensorSpec& dense, const TensorSpec* mask);

// Compresses on the host in steps, so that the caller can stop between them.
class Compression {
 public:
  // A step reads about so many bytes: some milliseconds of work.
  static constexpr int64_t kStepBytes = int64_t{256} << 10;

  // Memory of the steps, which compressions that take turns may share.
  struct Scratch {
    std::vector<std::byte> dense;
    std::vector<std::byte> mask;
    std::vector<std::byte> compressed;
  };

  // Borrows the bytes: all matrices of the plan's tensors; null as `mask` where there is none.
  Compression(const CompressionPlan& plan, const std::byte* dense, const std::byte* mask,
              std::byte* compressed);

  // Goes on. True once everything is done. What another thread writes into the tensor meanwhile is
  // taken or not, element by element: the result is a valid 2:4 matrix all the same. Errors:
  // InvalidArgument for a mask that keeps too much, by its first group; then it is over.
  absl::StatusOr<bool> Step(Scratch& scratch);

 private:
  // A part of one matrix: some whole rows, or some columns of one row.
  struct Block {
    int64_t row = 0;
    int64_t rows = 0;
    int64_t column = 0;
    int64_t columns = 0;
  };

  Block NextBlock() const;
  absl::Status Compress(const Block& block, Scratch& scratch) const;
  absl::Status Prune(const Block& block, const SparseLayout& layout, Scratch& scratch) const;
  void Store(const Block& block, const SparseLayout& layout, const std::byte* compressed) const;
  void Advance(const Block& block);

  CompressionPlan plan_;
  const std::byte* dense_;
  const std::byte* mask_;
  std::byte* compressed_;
  int64_t matrix_ = 0;  // Where the next block begins.
  int64_t row_ = 0;
  int64_t column_ = 0;
};

// Compresses on the device that has the tensor, in steps, so that it can end between them.
class DeviceCompression : public std::enable_shared_from_this<DeviceCompression> {
 public:
  // What a step usually reads, at least a line: a GPU takes some 0.1 ms for it.
  static constexpr int64_t kStepBytes = int64_t{16} << 20;

  struct Tensors {
    std::shared_ptr<PlacedBytes> dense;
    std::shared_ptr<PlacedBytes> mask;    // Null: the units of the largest magnitude are kept.
    std::shared_ptr<PlacedBytes> result;  // Nobody else has it.
  };
  using Done = absl::AnyInvocable<void(const absl::Status&) &&>;

  // `goes_on` is asked before each step; where it is not OK, that is how it ends. `done` is called
  // once, from any thread, when the device has the result, or with why it has not: InvalidArgument
  // for what the mask says, ResourceExhausted where the device has no room, and those of
  // DeviceMemory. The result's bytes are then undefined everywhere.
  DeviceCompression(std::shared_ptr<DeviceCopies> place, const CompressionPlan& plan,
                    Tensors tensors, int64_t step_bytes, std::function<absl::Status()> goes_on,
                    Done done);

  // Goes on by itself; whoever it waits for keeps it.
  void Start();

 private:
  // Goes on with `next` once the device has the bytes.
  void Bring(const std::shared_ptr<PlacedBytes>& bytes, uint64_t& block, DeviceCopies::Use& use,
             void (*next)(DeviceCompression& self));
  void BringMask();
  void BringResult();
  void Step();
  void EndStep(const absl::StatusOr<BadGroup>& bad);
  void End(const absl::Status& status);

  const std::shared_ptr<DeviceCopies> place_;
  const CompressionPlan plan_;
  const Tensors tensors_;
  const int64_t step_bytes_;
  const std::function<absl::Status()> goes_on_;
  Done done_;

  // One step after the other uses what follows.
  CompressTask task_;
  DeviceCopies::Use dense_;
  DeviceCopies::Use mask_;
  DeviceCopies::Use result_;
  bool has_taken_ = false;  // The right to write the result,
  bool has_begun_ = false;  // and has begun to.
};

// Compresses tensors on the device that has them, or on a thread of its own, where several at once
// take turns, a step each.
class Compressor {
 public:
  // At work at once: of all sessions, and of one.
  static constexpr int kMax = 64;
  static constexpr int kMaxOfSession = 8;

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
  ThreadPool background_;
};

}  // namespace gemmd
