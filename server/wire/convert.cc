// SPDX-License-Identifier: Apache-2.0
#include "server/wire/convert.h"

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <utility>

#include "kernels/catalog.h"
#include "kernels/peer_text.h"
#include "kernels/status_macros.h"
#include "kernels/text.h"
#include "server/wire/convert_blocks.h"
#include "server/wire/convert_operand.h"

namespace gemmd {
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
      return absl::InvalidArgumentError(
          Concat(field, ".scale.values: got ", count, " values, want none beside blocks"));
    }
    ASSIGN_OR_RETURN(blocks, ParseBlocks(Concat(field, ".scale.blocks"), scale.blocks()));
    return ScaleKind::kBlocks;
  }
  if (count == 0) return ScaleKind::kNone;
  if (count == 1) return ScaleKind::kTensor;
  if (count == extent) return ScaleKind::kVector;
  return absl::InvalidArgumentError(Concat(field, ".scale.values: got ", count,
                                           " values, want 0, 1 or ", extent_name, " = ", extent));
}

// The factors of A or B as the kernels take them: floats, or the bytes of those of blocks.
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
    return absl::InvalidArgumentError("bias.axis: got none, want ROWS or COLUMNS");
  }
  problem.bias_axis = static_cast<BiasAxis>(bias.axis());
  if (held == nullptr) return absl::OkStatus();
  const bool along_rows = problem.bias_axis == BiasAxis::kRows;
  const int64_t extent = along_rows ? problem.m : problem.n;
  ASSIGN_OR_RETURN(const MatrixLayout line,
                   TightLayout("bias", problem.bias_type, Order::kRowMajor, 1, extent));
  FieldBytes bytes = FindBytes(bias, v1::Bias::kDataFieldNumber, bias.data(), *held);
  const int64_t got = bytes.size();
  // One line; its stride in bits may leave 63 bits.
  const int64_t want = line.batch_stride_bytes;
  if (got != want) {
    return absl::InvalidArgumentError(Concat("bias.data: got ", got, " bytes, want ",
                                             along_rows ? "m" : "n", " = ", extent, " elements of ",
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
    if (extent < 0) {
      return absl::InvalidArgumentError(Concat(field, ": got ", extent, ", want at least 0"));
    }
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
  return absl::InvalidArgumentError(
      Concat(field, ".sparsity: got 2:4, want none: only A may be sparse"));
}

// A and B: layouts and scales.
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

// C, bias and D, once the accumulation type is known.
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
    if (!request.has_c()) {
      return absl::InvalidArgumentError(Concat("c: got none, want C where beta is ", problem.beta));
    }
    RETURN_IF_ERROR(ExpectDense("c", request.c()));
    ASSIGN_OR_RETURN(problem.c, ParseOperandLayout("c", request.c(), problem.m, problem.n, d_type));
    if (request.c().scale().values_size() > 0 || request.c().scale().has_blocks()) {
      return absl::InvalidArgumentError("c.scale: got values, want none: only A and B are scaled");
    }
  } else if (request.has_c()) {
    return absl::InvalidArgumentError("c: got C, want none where beta is 0");
  }
  if (request.has_bias()) RETURN_IF_ERROR(ParseBias(request.bias(), held, product));
  return absl::OkStatus();
}

absl::Status ParseAllBytes(const v1::MultiplyRequest& request, const HeldFields& held,
                           Product& product) {
  Job& job = product.job;
  const Problem& problem = job.problem;
  const auto add = [&](FieldBytes bytes) {
    return product.pieces.Add(std::move(bytes.pieces), bytes.keeper);
  };
  const bool is_read = problem.has_product();
  ASSIGN_OR_RETURN(FieldBytes a, ParseBytes("a", request.a().transpose() ? "k*m" : "m*k",
                                            request.a(), held, problem.a, problem.batch, is_read));
  ASSIGN_OR_RETURN(FieldBytes b, ParseBytes("b", request.b().transpose() ? "n*k" : "k*n",
                                            request.b(), held, problem.b, problem.batch, is_read));
  ASSIGN_OR_RETURN(FieldBytes a_factors, ParseFactors("a", {"m", problem.m}, request.a(),
                                                      problem.blocks_of_a(), problem, held));
  ASSIGN_OR_RETURN(FieldBytes b_factors, ParseFactors("b", {"n", problem.n}, request.b(),
                                                      problem.blocks_of_b(), problem, held));
  job.a = add(std::move(a));
  job.b = add(std::move(b));
  job.a_scale = add(std::move(a_factors));
  job.b_scale = add(std::move(b_factors));
  if (!problem.has_c()) return absl::OkStatus();
  ASSIGN_OR_RETURN(FieldBytes c, ParseBytes("c", request.c().transpose() ? "n*m" : "m*n",
                                            request.c(), held, problem.c, problem.batch, true));
  job.c = add(std::move(c));
  return absl::OkStatus();
}

// A rate of 0 is left to the server.
absl::Status ParseVerify(const v1::Verify& verify, Product& product) {
  if (!v1::VerifyMode_IsValid(verify.mode())) return UnknownValue("verify.mode", verify.mode());
  const double rate = verify.rate();
  const bool is_sampled = verify.mode() == v1::VERIFY_MODE_SAMPLED;
  if (rate != 0 && !is_sampled) {
    return absl::InvalidArgumentError("verify.rate: got a rate, want none unless mode is SAMPLED");
  }
  if (!(rate >= 0 && rate <= 1)) {
    return absl::InvalidArgumentError(
        Concat("verify.rate: got ", rate, ", want above 0 and at most 1"));
  }
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

}  // namespace gemmd
