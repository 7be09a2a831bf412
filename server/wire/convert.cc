// SPDX-License-Identifier: Apache-2.0
#include "server/wire/convert.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/kernel.h"
#include "kernels/matrix/invalid.h"
#include "kernels/matrix/sparse24.h"
#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"
#include "kernels/mma/chip.h"
#include "kernels/mma/fragment.h"
#include "kernels/mma/instructions.h"
#include "proto/field_start.h"
#include "server/store/product_tensors.h"
#include "server/wire/listing.h"
#include "server/wire/tensor_convert.h"

namespace gemmd {

namespace {

// Element types have numbers from 1 on the wire, in the order of kAllElementTypes.
static_assert(static_cast<int>(ElementType::kF64) + 1 == v1::ELEMENT_TYPE_F64);
static_assert(static_cast<int>(ElementType::kE2m1) + 1 == v1::ELEMENT_TYPE_E2M1);
static_assert(static_cast<int>(ElementType::kS32) + 1 == v1::ELEMENT_TYPE_S32);
static_assert(kAllElementTypes.size() + 1 == v1::ElementType_ARRAYSIZE);

Order Flipped(Order order) {
  return order == Order::kRowMajor ? Order::kColumnMajor : Order::kRowMajor;
}

// The size of a sparse matrix for an error: "8 lines of 16 bytes of values and 2 of indices = 144".
std::string WantedSparseBytes(const MatrixLayout& layout, int64_t batch, const ByteCount& count) {
  const absl::StatusOr<SparseLayout> one =
      SparseLayoutOf("", layout.type, layout.rows, layout.columns);
  if (!one.ok()) return Concat(count.full);  // Never happens: the sizes have been checked.
  std::string wanted = Concat(layout.rows, " lines of ", one->value_line_bytes,
                              " bytes of values and ", one->index_line_bytes, " of indices");
  if (batch != 1) {
    wanted += Concat(", batch ", batch, " every ", layout.batch_stride_bytes, " bytes");
  }
  return wanted + Concat(" = ", count.full);
}

// The size of a matrix for an error: "m*k*2 = 8192" if the layout is plain, otherwise lines and
// strides.
std::string WantedBytes(std::string_view shape, const MatrixLayout& layout, int64_t batch,
                        const ByteCount& count) {
  if (layout.is_sparse()) return WantedSparseBytes(layout, batch, count);
  const bool tight = layout.leading_dimension == layout.line_length();
  if (tight && batch == 1 && BitsOf(layout.type) % 8 == 0) {
    return Concat(shape, "*", BitsOf(layout.type) / 8, " = ", count.full);
  }
  std::string wanted = Concat(layout.lines(), " lines of ", layout.line_stride_bytes(), " bytes");
  if (batch != 1) {
    wanted += Concat(", batch ", batch, " every ", layout.batch_stride_bytes, " bytes");
  }
  wanted += Concat(" = ", count.full);
  if (count.least != count.full)
    wanted += Concat(" (or ", count.least, " without the last padding)");
  return wanted;
}

absl::Status RefuseSparse(std::string_view field, std::string_view member, std::string_view got,
                          std::string_view want) {
  return Invalid(Concat(field, member), got, Concat(want, " where sparsity is 2:4"));
}

absl::StatusOr<MatrixLayout> ParseSparseLayout(std::string_view field, const v1::Operand& operand,
                                               ElementType type, int64_t rows, int64_t columns) {
  if (operand.order() != v1::ORDER_ROW_MAJOR) return RefuseSparse(field, ".order", "column", "row");
  if (operand.transpose()) return RefuseSparse(field, ".transpose", "true", "false");
  if (operand.leading_dimension() != 0) {
    return RefuseSparse(field, ".leading_dimension", Concat(operand.leading_dimension()), "0");
  }
  if (operand.batch_stride() != 0) {
    return RefuseSparse(field, ".batch_stride", Concat(operand.batch_stride()), "none or 0");
  }
  ASSIGN_OR_RETURN(MatrixLayout layout, TightSparseLayout(field, type, rows, columns));
  if (operand.has_batch_stride()) layout.batch_stride_bytes = 0;
  return layout;
}

}  // namespace

absl::Status UnknownValue(std::string_view field, int value) {
  return absl::InvalidArgumentError(Concat(field, ": got unknown value ", value));
}

absl::StatusOr<ElementType> ParseType(std::string_view field, v1::ElementType type,
                                      std::optional<ElementType> unspecified) {
  if (type == v1::ELEMENT_TYPE_UNSPECIFIED) {
    if (unspecified.has_value()) return *unspecified;
    return Invalid(field, "none", "an element type");
  }
  if (!v1::ElementType_IsValid(type)) return UnknownValue(field, type);
  return static_cast<ElementType>(type - 1);
}

absl::StatusOr<Order> ParseOrder(std::string_view field, v1::Order order) {
  switch (order) {
    case v1::ORDER_ROW_MAJOR: return Order::kRowMajor;
    case v1::ORDER_COLUMN_MAJOR: return Order::kColumnMajor;
    default: return UnknownValue(field, order);
  }
}

// Both TightLayout and Validate check the sizes, so no overflow goes unnoticed.
absl::StatusOr<MatrixLayout> ParseLayout(std::string_view field, ElementType type, Order order,
                                         int64_t rows, int64_t columns, const Strides& strides) {
  ASSIGN_OR_RETURN(MatrixLayout layout, TightLayout(field, type, order, rows, columns));
  if (strides.leading_dimension != 0) {
    if (strides.leading_dimension < layout.line_length()) {
      return Invalid(
          Concat(field, ".leading_dimension"), strides.leading_dimension,
          Concat("0 or at least the length of a ", order == Order::kRowMajor ? "row" : "column",
                 ", ", layout.line_length()));
    }
    layout.leading_dimension = strides.leading_dimension;
    int64_t line_bits = 0;
    int64_t matrix_bytes = 0;
    if (__builtin_mul_overflow(layout.leading_dimension, BitsOf(type), &line_bits) ||
        __builtin_add_overflow(line_bits, 7, &line_bits) ||
        __builtin_mul_overflow(line_bits / 8, layout.lines(), &matrix_bytes)) {
      return Invalid(Concat(field, ".leading_dimension"), strides.leading_dimension,
                     "a matrix of less than 2^63 bytes");
    }
    layout.batch_stride_bytes = matrix_bytes;
  }
  if (strides.batch_stride.has_value()) {
    const int64_t stride = *strides.batch_stride;
    int64_t stride_bits = 0;
    if (stride < 0 || __builtin_mul_overflow(stride, BitsOf(type), &stride_bits)) {
      return Invalid(Concat(field, ".batch_stride"), stride, "at least 0 and less than 2^63 bits");
    }
    if (stride_bits % 8 != 0) {
      return Invalid(Concat(field, ".batch_stride"), stride,
                     Concat("a whole number of bytes of ", BitsOf(type), "-bit elements"));
    }
    layout.batch_stride_bytes = stride_bits / 8;
  }
  return layout;
}

absl::StatusOr<MatrixLayout> ParseOperandLayout(std::string_view field, const v1::Operand& operand,
                                                int64_t rows, int64_t columns,
                                                std::optional<ElementType> default_type) {
  ASSIGN_OR_RETURN(const ElementType type,
                   ParseType(Concat(field, ".type"), operand.type(), default_type));
  ASSIGN_OR_RETURN(const Order stored, ParseOrder(Concat(field, ".order"), operand.order()));
  if (!v1::Sparsity_IsValid(operand.sparsity())) {
    return UnknownValue(Concat(field, ".sparsity"), operand.sparsity());
  }
  if (operand.sparsity() != v1::SPARSITY_NONE) {
    return ParseSparseLayout(field, operand, type, rows, columns);
  }
  const Order used = operand.transpose() ? Flipped(stored) : stored;
  return ParseLayout(field, type, used, rows, columns, StridesOf(operand));
}

int64_t FieldBytes::size() const {
  int64_t bytes = 0;
  for (const Piece& piece : pieces) bytes += static_cast<int64_t>(piece.size());
  return bytes;
}

FieldBytes FindBytes(const google::protobuf::Message& message, int number,
                     const std::string& own_bytes, const HeldFields& held) {
  if (HeldField* const field = held.Find(message, number)) return {field->pieces(), field};
  if (own_bytes.empty()) return {};
  return {{PieceOf(own_bytes)}, nullptr};
}

absl::StatusOr<FieldBytes> ParseBytes(std::string_view field, std::string_view shape,
                                      const v1::Operand& operand, const HeldFields& held,
                                      const MatrixLayout& layout, int64_t batch, bool is_read) {
  if (operand.has_tensor()) return NoBytes();  // Resident bytes: see ParseWithTensors.
  ASSIGN_OR_RETURN(const ByteCount count, BytesOf(field, layout, batch));
  const bool is_given = operand.source_case() == v1::Operand::kData;
  if (!is_given && (!is_read || count.least == 0)) return NoBytes();
  FieldBytes bytes;
  if (is_given) bytes = FindBytes(operand, v1::Operand::kDataFieldNumber, operand.data(), held);
  const int64_t got = bytes.size();
  if (got < count.least || got > count.full) {
    return Invalid(Concat(field, ".data"), Concat(got, " bytes"),
                   WantedBytes(shape, layout, batch, count));
  }
  if (!is_read) return NoBytes();
  for (int64_t rest = got - count.least; rest > 0;) {
    Piece& last = bytes.pieces.back();
    const size_t cut = std::min(last.size(), static_cast<size_t>(rest));
    last.remove_suffix(cut);
    rest -= static_cast<int64_t>(cut);
    if (last.empty()) bytes.pieces.pop_back();
  }
  return bytes;
}

v1::ElementType ToWire(ElementType type) {
  return static_cast<v1::ElementType>(static_cast<int>(type) + 1);
}

v1::Order ToWire(Order order) {
  return order == Order::kRowMajor ? v1::ORDER_ROW_MAJOR : v1::ORDER_COLUMN_MAJOR;
}

namespace {

static_assert(static_cast<int>(FactorType::kF32) + 1 == v1::FACTOR_TYPE_F32);
static_assert(static_cast<int>(FactorType::kUe8m0) + 1 == v1::FACTOR_TYPE_UE8M0);
static_assert(static_cast<int>(FactorType::kUe4m3) + 1 == v1::FACTOR_TYPE_UE4M3);

}  // namespace

absl::StatusOr<BlockScale> ParseBlocks(std::string_view field, const v1::BlockScale& wire) {
  const std::string type_field = Concat(field, ".type");
  if (wire.type() == v1::FACTOR_TYPE_UNSPECIFIED) {
    return Invalid(type_field, "none", "f32, ue8m0 or ue4m3");
  }
  if (!v1::FactorType_IsValid(wire.type())) return UnknownValue(type_field, wire.type());
  return BlockScale{.type = static_cast<FactorType>(wire.type() - 1),
                    .lines = wire.rows_per_block(),
                    .depth = wire.k_per_block(),
                    .per_matrix = wire.per_matrix()};
}

absl::StatusOr<FieldBytes> ParseBlockFactors(std::string_view field, const NamedExtent& extent,
                                             const v1::BlockScale& wire, const BlockScale& blocks,
                                             const Problem& problem, const HeldFields& held) {
  ASSIGN_OR_RETURN(const int64_t want,
                   FactorBytes(field, blocks, extent.value, problem.k, problem.batch));
  FieldBytes bytes = FindBytes(wire, v1::BlockScale::kFactorsFieldNumber, wire.factors(), held);
  const int64_t got = bytes.size();
  const bool may_be_absent = !problem.has_product() && got == 0;
  if (got != want && !may_be_absent) {
    const std::string matrices =
        blocks.per_matrix ? Concat(" for each of ", problem.batch, " matrices") : "";
    return Invalid(
        Concat(field, ".factors"), Concat(got, " bytes"),
        Concat(extent.name, "/", blocks.lines, " lines of k/", blocks.depth, ", each rounded up, ",
               BytesOf(blocks.type), " bytes each", matrices, " = ", want));
  }
  if (!problem.has_product()) return NoBytes();
  return bytes;
}

void Fill(const BlockScale& blocks, const std::vector<std::byte>& factors, v1::BlockScale& wire) {
  wire.set_type(static_cast<v1::FactorType>(static_cast<int>(blocks.type) + 1));
  wire.set_rows_per_block(blocks.lines);
  wire.set_k_per_block(blocks.depth);
  wire.set_per_matrix(blocks.per_matrix);
  wire.set_factors(reinterpret_cast<const char*>(factors.data()), factors.size());
}

namespace {

static_assert(static_cast<int>(Activation::kSilu) == v1::ACTIVATION_SILU);
static_assert(static_cast<int>(BiasAxis::kColumns) == v1::BIAS_AXIS_COLUMNS);
static_assert(static_cast<int>(Sparsity::k2To4) == v1::SPARSITY_2_4);
static_assert(static_cast<int>(BitOperation::kXor) == v1::BIT_OPERATION_XOR);
static_assert(static_cast<int>(VerifyMode::kDuplicate) + 1 == v1::VERIFY_MODE_DUPLICATE);

absl::StatusOr<ScaleKind> ParseScale(std::string_view field, std::string_view extent_name,
                                     int64_t extent, const v1::Scale& scale, BlockScale& blocks) {
  const int64_t count = scale.values_size();
  if (scale.has_blocks()) {
    if (count > 0) {
      return Invalid(Concat(field, ".scale.values"), Concat(count, " values"),
                     "none beside blocks");
    }
    ASSIGN_OR_RETURN(blocks, ParseBlocks(Concat(field, ".scale.blocks"), scale.blocks()));
    return ScaleKind::kBlocks;
  }
  if (count == 0) return ScaleKind::kNone;
  if (count == 1) return ScaleKind::kTensor;
  if (count == extent) return ScaleKind::kVector;
  return Invalid(Concat(field, ".scale.values"), Concat(count, " values"),
                 Concat("0, 1 or ", extent_name, " = ", extent));
}

// The scale factors of A or B as the kernels take them: floats, or the bytes of block factors.
absl::StatusOr<FieldBytes> ParseFactors(std::string_view field, const NamedExtent& extent,
                                        const v1::Operand& operand, const BlockScale* blocks,
                                        const Problem& problem, const HeldFields& held) {
  if (blocks != nullptr) {
    return ParseBlockFactors(Concat(field, ".scale.blocks"), extent, operand.scale().blocks(),
                             *blocks, problem, held);
  }
  const auto& values = operand.scale().values();
  if (values.empty()) return NoBytes();
  return FieldBytes{
      {PieceOf(absl::MakeConstSpan(values.data(), static_cast<size_t>(values.size())))}, nullptr};
}

absl::Status ParseBias(const v1::Bias& bias, const HeldFields* held, Product& product) {
  Problem& problem = product.job.problem;
  ASSIGN_OR_RETURN(problem.bias_type, ParseType("bias.type", bias.type(), problem.d.type));
  if (!v1::BiasAxis_IsValid(bias.axis())) return UnknownValue("bias.axis", bias.axis());
  if (bias.axis() == v1::BIAS_AXIS_UNSPECIFIED) {
    return Invalid("bias.axis", "none", "rows or columns");
  }
  problem.bias_axis = static_cast<BiasAxis>(bias.axis());
  if (held == nullptr) return absl::OkStatus();
  const bool along_rows = problem.bias_axis == BiasAxis::kRows;
  const int64_t extent = along_rows ? problem.m : problem.n;
  ASSIGN_OR_RETURN(const MatrixLayout line,
                   TightLayout("bias", problem.bias_type, Order::kRowMajor, 1, extent));
  FieldBytes bytes = FindBytes(bias, v1::Bias::kDataFieldNumber, bias.data(), *held);
  const int64_t got = bytes.size();
  // The bias is one line, whose stride in bits may exceed 63 bits.
  const int64_t want = line.batch_stride_bytes;
  if (got != want) {
    return Invalid("bias.data", Concat(got, " bytes"),
                   Concat(along_rows ? "m" : "n", " = ", extent, " elements of ",
                          BitsOf(problem.bias_type), " bits = ", want));
  }
  product.job.bias = product.pieces.Add(std::move(bytes.pieces), bytes.keeper);
  return absl::OkStatus();
}

absl::Status ParseShape(const v1::MultiplyRequest& request, Problem& problem) {
  problem.m = request.m();
  problem.n = request.n();
  problem.k = request.k();
  problem.batch = request.has_batch() ? request.batch() : 1;
  const std::array<std::pair<std::string_view, int64_t>, 4> extents = {
      {{"m", problem.m}, {"n", problem.n}, {"k", problem.k}, {"batch", problem.batch}}};
  for (const auto& [field, extent] : extents) {
    if (extent < 0) return Invalid(field, extent, "at least 0");
  }
  return absl::OkStatus();
}

absl::Status ParseScalars(const v1::MultiplyRequest& request, Problem& problem) {
  problem.alpha = request.has_alpha() ? request.alpha() : 1.0;
  problem.beta = request.beta();
  if (!v1::Activation_IsValid(request.activation())) {
    return UnknownValue("activation", request.activation());
  }
  problem.activation = static_cast<Activation>(request.activation());
  if (!v1::BitOperation_IsValid(request.bit_operation())) {
    return UnknownValue("bit_operation", request.bit_operation());
  }
  problem.bit_operation = static_cast<BitOperation>(request.bit_operation());
  return absl::OkStatus();
}

absl::Status ExpectDense(std::string_view field, const v1::Operand& operand) {
  if (operand.sparsity() == v1::SPARSITY_NONE) return absl::OkStatus();
  if (!v1::Sparsity_IsValid(operand.sparsity())) {
    return UnknownValue(Concat(field, ".sparsity"), operand.sparsity());
  }
  return Invalid(Concat(field, ".sparsity"), "2:4", "none: only A may be sparse");
}

const v1::Operand& OperandOf(const v1::MultiplyRequest& request, OperandRole role) {
  return role == OperandRole::kA   ? request.a()
         : role == OperandRole::kB ? request.b()
                                   : request.c();
}

// Parses the layouts and scales of A and B.
absl::Status ParseProduct(const v1::MultiplyRequest& request, Problem& problem) {
  ASSIGN_OR_RETURN(problem.a, ParseOperandLayout("a", request.a(), problem.m, problem.k, {}));
  RETURN_IF_ERROR(ExpectDense("b", request.b()));
  ASSIGN_OR_RETURN(problem.b, ParseOperandLayout("b", request.b(), problem.k, problem.n, {}));
  ASSIGN_OR_RETURN(problem.a_scale,
                   ParseScale("a", "m", problem.m, request.a().scale(), problem.a_blocks));
  ASSIGN_OR_RETURN(problem.b_scale,
                   ParseScale("b", "n", problem.n, request.b().scale(), problem.b_blocks));
  return absl::OkStatus();
}

// Parses C, the bias and D. Requires the accumulation type.
absl::Status ParseResult(const v1::MultiplyRequest& request, const HeldFields* held,
                         Product& product) {
  Problem& problem = product.job.problem;
  ASSIGN_OR_RETURN(const ElementType default_accumulation,
                   DefaultAccumulation(problem.a.type, problem.b.type));
  ASSIGN_OR_RETURN(problem.accumulation, ParseType("accumulation_type", request.accumulation_type(),
                                                   default_accumulation));
  problem.fast_accumulation = request.fast_accumulation();
  const v1::OutputSpec& output = request.d();
  ASSIGN_OR_RETURN(const ElementType d_type,
                   ParseType("d.type", output.type(), problem.accumulation));
  ASSIGN_OR_RETURN(const Order d_order, ParseOrder("d.order", output.order()));
  ASSIGN_OR_RETURN(problem.d,
                   ParseLayout("d", d_type, d_order, problem.m, problem.n, StridesOf(output)));
  if (problem.has_c()) {
    if (!request.has_c()) return Invalid("c", "none", Concat("C where beta is ", problem.beta));
    RETURN_IF_ERROR(ExpectDense("c", request.c()));
    ASSIGN_OR_RETURN(problem.c, ParseOperandLayout("c", request.c(), problem.m, problem.n, d_type));
    if (request.c().scale().values_size() > 0 || request.c().scale().has_blocks()) {
      return Invalid("c.scale", "values", "none: only A and B are scaled");
    }
  } else if (request.has_c()) {
    return Invalid("c", "C", "none where beta is 0");
  }
  if (request.has_bias()) RETURN_IF_ERROR(ParseBias(request.bias(), held, product));
  return absl::OkStatus();
}

absl::Status ParseAllBytes(const v1::MultiplyRequest& request, const HeldFields& held,
                           Product& product) {
  Job& job = product.job;
  const Problem& problem = job.problem;
  const auto add = [&](OperandRole role, absl::StatusOr<FieldBytes> bytes) {
    if (bytes.ok()) job[role] = product.pieces.Add(std::move(bytes->pieces), bytes->keeper);
    return bytes.status();
  };
  const auto add_matrix = [&](OperandRole role, std::string_view shape,
                              std::string_view transposed) {
    const v1::Operand& operand = OperandOf(request, role);
    return add(role,
               ParseBytes(NameOf(role), operand.transpose() ? transposed : shape, operand, held,
                          LayoutOf(problem, role), problem.batch, IsRead(problem, role)));
  };
  RETURN_IF_ERROR(add_matrix(OperandRole::kA, "m*k", "k*m"));
  RETURN_IF_ERROR(add_matrix(OperandRole::kB, "k*n", "n*k"));
  RETURN_IF_ERROR(add(OperandRole::kAScale, ParseFactors("a", {"m", problem.m}, request.a(),
                                                         problem.blocks_of_a(), problem, held)));
  RETURN_IF_ERROR(add(OperandRole::kBScale, ParseFactors("b", {"n", problem.n}, request.b(),
                                                         problem.blocks_of_b(), problem, held)));
  return problem.has_c() ? add_matrix(OperandRole::kC, "m*n", "n*m") : absl::OkStatus();
}

// If the rate is 0, the server chooses.
absl::Status ParseVerify(const v1::Verify& verify, Product& product) {
  if (!v1::VerifyMode_IsValid(verify.mode())) return UnknownValue("verify.mode", verify.mode());
  const double rate = verify.rate();
  const bool is_sampled = verify.mode() == v1::VERIFY_MODE_SAMPLED;
  if (rate != 0 && !is_sampled) {
    return Invalid("verify.rate", "a rate", "none unless mode is sampled");
  }
  if (!(rate >= 0 && rate <= 1)) return Invalid("verify.rate", rate, "above 0 and at most 1");
  if (verify.mode() == v1::VERIFY_MODE_UNSPECIFIED) return absl::OkStatus();
  product.asked_check = VerifyRule{
      .mode = static_cast<VerifyMode>(verify.mode() - v1::VERIFY_MODE_NONE), .rate = rate};
  return absl::OkStatus();
}

}  // namespace

absl::Status ParseMultiply(const v1::MultiplyRequest& request, const HeldFields* held,
                           Product& product) {
  RETURN_IF_ERROR(CheckNameLength("request_id", request.request_id()));
  RETURN_IF_ERROR(CheckNameLength("kernel", request.kernel()));
  RETURN_IF_ERROR(CheckNameLength("device", request.device()));
  RETURN_IF_ERROR(ParseShape(request, product.job.problem));
  RETURN_IF_ERROR(ParseScalars(request, product.job.problem));
  RETURN_IF_ERROR(ParseProduct(request, product.job.problem));
  RETURN_IF_ERROR(ParseResult(request, held, product));
  RETURN_IF_ERROR(Validate(product.job.problem));
  if (held != nullptr) RETURN_IF_ERROR(ParseAllBytes(request, *held, product));
  if (!request.kernel().empty() && request.kernel() != "auto") {
    ASSIGN_OR_RETURN(product.constraints.kernel, FindKernel(request.kernel()));
  }
  product.constraints.deterministic = request.require_deterministic();
  product.constraints.batch_invariant = request.require_batch_invariant();
  if (!v1::Priority_IsValid(request.priority())) {
    return UnknownValue("priority", request.priority());
  }
  if (request.priority() == v1::PRIORITY_LOW) product.priority = Priority::kLow;
  RETURN_IF_ERROR(ParseVerify(request.verify(), product));
  product.wanted_device = request.device();
  return absl::OkStatus();
}

namespace {

absl::Status LeftOut(std::string_view field, std::string_view member) {
  return Invalid(Concat(field, ".", member), "a value", "none: the tensor has its own");
}

// Checks the type that a request gives for a matrix that is a tensor: absent, or the tensor's own.
absl::Status CheckType(std::string_view field, v1::ElementType type, const Tensor& tensor) {
  const ElementType own = tensor.spec.layout.type;
  if (type == v1::ELEMENT_TYPE_UNSPECIFIED || type == ToWire(own)) return absl::OkStatus();
  if (!v1::ElementType_IsValid(type)) return UnknownValue(Concat(field, ".type"), type);
  return Invalid(Concat(field, ".type"), NameOf(static_cast<ElementType>(type - 1)),
                 Concat("that of the tensor, ", NameOf(own)));
}

// A matrix of the product that is a tensor.
struct Resident {
  OperandRole role;
  v1::Operand* wire;
  PartOfTensor part;

  std::string_view field() const { return NameOf(role); }
};

// The field by which a matrix names its tensor.
std::string_view TensorFieldOf(OperandRole role) {
  constexpr std::array<std::string_view, kMatrixRoles.size()> kFields = {"a.tensor", "b.tensor",
                                                                         "c.tensor"};
  return kFields[static_cast<size_t>(role)];
}

// The matrices of one request that are tensors.
class TensorOperands {
 public:
  TensorOperands(v1::MultiplyRequest& request, ProductTensors& tensors)
      : request_(request), tensors_(tensors) {}

  // Before the request is parsed: writes the tensors' types and layouts into it.
  absl::Status Resolve() {
    RETURN_IF_ERROR(Find());
    for (const OperandRole role : kMatrixRoles) {
      if (OperandOf(request_, role).has_tensor()) RETURN_IF_ERROR(Add(role));
    }
    return request_.d().has_tensor() ? ResolveOutput(*request_.mutable_d()) : absl::OkStatus();
  }

  // After the request is parsed: gives the problem what a message cannot express, and reserves the
  // memory of a new tensor.
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
        return Invalid("d.batch_stride", "a gap between matrices", "none in a new tensor");
      }
    }
    if (is_explained) return absl::OkStatus();
    ASSIGN_OR_RETURN(TensorSpec spec, MakeTensorSpec(problem.d, problem.batch, {}));
    return tensors_.MakeNew(std::move(spec), ParseKeeping(request_.d().new_tensor()));
  }

 private:
  // Looks up all tensors at once: separate look-ups would each wait for the store.
  absl::Status Find() {
    ProductTensors::Names names;
    for (const OperandRole role : kMatrixRoles) {
      const v1::Operand& wire = OperandOf(request_, role);
      if (!wire.has_tensor()) continue;
      ASSIGN_OR_RETURN(names.read[static_cast<size_t>(role)],
                       ParseTensorRef(TensorFieldOf(role), wire.tensor().tensor()));
    }
    if (request_.d().has_tensor()) {
      ASSIGN_OR_RETURN(names.written, ParseTensorRef("d.tensor", request_.d().tensor().tensor()));
    }
    return tensors_.Find(names);
  }

  absl::Status Add(OperandRole role) {
    const std::string_view field = NameOf(role);
    v1::Operand& wire = role == OperandRole::kA   ? *request_.mutable_a()
                        : role == OperandRole::kB ? *request_.mutable_b()
                                                  : *request_.mutable_c();
    const Tensor* const tensor = tensors_.read(role);
    if (wire.order() != v1::ORDER_ROW_MAJOR) return LeftOut(field, "order");
    if (wire.leading_dimension() != 0) return LeftOut(field, "leading_dimension");
    if (wire.has_batch_stride()) return LeftOut(field, "batch_stride");
    if (wire.scale().values_size() > 0) return LeftOut(field, "scale.values");
    if (wire.scale().has_blocks() && tensor->spec.has_factors()) {
      return LeftOut(field, "scale.blocks");
    }
    if (wire.sparsity() != v1::SPARSITY_NONE) return LeftOut(field, "sparsity");
    RETURN_IF_ERROR(CheckType(field, wire.type(), *tensor));
    ASSIGN_OR_RETURN(const PartOfTensor part,
                     ParsePart(TensorFieldOf(role), wire.tensor(), tensor->spec));
    const MatrixLayout& stored = tensor->spec.layout;
    wire.set_type(ToWire(stored.type));
    if (stored.is_sparse()) {
      wire.set_sparsity(v1::SPARSITY_2_4);
    } else {
      wire.set_order(ToWire(stored.order));
      wire.set_leading_dimension(stored.leading_dimension);
    }
    residents_[count_++] = {role, &wire, part};
    return absl::OkStatus();
  }

  absl::Status ResolveOutput(v1::OutputSpec& wire) {
    const Tensor* const tensor = tensors_.written();
    const MatrixLayout& stored = tensor->spec.layout;
    const v1::Order order = ToWire(stored.order);
    RETURN_IF_ERROR(CheckType("d", wire.type(), *tensor));
    if (stored.is_sparse() || tensor->spec.has_factors()) {
      return Invalid("d.tensor", "a tensor that is sparse or has factors", "one without");
    }
    ASSIGN_OR_RETURN(const Order asked, ParseOrder("d.order", wire.order()));
    if (asked == Order::kColumnMajor && stored.order == Order::kRowMajor) {
      return Invalid("d.order", "column", "that of the tensor, row");
    }
    if (wire.leading_dimension() != 0 && wire.leading_dimension() != stored.leading_dimension) {
      return Invalid("d.leading_dimension", wire.leading_dimension(),
                     Concat("0 or that of the tensor, ", stored.leading_dimension));
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
    MatrixLayout& layout = LayoutOf(problem, resident.role);
    const bool is_exchanged = resident.wire->transpose();
    RETURN_IF_ERROR(CheckShape(resident.field(), resident.part,
                               is_exchanged ? layout.columns : layout.rows,
                               is_exchanged ? layout.rows : layout.columns, problem.batch, true));
    if (problem.batch > 1) {
      layout.batch_stride_bytes =
          resident.part.matrices == 1 ? 0 : tensor.spec.layout.batch_stride_bytes;
    }
    RETURN_IF_ERROR(CompleteScale(resident, problem, job));
    ASSIGN_OR_RETURN(const ByteCount count, BytesOf(resident.field(), layout, problem.batch));
    tensors_.SetPart(resident.role, resident.part.offset_bytes,
                     IsRead(problem, resident.role) ? count.least : 0);
    return absl::OkStatus();
  }

  // The tensor's scale factors that the product needs.
  absl::Status CompleteScale(const Resident& resident, Problem& problem, Job& job) {
    const TensorSpec& spec = tensors_.read(resident.role)->spec;
    const std::vector<float>& scale = spec.scale;
    if (!spec.has_factors()) return absl::OkStatus();
    if (resident.role == OperandRole::kC) {
      return Invalid("c.tensor", "a tensor with factors", "one without: only A and B are scaled");
    }
    const bool is_a = resident.role == OperandRole::kA;
    Source& source = is_a ? job.a_scale : job.b_scale;
    ScaleKind& kind = is_a ? problem.a_scale : problem.b_scale;
    if (spec.blocks) {
      ASSIGN_OR_RETURN(
          const BlocksOfPart of_part,
          BlocksOf(resident.field(), resident.part, spec,
                   /*is_k_along_columns=*/is_a == resident.wire->transpose(), problem.batch));
      kind = ScaleKind::kBlocks;
      (is_a ? problem.a_blocks : problem.b_blocks) = of_part.blocks;
      tensors_.SetFactors(resident.role, of_part.offset_bytes,
                          problem.has_product() && problem.has_output() ? of_part.bytes : 0);
      return absl::OkStatus();
    }
    ASSIGN_OR_RETURN(const absl::Span<const float> factors,
                     ScaleOfPart(resident.field(), resident.part, *tensors_.read(resident.role),
                                 /*by_row=*/is_a != resident.wire->transpose()));
    kind = scale.size() == 1 ? ScaleKind::kTensor : ScaleKind::kVector;
    source = tensors_.AddFactors(factors);
    return absl::OkStatus();
  }

  // D may be C; otherwise it must share no byte with an operand.
  absl::Status CheckNoOverlap() const {
    for (const Resident& resident : std::span(residents_).first(count_)) {
      if (tensors_.read(resident.role) != tensors_.written()) continue;
      const bool is_same = resident.part == *d_ && !resident.wire->transpose();
      if (resident.role == OperandRole::kC && is_same) continue;
      if (!Overlap(resident.part, *d_)) continue;
      return Invalid("d.tensor", Concat("bytes of ", resident.field(), ".tensor"),
                     "bytes of no operand, or exactly those of a C that is not transposed");
    }
    return absl::OkStatus();
  }

  v1::MultiplyRequest& request_;
  ProductTensors& tensors_;
  std::array<Resident, kMatrixRoles.size()> residents_;
  size_t count_ = 0;
  std::optional<PartOfTensor> d_;
};

bool HasTensors(const v1::MultiplyRequest& request) {
  return request.d().has_tensor() || request.d().has_new_tensor() ||
         std::any_of(kMatrixRoles.begin(), kMatrixRoles.end(),
                     [&](OperandRole role) { return OperandOf(request, role).has_tensor(); });
}

}  // namespace

absl::Status ParseWithTensors(TensorStore& store, const TensorCaller& caller,
                              v1::MultiplyRequest& request, const HeldFields* held,
                              Product& product) {
  if (!HasTensors(request)) return ParseMultiply(request, held, product);
  if (caller.identity != nullptr && !caller.identity->grant.roles.Has(Role::kTensors)) {
    return absl::PermissionDeniedError(
        "tensor: got one, want none: the rules allow this caller no tensors");
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
  if (!is_explained) return tensors->Place(product.job);
  tensors->MarkStaying(product.job.problem);
  return absl::OkStatus();
}

std::optional<grpc::Slice> FragmentCache::Find(const FragmentKey& key) {
  MutexLock lock(&mutex_);
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) return std::nullopt;
  entries_.splice(entries_.begin(), entries_, found->second);
  return found->second->answer;
}

void FragmentCache::Add(const FragmentKey& key, grpc::Slice answer) {
  if (answer.size() > max_bytes_) return;
  Entries dropped;  // Freed after the lock is released.
  MutexLock lock(&mutex_);
  if (by_key_.count(key) > 0) return;
  bytes_ += answer.size();
  entries_.push_front({key, std::move(answer)});
  by_key_[key] = entries_.begin();
  while (bytes_ > max_bytes_) {
    const auto oldest = std::prev(entries_.end());
    bytes_ -= oldest->answer.size();
    by_key_.erase(oldest->key);
    dropped.splice(dropped.begin(), entries_, oldest);
  }
}

size_t FragmentCache::bytes() const {
  MutexLock lock(&mutex_);
  return bytes_;
}

namespace {

using mma::Instruction;
using mma::Operand;

constexpr int kGroupBits = 4;  // Metadata bits per group.

// The operands that have fragments, for an error.
std::string FragmentsOf(const Instruction& instruction) {
  return Concat("A, ", instruction.is_warpgroup() ? "" : "B, ",
                instruction.is_sparse() ? "C, D or METADATA" : "C or D");
}

absl::Status CheckOperand(v1::FragmentOperand operand, const Instruction& instruction) {
  if (!v1::FragmentOperand_IsValid(operand)) return UnknownValue("operand", operand);
  std::string_view refused;
  if (operand == v1::FRAGMENT_OPERAND_UNSPECIFIED) refused = "none";
  if (operand == v1::FRAGMENT_OPERAND_B && instruction.is_warpgroup()) {
    refused = "B of a warpgroup, which is read from shared memory";
  }
  if (operand == v1::FRAGMENT_OPERAND_METADATA && !instruction.is_sparse()) {
    refused = "METADATA of a dense instruction";
  }
  if (refused.empty()) return absl::OkStatus();
  return Invalid("operand", refused, FragmentsOf(instruction));
}

// Checks that the instruction has the selector of the request.
absl::Status CheckSelector(const v1::DescribeFragmentRequest& request,
                           const Instruction& instruction) {
  const bool is_metadata = request.operand() == v1::FRAGMENT_OPERAND_METADATA;
  const int count = is_metadata ? mma::SelectorCount(instruction) : 1;
  if (request.selector() >= 0 && request.selector() < count) return absl::OkStatus();
  return Invalid("selector", request.selector(),
                 count == 1 ? std::string("0") : Concat("0 to ", count - 1));
}

// Writes the entries of an answer as bytes: message objects for all of them at once would take a
// hundred times the memory of one.
class EntryWriter {
 public:
  explicit EntryWriter(std::string& answer) : answer_(answer) {}

  void Write(const v1::FragmentEntry& entry) {
    entry.SerializeToString(&one_);
    AppendFieldStart(v1::DescribeFragmentResponse::kEntriesFieldNumber, one_.size(), answer_);
    answer_ += one_;
  }

 private:
  std::string& answer_;
  std::string one_;
};

void DescribeOperand(const Instruction& instruction, Operand operand,
                     v1::DescribeFragmentResponse& head, std::string& answer) {
  const int container_bits = mma::ContainerBits(instruction, operand);
  head.set_rows(mma::RowsOf(instruction, operand));
  head.set_columns(mma::ColumnsOf(instruction, operand));
  head.set_type(ToWire(mma::TypeOf(instruction, operand)));
  head.set_element_bits(BitsOf(mma::TypeOf(instruction, operand)));
  head.set_container_bits(container_bits);
  head.set_container_shift(mma::ContainerShift(instruction, operand));
  head.AppendToString(&answer);
  EntryWriter writer(answer);
  v1::FragmentEntry entry;
  for (int lane = 0; lane < instruction.lanes(); ++lane) {
    for (int i = 0; i < mma::ElementsPerLane(instruction, operand); ++i) {
      const mma::Position position = mma::PositionOf(instruction, operand, lane, i);
      entry.set_lane(lane);
      entry.set_element(i);
      entry.set_first_bit(i * container_bits);
      entry.set_row(position.row);
      entry.set_column(position.column);
      entry.set_product(position.product);
      writer.Write(entry);
    }
  }
}

void DescribeMetadata(const Instruction& instruction, int selector,
                      v1::DescribeFragmentResponse& head, std::string& answer) {
  const int groups = mma::MetadataGroups(instruction);
  head.set_rows(instruction.m);
  head.set_columns(groups);
  head.set_element_bits(kGroupBits);
  head.set_container_bits(kGroupBits);
  head.AppendToString(&answer);
  std::vector<v1::FragmentEntry> entries;
  for (int row = 0; row < instruction.m; ++row) {
    for (int group = 0; group < groups; ++group) {
      const mma::MetadataField field = mma::MetadataFieldOf(instruction, selector, row, group);
      v1::FragmentEntry& entry = entries.emplace_back();
      entry.set_lane(field.lane);
      entry.set_element(field.first_bit / kGroupBits);
      entry.set_first_bit(field.first_bit);
      entry.set_row(row);
      entry.set_column(group);
    }
  }
  std::sort(entries.begin(), entries.end(),
            [](const v1::FragmentEntry& x, const v1::FragmentEntry& y) {
              return x.lane() != y.lane() ? x.lane() < y.lane() : x.first_bit() < y.first_bit();
            });
  EntryWriter writer(answer);
  for (const v1::FragmentEntry& entry : entries) writer.Write(entry);
}

// Errors: InvalidArgument for an operand or a selector that the instruction does not have.
absl::Status CheckFragment(const v1::DescribeFragmentRequest& request,
                           const Instruction& instruction) {
  RETURN_IF_ERROR(CheckOperand(request.operand(), instruction));
  return CheckSelector(request, instruction);
}

// The serialized answer to a request that CheckFragment accepts.
std::string DescribeFragment(const Instruction& instruction, v1::FragmentOperand operand,
                             int selector) {
  v1::DescribeFragmentResponse head;
  *head.mutable_instruction() = ToWire(instruction);
  head.set_operand(operand);
  head.set_selector(selector);
  std::string answer;
  switch (operand) {
    case v1::FRAGMENT_OPERAND_A: DescribeOperand(instruction, Operand::kA, head, answer); break;
    case v1::FRAGMENT_OPERAND_B: DescribeOperand(instruction, Operand::kB, head, answer); break;
    case v1::FRAGMENT_OPERAND_C: DescribeOperand(instruction, Operand::kC, head, answer); break;
    case v1::FRAGMENT_OPERAND_D: DescribeOperand(instruction, Operand::kD, head, answer); break;
    default: DescribeMetadata(instruction, selector, head, answer);
  }
  return answer;
}

v1::InstructionSupport ToWire(mma::Support support) {
  switch (support) {
    case mma::Support::kUnavailable: return v1::INSTRUCTION_SUPPORT_UNAVAILABLE;
    case mma::Support::kEmulated: return v1::INSTRUCTION_SUPPORT_EMULATED;
    case mma::Support::kNative: return v1::INSTRUCTION_SUPPORT_NATIVE;
  }
  return v1::INSTRUCTION_SUPPORT_UNSPECIFIED;
}

// The maximum size of the cache of answers.
constexpr size_t kMaxCachedBytes = size_t{8} << 20;

NameIndex IndexOfChips() {
  std::vector<std::string_view> names;
  for (const mma::Chip chip : mma::kAllChips) names.push_back(mma::NameOf(chip));
  return NameIndex(names);
}

NameIndex IndexOfInstructions() {
  std::vector<mma::InstructionName> names;
  for (const Instruction& instruction : mma::kInstructions) {
    names.push_back(mma::NameOf(instruction));
  }
  std::vector<std::string_view> views;
  for (const mma::InstructionName& name : names) views.push_back(name.view());
  return NameIndex(views);
}

void SetRegisters(const Instruction& instruction, v1::Instruction& wire) {
  wire.set_a_registers(mma::WordsPerLane(instruction, Operand::kA));
  wire.set_b_registers(mma::WordsPerLane(instruction, Operand::kB));
  wire.set_c_registers(mma::WordsPerLane(instruction, Operand::kC));
  wire.set_d_registers(mma::WordsPerLane(instruction, Operand::kD));
}

}  // namespace

v1::Instruction ToWire(const Instruction& instruction) {
  v1::Instruction wire;
  wire.set_name(std::string(mma::NameOf(instruction).view()));
  wire.set_family(std::string(mma::NameOf(instruction.family)));
  wire.set_m(instruction.m);
  wire.set_n(instruction.n);
  wire.set_k(instruction.k);
  wire.set_a_type(ToWire(instruction.a));
  wire.set_b_type(ToWire(instruction.b));
  wire.set_c_type(ToWire(instruction.c));
  wire.set_d_type(ToWire(instruction.d));
  wire.set_a_layout(std::string(mma::NameOf(instruction.a_layout)));
  wire.set_b_layout(std::string(mma::NameOf(instruction.b_layout)));
  wire.set_lanes(instruction.lanes());
  SetRegisters(instruction, wire);
  wire.set_products(instruction.products());
  wire.set_sparsity(std::string(mma::NameOf(mma::SparsityOf(instruction))));
  wire.set_selectors(mma::SelectorCount(instruction));
  wire.set_scale_type(std::string(mma::NameOf(instruction.scale)));
  wire.set_scale_block(instruction.scale_block());
  wire.set_min_target(Concat("sm_", instruction.min_target));
  for (const mma::Chip chip : mma::kAllChips) {
    v1::ChipSupport* support = wire.add_chips();
    support->set_chip(std::string(mma::NameOf(chip)));
    support->set_support(ToWire(mma::SupportOn(instruction, chip)));
    support->set_lowering(std::string(mma::LoweringOn(instruction, chip)));
  }
  return wire;
}

namespace {

Listing ListingOfInstructions() {
  std::vector<ListedItem> items;
  for (const Instruction& instruction : mma::kInstructions) {
    const v1::Instruction wire = gemmd::ToWire(instruction);
    items.push_back({wire.name(), wire.SerializeAsString()});
  }
  return Listing(v1::ListInstructionsResponse::kInstructionsFieldNumber, items);
}

}  // namespace

InstructionAnswers::InstructionAnswers()
    : chips_(IndexOfChips()),
      names_(IndexOfInstructions()),
      listing_(ListingOfInstructions()),
      fragments_(kMaxCachedBytes) {}

absl::StatusOr<grpc::ByteBuffer> InstructionAnswers::List(
    const v1::ListInstructionsRequest& request) const {
  RETURN_IF_ERROR(CheckNameLength("chip", request.chip()));
  ASSIGN_OR_RETURN(const NamePattern pattern,
                   NamePattern::Parse("name_pattern", request.name_pattern()));
  const bool all_names = request.name_pattern().empty();
  if (request.chip().empty()) {
    if (all_names) return listing_.All();
    return listing_.Answer([&](size_t, std::string_view name) { return pattern.Matches(name); });
  }
  const std::optional<mma::Chip> chip = mma::ChipFromName(request.chip());
  if (!chip) return chips_.Unknown("chip", request.chip(), "a known chip");
  return listing_.Answer([&](size_t position, std::string_view name) {
    return mma::SupportOn(mma::kInstructions[position], *chip) != mma::Support::kUnavailable &&
           (all_names || pattern.Matches(name));
  });
}

absl::StatusOr<grpc::ByteBuffer> InstructionAnswers::Fragment(
    const v1::DescribeFragmentRequest& request) {
  RETURN_IF_ERROR(CheckNameLength("instruction", request.instruction()));
  const std::optional<size_t> position = names_.Find(request.instruction());
  if (!position) {
    return names_.Unknown("instruction", request.instruction(), "an instruction of PTX");
  }
  const Instruction& instruction = mma::kInstructions[*position];
  RETURN_IF_ERROR(CheckFragment(request, instruction));
  const FragmentKey key = {*position, request.operand(), request.selector()};
  std::optional<grpc::Slice> answer = fragments_.Find(key);
  if (!answer) {
    answer = grpc::Slice(DescribeFragment(instruction, request.operand(), request.selector()));
    fragments_.Add(key, *answer);
  }
  return grpc::ByteBuffer(&*answer, 1);
}

}  // namespace gemmd
