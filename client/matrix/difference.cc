// SPDX-License-Identifier: Apache-2.0
#include "client/matrix/difference.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/operand_size.h"
#include "gemmd/element_codec.h"
#include "gemmd/element_type.h"
#include "kernels/matrix/status.h"

namespace gemmd {
namespace {

// The rank of a float's magnitude, counted from zero: bit patterns ascend with magnitude.
uint64_t MagnitudeOf(v1::ElementType type, uint64_t pattern) {
  const uint64_t sign = uint64_t{1} << (ElementBits(type) - 1);
  constexpr int kIgnoredBitsOfTf32 = 13;
  return (pattern & (sign - 1)) >> (type == v1::ELEMENT_TYPE_TF32 ? kIgnoredBitsOfTf32 : 0);
}

bool IsNegative(v1::ElementType type, uint64_t pattern) {
  return (pattern >> (ElementBits(type) - 1) & 1) != 0;
}

// Precondition: neither is NaN, so that the sum of two magnitudes of f64 is below 2^64.
uint64_t FloatSteps(v1::ElementType type, uint64_t a, uint64_t b) {
  const uint64_t of_a = MagnitudeOf(type, a);
  const uint64_t of_b = MagnitudeOf(type, b);
  if (IsNegative(type, a) != IsNegative(type, b)) return of_a + of_b;
  return of_a > of_b ? of_a - of_b : of_b - of_a;
}

}  // namespace

ElementDistance DistanceOf(v1::ElementType type, uint64_t a, uint64_t b) {
  const double of_a = ElementValue(type, a);
  const double of_b = ElementValue(type, b);
  ElementDistance distance;
  // Equal infinities have the distance 0; their difference would be NaN.
  distance.absolute = of_a == of_b ? 0 : std::fabs(of_b - of_a);
  distance.relative = distance.absolute == 0 ? 0 : distance.absolute / std::fabs(of_a);
  if (std::isnan(of_a) || std::isnan(of_b)) return distance;
  distance.ulps = IsFloat(type) ? FloatSteps(type, a, b) : static_cast<uint64_t>(distance.absolute);
  return distance;
}

namespace {

// Both are positive, or x is 0. The usual (x + y - 1) / y could overflow.
int64_t CeilDivide(int64_t x, int64_t y) { return x / y + (x % y != 0 ? 1 : 0); }

}  // namespace

void DifferenceCell::Add(const ElementDistance& distance) {
  ++differing;
  if (!distance.ulps.has_value()) ++nan;
  max_ulps = std::max(max_ulps, distance.ulps.value_or(0));
}

void DifferenceCell::Add(const DifferenceCell& other) {
  differing += other.differing;
  nan += other.nan;
  max_ulps = std::max(max_ulps, other.max_ulps);
}

DifferenceMap::DifferenceMap(int64_t batch, int64_t rows, int64_t columns, int64_t max_down,
                             int64_t max_across)
    : batch_(batch),
      rows_(rows),
      columns_(columns),
      block_rows_(std::max<int64_t>(1, CeilDivide(rows, max_down))),
      block_columns_(std::max<int64_t>(1, CeilDivide(columns, max_across))),
      down_(CeilDivide(rows, block_rows_)),
      across_(CeilDivide(columns, block_columns_)),
      cells_(static_cast<size_t>(down_ * across_)) {}

void DifferenceMap::Add(int64_t row, int64_t column, const ElementDistance& distance) {
  const int64_t cell = row / block_rows_ * across_ + column / block_columns_;
  cells_[static_cast<size_t>(cell)].Add(distance);
}

const DifferenceCell& DifferenceMap::At(int64_t down, int64_t across) const {
  return cells_[static_cast<size_t>(down * across_ + across)];
}

DifferenceMap DifferenceMap::Flattened(int64_t times) const {
  DifferenceMap flat = *this;
  flat.block_rows_ *= times;
  flat.down_ = CeilDivide(down_, times);
  flat.cells_.assign(static_cast<size_t>(flat.down_ * across_), {});
  for (int64_t i = 0; i < down_; ++i) {
    for (int64_t j = 0; j < across_; ++j) {
      flat.cells_[static_cast<size_t>(i / times * across_ + j)].Add(At(i, j));
    }
  }
  return flat;
}

namespace {

std::string ShapeText(const PackedMatrix& x) {
  return absl::StrCat(x.batch == 1 ? "" : absl::StrCat(x.batch, " of "), x.rows, " x ", x.columns);
}

absl::Status CheckBytes(absl::string_view field, const PackedMatrix& x) {
  const OperandShape shape = {
      .type = x.type, .order = x.order, .rows = x.rows, .columns = x.columns, .batch = x.batch};
  return CheckOperandBytes(field, "rows*columns", shape, static_cast<int64_t>(x.data.size()));
}

absl::Status CheckPair(const PackedMatrix& a, const PackedMatrix& b) {
  if (a.type != b.type) {
    return absl::InvalidArgumentError(absl::StrCat(
        "b: got type ", ElementTypeName(b.type), ", want ", ElementTypeName(a.type), " as a has"));
  }
  if (a.batch != b.batch || a.rows != b.rows || a.columns != b.columns) {
    return absl::InvalidArgumentError(
        absl::StrCat("b: got ", ShapeText(b), ", want ", ShapeText(a), " as a has"));
  }
  const absl::Status status = CheckBytes("a", a);
  return status.ok() ? CheckBytes("b", b) : status;
}

// The lines of a matrix and their bytes.
class Lines {
 public:
  explicit Lines(const PackedMatrix& x)
      : by_columns_(x.order == v1::ORDER_COLUMN_MAJOR),
        count_(by_columns_ ? x.columns : x.rows),
        length_(by_columns_ ? x.rows : x.columns),
        bytes_(PackedLineBytes(x.type, length_).value_or(0)),
        data_(x.data) {}

  bool by_columns() const { return by_columns_; }
  int64_t count() const { return count_; }
  int64_t length() const { return length_; }
  absl::string_view At(int64_t batch, int64_t line) const {
    return data_.substr(static_cast<size_t>((batch * count_ + line) * bytes_),
                        static_cast<size_t>(bytes_));
  }

 private:
  bool by_columns_;
  int64_t count_;  // Lines per matrix.
  int64_t length_;
  int64_t bytes_;
  absl::string_view data_;
};

bool IsWorse(const ElementDistance& x, const ElementDistance& y) {
  if (!x.ulps.has_value() || !y.ulps.has_value()) {
    return !x.ulps.has_value() && y.ulps.has_value();
  }
  return *x.ulps > *y.ulps;
}

// Collects the differences.
class Collector {
 public:
  Collector(const PackedMatrix& shape, const CompareOptions& options) : options_(options) {
    found_.type = shape.type;
    found_.batch = shape.batch;
    found_.rows = shape.rows;
    found_.columns = shape.columns;
  }

  void Add(const DifferingElement& element) {
    ++found_.differing;
    const ElementDistance& distance = element.distance;
    if (distance.ulps.has_value()) {
      ++found_.by_ulps[static_cast<size_t>(std::bit_width(*distance.ulps))];
      found_.max_ulps = std::max(found_.max_ulps, *distance.ulps);
      found_.max_absolute = std::max(found_.max_absolute, distance.absolute);
      // No distance is relative to infinity: NaN is skipped.
      if (distance.relative > found_.max_relative) found_.max_relative = distance.relative;
    } else {
      ++found_.nan;
    }
    Rank(element);
    Place(element);
  }

  Difference Take(int64_t total) && {
    found_.total = total;
    return std::move(found_);
  }

 private:
  void Rank(const DifferingElement& element) {
    std::vector<DifferingElement>& worst = found_.worst;
    const auto worse = [](const DifferingElement& x, const DifferingElement& y) {
      return IsWorse(x.distance, y.distance);
    };
    const bool is_full = worst.size() >= options_.max_worst;
    if (is_full && (worst.empty() || !worse(element, worst.back()))) return;
    worst.insert(std::upper_bound(worst.begin(), worst.end(), element, worse), element);
    if (worst.size() > options_.max_worst) worst.pop_back();
  }

  void Place(const DifferingElement& element) {
    if (found_.matrices == 0 || last_batch_ != element.batch) {
      ++found_.matrices;
      last_batch_ = element.batch;
      if (found_.maps.size() < options_.max_maps) {
        found_.maps.emplace_back(element.batch, found_.rows, found_.columns, options_.max_cells,
                                 options_.max_cells);
      }
    }
    DifferenceMap* const map = found_.maps.empty() ? nullptr : &found_.maps.back();
    if (map == nullptr || map->batch() != element.batch) return;
    map->Add(element.row, element.column, element.distance);
  }

  const CompareOptions options_;
  Difference found_;
  int64_t last_batch_ = 0;
};

}  // namespace

absl::StatusOr<Difference> Compare(const PackedMatrix& a, const PackedMatrix& b,
                                   const CompareOptions& options) {
  RETURN_IF_ERROR(CheckPair(a, b));
  const bool is_empty = a.batch == 0 || a.rows == 0 || a.columns == 0;
  Collector collector(a, options);
  if (is_empty) return std::move(collector).Take(0);
  const Lines of_a(a);
  const Lines of_b(b);
  const bool is_one_order = of_a.by_columns() == of_b.by_columns();
  for (int64_t batch = 0; batch < a.batch; ++batch) {
    for (int64_t i = 0; i < of_a.count(); ++i) {
      const absl::string_view line = of_a.At(batch, i);
      if (is_one_order && line == of_b.At(batch, i)) continue;
      for (int64_t j = 0; j < of_a.length(); ++j) {
        const uint64_t x = LoadElement(a.type, line, j);
        const uint64_t y = is_one_order ? LoadElement(b.type, of_b.At(batch, i), j)
                                        : LoadElement(b.type, of_b.At(batch, j), i);
        if (x == y) continue;
        collector.Add({.batch = batch,
                       .row = of_a.by_columns() ? j : i,
                       .column = of_a.by_columns() ? i : j,
                       .a = x,
                       .b = y,
                       .distance = DistanceOf(a.type, x, y)});
      }
    }
  }
  return std::move(collector).Take(a.batch * a.rows * a.columns);
}

}  // namespace gemmd
