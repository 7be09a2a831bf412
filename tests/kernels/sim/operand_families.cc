// SPDX-License-Identifier: Apache-2.0
#include "tests/kernels/sim/operand_families.h"

#include <algorithm>
#include <cmath>

#include "kernels/matrix/element.h"
#include "kernels/matrix/sparse24.h"

namespace gemmd {
namespace {

uint64_t MaskOf(ElementType type) {
  return BitsOf(type) == 64 ? ~uint64_t{0} : (uint64_t{1} << BitsOf(type)) - 1;
}

uint64_t SignOf(ElementType type) { return uint64_t{1} << (BitsOf(type) - 1); }

// The field of a float type that holds the exponent.
struct Field {
  int shift;
  uint64_t largest;
};

Field ExponentField(ElementType type) {
  const FloatFormat format = FactsOf(type).format;
  return {BitsOf(type) - 1 - format.exponent_bits, (uint64_t{1} << format.exponent_bits) - 1};
}

bool IsFinite(ElementType type, uint64_t bits) { return std::isfinite(Decode(type, bits)); }

uint64_t FiniteBits(ElementType type, RandomSource& random) {
  while (true) {
    const uint64_t bits = random.Bits() & MaskOf(type);
    if (IsInteger(type) || IsFinite(type, bits)) return bits;
  }
}

// Any fraction with an exponent field in a range, limited to the type's range.
uint64_t WithExponent(ElementType type, int64_t low, int64_t high, RandomSource& random) {
  const Field field = ExponentField(type);
  const auto largest = static_cast<int64_t>(field.largest) - 1;  // The top one may be special.
  const int64_t exponent =
      random.Between(std::clamp<int64_t>(low, 0, largest), std::clamp<int64_t>(high, 0, largest));
  const uint64_t rest = random.Bits() & MaskOf(type) & ~(field.largest << field.shift);
  return rest | static_cast<uint64_t>(exponent) << field.shift;
}

// The range of exponents of one case.
struct Window {
  int64_t a_low;
  int64_t b_low;
  int64_t width;
  bool has_ties = false;  // The f16 sums have ties; see Tie.
};

Window MakeWindow(const mma::Instruction& instruction, RandomSource& random) {
  constexpr std::array<int64_t, 6> kWidths = {1, 4, 8, 16, 27, 60};
  const int64_t width = kWidths[static_cast<size_t>(random.Between(0, kWidths.size() - 1))];
  const auto any = [&](ElementType type) {
    return random.Between(0, static_cast<int64_t>(ExponentField(type).largest));
  };
  Window window = {any(instruction.a), any(instruction.b), width};
  if (random.Flip()) return window;
  // Products near the smallest exponent to which sums are aligned.
  const int64_t least = instruction.d == ElementType::kF16 ? -21 : -133;
  const int64_t biases = FactsOf(instruction.a).format.bias + FactsOf(instruction.b).format.bias;
  const int64_t target = least + biases + random.Between(-14, 4);
  window.a_low = random.Between(0, std::max<int64_t>(target, 0));
  window.b_low = target - window.a_low;
  window.width = random.Between(0, 2);
  return window;
}

// Mostly zeros, and few powers of two whose products are halves of the smallest f16 or vanish
// beside them.
uint64_t Tie(ElementType type, bool is_a, RandomSource& random) {
  constexpr std::array<int, 3> kA = {-12, -24, -14};
  constexpr std::array<int, 3> kB = {-13, -23, -10};
  if (random.Between(0, 7) != 0 && is_a) return 0;
  const auto at = static_cast<size_t>(random.Between(0, 2));
  return Encode(type, std::ldexp(random.Flip() ? 1.0 : -1.0, is_a ? kA[at] : kB[at]));
}

uint64_t Subnormal(ElementType type, RandomSource& random) {
  if (random.Between(0, 3) == 0) return random.Flip() ? 0 : SignOf(type);
  const uint64_t fraction = (uint64_t{1} << ExponentField(type).shift) - 1;
  return (random.Bits() & fraction) | (random.Flip() ? 0 : SignOf(type));
}

// A power of two or a neighbour of one, near 1.
uint64_t Edge(ElementType type, RandomSource& random) {
  const uint64_t power =
      Encode(type, std::ldexp(random.Flip() ? 1.0 : -1.0, static_cast<int>(random.Between(-3, 3))));
  const int64_t step = type == ElementType::kTf32 ? 1 << 13 : 1;
  return (power + static_cast<uint64_t>(step * random.Between(-1, 1))) & MaskOf(type);
}

// A fraction of all ones or nearly, and exponents near that of 1.
uint64_t FullSignificand(ElementType type, RandomSource& random) {
  const Field field = ExponentField(type);
  const uint64_t one = Encode(type, 1) >> field.shift;
  const uint64_t fraction = (uint64_t{1} << field.shift) - 1;
  const uint64_t spoiled = random.Between(0, 15) == 0 ? random.Bits() & fraction : 0;
  return one << field.shift | (fraction ^ spoiled);
}

uint64_t Extreme(ElementType type, RandomSource& random) {
  const uint64_t largest = FactsOf(type).is_signed ? SignOf(type) - 1 : MaskOf(type);
  switch (random.Between(0, 3)) {
    case 0: return 0;
    case 1: return largest;
    case 2: return (largest + 1) & MaskOf(type);
    default: return random.Bits() & MaskOf(type);
  }
}

// One element of a family whose elements are independent of each other.
uint64_t Element(ElementType type, Family family, const Window& window, bool is_a,
                 RandomSource& random) {
  if (IsInteger(type)) {
    return family == Family::kEdges || family == Family::kWidest ? Extreme(type, random)
                                                                 : random.Bits() & MaskOf(type);
  }
  switch (family) {
    case Family::kAnyBits: return random.Bits() & MaskOf(type);
    case Family::kWindow: {
      const int64_t low = is_a ? window.a_low : window.b_low;
      return WithExponent(type, low, low + window.width, random);
    }
    case Family::kSubnormals:
      return is_a || random.Flip() ? Subnormal(type, random) : Encode(type, random.Normal());
    case Family::kEdges: return window.has_ties ? Tie(type, is_a, random) : Edge(type, random);
    case Family::kWidest: return FullSignificand(type, random);
    case Family::kFiniteBits: return FiniteBits(type, random);
    default: return Encode(type, random.Normal());
  }
}

// Column of B (and, dense, row of A) element by element along k.
using Bits = std::vector<uint64_t>;

// Half of the products of every instruction become the negatives of the others, in a shuffled
// order, except for a few small ones.
void Cancel(const mma::Instruction& instruction, Bits& a, Bits& b, RandomSource& random) {
  const auto depth = static_cast<size_t>(instruction.a_columns());
  for (size_t first = 0; first + depth <= a.size(); first += depth) {
    for (size_t i = 0; i + 1 < depth; i += 2) {
      if (random.Between(0, 7) == 0) {
        a[first + i] =
            Encode(instruction.a, std::ldexp(1, -static_cast<int>(random.Between(5, 15))));
        b[first + i] =
            Encode(instruction.b, std::ldexp(1, -static_cast<int>(random.Between(5, 15))));
      } else {
        a[first + i + 1] = a[first + i] ^ SignOf(instruction.a);
        b[first + i + 1] = b[first + i];
      }
    }
  }
}

// The second of two instructions has one product: nearly the negative of the first one's sum.
void TakeBack(const mma::Instruction& instruction, Bits& a, Bits& b, RandomSource& random) {
  const auto depth = static_cast<size_t>(instruction.a_columns());
  for (size_t first = 0; first + 2 * depth <= a.size(); first += 2 * depth) {
    double sum = 0;
    for (size_t i = first; i < first + depth; ++i) {
      sum += Decode(instruction.a, a[i]) * Decode(instruction.b, b[i]);
    }
    for (size_t i = first + depth; i < first + 2 * depth; ++i) a[i] = 0;
    const size_t at =
        first + depth + static_cast<size_t>(random.Between(0, instruction.a_columns() - 1));
    a[at] = Encode(instruction.a, -sum);
    b[at] = Encode(instruction.b, 1);
    if (random.Flip()) a[at] ^= 1 + (instruction.a == ElementType::kTf32 ? 1 << 13 : 0);
  }
}

void KeepOne(Bits& line, RandomSource& random) {
  const auto kept = static_cast<size_t>(random.Between(0, static_cast<int64_t>(line.size()) - 1));
  for (size_t i = 0; i < line.size(); ++i) {
    if (i != kept) line[i] = 0;
  }
}

// A compressed line's indices: for each group any legal choice, in increasing order.
void FillIndices(const SparseLayout& layout, std::byte* matrix, RandomSource& random) {
  for (int64_t row = 0; row < layout.rows; ++row) {
    std::byte* line = matrix + layout.indices_offset(row);
    for (int64_t group = 0; group < layout.groups; ++group) {
      const int64_t first = random.Between(0, layout.form.group_units - layout.form.kept_units());
      const int64_t second = layout.form.kept_units() == 1
                                 ? 0
                                 : random.Between(first + 1, layout.form.group_units - 1);
      const int64_t nibble = first | second << 2;
      const int64_t bit = group * layout.form.index_bits();
      line[bit / 8] |= static_cast<std::byte>(nibble << (bit % 8));
    }
  }
}

void StoreLine(ElementType type, const Bits& line, std::byte* bytes) {
  for (size_t i = 0; i < line.size(); ++i) StoreBits(type, bytes, static_cast<int64_t>(i), line[i]);
}

}  // namespace

std::string_view NameOf(Family family) {
  constexpr std::array<std::string_view, 11> kNames = {
      "any bits",   "finite bits", "normal",     "window",  "cancellation", "sum cancels",
      "subnormals", "edges",       "long chain", "one hot", "widest"};
  return kNames[static_cast<size_t>(family)];
}

FamilyCase MakeCase(const mma::Instruction& instruction, Family family, int64_t m, int64_t n,
                    int64_t k, RandomSource& random) {
  FamilyCase made;
  Problem& problem = made.problem;
  problem.m = m;
  problem.n = n;
  problem.k = k;
  problem.accumulation = instruction.c == ElementType::kF16 ? instruction.c : instruction.d;
  if (instruction.bit_count == mma::BitCount::kXor) problem.bit_operation = BitOperation::kXor;
  problem.a = instruction.is_sparse()
                  ? TightSparseLayout("a", instruction.a, m, k).value()
                  : TightLayout("a", instruction.a, Order::kRowMajor, m, k).value();
  problem.b = TightLayout("b", instruction.b, Order::kColumnMajor, k, n).value();
  problem.d = TightLayout("d", instruction.d, Order::kRowMajor, m, n).value();
  made.a.resize(static_cast<size_t>(problem.a.batch_stride_bytes));
  made.b.resize(static_cast<size_t>(problem.b.batch_stride_bytes));

  const bool is_float = IsFloat(instruction.a);
  Window window = is_float ? MakeWindow(instruction, random) : Window{};
  window.has_ties = instruction.d == ElementType::kF16 && instruction.a == ElementType::kF16;
  const SparseLayout sparse =
      instruction.is_sparse() ? SparseLayoutOf("a", instruction.a, m, k).value() : SparseLayout{};
  const auto kept = static_cast<size_t>(instruction.is_sparse() ? sparse.kept() : k);
  std::vector<Bits> columns(static_cast<size_t>(n), Bits(static_cast<size_t>(k)));
  for (Bits& column : columns) {
    for (uint64_t& bits : column) bits = Element(instruction.b, family, window, false, random);
  }
  for (int64_t row = 0; row < m; ++row) {
    Bits line(kept);
    for (uint64_t& bits : line) bits = Element(instruction.a, family, window, true, random);
    // Rows are made for the column that they meet on the diagonal.
    Bits& column = columns[static_cast<size_t>(row % n)];
    const bool is_paired = is_float && line.size() == column.size();
    if (is_paired && family == Family::kCancellation) Cancel(instruction, line, column, random);
    if (is_paired && family == Family::kSumCancels) TakeBack(instruction, line, column, random);
    if (family == Family::kOneHot) KeepOne(line, random);
    const int64_t offset =
        instruction.is_sparse() ? sparse.values_offset(row) : row * problem.a.line_stride_bytes();
    StoreLine(instruction.a, line, made.a.data() + offset);
  }
  if (instruction.is_sparse()) FillIndices(sparse, made.a.data(), random);
  for (int64_t j = 0; j < n; ++j) {
    StoreLine(instruction.b, columns[static_cast<size_t>(j)],
              made.b.data() + j * problem.b.line_stride_bytes());
  }
  return made;
}

}  // namespace gemmd
