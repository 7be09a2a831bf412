// SPDX-License-Identifier: Apache-2.0
//
// From the flags of `multiply` and `explain` to a request: reads files or makes random matrices.
#pragma once

#include "absl/status/statusor.h"
#include "client/gemmctl/product_flags.h"
#include "client/terminal/console.h"
#include "gemmd/client.h"
#include "gemmd/v1/gemm.pb.h"

namespace gemmd {

// Whether A, B or C is a tensor of the server, `@NAME`.
bool NamesTensors(const ProductFlags& flags);

// The request that the flags describe. Without `with_data` the bytes of A, B and C are left out,
// and random ones never made. `client` is asked for the shapes of tensors; it is not null where the
// flags name any.
//
// Errors: InvalidArgument or NotFound, for flags that contradict each other and files that cannot
// be used; the message begins with the flag or the path.
absl::StatusOr<v1::MultiplyRequest> ProductRequest(const ProductFlags& flags, bool with_data,
                                                   const Console& console, Client* client);

}  // namespace gemmd
