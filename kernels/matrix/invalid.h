// SPDX-License-Identifier: Apache-2.0
//
// The refusal of an argument.
#pragma once

#include "absl/status/status.h"
#include "kernels/matrix/text.h"

namespace gemmd {

// "field: got X, want Y", from texts or numbers. CUDA sources include text.h, and need no Abseil.
template <typename Field, typename Got, typename Want>
absl::Status Invalid(const Field& field, const Got& got, const Want& want) {
  return absl::InvalidArgumentError(Concat(field, ": got ", got, ", want ", want));
}

}  // namespace gemmd
