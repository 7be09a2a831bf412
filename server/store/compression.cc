// SPDX-License-Identifier: Apache-2.0
#include "server/store/compression.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/matrix/invalid.h"
#include "kernels/matrix/sparse24.h"
#include "kernels/matrix/sparse_groups.h"
#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"

namespace gemmd {
namespace {

// A block within a row begins at a multiple of this many columns, so that in every form its values
// and indices begin at whole bytes.
constexpr int64_t kColumnGranule = 1024;

// The min cost of a block in bytes, because even a tiny block has overhead.
constexpr int64_t kMinBlockBytes = 64;

absl::Status CheckDense(std::string_view field, const MatrixLayout& layout) {
  if (layout.is_sparse()) return Invalid(field, "a sparse tensor", "a dense one");
  if (layout.order == Order::kRowMajor) return absl::OkStatus();
  return Invalid(Concat(field, ".order"), "column", "row");
}

absl::Status CheckMask(const TensorSpec& dense, const TensorSpec& mask) {
  RETURN_IF_ERROR(CheckDense("mask", mask.layout));
  if (mask.layout.type != ElementType::kB1) {
    return Invalid("mask.type", NameOf(mask.layout.type), "b1");
  }
  const auto shape_of = [](const TensorSpec& spec) {
    return Concat(spec.matrices, " matrices of ", spec.layout.rows, "x", spec.layout.columns);
  };
  if (shape_of(mask) == shape_of(dense)) return absl::OkStatus();
  return Invalid("mask", shape_of(mask), Concat("those of the tensor, ", shape_of(dense)));
}

// Copies a part of a matrix to contiguous lines.
void CopyLines(const std::byte* from, int64_t stride_bytes, int64_t rows, int64_t line_bytes,
               std::vector<std::byte>& to) {
  to.resize(static_cast<size_t>(rows * line_bytes));
  if (stride_bytes == line_bytes) {
    std::memcpy(to.data(), from, to.size());
    return;
  }
  for (int64_t row = 0; row < rows; ++row) {
    std::memcpy(to.data() + row * line_bytes, from + row * stride_bytes,
                static_cast<size_t>(line_bytes));
  }
}

// The offset of an element of a dense matrix; `column` begins at a whole byte.
int64_t OffsetOf(const MatrixLayout& layout, int64_t matrix, int64_t row, int64_t column) {
  return matrix * layout.batch_stride_bytes + row * layout.line_stride_bytes() +
         column / 8 * BitsOf(layout.type);
}

absl::Status Draining() { return absl::UnavailableError("the server is draining"); }

}  // namespace

absl::StatusOr<CompressionPlan> PlanCompression(const TensorSpec& dense, const TensorSpec* mask) {
  RETURN_IF_ERROR(CheckDense("tensor", dense.layout));
  const MatrixLayout& layout = dense.layout;
  CompressionPlan plan;
  plan.dense = layout;
  ASSIGN_OR_RETURN(plan.sparse, SparseLayoutOf("tensor", layout.type, layout.rows, layout.columns));
  if (dense.blocks) return Invalid("tensor.scale.blocks", "factors of blocks", "none");
  const auto factors = static_cast<int64_t>(dense.scale.size());
  if (factors > 1 && factors != layout.rows) {
    return Invalid("tensor.scale.values", Concat(factors, " values"),
                   Concat("0, 1 or rows = ", layout.rows,
                          ": a sparse tensor is A, and has factors of its rows"));
  }
  if (mask != nullptr) {
    RETURN_IF_ERROR(CheckMask(dense, *mask));
    plan.mask = mask->layout;
  }
  ASSIGN_OR_RETURN(const MatrixLayout sparse,
                   TightSparseLayout("tensor", layout.type, layout.rows, layout.columns));
  ASSIGN_OR_RETURN(plan.result, MakeTensorSpec(sparse, dense.matrices, dense.scale));
  return plan;
}

Compression::Compression(const CompressionPlan& plan, const std::byte* dense, const std::byte* mask,
                         std::byte* compressed)
    : plan_(plan), dense_(dense), mask_(mask), compressed_(compressed) {
  if (plan_.result.bytes == 0) matrix_ = plan_.result.matrices;
}

absl::StatusOr<bool> Compression::Step(Scratch& scratch) {
  // A block is about as large as a step, so the rest of a step never fits another block.
  int64_t left = kStepBytes;
  while (left > kStepBytes / 2 && matrix_ < plan_.result.matrices) {
    const Block block = NextBlock();
    RETURN_IF_ERROR(Compress(block, scratch));
    Advance(block);
    left -= std::max(kMinBlockBytes, static_cast<int64_t>(scratch.dense.size()));
  }
  return matrix_ == plan_.result.matrices;
}

Compression::Block Compression::NextBlock() const {
  const SparseLayout& sparse = plan_.sparse;
  const int64_t line_bytes =
      std::max(sparse.dense_line_bytes, sparse.value_line_bytes + sparse.index_line_bytes);
  if (line_bytes <= kStepBytes) {
    return {row_, std::min(sparse.rows - row_, kStepBytes / line_bytes), 0, sparse.columns};
  }
  const int64_t max = kStepBytes * 8 / BitsOf(sparse.type) / kColumnGranule * kColumnGranule;
  return {row_, 1, column_, std::min(sparse.columns - column_, max)};
}

absl::Status Compression::Compress(const Block& block, Scratch& scratch) const {
  ASSIGN_OR_RETURN(const SparseLayout layout,
                   SparseLayoutOf("tensor", plan_.sparse.type, block.rows, block.columns));
  CopyLines(dense_ + OffsetOf(plan_.dense, matrix_, block.row, block.column),
            plan_.dense.line_stride_bytes(), block.rows, layout.dense_line_bytes, scratch.dense);
  RETURN_IF_ERROR(Prune(block, layout, scratch));
  scratch.compressed.resize(static_cast<size_t>(layout.bytes));
  RETURN_IF_ERROR(
      gemmd::Compress("tensor", layout, scratch.dense.data(), scratch.compressed.data()));
  Store(block, layout, scratch.compressed.data());
  return absl::OkStatus();
}

absl::Status Compression::Prune(const Block& block, const SparseLayout& layout,
                                Scratch& scratch) const {
  if (!plan_.mask) {
    PruneByMagnitude(layout, scratch.dense.data());
    return absl::OkStatus();
  }
  CopyLines(mask_ + OffsetOf(*plan_.mask, matrix_, block.row, block.column),
            plan_.mask->line_stride_bytes(), block.rows, (block.columns + 7) / 8, scratch.mask);
  const std::optional<OverfullGroup> overfull =
      KeepMarked(layout, scratch.mask.data(), scratch.dense.data());
  if (!overfull) return absl::OkStatus();
  const int64_t line = matrix_ * plan_.sparse.rows + block.row + overfull->row;
  const int64_t group = block.column / layout.form.group() + overfull->group;
  return RefuseMask(
      plan_.sparse, plan_.result.matrices,
      MakeBadGroup(line * plan_.sparse.groups + group, static_cast<uint32_t>(overfull->units)));
}

void Compression::Store(const Block& block, const SparseLayout& layout,
                        const std::byte* compressed) const {
  const SparseLayout& whole = plan_.sparse;
  const int64_t groups = block.column / whole.form.group();
  const int64_t values = groups * (whole.form.group() / 2) * BitsOf(whole.type) / 8;
  const int64_t indices = groups * whole.form.index_bits() / 8;
  std::byte* const target = compressed_ + matrix_ * whole.bytes;
  std::memcpy(target + whole.values_offset(block.row) + values, compressed,
              static_cast<size_t>(layout.indices_offset(0)));
  std::memcpy(target + whole.indices_offset(block.row) + indices,
              compressed + layout.indices_offset(0),
              static_cast<size_t>(layout.bytes - layout.indices_offset(0)));
}

void Compression::Advance(const Block& block) {
  column_ = block.column + block.columns;
  if (column_ < plan_.sparse.columns) return;
  column_ = 0;
  row_ = block.row + block.rows;
  if (row_ < plan_.sparse.rows) return;
  row_ = 0;
  ++matrix_;
}

DeviceCompression::DeviceCompression(std::shared_ptr<DeviceCopies> place,
                                     const CompressionPlan& plan, Tensors tensors,
                                     int64_t step_bytes, std::function<absl::Status()> goes_on,
                                     Done done)
    : place_(std::move(place)),
      plan_(plan),
      tensors_(std::move(tensors)),
      step_bytes_(step_bytes),
      goes_on_(std::move(goes_on)),
      done_(std::move(done)) {
  task_.dense = plan_.dense;
  task_.matrices = plan_.result.matrices;
  if (plan_.mask) task_.mask = *plan_.mask;
}

void DeviceCompression::Start() {
  Bring(tensors_.dense, task_.dense_block, dense_, [](DeviceCompression& self) {
    if (self.tensors_.mask == nullptr) return self.BringResult();
    self.Bring(self.tensors_.mask, self.task_.mask_block, self.mask_,
               [](DeviceCompression& with_mask) { with_mask.BringResult(); });
  });
}

void DeviceCompression::Bring(const std::shared_ptr<PlacedBytes>& bytes, uint64_t& block,
                              DeviceCopies::Use& use, void (*next)(DeviceCompression& self)) {
  place_->Bring(bytes, [self = shared_from_this(), &block, &use,
                        next](absl::StatusOr<DeviceCopies::Use> brought) {
    if (!brought.ok()) return self->End(brought.status());
    block = brought->block();
    use = *std::move(brought);
    next(*self);
  });
}

void DeviceCompression::BringResult() {
  tensors_.result->TakeWriting(place_.get(), [self = shared_from_this()] {
    self->has_taken_ = true;
    self->place_->MakeNew(self->tensors_.result, [self](absl::StatusOr<DeviceCopies::Use> use) {
      if (!use.ok()) return self->End(use.status());
      self->task_.result_block = use->block();
      self->result_ = *std::move(use);
      self->has_begun_ = true;
      self->tensors_.result->BeginWriting(self->place_.get());
      self->Step();
    });
  });
}

void DeviceCompression::Step() {
  if (const absl::Status status = goes_on_(); !status.ok()) return End(status);
  const int64_t lines = plan_.sparse.rows * plan_.result.matrices;
  if (task_.end_line == lines) return End(absl::OkStatus());
  const int64_t line_bytes = std::max<int64_t>(1, plan_.dense.line_stride_bytes());
  const int64_t step = std::max<int64_t>(1, step_bytes_ / line_bytes);
  task_.first_line = task_.end_line;
  task_.end_line = std::min(lines, task_.first_line + step);
  const bool is_begun = place_->Compress(
      task_,
      [self = shared_from_this()](const absl::StatusOr<BadGroup>& bad) { self->EndStep(bad); });
  if (!is_begun) End(absl::UnavailableError("the server is stopping"));
}

void DeviceCompression::EndStep(const absl::StatusOr<BadGroup>& bad) {
  if (!bad.ok()) return End(bad.status());
  if (*bad == kNoBadGroup) return Step();
  End(RefuseMask(plan_.sparse, plan_.result.matrices, *bad));
}

void DeviceCompression::End(const absl::Status& status) {
  if (has_taken_) tensors_.result->EndWriting(place_.get(), has_begun_, status.ok());
  dense_ = DeviceCopies::Use();
  mask_ = DeviceCopies::Use();
  result_ = DeviceCopies::Use();
  std::move(done_)(status);
}

// The resources of a task until it ends.
struct Compressor::Task::Work {
  std::shared_ptr<void> place;  // Its deleter gives back the place among running compressions.
  TensorStore::SessionUse session;
  TensorStore::TensorUse tensor;
  TensorStore::TensorUse mask;
  TensorDraft draft;
  CompressionPlan plan;
  std::optional<Compression> compression;
};

void Compressor::Task::Abort() {
  Done done = TakeDone();
  if (done) std::move(done)(absl::CancelledError("compress: cancelled by the caller"));
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
    : store_(store), device_step_bytes_(device_step_bytes), background_("gemmd-compress", 1) {}

Compressor::~Compressor() {
  is_stopping_ = true;
  {
    // Waits for the devices' answers; devices outlive this object.
    MutexLock lock(&mutex_);
    mutex_.Await([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return being_brought_ == 0; });
  }
  background_.Stop();
}

absl::Status Compressor::TakePlace(const RandomId& session) {
  MutexLock lock(&mutex_);
  int& own = of_sessions_[session];
  const bool is_own_full = own >= kMaxOfSession;
  if (!is_own_full && at_work_ < kMax) {
    ++own;
    ++at_work_;
    return absl::OkStatus();
  }
  const int count = is_own_full ? own : at_work_;
  const int max = is_own_full ? kMaxOfSession : kMax;
  if (own == 0) of_sessions_.erase(session);
  return absl::ResourceExhaustedError(Concat("compress: got ", count, " tensors at once",
                                             is_own_full ? " of the session" : "",
                                             ", want at most ", max, ": try again later"));
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
  work->place.reset(this,
                    [token = session.token()](Compressor* self) { self->GiveBackPlace(token); });
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
    if (task->is_over()) return absl::CancelledError("compress: cancelled by the caller");
    if (is_stopping_ || store_.is_closed()) return Draining();
    return absl::OkStatus();
  };
  std::make_shared<DeviceCompression>(
      place, work.plan, std::move(tensors), device_step_bytes_, std::move(goes_on),
      [this, task](const absl::Status& status) { EndOnDevice(task, status); })
      ->Start();
}

// If the device has no room, or is lost, the host compresses, if it has the tensor.
void Compressor::EndOnDevice(const std::shared_ptr<Task>& task, const absl::Status& status) {
  const bool is_said = status.ok() || absl::IsInvalidArgument(status) || task->is_over() ||
                       is_stopping_ || store_.is_closed();
  if (!is_said) {
    // The device's partial result is useless.
    PlacedBytes& result = *task->work_->draft.bytes;
    result.TakeWriting(nullptr, [] {});
    result.BeginWriting(nullptr);
    result.EndWriting(nullptr, /*has_begun=*/true, /*is_ok=*/true);
    return BringToHost(task);
  }
  background_.Run([this, task, status] { End(*task, status); });
  MutexLock lock(&mutex_);
  --being_brought_;
}

// Tensors that only a device has are first copied to host memory.
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
    background_.Run([this, task, status] { End(*task, status); });
  }
  MutexLock lock(&mutex_);
  --being_brought_;
}

void Compressor::Post(std::shared_ptr<Task> task) {
  background_.Run([this, task = std::move(task)]() mutable { TakeTurn(std::move(task)); });
}

void Compressor::TakeTurn(std::shared_ptr<Task> task) {
  if (task->is_over()) {
    task->work_.reset();
    return;
  }
  if (is_stopping_ || store_.is_closed()) return End(*task, Draining());
  const absl::StatusOr<bool> is_done =
      OrNoMemory("compress: no memory for one more step, try again later",
                 [&] { return task->work_->compression->Step(scratch_); });
  if (is_done.ok() && !*is_done) return Post(std::move(task));
  End(*task, is_done.status());
}

void Compressor::End(Task& task, const absl::Status& result) {
  // Frees the resources before calling `done`, so that the next compression can use them.
  const std::shared_ptr<Task::Work> work = std::move(task.work_);
  Done done = task.TakeDone();
  if (!done) return;
  absl::StatusOr<TensorState> state =
      result.ok() ? store_.Publish(work->session, std::move(work->draft)) : result;
  if (state.ok()) store_.KeepOnHost(*state).IgnoreError();
  work->place.reset();
  work->tensor = TensorStore::TensorUse();
  work->mask = TensorStore::TensorUse();
  work->draft = TensorDraft();
  std::move(done)(std::move(state));
}

}  // namespace gemmd
