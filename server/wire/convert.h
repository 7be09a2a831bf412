// SPDX-License-Identifier: Apache-2.0
//
// From the wire's requests to the words of kernels/. Requests are validated here and nowhere
// else in the server; a parsed request is a valid problem with every byte in place.
#pragma once

#include "absl/status/status.h"
#include "gemmd/v1/gemm.pb.h"
#include "server/scheduling/product.h"
#include "server/wire/held_fields.h"

namespace gemmd {

// Errors: InvalidArgument, as the wire contract says: "field: got X, want Y"; NotFound for an
// unknown kernel.
//
// `held` has the bytes of operands that the request itself has not; the product, which must be new,
// borrows both. Null: the bytes of the operands are not looked at, nor need they be there.
absl::Status ParseMultiply(const v1::MultiplyRequest& request, const HeldFields* held,
                           Product& product);

}  // namespace gemmd
