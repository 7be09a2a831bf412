// SPDX-License-Identifier: Apache-2.0
#include "tests/kernels/faults.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/matrix/element.h"

namespace gemmd {
namespace {

constexpr uint64_t kAllBits = ~uint64_t{0};

// What happens to the bits of one element.
struct BitChange {
  uint64_t cleared = 0;
  uint64_t set = 0;
  uint64_t flipped = 0;

  uint64_t Of(uint64_t bits) const { return ((bits & ~cleared) | set) ^ flipped; }
};

// A mask of `count` bits of the type, or of all that it has.
uint64_t DrawBits(ElementType type, int64_t count, RandomSource& random) {
  uint64_t mask = 0;
  for (int64_t left = std::min<int64_t>(count, BitsOf(type)); left > 0;) {
    const uint64_t bit = uint64_t{1} << random.Between(0, BitsOf(type) - 1);
    left -= (mask & bit) == 0 ? 1 : 0;
    mask |= bit;
  }
  return mask;
}

BitChange DrawFlips(ElementType type, RandomSource& random) {
  const bool is_one_bit = random.Between(0, 9) < 4;
  return {.flipped = DrawBits(type, is_one_bit ? 1 : random.Between(2, 4), random)};
}

BitChange DrawStuckBit(ElementType type, RandomSource& random) {
  const uint64_t bit = DrawBits(type, 1, random);
  return random.Flip() ? BitChange{.set = bit} : BitChange{.cleared = bit};
}

BitChange DrawNonFinite(ElementType type, RandomSource& random) {
  if (!IsFloat(type)) return {.flipped = DrawBits(type, BitsOf(type), random)};
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const FloatFormat format = FactsOf(type).format;
  const bool is_nan = format.has_nan && random.Flip();
  uint64_t code = Encode(type, is_nan ? std::nan("") : random.Flip() ? kInfinity : -kInfinity);
  // Encode makes no infinity of an 8-bit type that has one.
  if (!is_nan && format.has_infinity && std::isfinite(Decode(type, code))) ++code;
  return {.cleared = kAllBits, .set = code};
}

// The elements that one lane holds in one place of its fragment of every tile of the matrix.
struct LanePlaces {
  mma::Position first;
  int rows = 1;
  int columns = 1;

  template <typename Visit>
  void ForEach(const ElementTable& table, const Visit& visit) const {
    for (int64_t row = first.row; row < table.rows(); row += rows) {
      for (int64_t column = first.column; column < table.columns(); column += columns) {
        visit(row, column);
      }
    }
  }
};

LanePlaces DrawLane(const mma::Instruction& instruction, mma::Operand operand,
                    RandomSource& random) {
  const auto lane = static_cast<int>(random.Between(0, instruction.lanes() - 1));
  const auto place =
      static_cast<int>(random.Between(0, mma::ElementsPerLane(instruction, operand) - 1));
  return {.first = mma::PositionOf(instruction, operand, lane, place),
          .rows = mma::RowsOf(instruction, operand),
          .columns = mma::ColumnsOf(instruction, operand)};
}

void Apply(const BitChange& change, ElementTable& table, int64_t row, int64_t column) {
  table.Store(row, column, change.Of(table.Load(row, column)));
}

// One element, `step` elements apart from the next if there are several.
void ApplyFrom(const BitChange& change, int64_t first, int64_t step, ElementTable& table) {
  for (int64_t i = first; i < table.rows() * table.columns(); i += step) {
    Apply(change, table, i / table.columns(), i % table.columns());
  }
}

void ApplyToLine(const BitChange& change, const mma::Instruction& instruction, mma::Operand operand,
                 bool is_row, ElementTable& table, RandomSource& random) {
  const int64_t row = random.Between(0, table.rows() - 1);
  const int64_t column = random.Between(0, table.columns() - 1);
  const int64_t length =
      is_row ? mma::ColumnsOf(instruction, operand) : mma::RowsOf(instruction, operand);
  const int64_t first = (is_row ? column : row) / length * length;
  const int64_t end = std::min(first + length, is_row ? table.columns() : table.rows());
  for (int64_t i = first; i < end; ++i) {
    Apply(change, table, is_row ? row : i, is_row ? i : column);
  }
}

// The sum of one element while the bit is stuck, or without it, as the bits of `type`.
class StuckSum {
 public:
  StuckSum(ElementType type, const BitChange& change) : type_(type), change_(change) {}

  void Add(double product) {
    sum_ += product;
    if (type_ == ElementType::kF32) sum_ = static_cast<float>(sum_);
    if (type_ != ElementType::kS32) return;
    const auto wrapped = static_cast<uint32_t>(static_cast<int64_t>(sum_));
    sum_ = static_cast<double>(static_cast<int32_t>(wrapped));
  }
  void EndInstruction() { sum_ = Decode(type_, change_.Of(bits())); }
  uint64_t bits() const { return Encode(type_, sum_); }

 private:
  const ElementType type_;
  const BitChange change_;
  double sum_ = 0;
};

uint64_t SumOf(const Problem& problem, const double* a, const double* b, int64_t depth,
               StuckSum sum) {
  for (int64_t p = 0; p < problem.k; ++p) {
    sum.Add(a[p] * b[p]);
    if ((p + 1) % depth == 0 || p + 1 == problem.k) sum.EndInstruction();
  }
  return sum.bits();
}

std::vector<double> LineOf(const ElementTable& table, bool is_row, int64_t index) {
  std::vector<double> values(static_cast<size_t>(is_row ? table.columns() : table.rows()));
  for (size_t i = 0; i < values.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    values[i] = Decode(table.type(), is_row ? table.Load(index, at) : table.Load(at, index));
  }
  return values;
}

}  // namespace

std::string_view NameOf(FaultAt at) {
  switch (at) {
    case FaultAt::kOperand: return "operand";
    case FaultAt::kAccumulator: return "accumulator";
    case FaultAt::kResult: return "D";
  }
  return "";
}

std::string_view NameOf(FaultKind kind) {
  switch (kind) {
    case FaultKind::kOneBit: return "one bit";
    case FaultKind::kManyBits: return "many bits";
    case FaultKind::kLane: return "lane";
    case FaultKind::kPeriod: return "period";
    case FaultKind::kRow: return "row";
    case FaultKind::kColumn: return "column";
    case FaultKind::kStuckBit: return "stuck bit";
    case FaultKind::kNonFinite: return "non-finite";
  }
  return "";
}

ElementTable::ElementTable(const MatrixLayout& layout, std::byte* matrix)
    : matrix_(matrix),
      type_(layout.type),
      rows_(layout.rows),
      columns_(layout.columns),
      line_bytes_(layout.line_stride_bytes()) {
  if (!layout.is_sparse()) return;
  const SparseLayout sparse = SparseLayoutOf("x", type_, layout.rows, layout.columns).value();
  columns_ = sparse.kept();
  line_bytes_ = sparse.value_line_bytes;
}

uint64_t ElementTable::Load(int64_t row, int64_t column) const {
  return LoadBits(type_, matrix_ + row * line_bytes_, column);
}

void ElementTable::Store(int64_t row, int64_t column, uint64_t bits) {
  StoreBits(type_, matrix_ + row * line_bytes_, column, bits);
}

void Corrupt(FaultKind kind, const mma::Instruction& instruction, mma::Operand operand,
             ElementTable table, RandomSource& random) {
  const ElementType type = table.type();
  const int64_t elements = table.rows() * table.columns();
  const int64_t some = random.Between(0, elements - 1);
  const auto apply_to_lane = [&](const BitChange& change) {
    DrawLane(instruction, operand, random).ForEach(table, [&](int64_t row, int64_t column) {
      Apply(change, table, row, column);
    });
  };
  switch (kind) {
    case FaultKind::kOneBit:
      return ApplyFrom({.flipped = DrawBits(type, 1, random)}, some, elements, table);
    case FaultKind::kManyBits:
      return ApplyFrom({.flipped = DrawBits(type, random.Between(2, 4), random)}, some, elements,
                       table);
    case FaultKind::kLane: return apply_to_lane(DrawFlips(type, random));
    case FaultKind::kPeriod: {
      const int64_t period = random.Between(2, 128);
      return ApplyFrom(DrawFlips(type, random), some % period, period, table);
    }
    case FaultKind::kRow:
    case FaultKind::kColumn:
      return ApplyToLine(DrawFlips(type, random), instruction, operand, kind == FaultKind::kRow,
                         table, random);
    case FaultKind::kStuckBit: return apply_to_lane(DrawStuckBit(type, random));
    case FaultKind::kNonFinite:
      return ApplyFrom(DrawNonFinite(type, random), some, elements, table);
  }
}

void StickAccumulator(const mma::Instruction& instruction, const Problem& problem,
                      const std::byte* a, const std::byte* b, ElementTable sums,
                      RandomSource& random) {
  // Only read.
  const ElementTable a_table(problem.a, const_cast<std::byte*>(a));
  const ElementTable b_table(problem.b, const_cast<std::byte*>(b));
  const BitChange change = DrawStuckBit(sums.type(), random);
  const LanePlaces lane = DrawLane(instruction, mma::Operand::kD, random);
  lane.ForEach(sums, [&](int64_t row, int64_t column) {
    const std::vector<double> x = LineOf(a_table, true, row);
    const std::vector<double> y = LineOf(b_table, false, column);
    const auto sum = [&](const BitChange& stuck) {
      return SumOf(problem, x.data(), y.data(), instruction.k, StuckSum(sums.type(), stuck));
    };
    const uint64_t wrong = sum(change);
    if (wrong != sum({})) sums.Store(row, column, wrong);
  });
}

}  // namespace gemmd
