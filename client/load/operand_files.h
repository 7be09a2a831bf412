// SPDX-License-Identifier: Apache-2.0
//
// Operands of a load that come from .npy files instead of a generator.
#pragma once

#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/load/mix.h"
#include "client/matrix/npy.h"

namespace gemmd {

struct GivenOperands {
  std::optional<NpyArray> a = {};
  std::optional<NpyArray> b = {};
};

// Reads the files that the product names, and fills in what it leaves open (0): its sizes, its
// batch and its type. Its type, where it has one, tells what narrow types a file holds. Errors:
// NotFound or InvalidArgument where a file cannot be used, does not fit the product or the other
// file, or where a size stays open.
absl::StatusOr<GivenOperands> ReadOperands(LoadProduct& product);

}  // namespace gemmd
