// SPDX-License-Identifier: Apache-2.0
//
// Products whose matrices are resident tensors, or parts of them.
#pragma once

#include <memory>
#include <string_view>

#include "absl/status/status.h"
#include "gemmd/v1/gemm.pb.h"
#include "server/scheduling/product.h"
#include "server/store/tensor_store.h"
#include "server/trust/identity.h"
#include "server/wire/held_fields.h"

namespace gemmd {

// In whose name a request names tensors.
struct TensorCaller {
  std::string_view token;
  const Identity* identity = nullptr;  // Null where callers are not known by name.
  // The session of the token, where it has been found before.
  std::shared_ptr<const TensorStore::SessionUse> session = nullptr;

  std::string_view name() const {
    return identity == nullptr ? std::string_view() : std::string_view(identity->name);
  }
};

// Parses a request as ParseMultiply does, which knows of no tensors: what it needs to be told of
// them is written into the request before, and the job is told where they are afterwards. Errors:
// those of ParseMultiply, and as Operand.tensor and OutputSpec of the wire contract;
// Unauthenticated where there are tensors but no session of this token that is the caller's;
// PermissionDenied where the rules allow the caller no tensors.
absl::Status ParseWithTensors(TensorStore& store, const TensorCaller& caller,
                              v1::MultiplyRequest& request, const HeldFields* held,
                              Product& product);

}  // namespace gemmd
