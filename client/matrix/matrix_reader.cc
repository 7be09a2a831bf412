// SPDX-License-Identifier: Apache-2.0
#include "client/matrix/matrix_reader.h"

#include "client/sparse_operand.h"
#include "gemmd/element_type.h"

namespace gemmd {

MatrixReader::MatrixReader(const v1::Operand& operand, v1::ElementType type, int64_t rows,
                           int64_t columns)
    : type_(type),
      data_(operand.data()),
      by_columns_((operand.order() == v1::ORDER_COLUMN_MAJOR) != operand.transpose()) {
  const int64_t length = by_columns_ ? rows : columns;
  const int64_t lines = by_columns_ ? columns : rows;
  Prepare(operand.leading_dimension() != 0 ? operand.leading_dimension() : length);
  matrix_stride_bytes_ = operand.has_batch_stride()
                             ? operand.batch_stride() * ElementBits(type_) / 8
                             : lines * line_stride_bytes_;
  if (operand.sparsity() == v1::SPARSITY_NONE) return;
  expanded_ = std::make_shared<const std::string>(ExpandOperand(operand, rows, columns));
  data_ = *expanded_;
}

MatrixReader::MatrixReader(const v1::Matrix& matrix)
    : type_(matrix.type()),
      data_(matrix.data()),
      by_columns_(matrix.order() == v1::ORDER_COLUMN_MAJOR),
      matrix_stride_bytes_(matrix.batch_stride()) {
  Prepare(matrix.leading_dimension());
}

MatrixReader::MatrixReader(const v1::Bias& bias, v1::ElementType type)
    : type_(type), data_(bias.data()), by_columns_(false) {
  Prepare(0);
}

void MatrixReader::Prepare(int64_t leading_dimension) {
  const int bits = ElementBits(type_);
  line_stride_bytes_ = (leading_dimension * bits + 7) / 8;
  if (bits > 16) return;
  for (uint64_t pattern = 0; pattern < uint64_t{1} << bits; ++pattern) {
    values_.push_back(ElementValue(type_, pattern));
  }
}

}  // namespace gemmd
