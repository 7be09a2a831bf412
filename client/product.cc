// SPDX-License-Identifier: Apache-2.0
#include "gemmd/product.h"

#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "client/operand_size.h"
#include "client/product_call.h"
#include "gemmd/tensor.h"
#include "gemmd/v1/gemm.pb.h"
#include "kernels/matrix/status.h"

namespace gemmd {
namespace {

// An extent of op(X) from `view`, on which the operands must agree.
struct Extent {
  absl::string_view name;  // "k"
  int64_t value;
};

int64_t UsedRows(const MatrixView& view) { return view.transpose ? view.columns : view.rows; }
int64_t UsedColumns(const MatrixView& view) { return view.transpose ? view.rows : view.columns; }

absl::Status CheckExtent(absl::string_view field, absl::string_view what, int64_t got,
                         const Extent& want) {
  if (got == want.value) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": got ", got, " ", what, ", want ", want.name, " = ", want.value));
}

// `extents` spells op(X)'s shape, "mk" for A.
absl::Status CheckBytes(absl::string_view field, absl::string_view extents, const MatrixView& view,
                        const OperandShape& shape) {
  const size_t first = view.transpose ? 1 : 0;
  const std::string stored =
      absl::StrCat(extents.substr(first, 1), "*", extents.substr(1 - first, 1));
  return CheckOperandBytes(field, stored, shape, static_cast<int64_t>(view.data.size()));
}

// A sparse A has a fixed order; B and C cannot be sparse.
absl::Status CheckSparsity(absl::string_view field, const MatrixView& view) {
  if (view.sparsity == v1::SPARSITY_NONE) return absl::OkStatus();
  if (field != "a") {
    return absl::InvalidArgumentError(
        absl::StrCat(field, ".sparsity: got 2:4, want none: only A may be sparse"));
  }
  if (!view.transpose) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, ".transpose: got true, want false where sparsity is 2:4"));
}

}  // namespace

// Factors are small compared with the matrix and are always sent in the message.
void FillBlocks(const BlockScaleView& view, v1::Scale& scale) {
  v1::BlockScale& blocks = *scale.mutable_blocks();
  blocks.set_type(view.type);
  blocks.set_rows_per_block(view.rows_per_block);
  blocks.set_k_per_block(view.k_per_block);
  blocks.set_per_matrix(view.per_matrix);
  blocks.set_factors(view.factors.data(), view.factors.size());
}

namespace {

void FillOperand(const MatrixView& view, v1::Operand& operand) {
  operand.set_type(view.type);
  operand.set_order(view.order);
  operand.set_leading_dimension(view.leading_dimension);
  if (view.batch_stride.has_value()) operand.set_batch_stride(*view.batch_stride);
  operand.set_transpose(view.transpose);
  operand.set_sparsity(view.sparsity);
  if (!view.scale.empty())
    operand.mutable_scale()->mutable_values()->Add(view.scale.begin(), view.scale.end());
  if (!view.blocks.empty()) FillBlocks(view.blocks, *operand.mutable_scale());
}

// The shape of a C whose unspecified type is that of the output.
OperandShape ShapeOfC(const MatrixView& c, const ProductOptions& options) {
  OperandShape shape = ShapeOf(c, options.batch.value_or(1));
  if (shape.type == v1::ELEMENT_TYPE_UNSPECIFIED) shape.type = options.output_type;
  return shape;
}

// A, B or C of a request, checked; its bytes too, if it has any. `extents` spells op(X)'s shape,
// "mk" for A.
absl::Status AddOperand(absl::string_view field, absl::string_view extents, const MatrixView& view,
                        const OperandShape& shape, v1::Operand& operand) {
  RETURN_IF_ERROR(CheckSparsity(field, view));
  RETURN_IF_ERROR(view.data.empty() ? SizeOperand(field, shape).status()
                                    : CheckBytes(field, extents, view, shape));
  FillOperand(view, operand);
  return absl::OkStatus();
}

absl::Status AddC(const ProductOptions& options, v1::MultiplyRequest& request) {
  if (!options.c.has_value()) {
    if (options.beta == 0) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("c: got none, want C where beta is ", options.beta));
  }
  if (options.beta == 0) return absl::InvalidArgumentError("c: got C, want none where beta is 0");
  const MatrixView& c = *options.c;
  absl::Status status = CheckExtent("c", "rows of op(C)", UsedRows(c), {"m", request.m()});
  status.Update(CheckExtent("c", "columns of op(C)", UsedColumns(c), {"n", request.n()}));
  status.Update(CheckSparsity("c", c));
  if (!status.ok()) return status;
  // Only the server derives the default of the output's type.
  const OperandShape shape = ShapeOfC(c, options);
  if (shape.type != v1::ELEMENT_TYPE_UNSPECIFIED) {
    return AddOperand("c", "mn", c, shape, *request.mutable_c());
  }
  FillOperand(c, *request.mutable_c());
  return absl::OkStatus();
}

absl::Status AddBias(const ProductOptions& options, v1::MultiplyRequest& request) {
  if (!options.bias.has_value()) return absl::OkStatus();
  const BiasView& bias = *options.bias;
  const bool along_rows = bias.axis == v1::BIAS_AXIS_ROWS;
  const int64_t count = along_rows ? request.m() : request.n();
  const v1::ElementType type =
      bias.type != v1::ELEMENT_TYPE_UNSPECIFIED ? bias.type : options.output_type;
  const auto want = PackedLineBytes(type, count);
  const int64_t got = static_cast<int64_t>(bias.data.size());
  if (type != v1::ELEMENT_TYPE_UNSPECIFIED && want != got) {
    return absl::InvalidArgumentError(
        absl::StrCat("bias.data: got ", got, " bytes, want ", along_rows ? "m" : "n", " = ", count,
                     " elements of ", ElementBits(type), " bits = ", want.value_or(-1)));
  }
  request.mutable_bias()->set_type(bias.type);
  request.mutable_bias()->set_axis(bias.axis);
  request.mutable_bias()->set_data(bias.data.data(), bias.data.size());
  return absl::OkStatus();
}

void FillChoices(const ProductOptions& options, v1::MultiplyRequest& request) {
  request.set_request_id(options.request_id);
  if (options.batch.has_value()) request.set_batch(*options.batch);
  if (options.alpha != 1) request.set_alpha(options.alpha);
  request.set_beta(options.beta);
  request.set_activation(options.activation);
  request.set_bit_operation(options.bit_operation);
  request.set_accumulation_type(options.accumulation_type);
  request.set_fast_accumulation(options.fast_accumulation);
  request.mutable_d()->set_type(options.output_type);
  request.mutable_d()->set_order(options.output_order);
  request.set_kernel(options.kernel);
  request.set_device(options.device);
  request.set_require_deterministic(options.require_deterministic);
  request.set_require_batch_invariant(options.require_batch_invariant);
  request.set_priority(options.priority);
  if (options.verify.mode != v1::VERIFY_MODE_UNSPECIFIED || options.verify.rate != 0) {
    request.mutable_verify()->set_mode(options.verify.mode);
    request.mutable_verify()->set_rate(options.verify.rate);
  }
}

}  // namespace

MatrixView PackedView(v1::ElementType type, std::span<const std::byte> data, int64_t rows,
                      int64_t columns) {
  MatrixView view;
  view.type = type;
  view.data = data;
  view.rows = rows;
  view.columns = columns;
  return view;
}

absl::StatusOr<v1::MultiplyRequest> DescribeRequest(const MatrixView& a, const MatrixView& b,
                                                    const ProductOptions& options) {
  v1::MultiplyRequest request;
  request.set_m(UsedRows(a));
  request.set_k(UsedColumns(a));
  request.set_n(UsedColumns(b));
  RETURN_IF_ERROR(CheckExtent("b", "rows of op(B)", UsedRows(b), {"k", request.k()}));
  FillChoices(options, request);
  const int64_t batch = options.batch.value_or(1);
  RETURN_IF_ERROR(AddOperand("a", "mk", a, ShapeOf(a, batch), *request.mutable_a()));
  RETURN_IF_ERROR(AddOperand("b", "kn", b, ShapeOf(b, batch), *request.mutable_b()));
  RETURN_IF_ERROR(AddC(options, request));
  RETURN_IF_ERROR(AddBias(options, request));
  return request;
}

absl::StatusOr<v1::MultiplyRequest> BuildRequest(const MatrixView& a, const MatrixView& b,
                                                 const ProductOptions& options) {
  return BuildRequest(Operand(a), Operand(b), options);
}

namespace {

// Errors: DataLoss if `got` bytes do not fit the shape that D states.
absl::Status CheckAnswer(const v1::Matrix& d, int64_t got) {
  const OperandShape one = {.type = d.type(),
                            .order = d.order(),
                            .rows = d.rows(),
                            .columns = d.columns(),
                            .leading_dimension = d.leading_dimension(),

                            .batch = 1};
  const auto bytes = SizeOperand("d", one);
  if (!bytes.ok()) return absl::DataLossError(bytes.status().message());
  if (d.batch() < 0) {
    return absl::DataLossError(absl::StrCat("d.batch: got ", d.batch(), ", want at least 0"));
  }
  const bool is_empty = d.batch() == 0 || bytes->full == 0;
  int64_t before = 0;  // Bytes before the last matrix.
  const bool overflows = __builtin_mul_overflow(d.batch() - 1, d.batch_stride(), &before);
  const bool fits = is_empty ? got == 0
                             : (d.batch() == 1 || d.batch_stride() >= bytes->min) && !overflows &&
                                   before <= got && bytes->min <= got - before &&
                                   got - before <= bytes->full;
  if (fits) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(
      "d.data: got ", got, " bytes for ", d.batch(), " matrices of ", d.rows(), "x", d.columns(),
      " elements of type ", ElementTypeName(d.type()), ", want as many as its layout takes"));
}

}  // namespace

Timing TimingOf(const v1::MultiplyResponse& response) {
  const v1::Timing& timing = response.timing();
  return {timing.receive_ns(),  timing.queue_ns(),        timing.copy_in_ns(), timing.compute_ns(),
          timing.copy_out_ns(), timing.send_prepare_ns(), timing.total_ns()};
}

MultiplyResult::MultiplyResult(std::shared_ptr<const v1::MultiplyResponse> response)
    : response_(std::move(response)) {}

int64_t MultiplyResult::rows() const { return response_->d().rows(); }
int64_t MultiplyResult::columns() const { return response_->d().columns(); }
int64_t MultiplyResult::batch() const { return response_->d().batch(); }
v1::ElementType MultiplyResult::type() const { return response_->d().type(); }
const std::string& MultiplyResult::kernel() const { return response_->kernel(); }
const std::string& MultiplyResult::device() const { return response_->device(); }

const v1::Verification* MultiplyResult::verification() const {
  return response_->has_verification() ? &response_->verification() : nullptr;
}

absl::StatusOr<MultiplyResult> MultiplyResult::FromResponse(v1::MultiplyResponse response) {
  return FromResponse(std::make_shared<const v1::MultiplyResponse>(std::move(response)));
}

absl::StatusOr<MultiplyResult> MultiplyResult::FromResponse(
    std::shared_ptr<const v1::MultiplyResponse> response) {
  const v1::Matrix& d = response->d();
  RETURN_IF_ERROR(CheckAnswer(d, static_cast<int64_t>(d.data().size())));
  return MultiplyResult(std::move(response));
}

absl::StatusOr<MultiplyResult> MultiplyResult::FromParts(v1::MultiplyResponse response,
                                                         std::span<const std::byte> data,
                                                         std::unique_ptr<std::byte[]> own) {
  RETURN_IF_ERROR(CheckAnswer(response.d(), static_cast<int64_t>(data.size())));
  MultiplyResult result(std::make_shared<const v1::MultiplyResponse>(std::move(response)));
  result.is_apart_ = true;
  result.apart_ = data;
  result.own_ = std::move(own);
  return result;
}

std::span<const std::byte> MultiplyResult::data() const {
  if (is_apart_) return apart_;
  return std::as_bytes(std::span(response_->d().data().data(), response_->d().data().size()));
}

absl::Status MultiplyResult::CheckElements(v1::ElementType wanted, size_t alignment) const {
  if (type() != wanted) {
    return absl::InvalidArgumentError(absl::StrCat("elements: got ", ElementTypeName(wanted),
                                                   ", want D's type, ", ElementTypeName(type())));
  }
  if (reinterpret_cast<uintptr_t>(data().data()) % alignment == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("into: got an address that is no multiple of ", alignment, " bytes"));
}

namespace {

// A resident operand as a matrix without bytes, for checking shapes.
MatrixView MatrixOf(const TensorView& tensor) {
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

MatrixView MatrixOf(const Operand& operand) {
  MatrixView view = operand.tensor() != nullptr ? MatrixOf(*operand.tensor()) : *operand.matrix();
  view.data = {};
  return view;
}

// Names the tensor instead of bytes. Type and layout come from the tensor; block factors come from
// the view.
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

// Adds an operand to the message; returns its bytes if they are to be sent. `shape` is that of the
// operand if it is a matrix.
absl::StatusOr<LentRequest::Bytes> Place(absl::string_view field, absl::string_view extents,
                                         const Operand& operand, const OperandShape& shape,
                                         bool is_read, v1::Operand& message) {
  if (operand.tensor() == nullptr) {
    const MatrixView& view = *operand.matrix();
    if (!is_read && view.data.empty()) return std::nullopt;
    RETURN_IF_ERROR(CheckBytes(field, extents, view, shape));
    return view.data;
  }
  RETURN_IF_ERROR(CheckMatrices(field, *operand.tensor(), shape.batch));
  NameTensor(*operand.tensor(), message);
  return std::nullopt;
}

// A C without its bytes.
absl::StatusOr<std::optional<MatrixView>> DescribedC(const ProductOptions& options,
                                                     const std::optional<TensorView>& c) {
  if (!c.has_value() && !options.c.has_value()) return std::nullopt;
  if (c.has_value() && options.c.has_value()) {
    return absl::InvalidArgumentError("c: got a matrix and a tensor, want one of them");
  }
  MatrixView shape = c.has_value() ? MatrixOf(*c) : *options.c;
  shape.data = {};
  return shape;
}

absl::StatusOr<LentRequest::Bytes> PlaceC(const ProductOptions& options,
                                          const std::optional<TensorView>& c,
                                          v1::MultiplyRequest& request) {
  if (c.has_value()) {
    const OperandShape shape = {.batch = options.batch.value_or(1)};
    return Place("c", "mn", *c, shape, true, *request.mutable_c());
  }
  if (!options.c.has_value()) return std::nullopt;
  const OperandShape shape = ShapeOfC(*options.c, options);
  // Without a type only the server knows the length.
  if (shape.type == v1::ELEMENT_TYPE_UNSPECIFIED) return options.c->data;
  return Place("c", "mn", *options.c, shape, true, *request.mutable_c());
}

// Copies the bytes into an operand of the message.
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
  ASSIGN_OR_RETURN(described.c, DescribedC(options, c));
  const MatrixView a_view = MatrixOf(a);
  const MatrixView b_view = MatrixOf(b);
  LentRequest request;
  ASSIGN_OR_RETURN(request.message, DescribeRequest(a_view, b_view, described));
  const int64_t batch = options.batch.value_or(1);
  const bool is_read = request.message.k() > 0 && options.alpha != 0;
  ASSIGN_OR_RETURN(request.a, Place("a", "mk", a, ShapeOf(a_view, batch), is_read,
                                    *request.message.mutable_a()));
  ASSIGN_OR_RETURN(request.b, Place("b", "kn", b, ShapeOf(b_view, batch), is_read,
                                    *request.message.mutable_b()));
  ASSIGN_OR_RETURN(request.c, PlaceC(options, c, request.message));
  return request;
}

absl::StatusOr<v1::MultiplyRequest> BuildRequest(const Operand& a, const Operand& b,
                                                 const ProductOptions& options,
                                                 const std::optional<TensorView>& c) {
  ASSIGN_OR_RETURN(auto request, BuildLentRequest(a, b, options, c));
  return Filled(std::move(request));
}

absl::StatusOr<LentRequest> BuildLentChainRequest(const Operand& a, const Operand& b,
                                                  const ChainOptions& options) {
  ASSIGN_OR_RETURN(auto request, BuildLentRequest(a, b, options.product, options.c));
  v1::MultiplyRequest& message = request.message;
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
  // The tensor determines the layout.
  d.set_order(v1::ORDER_ROW_MAJOR);
  *d.mutable_tensor() = into.part();
  return request;
}

absl::StatusOr<v1::MultiplyRequest> BuildChainRequest(const Operand& a, const Operand& b,
                                                      const ChainOptions& options) {
  ASSIGN_OR_RETURN(auto request, BuildLentChainRequest(a, b, options));
  return Filled(std::move(request));
}

}  // namespace gemmd
