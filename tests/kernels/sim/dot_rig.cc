// SPDX-License-Identifier: Apache-2.0
#include "tests/kernels/sim/dot_rig.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "kernels/matrix/element.h"
#include "kernels/mma/instructions.h"

namespace gemmd {
namespace {

// The element of D: neither in the first row nor column, so that an indexing error shows.
constexpr size_t kRow = 5;
constexpr size_t kColumn = 3;

uint64_t NanOf(ElementType type) {
  switch (type) {
    case ElementType::kF16: return 0x7e01;
    case ElementType::kBf16: return 0x7fc1;
    case ElementType::kTf32: return 0x7fc02000;
    case ElementType::kE4m3:
    case ElementType::kE5m2: return 0x7f;
    default: return 1;  // Integers have none; anything that is not zero.
  }
}

uint64_t SignOf(ElementType type) { return uint64_t{1} << (BitsOf(type) - 1); }

bool IsNan(ElementType type, uint64_t bits) { return std::isnan(Decode(type, bits)); }

}  // namespace

DotRig::DotRig(std::string_view name, mma::Chip chip)
    : unit_(*mma::FindInstruction(name), chip),
      depth_(static_cast<size_t>(instruction().a_columns())) {
  const auto m = static_cast<size_t>(instruction().m);
  const auto n = static_cast<size_t>(instruction().n);
  const auto products = static_cast<size_t>(instruction().products());
  a_.resize(products * m * depth_);
  b_.resize(products * static_cast<size_t>(instruction().k) * n);
  c_.resize(products * m * n);
  d_.resize(c_.size());
  if (instruction().is_sparse()) KeepElements();
}

// Every row keeps the same elements: the legal pairs of a group in turn.
void DotRig::KeepElements() {
  struct Pair {
    int first;
    int last;
  };
  constexpr std::array<Pair, 6> kPairs = {{{0, 1}, {2, 3}, {0, 3}, {1, 2}, {0, 2}, {1, 3}}};
  const mma::Sparsity sparsity = mma::SparsityOf(instruction());
  const int size = mma::GroupSize(sparsity);
  for (int row = 0; row < instruction().m; ++row) {
    for (int group = 0; group < instruction().k / size; ++group) {
      const Pair& pair = kPairs[static_cast<size_t>(group) % kPairs.size()];
      if (sparsity == mma::Sparsity::kOneOfTwo) {
        a_k_.push_back(group * size + pair.first % 2);
      } else if (sparsity == mma::Sparsity::kTwoOfFour) {
        a_k_.insert(a_k_.end(), {group * size + pair.first, group * size + pair.last});
      } else {
        const int first = group * size + 2 * pair.first;
        const int last = group * size + 2 * pair.last;
        a_k_.insert(a_k_.end(), {first, first + 1, last, last + 1});
      }
    }
  }
}

uint64_t DotRig::Multiply(const Dot& dot) {
  const auto n = static_cast<size_t>(instruction().n);
  const bool is_sparse = instruction().is_sparse();
  std::fill(a_.begin(), a_.end(), 0);
  std::fill(b_.begin(), b_.end(), is_sparse ? NanOf(instruction().b) : 0);
  std::fill(c_.begin(), c_.end(), 0);
  for (size_t i = 0; i < depth_; ++i) {
    const size_t k = is_sparse ? static_cast<size_t>(a_k_[kRow * depth_ + i]) : i;
    a_[kRow * depth_ + i] = i < dot.a.size() ? dot.a[i] : 0;
    b_[k * n + kColumn] = i < dot.b.size() ? dot.b[i] : 0;
  }
  c_[kRow * n + kColumn] = dot.c;
  std::fill(d_.begin(), d_.end(), ~uint64_t{0});
  unit_.Multiply({.a = a_, .a_k = a_k_, .b = b_, .c = c_, .a_factors = {}, .b_factors = {}}, d_);
  return d_[kRow * n + kColumn];
}

std::optional<Dot> DotRig::Encoded(const DotValues& values) const {
  if (values.a.size() > depth_) return std::nullopt;
  bool is_exact = true;
  const auto encode = [&](ElementType type, double value) {
    const uint64_t bits = Encode(type, value);
    is_exact = is_exact && Decode(type, bits) == value;
    return bits;
  };
  Dot dot;
  for (const double value : values.a) dot.a.push_back(encode(instruction().a, value));
  for (const double value : values.b) dot.b.push_back(encode(instruction().b, value));
  dot.c = encode(instruction().c, values.c);
  return is_exact ? std::optional<Dot>(dot) : std::nullopt;
}

Dot Rotated(const Dot& dot, size_t depth, size_t count) {
  Dot rotated = dot;
  for (std::vector<uint64_t>* line : {&rotated.a, &rotated.b}) {
    line->resize(depth);
    std::rotate(line->begin(), line->end() - static_cast<std::ptrdiff_t>(count), line->end());
  }
  return rotated;
}

Dot Negated(const mma::Instruction& instruction, Dot dot) {
  for (uint64_t& bits : dot.a) bits ^= SignOf(instruction.a);
  dot.c ^= SignOf(instruction.c);
  return dot;
}

uint64_t NegatedResult(const mma::Instruction& instruction, uint64_t d) {
  return d == 0 || IsNan(instruction.d, d) ? d : d ^ SignOf(instruction.d);
}

std::string Describe(const DotRig& rig, std::string_view id) {
  const mma::InstructionName name = mma::NameOf(rig.instruction());
  return absl::StrCat(std::string(id), " with ", std::string(name.view()));
}

}  // namespace gemmd
