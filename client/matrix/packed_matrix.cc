// SPDX-License-Identifier: Apache-2.0
#include "client/matrix/packed_matrix.h"

#include <algorithm>
#include <cmath>

#include "client/operand_size.h"
#include "gemmd/element_codec.h"
#include "gemmd/element_type.h"

namespace gemmd {

std::optional<int64_t> CountOf(const std::vector<int64_t>& shape) {
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  int64_t count = 1;
  for (const int64_t extent : shape) {
    if (__builtin_mul_overflow(count, extent, &count)) return std::nullopt;
  }
  return count;
}

PackedMatrix PackedTensor(v1::ElementType type, const std::vector<int64_t>& shape, v1::Order order,
                          absl::string_view data) {
  const size_t dimensions = shape.size();
  if (dimensions < 1 || dimensions > 3) {
    return {.type = type, .rows = 1, .columns = CountOf(shape).value_or(0), .data = data};
  }
  return {.type = type,
          .batch = dimensions == 3 ? shape[0] : 1,
          .rows = dimensions >= 2 ? shape[dimensions - 2] : 1,
          .columns = shape.back(),
          .order = dimensions >= 2 ? order : v1::ORDER_ROW_MAJOR,
          .data = data};
}

PackedMatrix PackedArray(const NpyArray& array, absl::string_view data) {
  return PackedTensor(array.type, array.shape, array.order, data);
}

namespace {

// Finds the place of an element from its index in row-major order over all matrices.
class Places {
 public:
  struct Place {
    size_t first_byte;  // Where the element's line begins.
    int64_t index;      // In its line.
  };

  explicit Places(const PackedMatrix& matrix)
      : batch_(matrix.batch),
        rows_(matrix.rows),
        columns_(matrix.columns),
        by_columns_(matrix.order == v1::ORDER_COLUMN_MAJOR),
        lines_(by_columns_ ? columns_ : rows_),
        line_bytes_(PackedLineBytes(matrix.type, by_columns_ ? rows_ : columns_).value_or(0)) {}

  Place At(int64_t element) const {
    const int64_t column = element % columns_;
    const int64_t row = element / columns_ % rows_;
    const int64_t matrix = element / columns_ / rows_;
    const int64_t line = matrix * lines_ + (by_columns_ ? column : row);
    return {static_cast<size_t>(line * line_bytes_), by_columns_ ? row : column};
  }

  int64_t elements() const { return batch_ * rows_ * columns_; }
  int64_t bytes() const { return batch_ * lines_ * line_bytes_; }

 private:
  int64_t batch_;
  int64_t rows_;
  int64_t columns_;
  bool by_columns_;
  int64_t lines_;  // Lines per matrix.
  int64_t line_bytes_;
};

// Converts single elements and counts outcomes.
class Converter {
 public:
  Converter(v1::ElementType from, v1::ElementType to, ConversionCounts& counts)
      : from_(from), to_(to), counts_(counts) {
    if (ElementBits(from) > 16) return;
    for (uint64_t pattern = 0; pattern < uint64_t{1} << ElementBits(from); ++pattern) {
      known_.push_back(Convert(pattern));
    }
  }

  uint64_t operator()(uint64_t pattern) {
    const Result result = known_.empty() ? Convert(pattern) : known_[pattern];
    if (result.counter != nullptr) ++(counts_.*result.counter);
    return result.pattern;
  }

 private:
  struct Result {
    uint64_t pattern;
    int64_t ConversionCounts::*counter;  // Null if the value is preserved.
  };

  Result Convert(uint64_t pattern) const {
    const double value = ElementValue(from_, pattern);
    // With equal types, every bit is kept, including NaN payloads.
    const uint64_t converted = from_ == to_ ? pattern : ElementPattern(to_, value);
    const double after = ElementValue(to_, converted);
    if (std::isnan(value)) {
      return {converted, std::isnan(after) ? &ConversionCounts::nan : &ConversionCounts::nan_lost};
    }
    if (after == value) return {converted, nullptr};
    if (std::isinf(after)) return {converted, &ConversionCounts::infinite};
    return {converted,
            ExceedsRange(to_, value) ? &ConversionCounts::saturated : &ConversionCounts::rounded};
  }

  v1::ElementType from_;
  v1::ElementType to_;
  ConversionCounts& counts_;
  std::vector<Result> known_;  // By pattern, for types of at most 16 bits.
};

}  // namespace

std::string ConvertElements(const PackedMatrix& input, const PackedMatrix& output,
                            ConversionCounts& counts) {
  // Empty matrices may have so many lines that the total overflows 63 bits.
  if (input.batch == 0 || input.rows == 0 || input.columns == 0) return "";
  const Places sources(input);
  const Places targets(output);
  std::string data(static_cast<size_t>(targets.bytes()), '\0');
  Converter convert(input.type, output.type, counts);
  for (int64_t i = 0; i < sources.elements(); ++i) {
    const Places::Place source = sources.At(i);
    const Places::Place target = targets.At(i);
    const uint64_t pattern =
        LoadElement(input.type, input.data.substr(source.first_byte), source.index);
    StoreElement(output.type, convert(pattern), target.index, data.data() + target.first_byte);
  }
  return data;
}

}  // namespace gemmd
