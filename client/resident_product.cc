// SPDX-License-Identifier: Apache-2.0
//
// Requests for products whose operands or result are tensors on the server.
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/operand_size.h"
#include "gemmd/tensor.h"
#include "gemmd/v1/gemm.pb.h"

namespace gemmd {
namespace {

// A resident operand as a matrix without bytes, whose shape the request is checked by.
MatrixView ShapeOf(const TensorView& tensor) {
  MatrixView view;
  view.type = tensor.type;
  view.rows = tensor.rows;
  view.columns = tensor.columns;
  view.order = tensor.order;
  view.transpose = tensor.transpose;
  view.sparsity = tensor.sparsity;
  view.blocks = tensor.blocks;
  return view;
}

MatrixView ShapeOf(const Operand& operand) {
  return operand.tensor() != nullptr ? ShapeOf(*operand.tensor()) : *operand.matrix();
}

// Names the tensor in the place of bytes; its type and layout are its own, factors of blocks are
// not.
void NameTensor(const TensorView& tensor, v1::Operand& operand) {
  v1::Scale scale = std::move(*operand.mutable_scale());
  operand.Clear();
  if (scale.has_blocks()) *operand.mutable_scale() = std::move(scale);
  operand.set_transpose(tensor.transpose);
  *operand.mutable_tensor() = tensor.part();
}

absl::Status CheckMatrices(absl::string_view field, const TensorView& tensor, int64_t batch) {
  if (tensor.matrices == batch || tensor.matrices == 1) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, ".tensor: got ", tensor.matrices,
                                                 " matrices, want batch = ", batch, " or 1"));
}

// Bytes may not be missing where the operand is not on the server.
absl::Status CheckBytes(absl::string_view field, absl::string_view extents, const MatrixView& view,
                        int64_t batch) {
  const OperandShape shape = {.type = view.type,
                              .order = view.order,
                              .rows = view.rows,
                              .columns = view.columns,
                              .leading_dimension = view.leading_dimension,
                              .batch_stride = view.batch_stride,
                              .batch = batch,
                              .sparsity = view.sparsity};
  return CheckOperandBytes(field, extents, shape, static_cast<int64_t>(view.data.size()));
}

absl::Status Place(absl::string_view field, absl::string_view extents, const Operand& operand,
                   int64_t batch, bool is_read, v1::Operand& message) {
  if (operand.tensor() == nullptr) {
    return is_read ? CheckBytes(field, extents, *operand.matrix(), batch) : absl::OkStatus();
  }
  if (absl::Status status = CheckMatrices(field, *operand.tensor(), batch); !status.ok()) {
    return status;
  }
  NameTensor(*operand.tensor(), message);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<v1::MultiplyRequest> BuildRequest(const Operand& a, const Operand& b,
                                                 const ProductOptions& options,
                                                 const std::optional<TensorView>& c) {
  ProductOptions described = options;
  if (c.has_value()) {
    if (options.c.has_value()) {
      return absl::InvalidArgumentError("c: got a matrix and a tensor, want one of them");
    }
    described.c = ShapeOf(*c);
  }
  const MatrixView a_view = ShapeOf(a);
  const MatrixView b_view = ShapeOf(b);
  auto request = DescribeRequest(a_view, b_view, described);
  if (!request.ok()) return request.status();
  const int64_t batch = options.batch.value_or(1);
  const bool is_read = request->k() > 0 && options.alpha != 0;
  absl::Status status =
      Place("a", a_view.transpose ? "k*m" : "m*k", a, batch, is_read, *request->mutable_a());
  if (status.ok()) {
    status = Place("b", b_view.transpose ? "n*k" : "k*n", b, batch, is_read, *request->mutable_b());
  }
  if (status.ok() && c.has_value()) {
    status = Place("c", "m*n", *c, batch, true, *request->mutable_c());
  } else if (status.ok() && options.c.has_value() &&
             options.c->type != v1::ELEMENT_TYPE_UNSPECIFIED) {
    status = CheckBytes("c", options.c->transpose ? "n*m" : "m*n", *options.c, batch);
  }
  if (!status.ok()) return status;
  return request;
}

absl::StatusOr<v1::MultiplyRequest> BuildChainRequest(const Operand& a, const Operand& b,
                                                      const ChainOptions& options) {
  auto request = BuildRequest(a, b, options.product, options.c);
  if (!request.ok()) return request.status();
  v1::OutputSpec& d = *request->mutable_d();
  if (!options.into.has_value()) {
    d.mutable_new_tensor()->set_name(options.keep.name);
    d.mutable_new_tensor()->set_pinned(options.keep.pinned);
    d.mutable_new_tensor()->set_lease_ns(absl::ToInt64Nanoseconds(options.keep.lease));
    return request;
  }
  const TensorView& into = *options.into;
  if (into.transpose || into.rows != request->m() || into.columns != request->n()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "into: got ", into.rows, "x", into.columns, into.transpose ? " transposed" : "",
        ", want m*n = ", request->m(), "x", request->n(), ", not transposed"));
  }
  if (into.matrices != options.product.batch.value_or(1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("into: got ", into.matrices,
                     " matrices, want batch = ", options.product.batch.value_or(1)));
  }
  // The layout is the tensor's.
  d.set_order(v1::ORDER_ROW_MAJOR);
  *d.mutable_tensor() = into.part();
  return request;
}

}  // namespace gemmd
