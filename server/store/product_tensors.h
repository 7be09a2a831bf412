// SPDX-License-Identifier: Apache-2.0
//
// The resident tensors of one product: those that it reads, the one into which D goes, and the new
// one that D becomes. Whatever happens to their names meanwhile, the product has them until it
// ends.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/device/job.h"
#include "server/store/device_copies.h"
#include "server/store/tensor_store.h"

namespace gemmd {

class ProductTensors {
 public:
  enum class Operand : uint8_t { kA, kB, kC };
  static constexpr size_t kOperands = 3;

  // Errors: Unauthenticated, as TensorStore::Use. Borrows the store.
  static absl::StatusOr<std::unique_ptr<ProductTensors>> Make(TensorStore& store,
                                                              std::string_view token);

  // The tensor that an operand is a part of. Errors: NotFound.
  absl::StatusOr<const Tensor*> Read(Operand operand, const TensorName& name);
  // The tensor that D overwrites a part of. Errors: NotFound.
  absl::StatusOr<const Tensor*> Write(const TensorName& name);
  // The new tensor that D becomes; its room is taken now. Errors: as TensorStore::Begin.
  absl::Status MakeNew(TensorSpec spec, Keeping keep);

  // Where the part of an operand begins and how many bytes it has; where D begins.
  void SetPart(Operand operand, int64_t offset, int64_t bytes);
  // The factors of an operand, which are a part of its tensor's.
  Source AddFactors(absl::Span<const float> factors);
  void SetPartOfD(int64_t offset) { d_offset_ = offset; }

  const Tensor* read(Operand operand) const { return At(operand).use.tensor().get(); }
  const Tensor* written() const { return d_use_.tensor().get(); }
  bool takes_d() const { return d_use_.tensor() != nullptr || draft_.has_value(); }
  // Bytes of operands that are here already, and bytes that the product copies although they are.
  int64_t resident_bytes() const;
  int64_t copied_bytes() const;

  // Completes a job for a device that reads and writes memory of the host. The job borrows the
  // bytes for as long as this lives. Errors: FailedPrecondition where D would overwrite bytes of
  // another tensor too.
  absl::Status Place(Job& job);

  // Brings what the job reads to the device, and has the job read it there. Where a tensor finds no
  // room on the device, the job reads it from memory of the host. Calls `done` once, from any
  // thread, perhaps before this returns; this and the job live until then.
  void Bring(DeviceCopies& copies, Job& job, absl::AnyInvocable<void() &&> done);

  // Once the product has ended: what has become of the tensor of D, where there is one. A product
  // that failed leaves no new tensor. Errors: why there is no new tensor after all.
  absl::StatusOr<std::optional<TensorState>> Finish(bool is_ok);

 private:
  struct Part {
    TensorStore::TensorUse use;
    int64_t offset = 0;
    int64_t bytes = 0;
    std::array<Piece, 2> pieces;
    DeviceCopies::Use copy;
  };

  ProductTensors(TensorStore& store, TensorStore::SessionUse session)
      : store_(store), session_(std::move(session)) {}
  const Part& At(Operand operand) const { return parts_[static_cast<size_t>(operand)]; }
  // Whether C is what D overwrites: kernels want them apart, so C is copied before the launch.
  bool is_in_place() const;
  Source SourceOf(Operand operand);
  void FinishBringing();

  TensorStore& store_;
  TensorStore::SessionUse session_;
  std::array<Part, kOperands> parts_;
  std::array<Piece, 2> factors_;
  size_t factors_count_ = 0;
  std::atomic<int> to_bring_ = 0;
  absl::AnyInvocable<void() &&> brought_;
  TensorStore::TensorUse d_use_;
  int64_t d_offset_ = 0;
  std::optional<TensorDraft> draft_;
};

}  // namespace gemmd
