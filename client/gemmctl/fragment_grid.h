// SPDX-License-Identifier: Apache-2.0
//
// A fragment as a grid of the matrix, as the figures of the PTX manual show it: each cell names the
// lane and the elements of its fragment that lie there. Neighbours in the matrix that are
// neighbours in the lane share a cell, as far as they do so everywhere.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/gemmctl/fragment_values.h"
#include "gemmd/v1/instructions.pb.h"

namespace gemmd {

struct FragmentCell {
  int lane = 0;       // The first one that holds it.
  std::string label;  // "T0:{a0,a1}", "T0:[15:0]".
  std::string
      hint;  // A line for each element: "[0, 1]: a1 of lane 0, bits 31 to 16 of register 0".
  std::vector<std::string> values;  // Those of its elements, where a matrix was given.
};

struct FragmentGrid {
  std::string title;                 // "A: 16 x 16 f16, 4 registers in each of 32 lanes".
  std::vector<std::string> rows;     // Headings: "0", "0..1".
  std::vector<std::string> columns;  // Headings, as for rows.
  std::vector<std::vector<FragmentCell>> cells;  // By row, then column.
};

// One grid for each of the instruction's independent products. `name` is for the title: "A". With
// `values`, each cell has its elements of a matrix; null: none.
// Errors: Internal where the answer does not hold every place of the matrix, all lanes alike.
absl::StatusOr<std::vector<FragmentGrid>> MakeGrids(const v1::DescribeFragmentResponse& fragment,
                                                    const std::string& name,
                                                    const FragmentValues* values = nullptr);

}  // namespace gemmd
