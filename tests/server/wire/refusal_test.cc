// SPDX-License-Identifier: Apache-2.0
//
// Every refusal of a bad request, as the client sees it; after each one the server still
// multiplies.
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

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int64_t kHuge = int64_t{1} << 40;
constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

struct Refused {
  std::string name;
  std::function<void(v1::MultiplyRequest&)> spoil;  // Changes a good request of 4x5x6 f32.
  grpc::StatusCode code;
  testing::Matcher<std::string> message;  // Matches the whole message.
};

void PrintTo(const Refused& refused, std::ostream* out) { *out << refused.name; }

using Request = v1::MultiplyRequest;
constexpr grpc::StatusCode kInvalid = grpc::StatusCode::INVALID_ARGUMENT;

std::vector<Refused> BadShapes() {
  return {
      {"NegativeM", [](Request& r) { r.set_m(-1); }, kInvalid, "m: got -1, want at least 0"},
      {"NegativeN", [](Request& r) { r.set_n(-7); }, kInvalid, "n: got -7, want at least 0"},
      {"NegativeK", [](Request& r) { r.set_k(std::numeric_limits<int64_t>::min()); }, kInvalid,
       "k: got -9223372036854775808, want at least 0"},
      {"NegativeBatch", [](Request& r) { r.set_batch(-1); }, kInvalid,
       "batch: got -1, want at least 0"},
      {"HugeSquare", [](Request& r) { r.set_m(kHuge), r.set_n(kHuge), r.set_k(kHuge); }, kInvalid,
       "a: got 1099511627776x1099511627776 elements of type f32, want sizes in bytes below 2^63"},
      {"HugeOutput", [](Request& r) { r.set_m(kHuge), r.set_n(kHuge), r.set_k(0); }, kInvalid,
       "d: got 1099511627776x1099511627776 elements of type f32, want sizes in bytes below 2^63"},
      {"HugeBatch", [](Request& r) { r.set_batch(kMax); }, kInvalid,
       "a: got 9223372036854775807 matrices of 4x6 elements of type f32, want sizes in bytes below "
       "2^63"},
      {"MostOfEverything", [](Request& r) { r.set_m(kMax), r.set_n(kMax), r.set_k(kMax); },
       kInvalid,
       "a: got 9223372036854775807x9223372036854775807 elements of type f32, want sizes in bytes "
       "below 2^63"},
      {"OutputOverTheMessageLimit",
       [](Request& r) {
         r.set_m(1 << 20), r.set_n(1 << 20), r.set_k(0);
         r.mutable_a()->clear_data(), r.mutable_b()->clear_data();
       },
       grpc::StatusCode::RESOURCE_EXHAUSTED,
       "d: the result takes 4398046511104 bytes, a message holds at most 536866816"},
  };
}

std::vector<Refused> BadBytes() {
  return {
      {"OneByteShort", [](Request& r) { r.mutable_a()->mutable_data()->pop_back(); }, kInvalid,
       "a.data: got 95 bytes, want m*k*4 = 96"},
      {"OneByteLong", [](Request& r) { r.mutable_b()->mutable_data()->push_back('x'); }, kInvalid,
       "b.data: got 121 bytes, want k*n*4 = 120"},
      {"NoBytes", [](Request& r) { r.mutable_a()->clear_data(); }, kInvalid,
       "a.data: got 0 bytes, want m*k*4 = 96"},
      {"NoOperand", [](Request& r) { r.clear_b(); }, kInvalid,
       "b.type: got none, want an element type"},
      {"TransposedWithoutSaying", [](Request& r) { r.set_m(6), r.set_k(5); }, kInvalid,
       "a.data: got 96 bytes, want m*k*4 = 120"},
      {"BatchWithoutBytes", [](Request& r) { r.set_batch(2); }, kInvalid,
       "a.data: got 96 bytes, want 4 lines of 24 bytes, batch 2 every 96 bytes = 192"},
      {"ShortC", [](Request& r) { r.set_beta(1), r.mutable_c()->set_data("xy"); }, kInvalid,
       "c.data: got 2 bytes, want m*n*4 = 80"},
      {"MissingC", [](Request& r) { r.set_beta(1); }, kInvalid,
       "c: got none, want C where beta is 1"},
      {"MissingCOfATrace", [](Request& r) { r.set_beta(5e-324); }, kInvalid,
       "c: got none, want C where beta is 5e-324"},
      {"CWithoutBeta", [](Request& r) { r.mutable_c()->set_data(std::string(80, 0)); }, kInvalid,
       "c: got C, want none where beta is 0"},
      {"ShortBias",
       [](Request& r) {
         r.mutable_bias()->set_axis(v1::BIAS_AXIS_ROWS), r.mutable_bias()->set_data("x");
       },
       kInvalid, "bias.data: got 1 bytes, want m = 4 elements of 32 bits = 16"},
      {"BiasWithoutAxis", [](Request& r) { r.mutable_bias()->set_data("x"); }, kInvalid,
       "bias.axis: got none, want rows or columns"},
      {"LongRequestId", [](Request& r) { r.set_request_id(std::string(129, 'x')); }, kInvalid,
       "request_id: got 129 bytes, want at most 128"},
  };
}

std::vector<Refused> BadLayouts() {
  return {
      {"NegativeLeadingDimension", [](Request& r) { r.mutable_a()->set_leading_dimension(-1); },
       kInvalid, "a.leading_dimension: got -1, want 0 or at least the length of a row, 6"},
      {"ShortLeadingDimension", [](Request& r) { r.mutable_b()->set_leading_dimension(4); },
       kInvalid, "b.leading_dimension: got 4, want 0 or at least the length of a row, 5"},
      {"HugeLeadingDimension", [](Request& r) { r.mutable_a()->set_leading_dimension(kMax); },
       kInvalid,
       "a.leading_dimension: got 9223372036854775807, want a matrix of less than 2^63 bytes"},
      {"LargeLeadingDimension", [](Request& r) { r.mutable_a()->set_leading_dimension(kHuge); },
       kInvalid,
       "a.data: got 96 bytes, want 4 lines of 4398046511104 bytes = 17592186044416 (or "
       "13194139533336 without the last padding)"},
      {"HugeOutputLeadingDimension",
       [](Request& r) { r.mutable_d()->set_leading_dimension(kHuge); },
       grpc::StatusCode::RESOURCE_EXHAUSTED,
       "d: the result takes 17592186044416 bytes, a message holds at most 536866816"},
      {"NegativeBatchStride", [](Request& r) { r.mutable_a()->set_batch_stride(-1); }, kInvalid,
       "a.batch_stride: got -1, want at least 0 and less than 2^63 bits"},
      {"HugeBatchStride", [](Request& r) { r.set_batch(2), r.mutable_a()->set_batch_stride(kMax); },
       kInvalid,
       "a.batch_stride: got 9223372036854775807, want at least 0 and less than 2^63 bits"},
      {"OverlappingOutput",
       [](Request& r) {
         r.set_batch(2), r.mutable_a()->set_batch_stride(0), r.mutable_b()->set_batch_stride(0);
         r.mutable_d()->set_batch_stride(19);
       },
       kInvalid, "d.batch_stride: got 76 bytes, want at least one matrix = 80"},
      {"BroadcastOutput",
       [](Request& r) {
         r.set_batch(2), r.mutable_a()->set_batch_stride(0), r.mutable_b()->set_batch_stride(0);
         r.mutable_d()->set_batch_stride(0);
       },
       kInvalid, "d.batch_stride: got 0 bytes, want at least one matrix = 80"},
      {"BatchStrideInsideAByte",
       [](Request& r) {
         r.mutable_a()->set_type(v1::ELEMENT_TYPE_S4), r.mutable_b()->set_type(v1::ELEMENT_TYPE_S4);
         r.mutable_a()->set_batch_stride(3);
       },
       kInvalid, "a.batch_stride: got 3, want a whole number of bytes of 4-bit elements"},
      {"UnknownOrder", [](Request& r) { r.mutable_a()->set_order(static_cast<v1::Order>(9)); },
       kInvalid, "a.order: got unknown value 9"},
  };
}

std::vector<Refused> BadTypes() {
  return {
      {"NoType", [](Request& r) { r.mutable_a()->clear_type(); }, kInvalid,
       "a.type: got none, want an element type"},
      {"UnknownType", [](Request& r) { r.mutable_a()->set_type(static_cast<v1::ElementType>(77)); },
       kInvalid, "a.type: got unknown value 77"},
      {"FloatTimesInteger", [](Request& r) { r.mutable_b()->set_type(v1::ELEMENT_TYPE_S32); },
       kInvalid, "b.type: got s32, want a type of operands (s32 is for C, D and bias)"},
      {"DifferentFloats", [](Request& r) { r.mutable_b()->set_type(v1::ELEMENT_TYPE_TF32); },
       kInvalid, "b.type: got tf32, want f32 with a.type f32"},
      {"BitsAsOutput", [](Request& r) { r.mutable_d()->set_type(v1::ELEMENT_TYPE_B1); }, kInvalid,
       "d.type: got b1, want any other type"},
      {"IntegerAccumulationOfFloats",
       [](Request& r) { r.set_accumulation_type(v1::ELEMENT_TYPE_S32); }, kInvalid,
       "accumulation_type: got s32, want f32 or f64 for f32 operands"},
      {"XorOfFloats", [](Request& r) { r.set_bit_operation(v1::BIT_OPERATION_XOR); }, kInvalid,
       "bit_operation: got xor, want and for operands of type f32"},
      {"ScaleOfF32", [](Request& r) { r.mutable_a()->mutable_scale()->add_values(1); }, kInvalid,
       "a.scale: got values for operands of type f32, want none (only e4m3, e5m2, s8 and u8 are "
       "scaled)"},
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
       kInvalid, "c.scale: got values, want none: only A and B are scaled"},
      {"RateOfDuplicate",
       [](Request& r) {
         r.mutable_verify()->set_mode(v1::VERIFY_MODE_DUPLICATE), r.mutable_verify()->set_rate(0.5);
       },
       kInvalid, "verify.rate: got a rate, want none unless mode is sampled"},
      {"UnknownActivation", [](Request& r) { r.set_activation(static_cast<v1::Activation>(42)); },
       kInvalid, "activation: got unknown value 42"},
  };
}

std::vector<Refused> BadChoices() {
  return {
      {"UnknownKernel", [](Request& r) { r.set_kernel("onednn.f32.f32.f31"); },
       grpc::StatusCode::NOT_FOUND,
       StartsWith("kernel: got onednn.f32.f32.f31, want a name of the catalogue (nearest: "
                  "onednn.f32.f32.f32, ")},
      {"KernelOfOtherTypes", [](Request& r) { r.set_kernel("openblas.f64.f64.f64"); },
       grpc::StatusCode::UNIMPLEMENTED,
       // The others are in the order of the measured rates.
       AllOf(
           StartsWith("openblas.f64.f64.f64: a.type: got f32, want f64; without the constraints: "),
           HasSubstr("openblas.f32.f32.f32"))},
      {"UnknownDevice", [](Request& r) { r.set_device("cuda:7"); }, grpc::StatusCode::NOT_FOUND,
       "device: got cuda:7, want one of cpu"},
      {"NoBatchInvariantKernel", [](Request& r) { r.set_require_batch_invariant(true); },
       grpc::StatusCode::UNIMPLEMENTED,
       AllOf(StartsWith("no kernel runs 4x5x6 f32 <- f32 row, f32 row; "),
             HasSubstr("onednn.f32.f32.f32: require_batch_invariant: got a kernel whose bits may "
                       "depend on m or the batch, want bits that depend on neither"),
             HasSubstr("without the constraints: "))},
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
  EXPECT_THAT(status.error_message(), GetParam().message);
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
