// SPDX-License-Identifier: Apache-2.0
//
// The meaning of a request: the parsed problem. Refusals are tested over the wire
// (refusal_test.cc).
#include "server/wire/convert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/kernel.h"
#include "server/device/operands.h"
#include "server/wire/registry_service.h"
#include "tests/server/wire/parsed_product.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using Request = v1::MultiplyRequest;

const HeldFields kNothingHeld;

v1::MultiplyRequest PlainRequest() {
  v1::MultiplyRequest request;
  request.set_m(4);
  request.set_n(5);
  request.set_k(6);
  request.mutable_a()->set_type(v1::ELEMENT_TYPE_F16);
  request.mutable_b()->set_type(v1::ELEMENT_TYPE_F16);
  return request;
}

std::unique_ptr<Product> Parse(const v1::MultiplyRequest& request) {
  absl::StatusOr<std::unique_ptr<Product>> parsed = ParsedProduct(request, nullptr);
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return *std::move(parsed);
}

TEST(ConvertTest, DefaultsAreTheContracts) {
  const Problem problem = Parse(PlainRequest())->job.problem;
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
  v1::MultiplyRequest request = PlainRequest();
  request.mutable_a()->set_transpose(true);
  request.mutable_a()->set_leading_dimension(9);
  const MatrixLayout a = Parse(request)->job.problem.a;
  EXPECT_EQ(a.order, Order::kColumnMajor);
  EXPECT_EQ(a.rows, 4);
  EXPECT_EQ(a.columns, 6);
  EXPECT_EQ(a.leading_dimension, 9);
  EXPECT_EQ(a.batch_stride_bytes, 6 * 9 * 2);
  request.mutable_a()->set_order(v1::ORDER_COLUMN_MAJOR);
  EXPECT_EQ(Parse(request)->job.problem.a.order, Order::kRowMajor);
}

TEST(ConvertTest, PackedLinesStartOnBytes) {
  v1::MultiplyRequest request = PlainRequest();
  request.set_k(5);
  request.mutable_a()->set_type(v1::ELEMENT_TYPE_E2M3);
  request.mutable_b()->set_type(v1::ELEMENT_TYPE_E2M1);
  const Problem problem = Parse(request)->job.problem;
  EXPECT_EQ(problem.a.line_stride_bytes(), 4);  // 5 * 6 bits.
  EXPECT_EQ(problem.a.batch_stride_bytes, 16);
  EXPECT_EQ(problem.b.line_stride_bytes(), 3);  // 5 * 4 bits.
  EXPECT_EQ(problem.b.batch_stride_bytes, 15);
}

// If the leading dimension is not a whole number of bytes, each line is padded to bytes.
TEST(ConvertTest, WithoutABatchStrideMatricesOfPaddedLinesLieTight) {
  v1::MultiplyRequest request = PlainRequest();
  request.set_k(5);
  request.set_batch(2);
  request.mutable_a()->set_type(v1::ELEMENT_TYPE_E2M3);
  request.mutable_a()->set_leading_dimension(7);
  request.mutable_b()->set_type(v1::ELEMENT_TYPE_E2M1);
  request.mutable_b()->set_leading_dimension(9);
  request.mutable_d()->set_type(v1::ELEMENT_TYPE_S4);
  request.mutable_d()->set_leading_dimension(11);
  const Problem problem = Parse(request)->job.problem;
  EXPECT_EQ(problem.a.line_stride_bytes(), 6);  // 7 * 6 = 42 bits.
  EXPECT_EQ(problem.a.batch_stride_bytes, 4 * 6);
  EXPECT_EQ(problem.b.line_stride_bytes(), 5);  // 9 * 4 = 36 bits.
  EXPECT_EQ(problem.b.batch_stride_bytes, 5 * 5);
  EXPECT_EQ(problem.d.line_stride_bytes(), 6);  // 11 * 4 = 44 bits.
  EXPECT_EQ(problem.d.batch_stride_bytes, 4 * 6);
}

// 4 x 6 of f16: two groups of four in a row, so 4 values and a byte of indices per row.
constexpr int kSparseBytes = 4 * 8 + 4;

v1::MultiplyRequest SparseRequest() {
  v1::MultiplyRequest request = PlainRequest();
  request.mutable_a()->set_sparsity(v1::SPARSITY_2_4);
  std::string a(kSparseBytes, 0);
  for (size_t row = 0; row < 4; ++row) a[4 * 8 + row] = 0x44;  // 0 and 1 of each group.
  request.mutable_a()->set_data(a);
  request.mutable_b()->set_data(std::string(6 * 5 * 2, 0));
  return request;
}

TEST(ConvertTest, SparseOperand) {
  const v1::MultiplyRequest request = SparseRequest();
  const absl::StatusOr<std::unique_ptr<Product>> parsed = ParsedProduct(request, &kNothingHeld);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  const Problem& problem = (*parsed)->job.problem;
  EXPECT_EQ(problem.a, *TightSparseLayout("a", ElementType::kF16, 4, 6));
  EXPECT_FALSE(problem.b.is_sparse());
  EXPECT_EQ(BytesRead(problem), kSparseBytes + 6 * 5 * 2);
  v1::MultiplyRequest batch = SparseRequest();
  batch.set_batch(3);
  batch.mutable_a()->set_batch_stride(0);
  EXPECT_EQ(Parse(batch)->job.problem.a.batch_stride_bytes, 0);
  batch.mutable_a()->clear_batch_stride();
  EXPECT_EQ(Parse(batch)->job.problem.a.batch_stride_bytes, kSparseBytes);
}

struct SparseRefusal {
  std::string name;
  std::function<void(v1::MultiplyRequest&)> spoil;
  std::string message;
};

class SparseRefusalTest : public testing::TestWithParam<SparseRefusal> {};

TEST_P(SparseRefusalTest, SaysWhatAndWhy) {
  v1::MultiplyRequest request = SparseRequest();
  GetParam().spoil(request);
  const absl::StatusOr<std::unique_ptr<Product>> parsed = ParsedProduct(request, &kNothingHeld);
  EXPECT_THAT(parsed.ok() ? CheckOperands((*parsed)->job, nullptr) : parsed.status(),
              StatusIs(absl::StatusCode::kInvalidArgument, GetParam().message));
}

// Checking all indices takes time linear in their number.
TEST(ConvertTest, IndicesAreLeftToTheDevice) {
  v1::MultiplyRequest request = SparseRequest();
  (*request.mutable_a()->mutable_data())[4 * 8] = 0;
  const absl::StatusOr<std::unique_ptr<Product>> parsed = ParsedProduct(request, &kNothingHeld);
  ASSERT_THAT(parsed, IsOk());
  EXPECT_THAT(CheckOperands((*parsed)->job, nullptr), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(ConvertTest, NamesHaveABoundedLength) {
  const auto set = [](const std::string& field, size_t size) {
    v1::MultiplyRequest request = PlainRequest();
    const std::string name(size, 'x');
    if (field == "kernel") request.set_kernel(name);
    if (field == "device") request.set_device(name);
    if (field == "request_id") request.set_request_id(name);
    request.set_m(-1);  // Would be refused, but only later.
    return ParsedProduct(request, &kNothingHeld).status();
  };
  for (const std::string field : {"kernel", "device", "request_id"}) {
    EXPECT_THAT(set(field, 129), StatusIs(absl::StatusCode::kInvalidArgument,
                                          field + ": got 129 bytes, want at most 128"));
    EXPECT_THAT(set(field, 128),
                StatusIs(absl::StatusCode::kInvalidArgument, "m: got -1, want at least 0"));
  }
}

const std::vector<SparseRefusal>& SparseRefusals() {
  static const std::vector<SparseRefusal> refusals = {
      {"UnknownValue",
       [](Request& r) { r.mutable_a()->set_sparsity(static_cast<v1::Sparsity>(9)); },
       "a.sparsity: got unknown value 9"},
      {"UnknownValueOfB",
       [](Request& r) { r.mutable_b()->set_sparsity(static_cast<v1::Sparsity>(9)); },
       "b.sparsity: got unknown value 9"},
      {"B", [](Request& r) { r.mutable_b()->set_sparsity(v1::SPARSITY_2_4); },
       "b.sparsity: got 2:4, want none: only A may be sparse"},
      {"C",
       [](Request& r) {
         r.set_beta(1);
         r.mutable_c()->set_sparsity(v1::SPARSITY_2_4);
       },
       "c.sparsity: got 2:4, want none: only A may be sparse"},
      {"Order", [](Request& r) { r.mutable_a()->set_order(v1::ORDER_COLUMN_MAJOR); },
       "a.order: got column, want row where sparsity is 2:4"},
      {"Transposed", [](Request& r) { r.mutable_a()->set_transpose(true); },
       "a.transpose: got true, want false where sparsity is 2:4"},
      {"LeadingDimension", [](Request& r) { r.mutable_a()->set_leading_dimension(6); },
       "a.leading_dimension: got 6, want 0 where sparsity is 2:4"},
      {"BatchStride", [](Request& r) { r.mutable_a()->set_batch_stride(18); },
       "a.batch_stride: got 18, want none or 0 where sparsity is 2:4"},
      {"Type",
       [](Request& r) {
         r.mutable_a()->set_type(v1::ELEMENT_TYPE_F64);
         r.mutable_b()->set_type(v1::ELEMENT_TYPE_F64);
       },
       "a.sparsity: got 2:4 of type f64, want none (b1, s32 and f64 have no sparse form)"},
      {"Bytes", [](Request& r) { r.mutable_a()->mutable_data()->pop_back(); },
       "a.data: got 35 bytes, want 4 lines of 8 bytes of values and 1 of indices = 36"},
      {"MoreBytes", [](Request& r) { r.mutable_a()->mutable_data()->push_back(0); },
       "a.data: got 37 bytes, want 4 lines of 8 bytes of values and 1 of indices = 36"},
      {"BytesOfABatch", [](Request& r) { r.set_batch(2); },
       "a.data: got 36 bytes, want 4 lines of 8 bytes of values and 1 of indices, batch 2 every 36 "
       "bytes = 72"},
      {"Indices", [](Request& r) { (*r.mutable_a()->mutable_data())[4 * 8 + 2] = '\xa4'; },
       "a.data: row 2, group 1: got indices 2, 2, want increasing"},
      {"IndicesOfABatch",
       [](Request& r) {
         r.set_batch(2);
         r.mutable_b()->set_batch_stride(0);
         std::string& a = *r.mutable_a()->mutable_data();
         a += a;
         a[kSparseBytes + 4 * 8] = 0x41;
       },
       "a.data: matrix 1: row 0, group 0: got indices 1, 0, want increasing"},
      {"BeyondK",
       [](Request& r) {
         std::string& a = *r.mutable_a()->mutable_data();
         a[4 * 8] = '\x84';  // 0 and 2 of group 1, so column 6.
         a[7] = 0x3c;
       },
       "a.data: row 0, group 1: got a nonzero element at column 6, want 0 at columns from k = 6"},
  };
  return refusals;
}

INSTANTIATE_TEST_SUITE_P(All, SparseRefusalTest, testing::ValuesIn(SparseRefusals()),
                         [](const testing::TestParamInfo<SparseRefusal>& refusal) {
                           return refusal.param.name;
                         });

// If there is no product, A's bytes may be absent.
TEST(ConvertTest, UnreadSparseOperand) {
  v1::MultiplyRequest request = SparseRequest();
  request.set_alpha(0);
  request.mutable_a()->clear_data();
  EXPECT_THAT(ParsedProduct(request, &kNothingHeld), IsOk());
}

TEST(ConvertTest, OptionsArrive) {
  v1::MultiplyRequest request = PlainRequest();
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
  const std::unique_ptr<Product> parsed = Parse(request);
  const Problem& problem = parsed->job.problem;
  EXPECT_EQ(problem.batch, 3);
  EXPECT_EQ(problem.alpha, 0.5);
  EXPECT_EQ(problem.beta, 2);
  EXPECT_EQ(problem.c.type, ElementType::kBf16);
  EXPECT_EQ(problem.c.batch_stride_bytes, 0);
  EXPECT_EQ(problem.bias_type, ElementType::kBf16);
  EXPECT_EQ(problem.bias_axis, BiasAxis::kColumns);
  EXPECT_EQ(problem.activation, Activation::kGeluTanh);
  EXPECT_EQ(problem.accumulation, ElementType::kF16);
  EXPECT_EQ(parsed->constraints.kernel, nullptr);
  EXPECT_TRUE(parsed->constraints.deterministic);
  EXPECT_FALSE(parsed->constraints.batch_invariant);
  EXPECT_EQ(parsed->wanted_device, "cpu");
}

TEST(ConvertTest, ARequestIdMayHave128Bytes) {
  v1::MultiplyRequest request = PlainRequest();
  request.set_request_id(std::string(128, 'x'));
  EXPECT_THAT(ParsedProduct(request, nullptr), IsOk());
  request.set_request_id(std::string(129, 'x'));
  EXPECT_THAT(
      ParsedProduct(request, nullptr),
      StatusIs(absl::StatusCode::kInvalidArgument, "request_id: got 129 bytes, want at most 128"));
}

TEST(ConvertTest, FastAccumulationIsAskedFor) {
  v1::MultiplyRequest request = PlainRequest();
  EXPECT_FALSE(Parse(request)->job.problem.fast_accumulation);
  request.set_fast_accumulation(true);
  EXPECT_TRUE(Parse(request)->job.problem.fast_accumulation);
}

TEST(ConvertTest, ConstraintsAreToldApart) {
  v1::MultiplyRequest request = PlainRequest();
  request.set_require_batch_invariant(true);
  const std::unique_ptr<Product> parsed = Parse(request);
  EXPECT_FALSE(parsed->constraints.deterministic);
  EXPECT_TRUE(parsed->constraints.batch_invariant);
}

TEST(ConvertTest, CandidatesArriveInTheOrderOfPreference) {
  const Problem problem = Parse(PlainRequest())->job.problem;
  const absl::Span<const Kernel> catalog = Catalog();
  const Selection selection = {.candidates = {{&catalog[2], 20, "the fastest"},
                                              {&catalog[0], 30, "the next"},
                                              {&catalog[1], 25, "a late one"}},
                               .refusals = {{&catalog[4], "too new"}, {&catalog[3], "too old"}},
                               .recipe = "one after the other"};
  v1::ExplainResponse wire;
  ASSERT_THAT(FillExplanation(problem, selection, wire), IsOk());
  EXPECT_EQ(wire.recipe(), selection.recipe);
  ASSERT_EQ(wire.candidates_size(), 3);
  for (int i = 0; i < 3; ++i) {
    const Candidate& candidate = selection.candidates[static_cast<size_t>(i)];
    EXPECT_EQ(wire.candidates(i).kernel(), candidate.kernel->name);
    EXPECT_EQ(wire.candidates(i).predicted_ns(), candidate.predicted_ns);
    EXPECT_EQ(wire.candidates(i).reason(), candidate.reason);
  }
  ASSERT_EQ(wire.refusals_size(), 2);
  EXPECT_EQ(wire.refusals(0).kernel(), catalog[4].name);
  EXPECT_EQ(wire.refusals(0).reason(), "too new");
  EXPECT_EQ(wire.refusals(1).kernel(), catalog[3].name);
}

}  // namespace
}  // namespace gemmd
