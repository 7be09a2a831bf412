// SPDX-License-Identifier: Apache-2.0
//
// The indices of a sparse tensor, looked at once, when it comes: products rely on them wherever its
// bytes are.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "server/store/tensor.h"

namespace gemmd {

class SparseCheck {
 public:
  // Borrows the tensor's bytes, all of which are there.
  SparseCheck(const TensorSpec& spec, const std::byte* bytes) : spec_(spec), bytes_(bytes) {}

  // Looks at rows of about so many bytes more, one at least. True once it has seen all.
  // Errors: InvalidArgument "chunk: matrix 1: row 3, group 17: got indices 2, 2, want increasing".
  absl::StatusOr<bool> Advance(int64_t most_bytes);

 private:
  const TensorSpec spec_;
  const std::byte* const bytes_;
  int64_t matrix_ = 0;
  int64_t row_ = 0;
};

}  // namespace gemmd
