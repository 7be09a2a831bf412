// SPDX-License-Identifier: Apache-2.0
//
// The values of a request's or an answer's matrices, one by one, whatever their layout.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "gemmd/element_codec.h"
#include "gemmd/v1/gemm.pb.h"

namespace gemmd {

// Reads op(X), a sparse one as the dense one that it stands for. Borrows the message.
// Precondition: the bytes are those of the layout, as BuildRequest and MultiplyResult::FromResponse
// check.
class MatrixReader {
 public:
  // `rows` and `columns` of op(X).
  MatrixReader(const v1::Operand& operand, v1::ElementType type, int64_t rows, int64_t columns);
  explicit MatrixReader(const v1::Matrix& matrix);
  // A bias vector, as one row.
  MatrixReader(const v1::Bias& bias, v1::ElementType type);

  double At(int64_t batch, int64_t row, int64_t column) const {
    const int64_t line = by_columns_ ? column : row;
    const int64_t index = by_columns_ ? row : column;
    const int64_t offset = batch * matrix_stride_bytes_ + line * line_stride_bytes_;
    const uint64_t pattern = LoadElement(type_, data_.substr(static_cast<size_t>(offset)), index);
    return values_.empty() ? ElementValue(type_, pattern) : values_[pattern];
  }

 private:
  void Prepare(int64_t leading_dimension);

  v1::ElementType type_;
  std::shared_ptr<const std::string> expanded_;  // The dense form of a sparse operand.
  absl::string_view data_;
  bool by_columns_;  // A line is a column of op(X).
  int64_t line_stride_bytes_ = 0;
  int64_t matrix_stride_bytes_ = 0;
  std::vector<double> values_;  // By pattern, for types of at most 16 bits.
};

}  // namespace gemmd
