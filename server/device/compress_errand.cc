// SPDX-License-Identifier: Apache-2.0
#include "server/device/compress_errand.h"

#include <cstring>
#include <utility>

namespace gemmd {
namespace {

// At 200 GB/s of what is read: magnitudes are compared in f64.
int64_t PredictedNs(const CompressTask& task) {
  return (task.end_line - task.first_line) * task.dense.line_stride_bytes() / 200;
}

}  // namespace

CompressErrand::CompressErrand(const CompressTask& task, const CompressBytes& bytes,
                               DeviceMemory::CompressDone done)
    : Errand(Kind::kMemory), task_(task), done_(std::move(done)) {
  out_bytes = kJobAlignment;
  predicted_ns = PredictedNs(task);
  uses.push_back({.block = task.result_block, .is_write = true});
  uses.push_back({.block = task.dense_block});
  const bool is_other_mask = bytes.mask > 0 && task.mask_block != task.dense_block;
  if (is_other_mask) uses.push_back({.block = task.mask_block});
}

absl::Status CompressErrand::Send(int socket) const {
  CompressRequest request;
  request.id = id;
  request.slot = slot;
  request.task = task_;
  request.predicted_ns = predicted_ns;
  request.staged = out.offset();
  return SendRecord(socket, request);
}

absl::Span<std::byte> CompressErrand::written() const { return out.bytes().first(sizeof(bad_)); }

absl::Status CompressErrand::PlaceResult(std::vector<CopiedBytes>&) {
  std::memcpy(&bad_, written().data(), sizeof(bad_));
  // No group is bad for nothing: what was cleared before was not written.
  if (bad_ == 0) return absl::InternalError("compress: the worker did not tell how it ended");
  return absl::OkStatus();
}

void CompressErrand::End(const absl::Status& status, const Times&) {
  std::move(done_)(status.ok() ? absl::StatusOr<BadGroup>(bad_) : status);
}

}  // namespace gemmd
