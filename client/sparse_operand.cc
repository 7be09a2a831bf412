// SPDX-License-Identifier: Apache-2.0
#include "client/sparse_operand.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/operand_size.h"
#include "gemmd/element_codec.h"
#include "gemmd/element_type.h"
#include "gemmd/v1/tensors.pb.h"
#include "kernels/matrix/status.h"

namespace gemmd {
namespace {

constexpr size_t kMaxElements = 8;  // In a group.
constexpr size_t kMaxUnits = 4;

// Elements of op(X) by row and column; zero beyond the last column.
class DenseReader {
 public:
  DenseReader(const MatrixView& view, int64_t matrix)
      : type_(view.type),
        by_columns_((view.order == v1::ORDER_COLUMN_MAJOR) != view.transpose),
        rows_(view.transpose ? view.columns : view.rows),
        columns_(view.transpose ? view.rows : view.columns),
        line_bytes_(*PackedLineBytes(type_, by_columns_ ? rows_ : columns_)) {
    const int64_t matrix_bytes = line_bytes_ * (by_columns_ ? columns_ : rows_);
    const absl::string_view all(reinterpret_cast<const char*>(view.data.data()), view.data.size());
    data_ =
        all.substr(static_cast<size_t>(matrix * matrix_bytes), static_cast<size_t>(matrix_bytes));
  }

  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }
  uint64_t At(int64_t row, int64_t column) const {
    if (column >= columns_) return 0;
    const int64_t line = by_columns_ ? column : row;
    return LoadElement(type_, data_.substr(static_cast<size_t>(line * line_bytes_)),
                       by_columns_ ? row : column);
  }

 private:
  v1::ElementType type_;
  bool by_columns_;
  int64_t rows_;
  int64_t columns_;
  int64_t line_bytes_;
  absl::string_view data_;
};

// The weight of a unit in pruning. NaN is larger than infinity.
struct UnitWeight {
  int nonzeros = 0;
  bool has_nan = false;
  double magnitude = 0;

  bool IsLessThan(const UnitWeight& other) const {
    if (has_nan != other.has_nan) return other.has_nan;
    return magnitude < other.magnitude;
  }
};

// One group of a row, while it is compressed.
class Group {
 public:
  Group(v1::ElementType type, const SparseGroup& shape) : type_(type), shape_(shape) {}

  void Load(const DenseReader& dense, int64_t row, int64_t group) {
    weights_ = {};
    for (int i = 0; i < shape_.elements(); ++i) {
      const uint64_t pattern = dense.At(row, group * shape_.elements() + i);
      elements_[static_cast<size_t>(i)] = pattern;
      const double value = ElementValue(type_, pattern);
      UnitWeight& weight = weights_[static_cast<size_t>(i / shape_.unit)];
      weight.nonzeros += value != 0 ? 1 : 0;
      weight.has_nan = weight.has_nan || std::isnan(value);
      if (!std::isnan(value)) weight.magnitude += std::fabs(value);
    }
  }

  int nonzeros() const {
    int count = 0;
    for (const UnitWeight& weight : weights_) count += weight.nonzeros;
    return count;
  }
  int nonzero_units() const {
    return static_cast<int>(std::count_if(weights_.begin(), weights_.end(), IsNonzero));
  }

  // Zeroes the smallest units beyond the number kept; returns the number of nonzero elements
  // dropped.
  int Prune() {
    int dropped = 0;
    while (nonzero_units() > shape_.kept_units()) {
      size_t smallest = kMaxUnits;
      for (size_t i = 0; i < static_cast<size_t>(shape_.units); ++i) {
        if (!IsNonzero(weights_[i])) continue;
        const bool is_first = smallest == kMaxUnits;
        if (is_first || !weights_[smallest].IsLessThan(weights_[i])) smallest = i;
      }
      dropped += weights_[smallest].nonzeros;
      weights_[smallest] = {};
    }
    return dropped;
  }

  // Precondition: at most as many nonzero units as can be kept.
  void Store(int64_t group, char* values, char* indices) const {
    int zeros_kept = shape_.kept_units() - nonzero_units();
    int64_t target = group * shape_.kept_units();
    for (size_t i = 0; i < static_cast<size_t>(shape_.units); ++i) {
      if (!IsNonzero(weights_[i]) && zeros_kept-- <= 0) continue;
      StoreUnit(i, target, values);
      const auto byte = static_cast<size_t>(target / 4);
      indices[byte] = static_cast<char>(indices[byte] | static_cast<char>(i << target % 4 * 2));
      ++target;
    }
  }

 private:
  static bool IsNonzero(const UnitWeight& weight) { return weight.nonzeros > 0; }

  void StoreUnit(size_t unit, int64_t target, char* values) const {
    if (!IsNonzero(weights_[unit])) return;  // The output is already zero.
    const auto size = static_cast<size_t>(shape_.unit);
    for (size_t i = 0; i < size; ++i) {
      StoreElement(type_, elements_[unit * size + i],
                   target * shape_.unit + static_cast<int64_t>(i), values);
    }
  }

  v1::ElementType type_;
  SparseGroup shape_;
  std::array<uint64_t, kMaxElements> elements_ = {};
  std::array<UnitWeight, kMaxUnits> weights_;
};

// Compresses matrix after matrix into one operand.
class Compressor {
 public:
  Compressor(v1::ElementType type, const SparseRow& row, Pruning pruning)
      : row_(row), pruning_(pruning), group_(type, row.group) {}

  absl::Status Append(absl::string_view place, const DenseReader& dense) {
    const int64_t values_bytes = dense.rows() * row_.value_bytes;
    std::string matrix(static_cast<size_t>(values_bytes + dense.rows() * row_.index_bytes), 0);
    // A matrix without columns may have any number of rows.
    if (matrix.empty()) return absl::OkStatus();
    for (int64_t row = 0; row < dense.rows(); ++row) {
      char* values = matrix.data() + row * row_.value_bytes;
      char* indices = matrix.data() + values_bytes + row * row_.index_bytes;
      for (int64_t i = 0; i < row_.groups; ++i) {
        group_.Load(dense, row, i);
        const bool fits = group_.nonzero_units() <= row_.group.kept_units();
        if (!fits && pruning_ == Pruning::kNone) return Refuse(place, row, i);
        operand_.nonzeros += group_.nonzeros();
        operand_.dropped += group_.Prune();
        group_.Store(i, values, indices);
      }
    }
    operand_.data += matrix;
    return absl::OkStatus();
  }

  const SparseOperand& operand() const { return operand_; }

 private:
  absl::Status Refuse(absl::string_view place, int64_t row, int64_t group) const {
    return absl::InvalidArgumentError(
        absl::StrCat(place, ": row ", row, ", group ", group, ": got ", group_.nonzero_units(),
                     row_.group.unit == 2 ? " nonzero pairs" : " nonzero elements",
                     ", want at most ", row_.group.kept_units()));
  }

  SparseRow row_;
  Pruning pruning_;
  Group group_;
  SparseOperand operand_;
};

}  // namespace

absl::StatusOr<SparseOperand> CompressOperand(absl::string_view field, const MatrixView& dense,
                                              int64_t batch, Pruning pruning) {
  const OperandShape shape = {.type = dense.type,
                              .rows = dense.transpose ? dense.columns : dense.rows,
                              .columns = dense.transpose ? dense.rows : dense.columns,
                              .sparsity = v1::SPARSITY_2_4};
  RETURN_IF_ERROR(SizeOperand(field, shape).status());
  const SparseRow row = *SparseRowOf(shape.type, shape.columns);
  const int64_t matrices = dense.batch_stride.has_value() ? std::min<int64_t>(1, batch) : batch;
  Compressor compressor(shape.type, row, pruning);
  for (int64_t i = 0; i < matrices; ++i) {
    const std::string place =
        matrices == 1 ? absl::StrCat(field, ".data") : absl::StrCat(field, ".data: matrix ", i);
    RETURN_IF_ERROR(compressor.Append(place, DenseReader(dense, i)));
  }
  return compressor.operand();
}

std::string ExpandOperand(const v1::Operand& sparse, int64_t rows, int64_t columns) {
  const v1::ElementType type = sparse.type();
  const SparseRow row = *SparseRowOf(type, columns);
  const SparseGroup& group = row.group;
  const int64_t matrix_bytes = rows * (row.value_bytes + row.index_bytes);
  const int64_t dense_line_bytes = *PackedLineBytes(type, columns);
  const absl::string_view data = sparse.data();
  const int64_t matrices = matrix_bytes == 0 ? 0 : static_cast<int64_t>(data.size()) / matrix_bytes;
  std::string dense(static_cast<size_t>(matrices * rows * dense_line_bytes), 0);
  for (int64_t i = 0; i < matrices * rows; ++i) {
    const int64_t matrix = i / rows * matrix_bytes;
    const int64_t values = matrix + i % rows * row.value_bytes;
    const int64_t indices = matrix + rows * row.value_bytes + i % rows * row.index_bytes;
    for (int64_t kept = 0; kept < row.groups * group.elements() / 2; ++kept) {
      const int64_t unit = kept / group.unit;
      const int byte = data[static_cast<size_t>(indices + unit / 4)];
      const int64_t index = byte >> unit % 4 * 2 & 3;
      const int64_t column =
          (unit / group.kept_units() * group.units + index) * group.unit + kept % group.unit;
      if (column >= columns) continue;
      StoreElement(type, LoadElement(type, data.substr(static_cast<size_t>(values)), kept), column,
                   dense.data() + i * dense_line_bytes);
    }
  }
  return dense;
}

}  // namespace gemmd
