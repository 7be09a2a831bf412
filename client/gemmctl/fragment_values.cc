// SPDX-License-Identifier: Apache-2.0
#include "client/gemmctl/fragment_values.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/operand_size.h"
#include "gemmd/element_codec.h"
#include "gemmd/element_type.h"
#include "gemmd/v1/tensors.pb.h"

namespace gemmd {

absl::StatusOr<FragmentValues> ValuesOf(const v1::DescribeFragmentResponse& fragment,
                                        const NpyArray& matrix) {
  if (ElementBits(fragment.type()) == 0) {
    return absl::InvalidArgumentError("--values: got a matrix for metadata, want --operand a to d");
  }
  if (matrix.shape.size() != 2 || matrix.shape[0] < fragment.rows() ||
      matrix.shape[1] < fragment.columns()) {
    const std::string got = matrix.shape.size() == 2
                                ? absl::StrCat(matrix.shape[0], " x ", matrix.shape[1])
                                : absl::StrCat("an array of ", matrix.shape.size(), " dimensions");
    return absl::InvalidArgumentError(absl::StrCat("--values: got ", got, ", want a matrix of ",
                                                   fragment.rows(), " x ", fragment.columns(),
                                                   " or more"));
  }
  const bool is_by_columns = matrix.order == v1::ORDER_COLUMN_MAJOR;
  const int64_t line_bytes =
      PackedLineBytes(matrix.type, matrix.shape[is_by_columns ? 0 : 1]).value_or(0);
  FragmentValues values = {.type = fragment.type(), .columns = fragment.columns()};
  for (int64_t row = 0; row < fragment.rows(); ++row) {
    for (int64_t column = 0; column < fragment.columns(); ++column) {
      int64_t line = row;
      int64_t index = column;
      if (is_by_columns) std::swap(line, index);
      const absl::string_view bytes(matrix.data);
      const uint64_t pattern =
          LoadElement(matrix.type, bytes.substr(static_cast<size_t>(line * line_bytes)), index);
      values.patterns.push_back(
          matrix.type == values.type
              ? pattern
              : ElementPattern(values.type, ElementValue(matrix.type, pattern)));
    }
  }
  return values;
}

}  // namespace gemmd
