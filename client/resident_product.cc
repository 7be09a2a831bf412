// SPDX-License-Identifier: Apache-2.0
//
// Requests for products whose operands or result are tensors on the server.
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/lent_request.h"
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

// Puts an operand into the message; gives where its bytes are, where they are to be sent.
absl::StatusOr<LentRequest::Bytes> Place(absl::string_view field, absl::string_view extents,
                                         const Operand& operand, int64_t batch, bool is_read,
                                         v1::Operand& message) {
  if (operand.tensor() == nullptr) {
    const MatrixView& view = *operand.matrix();
    if (!is_read && view.data.empty()) return std::nullopt;
    if (absl::Status status = CheckBytes(field, extents, view, batch); !status.ok()) return status;
    return view.data;
  }
  if (absl::Status status = CheckMatrices(field, *operand.tensor(), batch); !status.ok()) {
    return status;
  }
  NameTensor(*operand.tensor(), message);
  return std::nullopt;
}

// The shape of a C without its bytes.
absl::StatusOr<std::optional<MatrixView>> ShapeOfC(const ProductOptions& options,
                                                   const std::optional<TensorView>& c) {
  if (!c.has_value() && !options.c.has_value()) return std::nullopt;
  if (c.has_value() && options.c.has_value()) {
    return absl::InvalidArgumentError("c: got a matrix and a tensor, want one of them");
  }
  MatrixView shape = c.has_value() ? ShapeOf(*c) : *options.c;
  shape.data = {};
  return shape;
}

absl::StatusOr<LentRequest::Bytes> PlaceC(const ProductOptions& options,
                                          const std::optional<TensorView>& c, int64_t batch,
                                          v1::MultiplyRequest& request) {
  if (c.has_value()) return Place("c", "m*n", *c, batch, true, *request.mutable_c());
  if (!options.c.has_value()) return std::nullopt;
  // What type it has where none is said only the server knows, and with it the length.
  if (options.c->type == v1::ELEMENT_TYPE_UNSPECIFIED) return options.c->data;
  return Place("c", options.c->transpose ? "n*m" : "m*n", *options.c, batch, true,
               *request.mutable_c());
}

// Into an operand of the message that is to hold its bytes itself.
void Fill(const LentRequest::Bytes& bytes, v1::Operand& operand) {
  operand.set_data(bytes->data(), bytes->size());
}

v1::MultiplyRequest Filled(LentRequest request) {
  v1::MultiplyRequest& message = request.message;
  if (request.a.has_value()) Fill(request.a, *message.mutable_a());
  if (request.b.has_value()) Fill(request.b, *message.mutable_b());
  if (request.c.has_value()) Fill(request.c, *message.mutable_c());
  return std::move(message);
}

}  // namespace

absl::StatusOr<LentRequest> BuildLentRequest(const Operand& a, const Operand& b,
                                             const ProductOptions& options,
                                             const std::optional<TensorView>& c) {
  ProductOptions described = options;
  auto c_shape = ShapeOfC(options, c);
  if (!c_shape.ok()) return c_shape.status();
  described.c = *c_shape;
  MatrixView a_shape = ShapeOf(a);
  MatrixView b_shape = ShapeOf(b);
  a_shape.data = b_shape.data = {};
  auto message = DescribeRequest(a_shape, b_shape, described);
  if (!message.ok()) return message.status();
  LentRequest request = {.message = *std::move(message)};
  const int64_t batch = options.batch.value_or(1);
  const bool is_read = request.message.k() > 0 && options.alpha != 0;
  auto a_bytes = Place("a", a_shape.transpose ? "k*m" : "m*k", a, batch, is_read,
                       *request.message.mutable_a());
  if (!a_bytes.ok()) return a_bytes.status();
  auto b_bytes = Place("b", b_shape.transpose ? "n*k" : "k*n", b, batch, is_read,
                       *request.message.mutable_b());
  if (!b_bytes.ok()) return b_bytes.status();
  auto c_bytes = PlaceC(options, c, batch, request.message);
  if (!c_bytes.ok()) return c_bytes.status();
  request.a = *a_bytes;
  request.b = *b_bytes;
  request.c = *c_bytes;
  return request;
}

absl::StatusOr<v1::MultiplyRequest> BuildRequest(const Operand& a, const Operand& b,
                                                 const ProductOptions& options,
                                                 const std::optional<TensorView>& c) {
  auto request = BuildLentRequest(a, b, options, c);
  if (!request.ok()) return request.status();
  return Filled(*std::move(request));
}

absl::StatusOr<LentRequest> BuildLentChainRequest(const Operand& a, const Operand& b,
                                                  const ChainOptions& options) {
  auto request = BuildLentRequest(a, b, options.product, options.c);
  if (!request.ok()) return request.status();
  v1::MultiplyRequest& message = request->message;
  v1::OutputSpec& d = *message.mutable_d();
  if (!options.into.has_value()) {
    d.mutable_new_tensor()->set_name(options.keep.name);
    d.mutable_new_tensor()->set_pinned(options.keep.pinned);
    d.mutable_new_tensor()->set_lease_ns(absl::ToInt64Nanoseconds(options.keep.lease));
    return request;
  }
  const TensorView& into = *options.into;
  if (into.transpose || into.rows != message.m() || into.columns != message.n()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "into: got ", into.rows, "x", into.columns, into.transpose ? " transposed" : "",
        ", want m*n = ", message.m(), "x", message.n(), ", not transposed"));
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

absl::StatusOr<v1::MultiplyRequest> BuildChainRequest(const Operand& a, const Operand& b,
                                                      const ChainOptions& options) {
  auto request = BuildLentChainRequest(a, b, options);
  if (!request.ok()) return request.status();
  return Filled(*std::move(request));
}

}  // namespace gemmd
