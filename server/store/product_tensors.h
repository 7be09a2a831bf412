// SPDX-License-Identifier: Apache-2.0
//
// The resident tensors of one product: those that it reads, the one into which D goes, and the new
// one that D becomes. Whatever happens to their names meanwhile, the product has them until it
// ends.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/crossing/per_operand.h"
#include "server/device/device.h"
#include "server/device/job.h"
#include "server/store/placed_bytes.h"
#include "server/store/tensor_store.h"
#include "server/system/clock.h"
#include "server/system/mutex.h"

namespace gemmd {

class ProductTensors final : public FormKeeper {
 public:
  // Token and owner as TensorStore::Use has them. Errors: Unauthenticated. Borrows the store.
  static absl::StatusOr<std::unique_ptr<ProductTensors>> Make(TensorStore& store,
                                                              std::string_view token,
                                                              std::string_view owner = {});
  // The same in a session that is in use already.
  static std::unique_ptr<ProductTensors> In(TensorStore& store,
                                            std::shared_ptr<const TensorStore::SessionUse> session);

  ~ProductTensors() override;

  // The tensors that A, B and C are parts of, by role, and the one that D overwrites a part of,
  // where there are any.
  struct Names {
    std::array<std::optional<TensorName>, kMatrixRoles.size()> read = {};
    std::optional<TensorName> written = {};
  };
  // None is there yet of those that are named. Errors: NotFound.
  absl::Status Find(const Names& names);
  // The new tensor that D becomes; its room is taken now. Errors: as TensorStore::Begin.
  absl::Status MakeNew(TensorSpec spec, Keeping keep);

  // Where the part of an operand begins and how many bytes it has; where D begins.
  void SetPart(OperandRole operand, int64_t offset, int64_t bytes);
  // The factors of an operand, which are a part of its tensor's.
  Source AddFactors(absl::Span<const float> factors);
  void SetPartOfD(int64_t offset) { d_offset_ = offset; }

  const Tensor* read(OperandRole operand) const { return At(operand).use.tensor().get(); }
  const Tensor* written() const { return d_use_.tensor().get(); }
  bool takes_d() const { return d_use_.tensor() != nullptr || draft_.has_value(); }
  // Bytes of operands that are here already, and bytes that the product copies although they are.
  int64_t resident_bytes() const;
  int64_t copied_bytes() const;
  // Whether C is what D overwrites: kernels want them apart, so C is copied before the launch.
  bool is_in_place() const;
  // Bytes of the operands that the device has, and of the tensor that D overwrites.
  int64_t BytesOn(std::string_view device) const;

  // Completes a job with where the tensors lie in memory of the host. The job borrows the bytes for
  // as long as this lives. Errors: FailedPrecondition where D would overwrite bytes of another
  // tensor too.
  absl::Status Place(Job& job);
  // What Place says of a problem for its predictions: which operands stay.
  void MarkStaying(Problem& problem) const;

  // Brings what the job reads to the device, and has the job read it there and leave D there. What
  // finds no room on the device is read from memory of the host, or goes there; so does everything
  // where the device has no memory of its own, and `copies` is null. Calls `done` once, from any
  // thread, perhaps before this returns; this and the job live until then. Errors:
  // FailedPrecondition where a tensor is lost, and those of DeviceMemory.
  void Bring(DeviceCopies* copies, Job& job, absl::AnyInvocable<void(const absl::Status&) &&> done);

  // Does what Bring does where nothing has to be moved and nobody waited for: the job reads and
  // leaves D at the place, once BeginTaken is called. False, and nothing is changed, elsewhere.
  bool TakeAtOnce(DeviceCopies* place, Job& job) ABSL_LOCKS_EXCLUDED(mutex_);
  // Either of them after TakeAtOnce, once.
  void BeginTaken();
  void GiveBackTaken();

  // The job that was brought has ended: others may overwrite the tensor of D. Gives the status
  // back; where a block was lost before the job began, as what it means for the product.
  absl::Status EndJob(const absl::Status& status);

  // After EndJob of a job that is OK: brings what the job read, and D, to memory of the host, where
  // Place has said that they lie. Calls `done` once, from any thread, perhaps before this returns;
  // this lives until then. Errors: as PlacedBytes::BringToHost.
  void BringToHost(absl::AnyInvocable<void(const absl::Status&) &&> done)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // After that: whether nobody but the job has written any of it since the job set out.
  bool is_unchanged() const;

  // FormKeeper, for the tensors that are read and not written.
  OperandForm TakeForm(const Source& source, const MatrixLayout& layout,
                       const DerivedOperand& derived) override;
  void EndForms(bool is_ok) override;
  // For a job whose tensors the device has: places for what its kernel derives from A and B. To be
  // given back once the job has ended; `are_made`: as JobOutcome tells.
  void TakeFormsOn(DeviceCopies& copies, Job& job);
  void EndFormsOn(DeviceCopies& copies, bool are_made);

  // Once the product has ended: what has become of the tensor of D, where there is one. A product
  // that failed leaves no new tensor. Errors: why there is no new tensor after all.
  absl::StatusOr<std::optional<TensorState>> Finish(bool is_ok);

 private:
  struct Part {
    TensorStore::TensorUse use;
    int64_t offset = 0;
    int64_t bytes = 0;
    std::array<Piece, 2> pieces;
    PlacedBytes::Edition edition;  // When the job set out.
    DeviceCopies::Use copy;
    KeptForms::Use form;
    DeviceCopies::FormUse device_form;
  };
  // A job on its way to a device; null where tensors are brought to memory of the host without one.
  struct Bringing {
    DeviceCopies* copies = nullptr;
    Job* job = nullptr;
    absl::AnyInvocable<void(const absl::Status&) &&> done;
  };

  ProductTensors(TensorStore& store, std::shared_ptr<const TensorStore::SessionUse> session)
      : store_(store), session_(std::move(session)) {}
  Part& At(OperandRole operand) { return parts_[static_cast<size_t>(operand)]; }
  const Part& At(OperandRole operand) const { return parts_[static_cast<size_t>(operand)]; }
  Source SourceOf(OperandRole operand);
  // The part in the block of a copy of its tensor.
  static Source SourceIn(const DeviceCopies::Use& copy, const Part& part);
  // Whether the source is the part as it lies in its tensor, which the product does not write.
  bool IsReadAlone(const Part& part, const Source& source) const;
  const std::shared_ptr<TensorBytes>& BytesOfD() const {
    return draft_ ? draft_->bytes : d_use_->bytes;
  }
  void BringPart(Part& part, Source& source);
  void BringPartToHost(Part& part);
  bool TakePartAtOnce(DeviceCopies* place, Part& part, Source& source);
  bool TakeDAtOnce(DeviceCopies* place);
  // The job reads and writes the tensor of D in its block.
  void PointToD(Job& job);
  void LetGoOfCopies();
  void NoteEditions();
  void BeginWritingD();
  void EndBringing(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);
  // D last: whoever has the right to write it waits for nothing else.
  void TakeD(DeviceCopies* place);
  void BringD();
  void BeginD(const absl::Status& status);
  void FinishBringing(const absl::Status& status);

  TensorStore& store_;
  const std::shared_ptr<const TensorStore::SessionUse> session_;
  std::array<Part, kMatrixRoles.size()> parts_;
  std::array<Piece, 2> factors_;
  size_t factors_count_ = 0;
  TensorStore::TensorUse d_use_;
  int64_t d_offset_ = 0;
  std::optional<TensorDraft> draft_;

  Bringing bringing_;
  Mutex mutex_;
  int to_bring_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status brought_ ABSL_GUARDED_BY(mutex_);
  DeviceCopies* d_place_ = nullptr;  // Null: memory of the host.
  DeviceCopies::Use d_copy_;
  bool has_right_ = false;  // Taken at once, and not used yet.
  bool writes_d_ = false;
  PlacedBytes::Edition d_edition_;  // Before the job wrote it.
};

// Brings the resident tensors of a job to the memory of a device, or to memory of the host, before
// the device gets the job; to others that is a part of the job. Joined jobs run as one if all their
// tensors are there, and otherwise each by itself.
class ResidentDevice final : public Device {
 public:
  // The device has started.
  explicit ResidentDevice(std::unique_ptr<Device> device);
  ~ResidentDevice() override;

  const DeviceInfo& info() const override { return device_->info(); }
  const DeviceProfile& profile() const override { return device_->profile(); }
  absl::Status CheckSize(const Problem& problem) const override {
    return device_->CheckSize(problem);
  }
  int depth() const override { return device_->depth(); }
  DeviceMemory* memory() override { return device_->memory(); }
  void Submit(const Job& job, Done done) override ABSL_LOCKS_EXCLUDED(mutex_);
  void Abort(JobId id) override ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status readiness() const override { return device_->readiness(); }
  DeviceCondition condition() const override;
  // Null where the device has no memory of its own.
  const std::shared_ptr<DeviceCopies>& copies() const { return copies_; }
  int64_t worker_memory_bytes() const override { return device_->worker_memory_bytes(); }
  absl::Status RestartWorker() override { return device_->RestartWorker(); }
  void WatchReadiness(Listener listener) override { device_->WatchReadiness(std::move(listener)); }
  DeviceTrust& trust() override { return device_->trust(); }

 private:
  // A job whose tensors are on their way.
  struct Bringing {
    Job job;
    Done done;
    int64_t began_ns = 0;
  };

  // Jobs that were to run as one.
  struct Apart {
    std::atomic<size_t> left = 0;
    JobOutcome outcome;  // Each job changes its own.
    Done done;
  };

  void SubmitJoined(const Job& job, Done done) ABSL_LOCKS_EXCLUDED(mutex_);
  void SubmitApart(const Job& job, Done done) ABSL_LOCKS_EXCLUDED(mutex_);
  void SubmitBrought(std::unique_ptr<Bringing> bringing, const absl::Status& status)
      ABSL_LOCKS_EXCLUDED(mutex_);

  const SteadyClock clock_;
  Mutex mutex_;
  // Jobs that are being brought, and whether they were aborted.
  absl::flat_hash_map<JobId, bool> on_their_way_ ABSL_GUARDED_BY(mutex_);
  // By the number of what they were joined to: those that run apart.
  absl::flat_hash_map<JobId, std::vector<JobId>> apart_ ABSL_GUARDED_BY(mutex_);
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;
  const std::shared_ptr<DeviceCopies> copies_;  // Null where the device has no memory of its own.
  std::unique_ptr<Device> device_;  // The last member: its threads call into the others.
};

// The device with the tensors of the store, which then knows where they may be brought.
std::unique_ptr<Device> WithTensors(std::unique_ptr<Device> device, TensorStore& store);

}  // namespace gemmd
