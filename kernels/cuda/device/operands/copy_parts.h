// SPDX-License-Identifier: Apache-2.0
//
// Many ranges of a GPU's memory, copied by one launch.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/matrix/layout.h"

struct CUstream_st;  // What cudaStream_t points at.

namespace gemmd {

// Copies the parts on `stream`, without waiting. The list and everything that it points to are in
// memory of the current GPU, and no part exceeds `max_bytes`. No part overlaps the target of
// another.
absl::Status CopyPartsOnStream(const CopiedPart* parts, int64_t count, int64_t max_bytes,
                               CUstream_st* stream);

}  // namespace gemmd
