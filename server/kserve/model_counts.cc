// SPDX-License-Identifier: Apache-2.0
#include "server/kserve/model_counts.h"

#include <algorithm>

namespace gemmd {

ModelTotals& ModelCounts::At(const Key& model) {
  if (!model) return gemm_;
  if (tensors_.size() >= kMostTensors && !tensors_.contains(*model)) {
    tensors_.erase(std::min_element(tensors_.begin(), tensors_.end(), [](auto& a, auto& b) {
      return a.second.used < b.second.used;
    }));
  }
  Entry& entry = tensors_[*model];
  entry.used = ++uses_;
  return entry.totals;
}

void ModelCounts::AddSuccess(const Key& model, const v1::Timing& timing, int64_t matrices,
                             int64_t now_ms) {
  MutexLock lock(&mutex_);
  ModelTotals& totals = At(model);
  totals.last_ms = now_ms;
  totals.matrices = SaturatingSum(totals.matrices, matrices);
  totals.success.Add(timing.total_ns());
  totals.queue.Add(timing.queue_ns());
  totals.copy_in.Add(timing.copy_in_ns());
  totals.compute.Add(timing.compute_ns());
  totals.copy_out.Add(timing.copy_out_ns());
}

void ModelCounts::AddFailure(const Key& model, int64_t took_ns) {
  MutexLock lock(&mutex_);
  At(model).fail.Add(took_ns);
}

ModelTotals ModelCounts::Read(const Key& model) const {
  MutexLock lock(&mutex_);
  if (!model) return gemm_;
  const auto entry = tensors_.find(*model);
  return entry == tensors_.end() ? ModelTotals() : entry->second.totals;
}

}  // namespace gemmd
