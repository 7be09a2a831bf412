// SPDX-License-Identifier: Apache-2.0
//
// The product that a ModelInferRequest asks for. What KServe has words of its own for is checked
// here: names, datatypes and how extents fit each other. All else is checked where every product
// is.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gemmd/v1/gemm.pb.h"
#include "server/kserve/infer_message.h"
#include "server/kserve/infer_places.h"
#include "server/kserve/models.h"
#include "server/wire/held_fields.h"
#include "server/wire/receive_quota.h"

namespace gemmd {

// What an answer needs to know of its request, beside the product.
struct InferAsked {
  InferPlaces places;
  bool has_batch = false;  // D has a first extent for it.
  int64_t timeout_ns = 0;  // From the arrival; 0: none.
};

// Brings the contents of the inputs into the form in which ConvertInfer takes them, and returns the
// most bytes that it takes beside the message. Errors: InvalidArgument too many numbers that are to
// be decoded.
absl::StatusOr<int64_t> PrepareContents(InferMessage& message);

// Fills the request of the product. Long contents stay in their slices, with `held`, which borrows
// the quota. Errors: InvalidArgument, which names the field of the ModelInferRequest; Unimplemented
// what only other servers have.
absl::StatusOr<InferAsked> ConvertInfer(InferMessage& message, const Model& model,
                                        ReceiveQuota& quota, v1::MultiplyRequest& product,
                                        HeldFields& held);

}  // namespace gemmd
