// SPDX-License-Identifier: Apache-2.0
//
// Builds requests from views of matrices in memory, and gives access to the result in an answer.
//
//   D = activation(alpha * op(A) op(B) + beta * C + bias),   op(A) m x k, op(B) k x n, C and D m x
//   n.
//
// A view describes the matrix as it is STORED: `transpose` makes op(X) the transposed matrix, so a
// view of `rows` x `columns` with transpose set stands for a columns x rows operand.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <ranges>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gemmd/element_type.h"
#include "gemmd/wire_types.h"

namespace gemmd {

// Block factors in the caller's memory; see BlockScale in tensors.proto.
struct BlockScaleView {
  v1::FactorType type = {};    // {}: no factors.
  int64_t rows_per_block = 1;  // Rows of op(A), or columns of op(B).
  int64_t k_per_block = 0;
  // One line per block of rows; each line has one factor per block of k. No gaps.
  std::span<const std::byte> factors = {};
  bool per_matrix = false;  // Each matrix of the batch has its own factors.
  // For Client::Put: k runs down the columns of the stored matrix, as in a B, instead of along its
  // rows, as in an A or a B that is used transposed.
  bool k_along_columns = false;

  bool empty() const { return type == v1::FactorType{}; }
};

// A matrix, or a batch of matrices of one shape, in the caller's memory. Borrows; owns nothing.
struct MatrixView {
  v1::ElementType type = {};
  std::span<const std::byte> data = {};
  int64_t rows = 0;     // Those of the stored matrix.
  int64_t columns = 0;  // Those of the stored matrix.
  v1::Order order = v1::kRowMajor;
  bool transpose = false;
  int64_t leading_dimension = 0;  // Elements between starts of lines. 0: the line's length.
  std::optional<int64_t>
      batch_stride;  // Elements between matrices. 0: one matrix for the whole batch.
  // kSparse24: `data` is a sparse A, as Sparsity in tensors.proto defines; `rows` and `columns` are
  // those of the equivalent dense matrix.
  v1::Sparsity sparsity = v1::kDense;
  std::span<const float> scale = {};  // For A or B of an 8-bit type: 1 value, or one per row of
                                      // op(A) or column of op(B). Empty: none.
  BlockScaleView blocks = {};  // For A or B of at most 8 bits, without `scale`; integers if the
                               // other operand is f16 or bf16.
};

// A view of `rows` x `columns` elements in row-major order, or of a batch of such matrices without
// gaps. For any other layout, change the members of the returned view.
template <std::ranges::contiguous_range Range>
requires std::ranges::sized_range<Range> && NativeElement<std::ranges::range_value_t<Range>>
    MatrixView View(const Range& elements, int64_t rows, int64_t columns) {
  MatrixView view;
  view.type = kElementTypeOf<std::ranges::range_value_t<Range>>;
  view.data = std::as_bytes(std::span(std::ranges::data(elements), std::ranges::size(elements)));
  view.rows = rows;
  view.columns = columns;
  return view;
}

// A view of element types that C++ lacks: bytes packed as proto/gemmd/v1/tensors.proto specifies.
MatrixView PackedView(v1::ElementType type, std::span<const std::byte> data, int64_t rows,
                      int64_t columns);

// A vector added to every column (kBiasRows, m values) or every row (kBiasColumns, n values) of D.
struct BiasView {
  v1::ElementType type = {};  // {}: the output's type.
  v1::BiasAxis axis = v1::kBiasColumns;
  std::span<const std::byte> data = {};
};

// How the server checks D before answering. A wrong D is never sent; the call fails with DataLoss.
struct ServerCheck {
  v1::VerifyMode mode = {};  // {}: the server's --verify.
  double rate = 0;           // kVerifySampled: the fraction of D's elements; 0: the server's.
};

// Everything about a product except A and B. By default D = op(A) op(B), on a device and with a
// kernel that the server chooses. Each member is the v1::MultiplyRequest field of that name.
struct ProductOptions {
  std::string request_id = {};
  std::optional<int64_t> batch = {};  // Absent: 1.
  double alpha = 1;
  double beta = 0;
  std::optional<MatrixView> c = {};  // Required if beta is not 0.
  std::optional<BiasView> bias = {};
  v1::Activation activation = v1::kNoActivation;
  v1::BitOperation bit_operation = v1::kBitAnd;
  v1::ElementType accumulation_type = {};  // {}: the default for the operands.
  bool fast_accumulation = false;
  v1::ElementType output_type = {};  // {}: the accumulation type.
  v1::Order output_order = v1::kRowMajor;
  std::string kernel = {};  // Empty: the server chooses.
  std::string device = {};  // Empty: the server's first device with a kernel for the product.
  // If both are false, floating-point results on `cpu` may depend on which products run as one
  // with this one.
  bool require_deterministic = false;
  bool require_batch_invariant = false;
  v1::Priority priority = {};  // Normal.
  ServerCheck verify = {};

  // Memory of exactly D's size, which receives D and which the result then borrows. Empty: the
  // result allocates its own. Not written unless D arrives; may be written even if the answer is
  // then found to be corrupt.
  std::span<std::byte> into = {};
};

// Builds the request for a product; m, n and k come from the views. Copies the bytes.
//
// Errors: InvalidArgument, worded as the server does, if the views contradict each other or their
// bytes do not fit their shape: "a.data: got 4096 bytes, want m*k*4 = 8192". The server checks the
// rest (combinations of types, kernels, limits).
absl::StatusOr<v1::MultiplyRequest> BuildRequest(const MatrixView& a, const MatrixView& b,
                                                 const ProductOptions& options = {});

// Builds a request without the matrices' bytes, for Client::Explain. The views need no bytes.
absl::StatusOr<v1::MultiplyRequest> DescribeRequest(const MatrixView& a, const MatrixView& b,
                                                    const ProductOptions& options = {});

// Durations of the stages of a product, in nanoseconds; see Timing in gemm.proto.
struct Timing {
  int64_t receive_ns = 0;
  int64_t queue_ns = 0;
  int64_t copy_in_ns = 0;
  int64_t compute_ns = 0;
  int64_t copy_out_ns = 0;
  int64_t send_prepare_ns = 0;
  int64_t total_ns = 0;
};
Timing TimingOf(const v1::MultiplyResponse& response);

// The answer to one product: D, and how the server computed it. Movable. Owns D's bytes unless they
// went to ProductOptions::into.
class MultiplyResult {
 public:
  // Errors: DataLoss if the answer's bytes do not fit the shape that it states.
  static absl::StatusOr<MultiplyResult> FromResponse(v1::MultiplyResponse response);
  static absl::StatusOr<MultiplyResult> FromResponse(
      std::shared_ptr<const v1::MultiplyResponse> response);
  // The same for D's bytes outside the response message: owned by `own`, or by the caller if `own`
  // is null.
  static absl::StatusOr<MultiplyResult> FromParts(v1::MultiplyResponse response,
                                                  std::span<const std::byte> data,
                                                  std::unique_ptr<std::byte[]> own);

  int64_t rows() const;     // m
  int64_t columns() const;  // n
  int64_t batch() const;
  v1::ElementType type() const;
  const std::string& kernel() const;
  const std::string& device() const;
  Timing timing() const { return TimingOf(*response_); }
  // The result of the server's check of D; null if it did not check.
  const v1::Verification* verification() const;
  // The response message. Lacks D's bytes if they are stored outside the message; data() has them.
  const v1::MultiplyResponse& response() const { return *response_; }

  // D's bytes, in the order asked for (row major by default), matrix after matrix.
  std::span<const std::byte> data() const;

  // D's batch * m * n elements, plus padding if the request asked for it. Valid until the result is
  // moved or destroyed. Errors: InvalidArgument if type() is not kElementTypeOf<T>, or if D's
  // address is not aligned for T.
  template <NativeElement T>
  absl::StatusOr<std::span<const T>> elements() const {
    if (absl::Status status = CheckElements(kElementTypeOf<T>, alignof(T)); !status.ok()) {
      return status;
    }
    return std::span<const T>(reinterpret_cast<const T*>(data().data()), data().size() / sizeof(T));
  }

 private:
  explicit MultiplyResult(std::shared_ptr<const v1::MultiplyResponse> response);
  absl::Status CheckElements(v1::ElementType wanted, size_t alignment) const;

  std::shared_ptr<const v1::MultiplyResponse> response_;  // Null only after a move.
  bool is_apart_ = false;
  std::span<const std::byte> apart_;  // D's bytes, if they are not in response_.
  std::unique_ptr<std::byte[]> own_;
};

}  // namespace gemmd
