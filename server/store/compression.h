// SPDX-License-Identifier: Apache-2.0
//
// Tensors.Compress: makes a 2:4 tensor from a dense one, on the device that has it or on the host.
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

// The input and output of a compression.
struct CompressionPlan {
  MatrixLayout dense;
  std::optional<MatrixLayout> mask;
  SparseLayout sparse;  // Of one matrix.
  TensorSpec result;
};

// A null `mask`: keeps the units of the largest magnitude. Errors: InvalidArgument if the tensor
// has no sparse form, if its factors would become invalid, or if the mask does not fit.
absl::StatusOr<CompressionPlan> PlanCompression(const TensorSpec& dense, const TensorSpec* mask);

// Compresses on the host in steps, so that the caller can stop between them.
class Compression {
 public:
  // About the bytes that a step reads: a few milliseconds of work.
  static constexpr int64_t kStepBytes = int64_t{256} << 10;

  // Scratch memory of steps; may be shared by compressions that take turns.
  struct Scratch {
    std::vector<std::byte> dense;
    std::vector<std::byte> mask;
    std::vector<std::byte> compressed;
  };

  // Borrows the bytes of all matrices of the plan's tensors; `mask` is null if there is none.
  Compression(const CompressionPlan& plan, const std::byte* dense, const std::byte* mask,
              std::byte* compressed);

  // Runs one step. Returns true once everything is done. Concurrent writes to the tensor may or may
  // not be seen, element by element; the result is a valid 2:4 matrix anyway. Errors:
  // InvalidArgument, with the first bad group, for a mask that keeps too much; the compression is
  // then over.
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
  int64_t matrix_ = 0;  // Position of the next block.
  int64_t row_ = 0;
  int64_t column_ = 0;
};

// Compresses on the device that has the tensor, in steps, so that it can be stopped between them.
class DeviceCompression : public std::enable_shared_from_this<DeviceCompression> {
 public:
  // The usual bytes that a step reads (at least a line): some 0.1 ms on a GPU.
  static constexpr int64_t kStepBytes = int64_t{16} << 20;

  struct Tensors {
    std::shared_ptr<PlacedBytes> dense;
    std::shared_ptr<PlacedBytes> mask;    // Null: keep the units of the largest magnitude.
    std::shared_ptr<PlacedBytes> result;  // Not shared with anybody.
  };
  using Done = absl::AnyInvocable<void(const absl::Status&) &&>;

  // `goes_on` is called before each step; if it returns an error, the compression ends with it.
  // `done` is called once, from any thread, when the device has the result, or with an error:
  // InvalidArgument for a bad mask, ResourceExhausted if the device has no room, and those of
  // DeviceMemory. After an error, the result's bytes are undefined.
  DeviceCompression(std::shared_ptr<DeviceCopies> place, const CompressionPlan& plan,
                    Tensors tensors, int64_t step_bytes, std::function<absl::Status()> goes_on,
                    Done done);

  // Runs asynchronously; pending callbacks keep this object alive.
  void Start();

 private:
  // Continues with `next` once the device has the bytes.
  void Bring(const std::shared_ptr<PlacedBytes>& bytes, uint64_t& block, DeviceCopies::Use& use,
             void (*next)(DeviceCompression& self));
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

  // Used by one step at a time.
  CompressTask task_;
  DeviceCopies::Use dense_;
  DeviceCopies::Use mask_;
  DeviceCopies::Use result_;
  bool has_taken_ = false;  // Has the right to write the result,
  bool has_begun_ = false;  // and has begun to.
};

// Compresses tensors on the device that has them, or on its own thread, where concurrent
// compressions alternate steps.
class Compressor {
 public:
  // Max concurrent compressions of all sessions, and of one.
  static constexpr int kMax = 64;
  static constexpr int kMaxOfSession = 8;

  // Called once, from the compressor's thread or the thread that calls Abort.
  using Done = absl::AnyInvocable<void(absl::StatusOr<TensorState>) &&>;

  // A running compression. Keeps the tensor and its mask until it ends.
  class Task {
   public:
    explicit Task(Done done) : done_(std::move(done)) {}
    // Ends it with Cancelled at once, unless it has ended; its resources are released at its next
    // turn. Threads: any.
    void Abort() ABSL_LOCKS_EXCLUDED(mutex_);

   private:
    friend class Compressor;
    struct Work;

    // Null from the second call on: the first call ends the task.
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

  // Borrows the store. `device_step_bytes`: about the bytes that a device reads per step.
  explicit Compressor(TensorStore& store,
                      int64_t device_step_bytes = DeviceCompression::kStepBytes);
  // Ends running compressions with Unavailable.
  ~Compressor();

  // Reserves memory for the new tensor and begins. Errors, after which `done` is not called:
  // NotFound; those of PlanCompression; ResourceExhausted for a quota, or too many compressions;
  // Unavailable once the store is closed. The task may still end with InvalidArgument for a bad
  // mask, FailedPrecondition if a tensor is lost, and Unavailable once the store is closed.
  // Threads: any.
  absl::StatusOr<std::weak_ptr<Task>> Begin(TensorStore::SessionUse session, const Request& request,
                                            Done done) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
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
  // Ends the task; if `result` is OK, publishes the tensor to its session first.
  void End(Task& task, const absl::Status& result);

  TensorStore& store_;
  const int64_t device_step_bytes_;
  std::atomic<bool> is_stopping_ = false;
  Mutex mutex_;
  int at_work_ ABSL_GUARDED_BY(mutex_) = 0;
  int being_brought_ ABSL_GUARDED_BY(mutex_) = 0;  // Tasks waiting for devices.
  absl::flat_hash_map<RandomId, int> of_sessions_ ABSL_GUARDED_BY(mutex_);
  Compression::Scratch scratch_;  // Used only by the background thread.
  // The last member: its thread uses the others.
  ThreadPool background_;
};

}  // namespace gemmd
