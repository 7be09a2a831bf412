// SPDX-License-Identifier: Apache-2.0
//
// What a request means: the parsed problem. Refusals are tested over the wire (refusal_test.cc).
#include "server/convert.h"

#include <gtest/gtest.h>

#include "kernels/catalog.h"
#include "server/convert_operand.h"

namespace gemmd {
namespace {

v1::MultiplyRequest Request() {
  v1::MultiplyRequest request;
  request.set_m(4);
  request.set_n(5);
  request.set_k(6);
  request.mutable_a()->set_type(v1::ELEMENT_TYPE_F16);
  request.mutable_b()->set_type(v1::ELEMENT_TYPE_F16);
  return request;
}

ParsedRequest Parse(const v1::MultiplyRequest& request) {
  absl::StatusOr<ParsedRequest> parsed = ParseMultiply(request, OperandBytes::kIgnored);
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return *std::move(parsed);
}

TEST(ConvertTest, DefaultsAreTheContracts) {
  const Problem problem = Parse(Request()).job.problem;
  EXPECT_EQ(problem.batch, 1);
  EXPECT_EQ(problem.alpha, 1);
  EXPECT_EQ(problem.beta, 0);
  EXPECT_EQ(problem.accumulation, ElementType::kF32);
  EXPECT_EQ(problem.d.type, ElementType::kF32);
  EXPECT_EQ(problem.a, *TightLayout("a", ElementType::kF16, Order::kRowMajor, 4, 6));
  EXPECT_EQ(problem.b, *TightLayout("b", ElementType::kF16, Order::kRowMajor, 6, 5));
  EXPECT_EQ(problem.d, *TightLayout("d", ElementType::kF32, Order::kRowMajor, 4, 5));
  EXPECT_EQ(problem.bias_axis, BiasAxis::kNone);
  EXPECT_EQ(problem.activation, Activation::kNone);
}

TEST(ConvertTest, ATransposedOperandIsOneOfTheOtherOrder) {
  v1::MultiplyRequest request = Request();
  request.mutable_a()->set_transpose(true);
  request.mutable_a()->set_leading_dimension(9);
  const MatrixLayout a = Parse(request).job.problem.a;
  EXPECT_EQ(a.order, Order::kColumnMajor);
  EXPECT_EQ(a.rows, 4);
  EXPECT_EQ(a.columns, 6);
  EXPECT_EQ(a.leading_dimension, 9);
  EXPECT_EQ(a.batch_stride_bytes, 6 * 9 * 2);
  request.mutable_a()->set_order(v1::ORDER_COLUMN_MAJOR);
  EXPECT_EQ(Parse(request).job.problem.a.order, Order::kRowMajor);
}

TEST(ConvertTest, PackedLinesStartOnBytes) {
  v1::MultiplyRequest request = Request();
  request.set_k(5);
  request.mutable_a()->set_type(v1::ELEMENT_TYPE_E2M3);
  request.mutable_b()->set_type(v1::ELEMENT_TYPE_E2M1);
  const Problem problem = Parse(request).job.problem;
  EXPECT_EQ(problem.a.line_stride_bytes(), 4);  // 5 * 6 bits.
  EXPECT_EQ(problem.a.batch_stride_bytes, 16);
  EXPECT_EQ(problem.b.line_stride_bytes(), 3);  // 5 * 4 bits.
  EXPECT_EQ(problem.b.batch_stride_bytes, 15);
}

TEST(ConvertTest, OptionsArrive) {
  v1::MultiplyRequest request = Request();
  request.set_batch(3);
  request.set_alpha(0.5);
  request.set_beta(2);
  request.mutable_c()->set_batch_stride(0);
  request.mutable_d()->set_type(v1::ELEMENT_TYPE_BF16);
  request.mutable_bias()->set_axis(v1::BIAS_AXIS_COLUMNS);
  request.set_activation(v1::ACTIVATION_GELU_TANH);
  request.set_accumulation_type(v1::ELEMENT_TYPE_F16);
  request.set_kernel("auto");
  request.set_require_deterministic(true);
  request.set_device("cpu");
  const ParsedRequest parsed = Parse(request);
  const Problem& problem = parsed.job.problem;
  EXPECT_EQ(problem.batch, 3);
  EXPECT_EQ(problem.alpha, 0.5);
  EXPECT_EQ(problem.beta, 2);
  EXPECT_EQ(problem.c.type, ElementType::kBf16);
  EXPECT_EQ(problem.c.batch_stride_bytes, 0);
  EXPECT_EQ(problem.bias_type, ElementType::kBf16);
  EXPECT_EQ(problem.bias_axis, BiasAxis::kColumns);
  EXPECT_EQ(problem.activation, Activation::kGeluTanh);
  EXPECT_EQ(problem.accumulation, ElementType::kF16);
  EXPECT_EQ(parsed.constraints.kernel, "");
  EXPECT_TRUE(parsed.constraints.deterministic);
  EXPECT_FALSE(parsed.constraints.batch_invariant);
  EXPECT_EQ(parsed.device, "cpu");
}

TEST(ConvertTest, EveryElementTypeHasItsOwnNumber) {
  for (const ElementType type : kAllElementTypes) {
    const std::string name = v1::ElementType_Name(ToWire(type));
    std::string expected = "ELEMENT_TYPE_";
    for (const char c : NameOf(type)) expected += static_cast<char>(std::toupper(c));
    EXPECT_EQ(name, expected);
  }
}

TEST(ConvertTest, KernelsArriveWhole) {
  for (const Kernel& kernel : Catalog()) {
    const v1::Kernel wire = ToWire(kernel);
    EXPECT_EQ(wire.name(), kernel.name);
    EXPECT_EQ(wire.provider(), kernel.provider);
    EXPECT_EQ(wire.a_type(), ToWire(kernel.a));
    EXPECT_EQ(wire.b_type(), ToWire(kernel.b));
    EXPECT_EQ(wire.exact(), kernel.recipe.exact);
    EXPECT_EQ(wire.flushes_subnormals(), kernel.recipe.flushes_subnormals);
  }
}

}  // namespace
}  // namespace gemmd
