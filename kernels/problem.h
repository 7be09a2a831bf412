// SPDX-License-Identifier: Apache-2.0
//
// One matrix product, or a batch of them: D = activation(alpha * A B + beta * C + bias).
//
// A is m x k, B is k x n, and C and D are m x n, as the product uses them: a transposed operand in
// a request has become an operand of the other order. This is plain data; the bytes are elsewhere
// (kernel.h, GemmArgs).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/matrix/block_scale.h"
#include "kernels/matrix/element.h"
#include "kernels/matrix/layout.h"
#include "kernels/matrix/product_options.h"

namespace gemmd {

struct Problem {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  int64_t batch = 1;
  MatrixLayout a;
  MatrixLayout b;
  MatrixLayout c;  // Meaningless if beta is 0.
  MatrixLayout d;
  // Products are added in this type or a more precise one.
  ElementType accumulation = ElementType::kF32;
  // Whether the tensor core may compute whole sums with the few bits that it keeps (promotion.h).
  bool fast_accumulation = false;
  BitOperation bit_operation = BitOperation::kAnd;
  double alpha = 1;
  double beta = 0;
  BiasAxis bias_axis = BiasAxis::kNone;
  ElementType bias_type = ElementType::kF32;
  ScaleKind a_scale = ScaleKind::kNone;
  ScaleKind b_scale = ScaleKind::kNone;
  BlockScale a_blocks;  // Meaningless unless a_scale is kBlocks.
  BlockScale b_blocks;
  Activation activation = Activation::kNone;
  // Whether A and B are resident, so that data derived from them (Kernel::derived) is computed only
  // once. Affects predicted times, but no bits.
  bool a_stays = false;
  bool b_stays = false;
  // Whether their factors of blocks are resident with them, so that data derived from both is kept.
  bool a_factors_stay = false;
  bool b_factors_stay = false;

  bool has_c() const { return beta != 0; }
  // Whether A and B are read at all.
  bool has_product() const { return k > 0 && alpha != 0; }
  bool has_output() const { return batch > 0 && !d.empty(); }
  // Whether the epilogue multiplies by factors. (Block factors are a part of the product.)
  bool has_scales() const { return IsOfLines(a_scale) || IsOfLines(b_scale); }
  bool has_block_scales() const {
    return a_scale == ScaleKind::kBlocks || b_scale == ScaleKind::kBlocks;
  }
  // Null if the operand has no block factors.
  const BlockScale* blocks_of_a() const {
    return a_scale == ScaleKind::kBlocks ? &a_blocks : nullptr;
  }
  const BlockScale* blocks_of_b() const {
    return b_scale == ScaleKind::kBlocks ? &b_blocks : nullptr;
  }
  // Whether D is the product alone, whatever its type.
  bool is_plain() const {
    return alpha == 1 && !has_c() && !has_scales() && bias_axis == BiasAxis::kNone &&
           activation == Activation::kNone;
  }

  friend bool operator==(const Problem&, const Problem&) = default;

 private:
  static bool IsOfLines(ScaleKind kind) {
    return kind == ScaleKind::kTensor || kind == ScaleKind::kVector;
  }
};

// The product whose D is the transpose of a dense problem's: B transposed times A transposed. Each
// matrix keeps its place in memory.
Problem Transposed(const Problem& problem);

// Checks shapes, layouts, types and options against each other, as the wire contract says (proto/).
// Every size computed from a valid problem fits 63 bits: bytes of A, B, C, D, bias and factors of
// blocks, all of them together, and 2*m*n*k*batch.
//
// Errors: InvalidArgument; the message is "field: got X, want Y", with the wire's field names.
absl::Status Validate(const Problem& problem);

// The accumulation type of a pair of operand types if the caller asks for none: f64 for f64, s32
// for integers and bits, f32 otherwise.
// Errors: InvalidArgument if no product of the pair is defined (s32 operands, b1 with another type,
// other different types unless both are floats of at most 8 bits, or integers of 8 or of 4 bits, or
// one has at most 8 bits and the other is f16 or bf16).
absl::StatusOr<ElementType> DefaultAccumulation(ElementType a, ElementType b);

// Classes of products for which a kernel behaves alike: its predictions err for the same reasons
// (Correction), and it fails on the same code paths (DeviceTrust).
enum class ShapeClass : uint8_t {
  kNoProduct,  // Nothing is multiplied.
  kSmall,      // One matrix that takes about as long as starting it.
  kBatch,      // Many such matrices.
  kSkinny,     // Few rows or columns.
  kLarge,
};
inline constexpr size_t kShapeClasses = 5;

ShapeClass ShapeClassOf(const Problem& problem);
std::string_view NameOf(ShapeClass shape);  // "skinny".

// 2*m*n*k*batch of a valid problem.
int64_t Operations(const Problem& problem);

// Bytes of A and B with their factors of blocks (if read), C and bias, and bytes of D with the
// padding of its last line, for a valid problem.
int64_t BytesRead(const Problem& problem);
int64_t BytesWritten(const Problem& problem);

// The problem as text for logs and messages:
// "4095x4097x4093 f32 <- bf16 row, bf16 column, batch 2", "... <- bf16 2:4, bf16 column".
std::string Describe(const Problem& problem);

}  // namespace gemmd
