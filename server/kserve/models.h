// SPDX-License-Identifier: Apache-2.0
//
// What KServe calls models: the product itself, and each of a caller's resident tensors that may be
// a B. Nothing is told of somebody else's tensors, not even that they are there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gemmd/v1/gemm.pb.h"
#include "kserve/v2/inference.pb.h"
#include "server/product/counts.h"
#include "server/store/digest.h"
#include "server/store/tensor_store.h"
#include "server/system/mutex.h"
#include "server/trust/identity.h"

namespace gemmd {

inline constexpr std::string_view kGemmModel = "gemm";
inline constexpr std::string_view kModelVersion = "1";

// In whose name models are looked for.
struct ModelUser {
  std::string session;                     // The token; empty where there is none.
  std::shared_ptr<const Identity> caller;  // Null where there are no rules.
};

struct Model {
  std::string name;
  std::shared_ptr<const Tensor> b;  // Null: the request brings its own.

  // The tensor's own, whatever becomes of its name.
  std::optional<RandomId> handle() const {
    return b == nullptr ? std::nullopt : std::optional<RandomId>(b->handle);
  }
};

class Models {
 public:
  // Borrows it.
  explicit Models(TensorStore& store) : store_(store) {}

  // Errors: InvalidArgument a name of too many bytes; NotFound, in the same words for all that the
  // user does not have; FailedPrecondition a sparse tensor of the user's.
  absl::StatusOr<Model> Find(const ModelUser& user, std::string_view name,
                             std::string_view version) const;

  // `gemm`, then the user's tensors that have a name, in its order; sparse ones too.
  std::vector<Model> List(const ModelUser& user) const;

 private:
  absl::StatusOr<TensorStore::SessionUse> SessionOf(const ModelUser& user) const;

  TensorStore& store_;
};

// Why a model of the list does not serve; OK where it does.
absl::Status CheckServes(const Model& model);

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

// What the products of each model have taken, as clients of KServe ask for it: the counts of all
// parts of one model are of the same moment.
class ModelCounts {
 public:
  // Tensors that are counted; of more, those are forgotten that were used the longest ago.
  static constexpr size_t kMaxTensors = 1024;

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

// These tell of models in the words of KServe's messages.
inference::ModelMetadataResponse MetadataOf(const Model& model);
inference::ModelConfigResponse ConfigOf(const Model& model);
inference::ModelStatistics StatisticsOf(const Model& model, const ModelTotals& totals);
inference::RepositoryIndexResponse IndexOf(const std::vector<Model>& models, bool only_ready);

}  // namespace gemmd
