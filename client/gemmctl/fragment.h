// SPDX-License-Identifier: Apache-2.0
//
// Which lane of an instruction holds which elements of a matrix: grids, as text for a terminal and
// as a picture.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/matrix/npy.h"
#include "gemmd/v1/instructions.pb.h"
#include "gemmd/v1/tensors.pb.h"

namespace gemmd {

// The elements of a matrix at the places of a fragment.
struct FragmentValues {
  v1::ElementType type = v1::ELEMENT_TYPE_UNSPECIFIED;
  int columns = 0;
  std::vector<uint64_t> patterns = {};  // Row by row.

  uint64_t At(int row, int column) const {
    return patterns[static_cast<size_t>(row) * static_cast<size_t>(columns) +
                    static_cast<size_t>(column)];
  }
};

// The upper left part of the matrix, of the operand's size, rounded to the operand's type if that
// differs. Errors: InvalidArgument for an array that does not have 2 dimensions or is too small,
// and for metadata.
absl::StatusOr<FragmentValues> ValuesOf(const v1::DescribeFragmentResponse& fragment,
                                        const NpyArray& matrix);

// A fragment as a grid of the matrix, as the figures of the PTX manual show it: each cell names the
// lane and the elements of its fragment that lie there. Elements that are neighbours in both the
// matrix and the lane share a cell, if that holds everywhere.

struct FragmentCell {
  int lane = 0;       // The first lane that holds it.
  std::string label;  // "T0:{a0,a1}", "T0:[15:0]".
  std::string
      hint;  // A line for each element: "[0, 1]: a1 of lane 0, bits 31 to 16 of register 0".
  std::vector<std::string> values;  // Values of its elements, if a matrix was given.
};

struct FragmentGrid {
  std::string title;                 // "A: 16 x 16 f16, 4 registers in each of 32 lanes".
  std::vector<std::string> rows;     // Headings: "0", "0..1".
  std::vector<std::string> columns;  // Headings, as for rows.
  std::vector<std::vector<FragmentCell>> cells;  // By row, then column.
};

// One grid for each of the instruction's independent products. `name`, such as "A", goes into the
// title. With `values`, each cell has its elements of a matrix; null: none. Errors: Internal if the
// answer does not cover every place of the matrix, or lanes differ in their number of elements.
absl::StatusOr<std::vector<FragmentGrid>> MakeGrids(const v1::DescribeFragmentResponse& fragment,
                                                    const std::string& name,
                                                    const FragmentValues* values = nullptr);

// An aligned grid under its title, cut into parts of at most 120 characters a line.
// With colours (ANSI), lanes of one quad have one colour.
std::string GridText(const FragmentGrid& grid, bool has_colours);

// One SVG file with the grids below each other, cells coloured by lane; it is self-contained.
std::string GridsSvg(const std::string& title, const std::vector<FragmentGrid>& grids);

}  // namespace gemmd
