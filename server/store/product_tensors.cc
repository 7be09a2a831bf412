// SPDX-License-Identifier: Apache-2.0
#include "server/store/product_tensors.h"

#include <utility>

#include "kernels/status_macros.h"

namespace gemmd {

absl::StatusOr<std::unique_ptr<ProductTensors>> ProductTensors::Make(TensorStore& store,
                                                                     std::string_view token) {
  ASSIGN_OR_RETURN(TensorStore::SessionUse session, store.Use(token));
  return std::unique_ptr<ProductTensors>(new ProductTensors(store, std::move(session)));
}

absl::StatusOr<const Tensor*> ProductTensors::Read(Operand operand, const TensorName& name) {
  TensorStore::TensorUse& use = parts_[static_cast<size_t>(operand)].use;
  ASSIGN_OR_RETURN(use, store_.Find(session_, name));
  return use.tensor().get();
}

absl::StatusOr<const Tensor*> ProductTensors::Write(const TensorName& name) {
  ASSIGN_OR_RETURN(d_use_, store_.Find(session_, name));
  return d_use_.tensor().get();
}

absl::Status ProductTensors::MakeNew(TensorSpec spec, Keeping keep) {
  ASSIGN_OR_RETURN(draft_, store_.MakeDraft(session_, std::move(spec), std::move(keep)));
  return absl::OkStatus();
}

void ProductTensors::SetPart(Operand operand, int64_t offset, int64_t bytes) {
  Part& part = parts_[static_cast<size_t>(operand)];
  part.offset = offset;
  part.bytes = bytes;
}

Source ProductTensors::AddFactors(absl::Span<const float> factors) {
  Piece& piece = factors_[factors_count_++];
  piece = PieceOf(factors);
  Source source;
  source.pieces = absl::MakeConstSpan(&piece, 1);
  source.bytes = static_cast<int64_t>(piece.size());
  return source;
}

int64_t ProductTensors::resident_bytes() const {
  int64_t bytes = 0;
  for (const Part& part : parts_) bytes += part.bytes;
  return bytes;
}

int64_t ProductTensors::copied_bytes() const { return is_in_place() ? At(Operand::kC).bytes : 0; }

bool ProductTensors::is_in_place() const {
  return written() != nullptr && read(Operand::kC) == written();
}

Source ProductTensors::SourceOf(Operand operand) {
  Part& part = parts_[static_cast<size_t>(operand)];
  Source source;
  if (part.bytes == 0) return source;
  const Piece whole(part.use->bytes->host() + part.offset, static_cast<size_t>(part.bytes));
  // A matrix in two pieces is put together elsewhere before the launch.
  const bool is_copied = operand == Operand::kC && is_in_place() && part.bytes > 1;
  const size_t first = is_copied ? whole.size() / 2 : whole.size();
  part.pieces = {whole.first(first), whole.subspan(first)};
  source.pieces = absl::MakeConstSpan(part.pieces.data(), is_copied ? 2 : 1);
  source.bytes = part.bytes;
  return source;
}

absl::Status ProductTensors::Place(Job& job) {
  if (written() != nullptr) {
    RETURN_IF_ERROR(store_.BeginWriting(d_use_));
    d_use_->bytes->DropCopies();
  }
  for (const Part& part : parts_) {
    if (part.use.tensor() != nullptr) store_.CountProduct(part.use);
  }
  if (written() != nullptr && !is_in_place()) store_.CountProduct(d_use_);
  if (read(Operand::kA) != nullptr) job.a = SourceOf(Operand::kA);
  if (read(Operand::kB) != nullptr) job.b = SourceOf(Operand::kB);
  if (read(Operand::kC) != nullptr) job.c = SourceOf(Operand::kC);
  if (written() != nullptr) job.d.memory = d_use_->bytes->host() + d_offset_;
  if (draft_) job.d.memory = draft_->bytes->host();
  job.tensors = this;
  return absl::OkStatus();
}

void ProductTensors::Bring(DeviceCopies& copies, Job& job, absl::AnyInvocable<void() &&> done) {
  const std::array<Source*, kOperands> sources = {&job.a, &job.b, &job.c};
  brought_ = std::move(done);
  to_bring_ = 1;
  for (size_t i = 0; i < kOperands; ++i) {
    Part& part = parts_[i];
    // What is overwritten would be brought for this one product. Where several products run as one,
    // a matrix may be made of those of all of them.
    const bool is_own = sources[i]->pieces.data() == part.pieces.data();
    if (part.bytes == 0 || !is_own || part.use.tensor() == d_use_.tensor()) continue;
    ++to_bring_;
    copies.Bring(part.use->bytes,
                 [this, &part, source = sources[i]](absl::StatusOr<DeviceCopies::Use> copy) {
                   if (copy.ok()) {
                     part.copy = *std::move(copy);
                     source->pieces = {};
                     source->block = part.copy.block();
                     source->offset = part.offset;
                     source->bytes = part.bytes;
                   }
                   FinishBringing();
                 });
  }
  FinishBringing();
}

void ProductTensors::FinishBringing() {
  if (--to_bring_ == 0) std::exchange(brought_, nullptr)();
}

absl::StatusOr<std::optional<TensorState>> ProductTensors::Finish(bool is_ok) {
  std::optional<TensorState> state;
  // Copies that were made meanwhile may have some of the old bytes and some of the new ones.
  if (written() != nullptr) d_use_->bytes->DropCopies();
  if (!is_ok) {
    draft_.reset();
  } else if (draft_) {
    ASSIGN_OR_RETURN(state, store_.Publish(session_, *std::move(draft_)));
    draft_.reset();
  } else if (written() != nullptr) {
    state = store_.StateOf(d_use_);
  }
  return state;
}

}  // namespace gemmd
