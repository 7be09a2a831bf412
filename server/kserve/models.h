// SPDX-License-Identifier: Apache-2.0
//
// What KServe calls models: the product itself, and each of a caller's resident tensors that may be
// a B. Of what is somebody else's nothing is told, not even that it is there.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/store/tensor_store.h"
#include "server/trust/identity.h"

namespace gemmd {

inline constexpr std::string_view kGemmModel = "gemm";
inline constexpr std::string_view kModelVersion = "1";

// In whose name models are looked for.
struct ModelUser {
  std::string session;                     // The token; empty where there is none.
  std::shared_ptr<const Identity> caller;  // Null where callers are known by their host alone.
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

}  // namespace gemmd
