// SPDX-License-Identifier: Apache-2.0
//
// Every refusal of a bad request, seen from the client's side of the wire; after each one the
// server still multiplies.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <ostream>
#include <string>
#include <vector>

#include "tests/server/wire/running_server.h"

namespace gemmd {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kHuge = int64_t{1} << 40;
constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

struct Refused {
  std::string name;
  std::function<void(v1::MultiplyRequest&)> spoil;  // A good request of 4x5x6 f32.
  grpc::StatusCode code;
  std::string message;  // A part of it.
};

void PrintTo(const Refused& refused, std::ostream* out) { *out << refused.name; }

using Request = v1::MultiplyRequest;
constexpr grpc::StatusCode kInvalid = grpc::StatusCode::INVALID_ARGUMENT;

std::vector<Refused> BadShapes() {
  return {
      {"NegativeM", [](Request& r) { r.set_m(-1); }, kInvalid, "m: got -1, want at least 0"},
      {"NegativeN", [](Request& r) { r.set_n(-7); }, kInvalid, "n: got -7, want at least 0"},
      {"NegativeK", [](Request& r) { r.set_k(std::numeric_limits<int64_t>::min()); }, kInvalid,
       "k: got"},
      {"NegativeBatch", [](Request& r) { r.set_batch(-1); }, kInvalid, "batch: got -1"},
      {"HugeSquare", [](Request& r) { r.set_m(kHuge), r.set_n(kHuge), r.set_k(kHuge); }, kInvalid,
       "a"},
      {"HugeOutput", [](Request& r) { r.set_m(kHuge), r.set_n(kHuge), r.set_k(0); }, kInvalid, "d"},
      {"HugeBatch", [](Request& r) { r.set_batch(kMost); }, kInvalid, "a"},
      {"MostOfEverything", [](Request& r) { r.set_m(kMost), r.set_n(kMost), r.set_k(kMost); },
       kInvalid, "a"},
      {"OutputOverTheMessageLimit",
       [](Request& r) {
         r.set_m(1 << 20), r.set_n(1 << 20), r.set_k(0);
         r.mutable_a()->clear_data(), r.mutable_b()->clear_data();
       },
       grpc::StatusCode::RESOURCE_EXHAUSTED, "d: the result takes 4398046511104 bytes"},
  };
}

std::vector<Refused> BadBytes() {
  return {
      {"OneByteShort", [](Request& r) { r.mutable_a()->mutable_data()->pop_back(); }, kInvalid,
       "a.data: got 95 bytes, want m*k*4 = 96"},
      {"OneByteLong", [](Request& r) { r.mutable_b()->mutable_data()->push_back('x'); }, kInvalid,
       "b.data: got 121 bytes, want k*n*4 = 120"},
      {"NoBytes", [](Request& r) { r.mutable_a()->clear_data(); }, kInvalid, "a.data: got 0 bytes"},
      {"NoOperand", [](Request& r) { r.clear_b(); }, kInvalid, "b.type: got none"},
      {"TransposedWithoutSaying", [](Request& r) { r.set_m(6), r.set_k(5); }, kInvalid,
       "want m*k*4 = 120"},
      {"BatchWithoutBytes", [](Request& r) { r.set_batch(2); }, kInvalid,
       "a.data: got 96 bytes, want"},
      {"ShortC", [](Request& r) { r.set_beta(1), r.mutable_c()->set_data("xy"); }, kInvalid,
       "c.data: got 2 bytes, want m*n*4 = 80"},
      {"MissingC", [](Request& r) { r.set_beta(1); }, kInvalid, "c: got none"},
      {"CWithoutBeta", [](Request& r) { r.mutable_c()->set_data(std::string(80, 0)); }, kInvalid,
       "c: got C, want none where beta is 0"},
      {"ShortBias",
       [](Request& r) {
         r.mutable_bias()->set_axis(v1::BIAS_AXIS_ROWS), r.mutable_bias()->set_data("x");
       },
       kInvalid, "bias.data: got 1 bytes, want m = 4"},
      {"BiasWithoutAxis", [](Request& r) { r.mutable_bias()->set_data("x"); }, kInvalid,
       "bias.axis: got none"},
      {"LongRequestId", [](Request& r) { r.set_request_id(std::string(129, 'x')); }, kInvalid,
       "request_id: got 129 bytes, want at most 128"},
  };
}

std::vector<Refused> BadLayouts() {
  return {
      {"NegativeLeadingDimension", [](Request& r) { r.mutable_a()->set_leading_dimension(-1); },
       kInvalid, "a.leading_dimension: got -1"},
      {"ShortLeadingDimension", [](Request& r) { r.mutable_b()->set_leading_dimension(4); },
       kInvalid, "b.leading_dimension: got 4"},
      {"HugeLeadingDimension", [](Request& r) { r.mutable_a()->set_leading_dimension(kMost); },
       kInvalid, "a.leading_dimension: got"},
      {"LargeLeadingDimension", [](Request& r) { r.mutable_a()->set_leading_dimension(kHuge); },
       kInvalid, "a.data: got 96 bytes"},
      {"HugeOutputLeadingDimension",
       [](Request& r) { r.mutable_d()->set_leading_dimension(kHuge); },
       grpc::StatusCode::RESOURCE_EXHAUSTED, "d: the result takes"},
      {"NegativeBatchStride", [](Request& r) { r.mutable_a()->set_batch_stride(-1); }, kInvalid,
       "a.batch_stride: got -1"},
      {"HugeBatchStride",
       [](Request& r) { r.set_batch(2), r.mutable_a()->set_batch_stride(kMost); }, kInvalid,
       "a.batch_stride: got"},
      {"OverlappingOutput",
       [](Request& r) {
         r.set_batch(2), r.mutable_a()->set_batch_stride(0), r.mutable_b()->set_batch_stride(0);
         r.mutable_d()->set_batch_stride(19);
       },
       kInvalid, "d.batch_stride"},
      {"BroadcastOutput",
       [](Request& r) {
         r.set_batch(2), r.mutable_a()->set_batch_stride(0), r.mutable_b()->set_batch_stride(0);
         r.mutable_d()->set_batch_stride(0);
       },
       kInvalid, "d.batch_stride"},
      {"BatchStrideInsideAByte",
       [](Request& r) {
         r.mutable_a()->set_type(v1::ELEMENT_TYPE_S4), r.mutable_b()->set_type(v1::ELEMENT_TYPE_S4);
         r.mutable_a()->set_batch_stride(3);
       },
       kInvalid, "a.batch_stride: got 3, want a whole number of bytes"},
      {"UnknownOrder", [](Request& r) { r.mutable_a()->set_order(static_cast<v1::Order>(9)); },
       kInvalid, "a.order: got unknown value 9"},
  };
}

std::vector<Refused> BadTypes() {
  return {
      {"NoType", [](Request& r) { r.mutable_a()->clear_type(); }, kInvalid, "a.type: got none"},
      {"UnknownType", [](Request& r) { r.mutable_a()->set_type(static_cast<v1::ElementType>(77)); },
       kInvalid, "a.type: got unknown value 77"},
      {"FloatTimesInteger", [](Request& r) { r.mutable_b()->set_type(v1::ELEMENT_TYPE_S32); },
       kInvalid, "b.type"},
      {"DifferentFloats", [](Request& r) { r.mutable_b()->set_type(v1::ELEMENT_TYPE_TF32); },
       kInvalid, "b.type"},
      {"BitsAsOutput", [](Request& r) { r.mutable_d()->set_type(v1::ELEMENT_TYPE_B1); }, kInvalid,
       "d.type"},
      {"IntegerAccumulationOfFloats",
       [](Request& r) { r.set_accumulation_type(v1::ELEMENT_TYPE_S32); }, kInvalid,
       "accumulation_type"},
      {"XorOfFloats", [](Request& r) { r.set_bit_operation(v1::BIT_OPERATION_XOR); }, kInvalid,
       "bit_operation"},
      {"ScaleOfF32", [](Request& r) { r.mutable_a()->mutable_scale()->add_values(1); }, kInvalid,
       "a.scale"},
      {"WrongCountOfScales",
       [](Request& r) {
         r.mutable_a()->set_type(v1::ELEMENT_TYPE_E4M3);
         for (int i = 0; i < 3; ++i) r.mutable_a()->mutable_scale()->add_values(1);
       },
       kInvalid, "a.scale.values: got 3 values, want 0, 1 or m = 4"},
      {"ScaleOfC",
       [](Request& r) {
         r.set_beta(1), r.mutable_c()->set_data(std::string(80, 0));
         r.mutable_c()->mutable_scale()->add_values(1);
       },
       kInvalid, "c.scale"},
      {"UnknownActivation", [](Request& r) { r.set_activation(static_cast<v1::Activation>(42)); },
       kInvalid, "activation: got unknown value 42"},
  };
}

std::vector<Refused> BadChoices() {
  return {
      {"UnknownKernel", [](Request& r) { r.set_kernel("onednn.f32.f32.f31"); },
       grpc::StatusCode::NOT_FOUND, "onednn.f32.f32.f32"},
      {"KernelOfOtherTypes", [](Request& r) { r.set_kernel("openblas.f64.f64.f64"); },
       grpc::StatusCode::UNIMPLEMENTED, "openblas.f64.f64.f64"},
      {"UnknownDevice", [](Request& r) { r.set_device("cuda:7"); }, grpc::StatusCode::NOT_FOUND,
       "device: got cuda:7, want one of cpu"},
      {"NoBatchInvariantKernel", [](Request& r) { r.set_require_batch_invariant(true); },
       grpc::StatusCode::UNIMPLEMENTED, "require_batch_invariant"},
  };
}

class RefusalTest : public ::testing::TestWithParam<Refused> {
 protected:
  static void SetUpTestSuite() { running_ = new RunningServer(TestDevice::kCpu); }
  static void TearDownTestSuite() {
    delete running_;
    running_ = nullptr;
  }
  static RunningServer* running_;
};
RunningServer* RefusalTest::running_ = nullptr;

TEST_P(RefusalTest, IsToldWhyAndTheServerGoesOn) {
  v1::MultiplyRequest request = IntegerRequest(4, 5, 6);
  GetParam().spoil(request);
  grpc::ClientContext context;
  AllowTime(context);
  v1::MultiplyResponse response;
  const grpc::Status status = running_->gemm().Multiply(&context, request, &response);
  EXPECT_EQ(status.error_code(), GetParam().code) << status.error_message();
  EXPECT_THAT(status.error_message(), HasSubstr(GetParam().message));
  EXPECT_TRUE(MultiplySmall(running_->gemm()).ok());
}

std::string NameOfCase(const ::testing::TestParamInfo<Refused>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(Shapes, RefusalTest, ::testing::ValuesIn(BadShapes()), NameOfCase);
INSTANTIATE_TEST_SUITE_P(Bytes, RefusalTest, ::testing::ValuesIn(BadBytes()), NameOfCase);
INSTANTIATE_TEST_SUITE_P(Layouts, RefusalTest, ::testing::ValuesIn(BadLayouts()), NameOfCase);
INSTANTIATE_TEST_SUITE_P(Types, RefusalTest, ::testing::ValuesIn(BadTypes()), NameOfCase);
INSTANTIATE_TEST_SUITE_P(Choices, RefusalTest, ::testing::ValuesIn(BadChoices()), NameOfCase);

}  // namespace
}  // namespace gemmd
