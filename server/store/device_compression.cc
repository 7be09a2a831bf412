// SPDX-License-Identifier: Apache-2.0
#include "server/store/device_compression.h"

#include <algorithm>
#include <utility>

namespace gemmd {

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
    self.tensors_.mask == nullptr ? self.BringResult() : self.BringMask();
  });
}

void DeviceCompression::BringMask() {
  Bring(tensors_.mask, task_.mask_block, mask_,
        [](DeviceCompression& self) { self.BringResult(); });
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

}  // namespace gemmd
