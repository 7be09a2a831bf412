// SPDX-License-Identifier: Apache-2.0
//
// The operands of a product by role, and values for each operand. D is not an operand: it is kept
// separately.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/problem.h"

namespace gemmd {

enum class OperandRole : uint8_t { kA, kB, kC, kBias, kAScale, kBScale };

inline constexpr std::array kOperandRoles = {OperandRole::kA,      OperandRole::kB,
                                             OperandRole::kC,      OperandRole::kBias,
                                             OperandRole::kAScale, OperandRole::kBScale};
// The operands that have a layout in the problem; the others are vectors.
inline constexpr std::array kMatrixRoles = {OperandRole::kA, OperandRole::kB, OperandRole::kC};

inline std::string_view NameOf(OperandRole role) {
  constexpr std::array<std::string_view, kOperandRoles.size()> kNames = {
      "a", "b", "c", "bias", "a.scale", "b.scale"};
  return kNames[static_cast<size_t>(role)];
}

// The role of the factors of A or B.
constexpr OperandRole ScaleOf(OperandRole role) {
  return role == OperandRole::kA ? OperandRole::kAScale : OperandRole::kBScale;
}

// The layout of A, B or C.
template <typename AnyProblem>
auto& LayoutOf(AnyProblem& problem, OperandRole role) {
  return role == OperandRole::kA ? problem.a : role == OperandRole::kB ? problem.b : problem.c;
}

// Whether the product reads A, B or C.
inline bool IsRead(const Problem& problem, OperandRole role) {
  return role == OperandRole::kC ? problem.has_c() : problem.has_product();
}

// Bytes of the operand of a valid problem, without the padding of its last line; 0 if it is not
// read. Errors: InvalidArgument beyond 2^63 bytes.
absl::StatusOr<int64_t> OperandBytes(const Problem& problem, OperandRole role);

// One T for each operand, as a member and by role. The factors of an operand, of lines or of
// blocks, are its scale.
template <typename T>
struct PerOperand {
  T a = {};
  T b = {};
  T c = {};
  T bias = {};
  T a_scale = {};
  T b_scale = {};

  T& operator[](OperandRole role) { return this->*kMembers[static_cast<size_t>(role)]; }
  const T& operator[](OperandRole role) const { return this->*kMembers[static_cast<size_t>(role)]; }

 private:
  static constexpr std::array<T PerOperand::*, kOperandRoles.size()> kMembers = {
      &PerOperand::a,    &PerOperand::b,       &PerOperand::c,
      &PerOperand::bias, &PerOperand::a_scale, &PerOperand::b_scale};
};

}  // namespace gemmd
