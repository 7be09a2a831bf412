// SPDX-License-Identifier: Apache-2.0
//
// A product in terms of C++ memory: views of matrices in, a request out; an answer in, a span out.
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

// Factors of blocks along k, in the caller's memory, as BlockScale in tensors.proto says.
struct BlockScaleView {
  v1::FactorType type = {};    // {}: there are none.
  int64_t rows_per_block = 1;  // Rows of op(A), or columns of op(B).
  int64_t k_per_block = 0;
  // For each block of rows a line of a factor for each block of k, without gaps.
  std::span<const std::byte> factors = {};
  bool per_matrix = false;  // Each matrix of the batch has its own.

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
  // kSparse24: `data` is that of a sparse A, as Sparsity in tensors.proto says; rows and columns
  // are those of the dense matrix that it stands for.
  v1::Sparsity sparsity = v1::kDense;
  std::span<const float> scale = {};  // For A or B of an 8-bit type: 1 value, or one per row of
                                      // op(A) or column of op(B). Empty: none.
  BlockScaleView blocks = {};         // For A or B of a float of at most 8 bits, without `scale`.
};

// A view of `rows` x `columns` elements in row-major order (or a batch of such matrices, one after
// the other). Change the other members of what it returns for any other layout.
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

// A view of element types that C++ lacks: packed bytes, as proto/gemmd/v1/tensors.proto says.
MatrixView PackedView(v1::ElementType type, std::span<const std::byte> data, int64_t rows,
                      int64_t columns);

// A vector added to every column (kBiasRows, m values) or every row (kBiasColumns, n values) of D.
struct BiasView {
  v1::ElementType type = {};  // {}: the output's type.
  v1::BiasAxis axis = v1::kBiasColumns;
  std::span<const std::byte> data = {};
};

// How the server checks D before it answers. A D that is wrong is never answered: DataLoss.
struct ServerCheck {
  v1::VerifyMode mode = {};  // As the server's --verify says.
  double rate = 0;           // For kVerifySampled, the part of D's elements; 0: as the server says.
};

// Everything about a product beside A and B. The defaults give D = op(A) op(B) with the server's
// choice of device and kernel. Each member is the field of
// v1::MultiplyRequest so named.
struct ProductOptions {
  std::string request_id = {};
  std::optional<int64_t> batch = {};  // Absent: 1.
  double alpha = 1;
  double beta = 0;
  std::optional<MatrixView> c = {};  // Wanted where beta is not 0.
  std::optional<BiasView> bias = {};
  v1::Activation activation = v1::kNoActivation;
  v1::BitOperation bit_operation = v1::kBitAnd;
  v1::ElementType accumulation_type = {};  // The default of the operands.
  bool fast_accumulation = false;
  v1::ElementType output_type = {};  // The accumulation type.
  v1::Order output_order = v1::kRowMajor;
  std::string kernel = {};  // Empty: the server chooses.
  std::string device = {};  // Empty: the server's first one that has a kernel for the product.
  // Where neither is true, bits of floats on `cpu` may depend on what runs as one with the product.
  bool require_deterministic = false;
  bool require_batch_invariant = false;
  v1::Priority priority = {};  // Normal.
  ServerCheck verify = {};

  // Where D's bytes go, exactly as many as D has; the result then borrows them. Empty: to memory of
  // the result's own. Not written unless D arrives; then, even where the answer is found to be
  // spoilt.
  std::span<std::byte> into = {};
};

// The request for a product; m, n and k come from the views. Copies the bytes.
//
// Errors: InvalidArgument, in the server's own words, where the views contradict each other or
// their bytes do not fit their shape: "a.data: got 4096 bytes, want m*k*4 = 8192". What only the
// server can know (types that go together, kernels, limits) is left to it.
absl::StatusOr<v1::MultiplyRequest> BuildRequest(const MatrixView& a, const MatrixView& b,
                                                 const ProductOptions& options = {});

// A request without the matrices' bytes, which the views need not have: for Client::Explain.
absl::StatusOr<v1::MultiplyRequest> DescribeRequest(const MatrixView& a, const MatrixView& b,
                                                    const ProductOptions& options = {});

// Where the time of a product went, in nanoseconds, as Timing in gemm.proto says.
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

// The answer to one product: D and what the server says about its making. Movable; owns D's bytes
// unless they went to ProductOptions::into.
class MultiplyResult {
 public:
  // Errors: DataLoss where the answer's bytes do not fit the shape that it claims.
  static absl::StatusOr<MultiplyResult> FromResponse(v1::MultiplyResponse response);
  static absl::StatusOr<MultiplyResult> FromResponse(
      std::shared_ptr<const v1::MultiplyResponse> response);
  // The same where D's bytes are apart from the answer: in `own`, or elsewhere if that is null.
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
  // What the server's check of D came to; null where there was none.
  const v1::Verification* verification() const;
  // Without D's bytes where those are apart from it, as data() gives them.
  const v1::MultiplyResponse& response() const { return *response_; }

  // D's bytes, in the order asked for (row major by default), matrix after matrix.
  std::span<const std::byte> data() const;

  // D's elements: batch * m * n of them, unless the request asked for padding, which is then here
  // too. Valid while the product lives where it is.
  // Errors: InvalidArgument where type() is not kElementTypeOf<T>, or where D went to an address
  // that no T may have.
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

  std::shared_ptr<const v1::MultiplyResponse> response_;  // Not null but in what was moved from.
  bool is_apart_ = false;
  std::span<const std::byte> apart_;  // D's bytes, if they are not in the answer.
  std::unique_ptr<std::byte[]> own_;
};

}  // namespace gemmd
