// SPDX-License-Identifier: Apache-2.0
//
// Copies a matrix that lies in pieces to one place.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "server/device/job.h"

namespace gemmd {

// From so many bytes on, several threads copy: one alone does not use the memory's bandwidth, but
// starting another takes as long as copying some hundred kilobytes.
inline constexpr int64_t kParallelCopyBytes = int64_t{8} << 20;

// Copies the pieces one after the other to `to`, which has room for all, and tells their keeper of
// those that are copied. At most `threads` threads copy, this one among them. `is_aborted` is asked
// every few milliseconds, by any of them.
// False where it said so; the rest is then not copied.
bool CopyPieces(const Source& source, std::byte* to, int threads,
                absl::FunctionRef<bool()> is_aborted);

}  // namespace gemmd
