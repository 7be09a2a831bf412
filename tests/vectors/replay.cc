// SPDX-License-Identifier: Apache-2.0
#include "tests/vectors/replay.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/mma/chip.h"
#include "kernels/mma/instructions.h"
#include "kernels/sim/unit.h"

namespace gemmd {
namespace {

using mma::Instruction;
using mma::Operand;

// Words of one case.
struct CaseWords {
  size_t a = 0;
  size_t b = 0;
  size_t c = 0;
  size_t metadata = 0;
  size_t d = 0;

  size_t total() const { return a + b + c + metadata + d; }
};

// A matrix as a wmma recording holds it: without gaps, packed low bits first.
size_t MatrixWords(const Instruction& instruction, Operand operand) {
  return static_cast<size_t>(mma::RowsOf(instruction, operand) *
                             mma::ColumnsOf(instruction, operand) *
                             BitsOf(mma::TypeOf(instruction, operand)) / 32);
}

CaseWords WordsOf(const sim::Unit& unit) {
  const Instruction& instruction = unit.instruction();
  if (instruction.family == mma::Family::kWmma) {
    return {.a = MatrixWords(instruction, Operand::kA),
            .b = MatrixWords(instruction, Operand::kB),
            .c = MatrixWords(instruction, Operand::kC),
            .metadata = 0,
            .d = MatrixWords(instruction, Operand::kD)};
  }
  return {.a = unit.a_map().words(),
          .b = unit.b_map().words(),
          .c = unit.c_map().words(),
          .metadata = static_cast<size_t>(instruction.is_sparse() ? instruction.lanes() : 0),
          .d = unit.d_map().words()};
}

// A packed matrix in row-major order of 64-bit elements.
std::vector<uint64_t> Unpack(const Instruction& instruction, Operand operand,
                             std::span<const uint32_t> words) {
  const auto rows = static_cast<size_t>(mma::RowsOf(instruction, operand));
  const auto columns = static_cast<size_t>(mma::ColumnsOf(instruction, operand));
  const auto bits = static_cast<size_t>(BitsOf(mma::TypeOf(instruction, operand)));
  const mma::Layout layout = operand == Operand::kA   ? instruction.a_layout
                             : operand == Operand::kB ? instruction.b_layout
                                                      : mma::Layout::kRow;
  std::vector<uint64_t> matrix(rows * columns);
  for (size_t row = 0; row < rows; ++row) {
    for (size_t column = 0; column < columns; ++column) {
      const size_t place =
          layout == mma::Layout::kRow ? row * columns + column : column * rows + row;
      uint64_t& element = matrix[row * columns + column];
      if (bits == 64) {
        element = words[2 * place] | uint64_t{words[2 * place + 1]} << 32;
      } else {
        const uint64_t mask = bits == 32 ? ~0u : (1u << bits) - 1;
        element = words[place * bits / 32] >> (place * bits % 32) & mask;
      }
    }
  }
  return matrix;
}

// Compares D of one case, element by element.
class Comparison {
 public:
  Comparison(const sim::Unit& unit, ReplayResult& result) : unit_(unit), result_(result) {}

  void Compare(int64_t index, const std::vector<uint64_t>& got, const std::vector<uint64_t>& want) {
    const Instruction& instruction = unit_.instruction();
    for (size_t i = 0; i < want.size(); ++i) {
      if (got[i] == want[i]) continue;
      if (result_.mismatches++ > 0) continue;
      const auto n = static_cast<size_t>(instruction.n);
      result_.first = absl::StrFormat("case %d, row %d, column %d: got %x, recorded %x", index,
                                      i / n, i % n, got[i], want[i]);
    }
  }

 private:
  const sim::Unit& unit_;
  ReplayResult& result_;
};

void ReplayRegisters(sim::Unit& unit, int selector, const CaseWords& sizes,
                     std::span<const uint32_t> words, ReplayResult& result) {
  const auto cases = static_cast<size_t>(result.cases);
  const std::span<const uint32_t> a = words.subspan(0, cases * sizes.a);
  const std::span<const uint32_t> b = words.subspan(cases * sizes.a, cases * sizes.b);
  const std::span<const uint32_t> c = words.subspan(cases * (sizes.a + sizes.b), cases * sizes.c);
  const std::span<const uint32_t> metadata =
      words.subspan(cases * (sizes.a + sizes.b + sizes.c), cases * sizes.metadata);
  const std::span<const uint32_t> recorded = words.subspan(cases * (sizes.total() - sizes.d));
  Comparison comparison(unit, result);
  std::vector<uint32_t> d(sizes.d);
  std::vector<uint64_t> got(unit.d_map().elements());
  std::vector<uint64_t> want(unit.d_map().elements());
  for (size_t i = 0; i < cases; ++i) {
    unit.Execute({.a = a.subspan(i * sizes.a, sizes.a),
                  .b = b.subspan(i * sizes.b, sizes.b),
                  .c = c.subspan(i * sizes.c, sizes.c),
                  .metadata = metadata.subspan(i * sizes.metadata, sizes.metadata),
                  .selector = selector,
                  .a_factors = {},
                  .b_factors = {}},
                 d);
    unit.d_map().Gather(d, got.data());
    unit.d_map().Gather(recorded.subspan(i * sizes.d, sizes.d), want.data());
    comparison.Compare(static_cast<int64_t>(i), got, want);
  }
}

void ReplayMatrices(sim::Unit& unit, const CaseWords& sizes, std::span<const uint32_t> words,
                    ReplayResult& result) {
  const Instruction& instruction = unit.instruction();
  const auto cases = static_cast<size_t>(result.cases);
  Comparison comparison(unit, result);
  std::vector<uint32_t> a(unit.a_map().words());
  std::vector<uint32_t> b(unit.b_map().words());
  std::vector<uint32_t> c(unit.c_map().words());
  std::vector<uint32_t> d(unit.d_map().words());
  std::vector<uint64_t> got(unit.d_map().elements());
  for (size_t i = 0; i < cases; ++i) {
    size_t base = 0;
    const auto next = [&](Operand operand, size_t count) {
      const std::span<const uint32_t> packed = words.subspan(base + i * count, count);
      base += cases * count;
      return Unpack(instruction, operand, packed);
    };
    unit.a_map().Scatter(next(Operand::kA, sizes.a).data(), a);
    unit.b_map().Scatter(next(Operand::kB, sizes.b).data(), b);
    unit.c_map().Scatter(next(Operand::kC, sizes.c).data(), c);
    const std::vector<uint64_t> want = next(Operand::kD, sizes.d);
    unit.Execute({.a = a, .b = b, .c = c, .metadata = {}, .a_factors = {}, .b_factors = {}}, d);
    unit.d_map().Gather(d, got.data());
    comparison.Compare(static_cast<int64_t>(i), got, want);
  }
}

}  // namespace

ReplayResult Replay(const Variant& variant, mma::Chip chip, const std::vector<uint32_t>& words) {
  ReplayResult result;
  if (mma::SupportOn(*variant.instruction, chip) == mma::Support::kUnavailable) {
    result.error = absl::StrCat("not an instruction of ", std::string(mma::NameOf(chip)));
    return result;
  }
  sim::Unit unit(*variant.instruction, chip);
  const CaseWords sizes = WordsOf(unit);
  if (words.empty() || words.size() % sizes.total() != 0) {
    result.error = absl::StrCat("got ", words.size(), " words, want a multiple of ", sizes.total());
    return result;
  }
  result.cases = static_cast<int64_t>(words.size() / sizes.total());
  if (variant.instruction->family == mma::Family::kWmma) {
    ReplayMatrices(unit, sizes, words, result);
  } else {
    ReplayRegisters(unit, variant.selector, sizes, words, result);
  }
  return result;
}

ReplayResult ReplayFile(const std::string& path, mma::Chip chip) {
  ReplayResult result;
  const std::optional<Variant> variant = FindVariant(std::filesystem::path(path).stem().string());
  if (!variant) {
    result.error = "unknown variant";
    return result;
  }
  std::ifstream file(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (!file.good() && !file.eof()) {
    result.error = "cannot be read";
    return result;
  }
  if (bytes.size() % sizeof(uint32_t) != 0) {
    result.error = absl::StrCat("got ", bytes.size(), " bytes, want whole 32-bit words");
    return result;
  }
  std::vector<uint32_t> words(bytes.size() / sizeof(uint32_t));
  std::memcpy(words.data(), bytes.data(), bytes.size());
  return Replay(*variant, chip, words);
}

}  // namespace gemmd
