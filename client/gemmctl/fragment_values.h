// SPDX-License-Identifier: Apache-2.0
//
// The elements of a matrix where a fragment holds them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "client/matrix/npy.h"
#include "gemmd/v1/instructions.pb.h"
#include "gemmd/v1/tensors.pb.h"

namespace gemmd {

struct FragmentValues {
  v1::ElementType type = v1::ELEMENT_TYPE_UNSPECIFIED;
  int columns = 0;
  std::vector<uint64_t> patterns = {};  // Row by row.

  uint64_t At(int row, int column) const {
    return patterns[static_cast<size_t>(row) * static_cast<size_t>(columns) +
                    static_cast<size_t>(column)];
  }
};

// The upper left part of the matrix, as large as the operand is as it is held, rounded to its type
// where that is another one.
// Errors: InvalidArgument for an array of other than 2 dimensions, one that is too small, and for
// metadata.
absl::StatusOr<FragmentValues> ValuesOf(const v1::DescribeFragmentResponse& fragment,
                                        const NpyArray& matrix);

}  // namespace gemmd
