// SPDX-License-Identifier: Apache-2.0
//
// One matrix product, or a batch of them: D = activation(alpha * A B + beta * C + bias).
//
// A is m x k, B is k x n, and C and D are m x n, as the product uses them: a request's transposed
// operand has become one of the other order. This is plain data; the bytes are elsewhere (kernel.h,
// GemmArgs).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/block_scale.h"
#include "kernels/element.h"
#include "kernels/product_options.h"

namespace gemmd {

// How a batch of matrices of one shape lies in memory. A line is a row (row major) or a column.
//
// A sparse matrix is row major, and its rows, columns and leading dimension (= columns) are those
// of the dense one. Its bytes lie as SparseLayoutOf(type, rows, columns) says; nothing said here
// about lines is true of them.
struct MatrixLayout {
  ElementType type = ElementType::kF32;
  Order order = Order::kRowMajor;
  Sparsity sparsity = Sparsity::kNone;  // Only A may be sparse.
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t leading_dimension = 0;   // Elements between starts of lines; >= line length.
  int64_t batch_stride_bytes = 0;  // Between matrices; 0 broadcasts one matrix (inputs only).

  int64_t lines() const { return order == Order::kRowMajor ? rows : columns; }
  int64_t line_length() const { return order == Order::kRowMajor ? columns : rows; }
  // From the start of one line to the next. The product cannot overflow in a validated layout.
  int64_t line_stride_bytes() const { return (leading_dimension * BitsOf(type) + 7) / 8; }
  bool empty() const { return rows == 0 || columns == 0; }
  bool is_sparse() const { return sparsity != Sparsity::kNone; }

  friend bool operator==(const MatrixLayout&, const MatrixLayout&) = default;
};

// A layout without gaps: leading dimension = line length, batch stride = one matrix.
// Errors: InvalidArgument if a size in bytes exceeds 63 bits; `field` names the matrix ("a").
absl::StatusOr<MatrixLayout> TightLayout(std::string_view field, ElementType type, Order order,
                                         int64_t rows, int64_t columns);

// A layout without gaps of a sparse matrix, row major.
// Errors: those of SparseLayoutOf.
absl::StatusOr<MatrixLayout> TightSparseLayout(std::string_view field, ElementType type,
                                               int64_t rows, int64_t columns);

struct Problem {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  int64_t batch = 1;
  MatrixLayout a;
  MatrixLayout b;
  MatrixLayout c;  // Meaningless where beta is 0.
  MatrixLayout d;
  // Products are added in this type or a more precise one.
  ElementType accumulation = ElementType::kF32;
  // Whether sums may be left to the tensor core alone, however few bits it keeps (promotion.h).
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
  // Whether the bytes of A and of B stay for further products, so that what a kernel derives from
  // them (Kernel::derived) is made once. Changes what a product is expected to take, and no bit.
  bool a_stays = false;
  bool b_stays = false;

  bool has_c() const { return beta != 0; }
  // Whether A and B are read at all.
  bool has_product() const { return k > 0 && alpha != 0; }
  bool has_output() const { return batch > 0 && !d.empty(); }
  // Whether the epilogue multiplies by factors. Those of blocks are a part of the product.
  bool has_scales() const { return IsOfLines(a_scale) || IsOfLines(b_scale); }
  bool has_block_scales() const {
    return a_scale == ScaleKind::kBlocks || b_scale == ScaleKind::kBlocks;
  }
  // Null where the operand has no factors of blocks.
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

// Bytes of a batch of matrices: `least` ends after the last element, `full` pads the last line. A
// sparse matrix has no padding.
struct ByteCount {
  int64_t least = 0;
  int64_t full = 0;
};

// Errors: InvalidArgument if the count exceeds 63 bits, or if the type has no sparse form.
absl::StatusOr<ByteCount> BytesOf(std::string_view field, const MatrixLayout& layout,
                                  int64_t batch);

// Checks shapes, layouts, types and options against each other, as the wire contract says (proto/).
// Every size computed from a valid problem fits 63 bits: bytes of A, B, C, D, bias and factors of
// blocks, all of them together, and 2*m*n*k*batch.
//
// Errors: InvalidArgument; the message is "field: got X, want Y", with the wire's field names.
absl::Status Validate(const Problem& problem);

// The accumulation type of a pair of operand types if the caller asks for none: f64 for f64, s32
// for integers and bits, f32 otherwise.
// Errors: InvalidArgument if no product of the pair is defined (a float with an integer, s32
// operands, b1 with another type, two different floats unless both have at most 8 bits, two
// different integers unless both have 8 or both have 4 bits).
absl::StatusOr<ElementType> DefaultAccumulation(ElementType a, ElementType b);

// Kinds of products for which a kernel behaves alike: its predictions are wrong for the same
// reasons (Correction), and it fails on the same paths (DeviceTrust).
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

// Elements of a batch of matrices; a matrix that all products share counts once.
double ElementsOf(const MatrixLayout& layout, int64_t batch);

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
