// SPDX-License-Identifier: Apache-2.0
//
// cuBLASLt as an opponent: the fastest of the algorithms that its heuristics propose, each timed.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/bench/gpu/library.h"

namespace gemmd::bench {

// Loads the library from `path`, or from the loader's or the toolkit's path.
//
// Its opponents multiply the same operands, of the same layouts, into the same type of D; fp8 with
// fast accumulation. Sums for an f16 D are f16 or f32, whichever is faster. Errors: NotFound if
// there is no library; Internal if it fails to start.
absl::StatusOr<std::unique_ptr<Library>> LoadCublasLt(const std::string& path);

}  // namespace gemmd::bench
