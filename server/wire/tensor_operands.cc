// SPDX-License-Identifier: Apache-2.0
#include "server/wire/tensor_operands.h"

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "kernels/status_macros.h"
#include "kernels/text.h"
#include "server/store/product_tensors.h"
#include "server/wire/convert.h"
#include "server/wire/convert_operand.h"
#include "server/wire/tensor_convert.h"
#include "server/wire/tensor_part.h"

namespace gemmd {
namespace {

using OperandRole = ProductTensors::Operand;

absl::Status LeftOut(std::string_view field, std::string_view member) {
  return absl::InvalidArgumentError(
      GotWant(Concat(field, ".", member), "a value", "none: the tensor has its own"));
}

// What a request says of a matrix that is a tensor: its type at most, which must be the tensor's.
absl::Status CheckType(std::string_view field, v1::ElementType type, const Tensor& tensor) {
  const ElementType own = tensor.spec.layout.type;
  if (type == v1::ELEMENT_TYPE_UNSPECIFIED || type == ToWire(own)) return absl::OkStatus();
  if (!v1::ElementType_IsValid(type)) return UnknownValue(Concat(field, ".type"), type);
  return absl::InvalidArgumentError(GotWant(Concat(field, ".type"), v1::ElementType_Name(type),
                                            Concat("that of the tensor, ", NameOf(own))));
}

// One matrix of the product that is a tensor.
struct Resident {
  std::string_view field;
  OperandRole role;
  v1::Operand* wire;
  MatrixLayout Problem::*layout;
  PartOfTensor part;
};

// Goes through the matrices of one request.
class TensorOperands {
 public:
  TensorOperands(v1::MultiplyRequest& request, ProductTensors& tensors)
      : request_(request), tensors_(tensors) {}

  // Before the request is parsed: tells it types and layouts.
  absl::Status Resolve() {
    if (request_.a().has_tensor()) {
      RETURN_IF_ERROR(Add("a", OperandRole::kA, *request_.mutable_a(), &Problem::a));
    }
    if (request_.b().has_tensor()) {
      RETURN_IF_ERROR(Add("b", OperandRole::kB, *request_.mutable_b(), &Problem::b));
    }
    if (request_.c().has_tensor()) {
      RETURN_IF_ERROR(Add("c", OperandRole::kC, *request_.mutable_c(), &Problem::c));
    }
    return request_.d().has_tensor() ? ResolveOutput(*request_.mutable_d()) : absl::OkStatus();
  }

  // Once it is: tells the problem what the wire has no words for, and takes the room of a new
  // tensor.
  absl::Status Complete(bool is_explained, Product& product) {
    Problem& problem = product.job.problem;
    for (Resident& resident : std::span(residents_).first(count_)) {
      RETURN_IF_ERROR(CompleteOperand(resident, problem, product.job));
    }
    if (d_) {
      RETURN_IF_ERROR(CheckShape("d", *d_, problem.m, problem.n, problem.batch, false));
      if (problem.batch > 1) {
        problem.d.batch_stride_bytes = tensors_.written()->spec.layout.batch_stride_bytes;
      }
      RETURN_IF_ERROR(CheckNoOverlap());
      tensors_.SetPartOfD(d_->offset_bytes);
    }
    RETURN_IF_ERROR(Validate(problem));
    if (!request_.d().has_new_tensor()) return absl::OkStatus();
    if (problem.batch > 1) {
      MatrixLayout tight = problem.d;
      tight.batch_stride_bytes = tight.lines() * tight.line_stride_bytes();
      if (!(tight == problem.d)) {
        return absl::InvalidArgumentError(
            "d.batch_stride: got a gap between matrices, want none in a new tensor");
      }
    }
    if (is_explained) return absl::OkStatus();
    ASSIGN_OR_RETURN(TensorSpec spec, MakeTensorSpec(problem.d, problem.batch, {}));
    return tensors_.MakeNew(std::move(spec), ParseKeeping(request_.d().new_tensor()));
  }

 private:
  absl::Status Add(std::string_view field, OperandRole role, v1::Operand& wire,
                   MatrixLayout Problem::*layout) {
    const std::string part_field = Concat(field, ".tensor");
    ASSIGN_OR_RETURN(const TensorName name, ParseTensorRef(part_field, wire.tensor().tensor()));
    ASSIGN_OR_RETURN(const Tensor* const tensor, tensors_.Read(role, name));
    if (wire.order() != v1::ORDER_ROW_MAJOR) return LeftOut(field, "order");
    if (wire.leading_dimension() != 0) return LeftOut(field, "leading_dimension");
    if (wire.has_batch_stride()) return LeftOut(field, "batch_stride");
    if (wire.scale().values_size() > 0) return LeftOut(field, "scale.values");
    if (wire.scale().has_blocks() && !tensor->spec.scale.empty()) {
      return LeftOut(field, "scale.blocks");
    }
    if (wire.sparsity() != v1::SPARSITY_NONE) return LeftOut(field, "sparsity");
    RETURN_IF_ERROR(CheckType(field, wire.type(), *tensor));
    ASSIGN_OR_RETURN(const PartOfTensor part, ParsePart(part_field, wire.tensor(), tensor->spec));
    const MatrixLayout& stored = tensor->spec.layout;
    wire.set_type(ToWire(stored.type));
    if (stored.is_sparse()) {
      wire.set_sparsity(v1::SPARSITY_2_4);
    } else {
      wire.set_order(stored.order == Order::kRowMajor ? v1::ORDER_ROW_MAJOR
                                                      : v1::ORDER_COLUMN_MAJOR);
      wire.set_leading_dimension(stored.leading_dimension);
    }
    residents_[count_++] = {field, role, &wire, layout, part};
    return absl::OkStatus();
  }

  absl::Status ResolveOutput(v1::OutputSpec& wire) {
    ASSIGN_OR_RETURN(const TensorName name, ParseTensorRef("d.tensor", wire.tensor().tensor()));
    ASSIGN_OR_RETURN(const Tensor* const tensor, tensors_.Write(name));
    const MatrixLayout& stored = tensor->spec.layout;
    const v1::Order order =
        stored.order == Order::kRowMajor ? v1::ORDER_ROW_MAJOR : v1::ORDER_COLUMN_MAJOR;
    RETURN_IF_ERROR(CheckType("d", wire.type(), *tensor));
    if (stored.is_sparse() || !tensor->spec.scale.empty()) {
      return absl::InvalidArgumentError(
          "d.tensor: got a tensor that is sparse or has factors, want one without");
    }
    if (wire.order() != v1::ORDER_ROW_MAJOR && wire.order() != order) {
      return absl::InvalidArgumentError(
          "d.order: got COLUMN_MAJOR, want that of the tensor, ROW_MAJOR");
    }
    if (wire.leading_dimension() != 0 && wire.leading_dimension() != stored.leading_dimension) {
      return absl::InvalidArgumentError(
          Concat("d.leading_dimension: got ", wire.leading_dimension(),
                 ", want 0 or that of the tensor, ", stored.leading_dimension));
    }
    if (wire.has_batch_stride()) return LeftOut("d", "batch_stride");
    ASSIGN_OR_RETURN(d_, ParsePart("d.tensor", wire.tensor(), tensor->spec));
    RETURN_IF_ERROR(CheckWholeBytes("d.tensor", *d_, tensor->spec));
    wire.set_type(ToWire(stored.type));
    wire.set_order(order);
    wire.set_leading_dimension(stored.leading_dimension);
    return absl::OkStatus();
  }

  absl::Status CompleteOperand(const Resident& resident, Problem& problem, Job& job) {
    const Tensor& tensor = *tensors_.read(resident.role);
    MatrixLayout& layout = problem.*resident.layout;
    const bool is_exchanged = resident.wire->transpose();
    RETURN_IF_ERROR(CheckShape(resident.field, resident.part,
                               is_exchanged ? layout.columns : layout.rows,
                               is_exchanged ? layout.rows : layout.columns, problem.batch, true));
    if (problem.batch > 1) {
      layout.batch_stride_bytes =
          resident.part.matrices == 1 ? 0 : tensor.spec.layout.batch_stride_bytes;
    }
    RETURN_IF_ERROR(CompleteScale(resident, problem, job));
    ASSIGN_OR_RETURN(const ByteCount count, BytesOf(resident.field, layout, problem.batch));
    const bool is_read = resident.role == OperandRole::kC ? problem.has_c() : problem.has_product();
    tensors_.SetPart(resident.role, resident.part.offset_bytes, is_read ? count.least : 0);
    return absl::OkStatus();
  }

  // The factors of the tensor that the product needs.
  absl::Status CompleteScale(const Resident& resident, Problem& problem, Job& job) {
    const std::vector<float>& scale = tensors_.read(resident.role)->spec.scale;
    if (scale.empty()) return absl::OkStatus();
    if (resident.role == OperandRole::kC) {
      return absl::InvalidArgumentError(
          "c.tensor: got a tensor with factors, want one without: only A and B are scaled");
    }
    const bool is_a = resident.role == OperandRole::kA;
    Source& source = is_a ? job.a_scale : job.b_scale;
    ScaleKind& kind = is_a ? problem.a_scale : problem.b_scale;
    ASSIGN_OR_RETURN(const absl::Span<const float> factors,
                     ScaleOfPart(resident.field, resident.part, *tensors_.read(resident.role),
                                 /*by_row=*/is_a != resident.wire->transpose()));
    kind = scale.size() == 1 ? ScaleKind::kTensor : ScaleKind::kVector;
    source = tensors_.AddFactors(factors);
    return absl::OkStatus();
  }

  // D may be C; otherwise it has no byte of an operand.
  absl::Status CheckNoOverlap() const {
    for (const Resident& resident : std::span(residents_).first(count_)) {
      if (tensors_.read(resident.role) != tensors_.written()) continue;
      const bool is_same = resident.part == *d_ && !resident.wire->transpose();
      if (resident.role == OperandRole::kC && is_same) continue;
      if (!Overlap(resident.part, *d_)) continue;
      return absl::InvalidArgumentError(
          Concat("d.tensor: got bytes of ", resident.field,
                 ".tensor, want others, or exactly those of C, which is not transposed"));
    }
    return absl::OkStatus();
  }

  v1::MultiplyRequest& request_;
  ProductTensors& tensors_;
  std::array<Resident, ProductTensors::kOperands> residents_;
  size_t count_ = 0;
  std::optional<PartOfTensor> d_;
};

bool HasTensors(const v1::MultiplyRequest& request) {
  return request.a().has_tensor() || request.b().has_tensor() || request.c().has_tensor() ||
         request.d().has_tensor() || request.d().has_new_tensor();
}

}  // namespace

absl::Status ParseWithTensors(TensorStore& store, const TensorCaller& caller,
                              v1::MultiplyRequest& request, const HeldFields* held,
                              Product& product) {
  if (!HasTensors(request)) return ParseMultiply(request, held, product);
  if (caller.identity != nullptr && !caller.identity->grant.roles.Has(Role::kTensors)) {
    return absl::PermissionDeniedError("tensor: got a caller that the rules allow no tensors");
  }
  std::unique_ptr<ProductTensors>& tensors = product.tensors;
  if (caller.session != nullptr) {
    tensors = ProductTensors::In(store, caller.session);
  } else {
    ASSIGN_OR_RETURN(tensors, ProductTensors::Make(store, caller.token, caller.name()));
  }
  TensorOperands operands(request, *tensors);
  RETURN_IF_ERROR(operands.Resolve());
  RETURN_IF_ERROR(ParseMultiply(request, held, product));
  const bool is_explained = held == nullptr;
  RETURN_IF_ERROR(operands.Complete(is_explained, product));
  return is_explained ? absl::OkStatus() : tensors->Place(product.job);
}

}  // namespace gemmd
