// SPDX-License-Identifier: Apache-2.0
//
// Dequantization: operands of at most 8 bits in products of 16-bit floats. So kernels of f16 and
// bf16 multiply quantized weights (s4, s8, e4m3 ... times f16 or bf16), and MX and NVFP4 on chips
// whose tensor cores have no factors of blocks.
//
// Each element becomes a 16-bit float before the product: its value times the factor of its block,
// if it has one, rounded to f32 and then to the 16-bit type, to nearest even. So it is rounded as
// in any library that dequantizes to that type. Elements without factors become 16-bit floats
// exactly, and so do floats of at most 8 bits with factors of 8 bits in the normal range of bf16:
// both have at most 4 significant bits. The product has the recipe and the bits of that of the
// 16-bit floats.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "kernels/kernel.h"
#include "kernels/matrix/element_codes.h"
#include "kernels/problem.h"

namespace gemmd {

// The 16-bit type in which kernels can multiply a problem whose operands have other types: that of
// the other operand, or bf16 for two floats of at most 8 bits, whose factors must have 8. Absent if
// there is none: for a sparse A that is not a 16-bit float itself, for example.
std::optional<ElementType> DequantizedType(const Problem& problem);

// Whether the kernel dequantizes the problem's operands: it has their DequantizedType. (The CPU has
// kernels of its own for two floats of at most 8 bits.)
bool Dequantizes(const Kernel& kernel, const Problem& problem);

// A problem after dequantization. Dequantized operands have the order of the given ones, and lines
// of whole 16-byte chunks, without other gaps.
struct Dequantization {
  Problem problem;
  int64_t a_bytes = 0;  // Of all matrices, a multiple of 256; 0: the operand is used as it is.
  int64_t b_bytes = 0;
  // Whether these are bytes of an operand that stays quantized: a GPU kernel dequantizes it in
  // registers (cuda/weights.h).
  bool packs_weights = false;

  int64_t bytes() const { return a_bytes + b_bytes; }
};

// In memory. `type` is the problem's DequantizedType. Errors: ResourceExhausted for 2^63 bytes or
// more.
absl::StatusOr<Dequantization> DequantizationOf(const Problem& problem, ElementType type);

// As the kernel does it.
absl::StatusOr<Dequantization> DequantizationBy(const Kernel& kernel, const Problem& problem);

// One operand's dequantization as plain data, for host and device code.
struct DequantizeJob {
  const std::byte* source = nullptr;
  const std::byte* source_end = nullptr;
  const std::byte* factors = nullptr;  // Null: none.
  std::byte* target = nullptr;
  ElementType from = ElementType::kS8;
  ElementType to = ElementType::kBf16;
  int64_t matrices = 0;
  int64_t lines = 0;               // Of one matrix, in the order of both.
  int64_t length = 0;              // Elements of a line.
  int64_t source_line_stride = 0;  // In bytes, like all strides.
  int64_t source_batch_stride = 0;
  int64_t target_line_stride = 0;
  int64_t target_batch_stride = 0;
  // An element's factor is number line / lines_of_block * factors_of_line +
  // element / elements_of_block * factors_of_element of its matrix.
  FactorType factor_type = FactorType::kF32;
  int64_t factors_batch_stride = 0;
  int64_t lines_of_block = 1;
  int64_t elements_of_block = 1;
  int64_t factors_of_line = 0;
  int64_t factors_of_element = 0;
};

// `target`: a_bytes or b_bytes of the dequantization of `problem`.
DequantizeJob DequantizeJobOf(const Problem& problem, const Dequantization& dequantization,
                              mma::Operand operand, const std::byte* source,
                              const std::byte* factors, std::byte* target);

// Dequantizes on the host; less is written once the flag is set. Threads: parallel inside, on the
// calling thread's OpenMP threads.
void Dequantize(const DequantizeJob& job, AbortFlag abort);

// A launch of the dequantized product.
struct DequantizedProduct {
  std::byte* a = nullptr;  // Where A is to be dequantized first; null: nowhere.
  std::byte* b = nullptr;
  std::optional<GemmArgs> args;  // Never absent. Borrows the dequantization and what `args` borrow.
};

// Operands are dequantized into their forms, or into the first part of the workspace.
// Errors: Internal if the workspace is smaller than that.
absl::StatusOr<DequantizedProduct> DequantizedProductOf(const GemmArgs& args,
                                                        const Dequantization& dequantization);

// Kernel's functions (kernel.h) for a problem that the kernel dequantizes.
absl::Status SupportsDequantized(const Kernel& kernel, const Problem& problem);
absl::StatusOr<int64_t> DequantizedWorkspaceBytes(const Kernel& kernel, const Problem& problem);
double DequantizedSeconds(const Kernel& kernel, const Problem& problem,
                          const DeviceProfile& profile, double rate);
absl::StatusOr<DerivedOperand> DequantizedOperand(const Kernel& kernel, const Problem& problem,
                                                  mma::Operand operand);
absl::Status LaunchDequantized(const Kernel& kernel, const GemmArgs& args);

}  // namespace gemmd
