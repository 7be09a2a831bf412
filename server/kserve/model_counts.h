// SPDX-License-Identifier: Apache-2.0
//
// What the products of each model have taken, as clients of KServe ask for it: the counts of all
// parts of one model are of the same moment.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "gemmd/v1/gemm.pb.h"
#include "server/scheduling/saturating.h"
#include "server/store/digest.h"
#include "server/system/mutex.h"

namespace gemmd {

// So many durations, and their sum.
struct DurationSum {
  int64_t count = 0;
  int64_t ns = 0;

  void Add(int64_t duration_ns) {
    ++count;
    ns = SaturatingSum(ns, duration_ns);
  }
};

struct ModelTotals {
  int64_t last_ms = 0;   // Since 1970; 0 where there was none.
  int64_t matrices = 0;  // Those of D.
  DurationSum success;
  DurationSum fail;
  DurationSum queue;
  DurationSum copy_in;
  DurationSum compute;
  DurationSum copy_out;
};

class ModelCounts {
 public:
  // Tensors that are counted; of more, those are forgotten that were used the longest ago.
  static constexpr size_t kMostTensors = 1024;

  // `model` is the handle of the tensor that is the model's B; none stands for the product itself.
  // Threads: any.
  using Key = std::optional<RandomId>;
  void AddSuccess(const Key& model, const v1::Timing& timing, int64_t matrices, int64_t now_ms)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void AddFailure(const Key& model, int64_t took_ns) ABSL_LOCKS_EXCLUDED(mutex_);
  ModelTotals Read(const Key& model) const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Entry {
    ModelTotals totals;
    int64_t used = 0;  // The number of its last use.
  };
  ModelTotals& At(const Key& model) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;
  ModelTotals gemm_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<RandomId, Entry> tensors_ ABSL_GUARDED_BY(mutex_);
  int64_t uses_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace gemmd
