// SPDX-License-Identifier: Apache-2.0
//
// cuSPARSELt as an opponent of kernels with a sparse A: the fastest algorithm of its own search.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/bench/gpu/library.h"

namespace gemmd::bench {

// Loads the library from `path`, or from the loader's path. Its opponents multiply the same A,
// compressed by the library beforehand. D has the problem's type or, if the library does not
// support that, the operands' type (for fp8: f16); how() says so. Errors: NotFound if there is no
// library; Internal if it fails to start.
absl::StatusOr<std::unique_ptr<Library>> LoadCusparseLt(const std::string& path);

}  // namespace gemmd::bench
