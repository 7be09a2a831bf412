// SPDX-License-Identifier: Apache-2.0
//
// The models of KServe: the product itself, and each of a caller's resident tensors that can be a
// B. Nothing is revealed about other callers' tensors, not even that they exist.
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

// The user for whom models are looked up.
struct ModelUser {
  std::string session;                     // The token; empty if there is none.
  std::shared_ptr<const Identity> caller;  // Null if there are no rules.
};

struct Model {
  std::string name;
  std::shared_ptr<const Tensor> b;  // Null: the request has its own.

  // The tensor's own handle, even if its name changes.
  std::optional<RandomId> handle() const {
    return b == nullptr ? std::nullopt : std::optional<RandomId>(b->handle);
  }
};

class Models {
 public:
  // Borrows it.
  explicit Models(TensorStore& store) : store_(store) {}

  // Errors: InvalidArgument for a name that is too long; NotFound, with the same message for
  // everything that the user does not have; FailedPrecondition for a sparse tensor of the user.
  absl::StatusOr<Model> Find(const ModelUser& user, std::string_view name,
                             std::string_view version) const;

  // `gemm`, then the user's named tensors, sorted by name; also sparse ones.
  std::vector<Model> List(const ModelUser& user) const;

 private:
  absl::StatusOr<TensorStore::SessionUse> SessionOf(const ModelUser& user) const;

  TensorStore& store_;
};

// The reason why a listed model cannot serve; OK if it can.
absl::Status CheckServes(const Model& model);

// A number of durations, and their sum.
struct DurationSum {
  int64_t count = 0;
  int64_t ns = 0;

  void Add(int64_t duration_ns) {
    ++count;
    ns = SaturatingSum(ns, duration_ns);
  }
};

struct ModelTotals {
  int64_t last_ms = 0;   // Since 1970; 0 if there was none.
  int64_t matrices = 0;  // Matrices of D.
  DurationSum success;
  DurationSum fail;
  DurationSum queue;
  DurationSum copy_in;
  DurationSum compute;
  DurationSum copy_out;
};

// Counts and durations of the products of each model, for clients of KServe. All counts of one
// model are consistent.
class ModelCounts {
 public:
  // Max tensors with counts; beyond that, the least recently used are forgotten.
  static constexpr size_t kMaxTensors = 1024;

  // `model` is the handle of the tensor that is the model's B; nullopt is the product itself.
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

// These describe models in KServe's messages.
inference::ModelMetadataResponse MetadataOf(const Model& model);
inference::ModelConfigResponse ConfigOf(const Model& model);
inference::ModelStatistics StatisticsOf(const Model& model, const ModelTotals& totals);
inference::RepositoryIndexResponse IndexOf(const std::vector<Model>& models, bool only_ready);

}  // namespace gemmd
