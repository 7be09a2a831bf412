// SPDX-License-Identifier: Apache-2.0
//
// cuBLASLt as an opponent: the best of what its heuristics propose, each timed.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/bench/gpu/library.h"

namespace gemmd::bench {

// From `path`, or where the loader and the toolkit have it.
//
// Its opponents multiply the same operands, of the same layouts, into the same type of D; fp8 with
// fast accumulation. An f16 D is added up in f16 or in f32, whichever is faster.
// Errors: NotFound where there is no library; Internal where it does not start.
absl::StatusOr<std::unique_ptr<Library>> LoadCublasLt(const std::string& path);

}  // namespace gemmd::bench
