// SPDX-License-Identifier: Apache-2.0
//
// The resident tensors of one product: those that it reads, the one that D overwrites, and the new
// one that D becomes. The product keeps them until it ends, whatever happens to their names.
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
#include "kernels/per_operand.h"
#include "server/device/device.h"
#include "server/device/job.h"
#include "server/store/placed_bytes.h"
#include "server/store/tensor_store.h"
#include "server/system/clock.h"
#include "server/system/mutex.h"
#include "server/system/recycled.h"

namespace gemmd {

class ProductTensors final : public FormKeeper, public Recycled<ProductTensors> {
 public:
  // Token and owner as for TensorStore::Use. Errors: Unauthenticated. Borrows the store.
  static absl::StatusOr<std::unique_ptr<ProductTensors>> Make(TensorStore& store,
                                                              std::string_view token,
                                                              std::string_view owner = {});
  // The same with an existing use of a session.
  static std::unique_ptr<ProductTensors> In(TensorStore& store,
                                            std::shared_ptr<const TensorStore::SessionUse> session);

  ~ProductTensors() override;

  // The names of the tensors that contain A, B and C, by role, and of the tensor that D overwrites
  // a part of, if any.
  struct Names {
    std::array<std::optional<TensorName>, kMatrixRoles.size()> read = {};
    std::optional<TensorName> written = {};
  };
  // Finds the named tensors; call once. Errors: NotFound.
  absl::Status Find(const Names& names);
  // Prepares the new tensor that D becomes; charges its bytes now, or once D must be written on the
  // host, if the host has no room for it and D may be on a device alone. Errors: those of
  // TensorStore::Begin.
  absl::Status MakeNew(TensorSpec spec, Keeping keep);

  // Sets the offset and size of an operand's part, or the offset of D.
  void SetPart(OperandRole operand, int64_t offset, int64_t bytes);
  // Sets the place of the factors of blocks in the operand's tensor.
  void SetFactors(OperandRole operand, int64_t offset, int64_t bytes);
  // Adds the factors of an operand, a part of its tensor's factors.
  Source AddFactors(absl::Span<const float> factors);
  void SetPartOfD(int64_t offset) { d_offset_ = offset; }

  const Tensor* read(OperandRole operand) const { return At(operand).use.tensor().get(); }
  const Tensor* written() const { return d_use_.tensor().get(); }
  bool takes_d() const { return d_use_.tensor() != nullptr || draft_.has_value(); }
  // Bytes of resident operands, and bytes that the product copies although they are resident.
  int64_t resident_bytes() const;
  int64_t copied_bytes() const;
  // Whether D overwrites C: kernels need them separate, so C is copied before the launch.
  bool is_in_place() const;
  // Bytes of the operands, and of the tensor that D overwrites, that the device has.
  int64_t BytesOn(std::string_view device) const;

  // Sets the host addresses of the tensors in a job, which borrows the bytes for the lifetime of
  // this object. Errors: FailedPrecondition if D would also overwrite bytes of another tensor.
  absl::Status Place(Job& job);
  // Marks resident operands of a problem for predictions, as Place does.
  void MarkStaying(Problem& problem) const;

  // Brings the tensors that the job reads to the device, and makes the job read them and leave D
  // there. Tensors that do not fit on the device are read from, or written to, host memory; so are
  // all tensors if the device has no memory of its own and `copies` is null. Calls `done` once,
  // from any thread, possibly before this returns; this object and the job must live until then.
  // Errors: FailedPrecondition if a tensor is lost, and those of DeviceMemory.
  void Bring(DeviceCopies* copies, Job& job, absl::AnyInvocable<void(const absl::Status&) &&> done);

  // As Bring, if nothing has to be moved or waited for: the job reads and leaves D at the place,
  // once BeginTaken is called. Returns false if something has to be: then Bring goes on with the
  // same job.
  bool TakeAtOnce(DeviceCopies* place, Job& job) ABSL_LOCKS_EXCLUDED(mutex_);
  // Call one of these once after TakeAtOnce, unless Bring is called.
  void BeginTaken();
  void GiveBackTaken();

  // Call when the job has ended: others may then overwrite the tensor of D. Returns the status; if
  // a block was lost before the job began, the product's error.
  absl::Status EndJob(const absl::Status& status);

  // After EndJob of a successful job: brings the tensors that the job read, and D, to the host
  // addresses set by Place. Calls `done` once, from any thread, possibly before this returns; this
  // object must live until then. Errors: those of PlacedBytes::BringToHost.
  void BringToHost(absl::AnyInvocable<void(const absl::Status&) &&> done)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // After EndJob of a successful job: the places of its tensors on the device, D included, which
  // stay there until EndReading. Returns false, without any effect, if one is not there.
  bool BeginReading(DeviceCopies& copies, JobPlaces& places);
  void EndReading() { ReleaseCopies(); }
  // After BringToHost or EndReading: whether only the job has written these tensors since it set
  // out.
  bool is_unchanged() const;

  // FormKeeper, for tensors that are only read.
  OperandForm TakeForm(const Source& source, const MatrixLayout& layout, int64_t matrices,
                       const DerivedOperand& derived) override;
  void EndForms(bool is_ok) override;
  // For a job whose tensors the device has: memory for data that its kernel derives from A and B.
  // Must be given back once the job has ended; `are_made`: from JobOutcome.
  void TakeFormsOn(DeviceCopies& copies, Job& job);
  void EndFormsOn(DeviceCopies& copies, bool are_made);

  // Call when the product has ended: returns the state of the tensor of D, if any. A failed product
  // leaves no new tensor. Errors: if the new tensor could not be published.
  absl::StatusOr<std::optional<TensorState>> Finish(bool is_ok);

 private:
  struct Part {
    TensorStore::TensorUse use;
    int64_t offset = 0;
    int64_t bytes = 0;
    std::array<Piece, 2> pieces;
    int64_t factors_offset = 0;  // Of blocks, in the same tensor.
    int64_t factors_bytes = 0;
    Piece factors;
    PlacedBytes::Edition edition;  // The edition when the job set out.
    DeviceCopies::Use copy;
    KeptForms::Use form;
    DeviceCopies::FormUse device_form;
  };
  // A job on its way to a device; the job is null if tensors are only brought to host memory.
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
  Source SourceOfFactors(OperandRole operand);
  // Makes the job read the part, and its factors of blocks, in the block of its tensor's copy.
  static void PointTo(const DeviceCopies::Use& copy, const Part& part, OperandRole role, Job& job);
  // Whether the source is the unmodified part of a tensor that the product does not write.
  bool IsReadAlone(const Part& part, const Source& source) const;
  const std::shared_ptr<TensorBytes>& BytesOfD() const {
    return draft_ ? draft_->bytes : d_use_->bytes;
  }
  void BringPart(OperandRole role);
  void BringPartToHost(Part& part);
  bool TakePartAtOnce(DeviceCopies* place, OperandRole role, Job& job);
  bool TakeDAtOnce(DeviceCopies* place);
  // Makes the job read and write the tensor of D in its block.
  void PointToD(Job& job);
  void ReleaseCopies();
  void NoteEditions();
  void BeginWritingD();
  void EndBringing(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);
  // D comes last, so that a holder of the right to write waits for nothing else.
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
  bool has_right_ = false;  // Granted by TakeAtOnce, and not used yet.
  bool writes_d_ = false;
  PlacedBytes::Edition d_edition_;  // The edition before the job wrote D.
};

// A device that first brings the resident tensors of a job to its memory, or to host memory, as a
// part of the job. Joined jobs run as one if all their tensors are there; otherwise separately.
class ResidentDevice final : public Device {
 public:
  // `device` must have started.
  explicit ResidentDevice(std::unique_ptr<Device> device);
  ~ResidentDevice() override;

  const DeviceInfo& info() const override { return device_->info(); }
  const DeviceProfile& profile() const override { return device_->profile(); }
  absl::Status CheckSize(const Problem& problem) const override {
    return device_->CheckSize(problem);
  }
  int depth() const override { return device_->depth(); }
  DeviceMemory* memory() override { return device_->memory(); }
  void Recompute(const Job& job, DeviceMemory::Recomputation order,
                 DeviceMemory::RecomputeDone done) override;
  void Submit(const Job& job, Done done) override ABSL_LOCKS_EXCLUDED(mutex_);
  void Abort(JobId id) override ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status readiness() const override { return device_->readiness(); }
  DeviceCondition condition() const override;
  // Null if the device has no memory of its own.
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

  // Joined jobs that run separately.
  struct SeparateMembers {
    std::atomic<size_t> left = 0;
    JobOutcome outcome;  // Each job changes its own.
    Done done;
  };

  void SubmitJoined(const Job& job, Done done) ABSL_LOCKS_EXCLUDED(mutex_);
  // Submits a job whose tensors are there; bringing them took `bring_ns`.
  void SubmitThere(Job& job, int64_t bring_ns, Done done);
  void SubmitSeparately(const Job& job, Done done) ABSL_LOCKS_EXCLUDED(mutex_);
  void SubmitBrought(std::unique_ptr<Bringing> bringing, const absl::Status& status)
      ABSL_LOCKS_EXCLUDED(mutex_);

  const SteadyClock clock_;
  Mutex mutex_;
  // Jobs that are being brought, and whether they were aborted.
  absl::flat_hash_map<JobId, bool> on_their_way_ ABSL_GUARDED_BY(mutex_);
  // Members that run separately, by the id of the joined job.
  absl::flat_hash_map<JobId, std::vector<JobId>> separate_ ABSL_GUARDED_BY(mutex_);
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;
  const std::shared_ptr<DeviceCopies> copies_;  // Null if the device has no memory of its own.
  std::unique_ptr<Device> device_;  // The last member, because its threads use the others.
};

// Wraps a device so that it can use the store's tensors, and registers it with the store.
std::unique_ptr<Device> WithTensors(std::unique_ptr<Device> device, TensorStore& store);

}  // namespace gemmd
