// SPDX-License-Identifier: Apache-2.0
//
// cuSPARSELt as an opponent of kernels with a sparse A: what its own search finds fastest.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/bench/gpu/library.h"

namespace gemmd::bench {

// From `path`, or where the loader has it.
//
// Its opponents multiply the same A, which the library compressed beforehand. D has the problem's
// type, or, where the library does not give it, the operands' own (for fp8: f16); how() says so.
// Errors: NotFound where there is no library; Internal where it does not start.
absl::StatusOr<std::unique_ptr<Library>> LoadCusparseLt(const std::string& path);

}  // namespace gemmd::bench
