// SPDX-License-Identifier: Apache-2.0
//
// Methods other than Multiply, each of whose long allocations fails once: of requests and answers
// with 1 MiB of factors, of fragments, of inferences, and of messages with many products.
#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include <future>
#include <string>
#include <utility>

#include "gemmd/v1/instructions.pb.h"
#include "gemmd/v1/resident.grpc.pb.h"
#include "kserve/v2/inference.pb.h"
#include "server/wire/incoming.h"
#include "server/wire/outgoing.h"
#include "tests/server/wire/failing_allocations.h"
#include "tests/server/wire/running_server.h"

namespace gemmd {
namespace {

constexpr int kFactors = 1 << 18;

// A call with one request and, if it is OK, one answer, which is all that is read. For methods of
// any kind. The client makes no long allocation with operator new.
class OneAnswer : grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  OneAnswer(RunningServer& running, const std::string& method, const std::string& token)
      : stub_(running.channel()) {
    AllowTime(context_);
    if (!token.empty()) context_.AddMetadata("gemmd-session", token);
    stub_.PrepareBidiStreamingCall(&context_, method, {}, this);
  }

  grpc::Status Ask(const grpc::ByteBuffer& request) {
    StartWrite(&request);
    StartRead(&response_);
    StartCall();
    const bool is_answered = read_.get_future().get();
    // Uploads and sessions must not stay.
    if (is_answered) context_.TryCancel();
    const grpc::Status status = done_.get_future().get();
    return is_answered ? grpc::Status::OK : status;
  }

 private:
  void OnReadDone(bool ok) override { read_.set_value(ok); }
  void OnDone(const grpc::Status& status) override { done_.set_value(status); }

  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  grpc::ByteBuffer response_;
  std::promise<bool> read_;
  std::promise<grpc::Status> done_;
};

class AnswerAllocationTest : public testing::Test {
 protected:
  AnswerAllocationTest() {
    AllowTime(context_);
    session_ = tensors_->OpenSession(&context_, {});
    v1::OpenSessionResponse opened;
    EXPECT_TRUE(session_->Read(&opened));
    token_ = opened.token();
  }
  ~AnswerAllocationTest() override { context_.TryCancel(); }

  Failures Fail(const std::string& method, const google::protobuf::Message& request) {
    const grpc::Slice slice(request.SerializeAsString());
    const grpc::ByteBuffer bytes(&slice, 1);
    const auto ask = [&] { return OneAnswer(running_, method, token_).Ask(bytes); };
    EXPECT_TRUE(ask().ok());
    return FailInTurn(ask);
  }

  // A row of bytes with a factor for each.
  static v1::PutRequest Beginning() {
    v1::PutRequest request;
    v1::TensorSpec& spec = *request.mutable_begin()->mutable_spec();
    spec.set_type(v1::ELEMENT_TYPE_S8);
    spec.set_rows(kFactors);
    spec.set_columns(4);
    spec.mutable_scale()->mutable_values()->Resize(kFactors, 1.0f);
    request.mutable_begin()->mutable_keep()->set_name("scaled");
    return request;
  }

  void PutScaled() {
    grpc::ClientContext context;
    AllowTime(context);
    context.AddMetadata("gemmd-session", token_);
    const auto stream = tensors_->Put(&context);
    EXPECT_TRUE(stream->Write(Beginning()));
    v1::PutRequest chunk;
    chunk.mutable_chunk()->set_data(std::string(size_t{4} * kFactors, '\1'));
    EXPECT_TRUE(stream->Write(chunk));
    EXPECT_TRUE(stream->WritesDone());
    v1::PutResponse answer;
    while (stream->Read(&answer)) continue;
    const grpc::Status status = stream->Finish();
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(answer.tensor().spec().scale().values_size(), kFactors);
  }

  RunningServer running_{TestDevice::kOwnCpu};
  std::unique_ptr<v1::Tensors::Stub> tensors_ = v1::Tensors::NewStub(running_.channel());
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<v1::OpenSessionResponse>> session_;
  std::string token_;
};

TEST_F(AnswerAllocationTest, OfAnUpload) {
  EXPECT_GE(Fail("/gemmd.v1.Tensors/Put", Beginning()).refused, 2);
}

TEST_F(AnswerAllocationTest, OfDescriptions) {
  PutScaled();
  v1::TensorRef scaled;
  scaled.set_name("scaled");
  EXPECT_GE(Fail("/gemmd.v1.Tensors/Describe", scaled).refused, 2);
  v1::GetRequest get;
  *get.mutable_tensor() = scaled;
  EXPECT_GE(Fail("/gemmd.v1.Tensors/Get", get).refused, 2);
}

TEST_F(AnswerAllocationTest, OfCompression) {
  PutScaled();
  v1::CompressRequest request;
  request.mutable_tensor()->set_name("scaled");
  EXPECT_GE(Fail("/gemmd.v1.Tensors/Compress", request).refused, 2);
}

TEST_F(AnswerAllocationTest, OfAFragment) {
  v1::DescribeFragmentRequest request;
  request.set_instruction("wgmma.m64n256k16.f32.bf16.bf16");
  request.set_operand(v1::FRAGMENT_OPERAND_D);
  const grpc::Slice slice(request.SerializeAsString());
  const grpc::ByteBuffer bytes(&slice, 1);
  // It is cached once it was made.
  until_failure = 1;
  const grpc::Status refused =
      OneAnswer(running_, "/gemmd.v1.Registry/DescribeFragment", "").Ask(bytes);
  EXPECT_LE(until_failure.exchange(0), 0);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(OneAnswer(running_, "/gemmd.v1.Registry/DescribeFragment", "").Ask(bytes).ok());
}

// Factors are copied, since the product stores them as numbers.
TEST_F(AnswerAllocationTest, OfAnInference) {
  inference::ModelInferRequest request;
  request.set_model_name("gemm");
  const auto add = [&](const char* name, const char* datatype, int64_t rows, int64_t columns,
                       int bytes) {
    auto& input = *request.add_inputs();
    input.set_name(name);
    input.set_datatype(datatype);
    if (rows > 0) input.add_shape(rows);
    input.add_shape(columns);
    const int64_t elements = (rows > 0 ? rows : 1) * columns;
    request.add_raw_input_contents(std::string(static_cast<size_t>(elements * bytes), '\0'));
  };
  add("A", "INT8", 1, 32, 1);
  add("B", "INT8", 32, 1 << 15, 1);
  add("B_SCALE", "FP32", 0, 1 << 15, 4);
  const Failures failures = Fail("/inference.GRPCInferenceService/ModelInfer", request);
  EXPECT_GE(failures.refused, 3);
  EXPECT_THAT(failures.messages, testing::HasSubstr("message: no memory"));
}

// The answers of one message are joined.
TEST_F(AnswerAllocationTest, OfJointAnswers) {
  v1::MultiplyStreamRequest request;
  for (size_t i = 0; i < kMaxJointRequests; ++i)
    *request.add_requests() = IntegerRequest(1, 1024, 1);
  // How many answers a message has depends on timing, so it may need no long allocation.
  const grpc::Slice slice(request.SerializeAsString());
  const grpc::ByteBuffer bytes(&slice, 1);
  for (int i = 1; i < 5; ++i) {
    until_failure = i;
    const grpc::Status status = OneAnswer(running_, "/gemmd.v1.Gemm/MultiplyStream", "").Ask(bytes);
    until_failure = 0;
    EXPECT_TRUE(status.ok() || status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED)
        << status.error_message();
    EXPECT_TRUE(MultiplySmall(running_.gemm()).ok());
  }
}

// A joint message that arrived in many small pieces has a long list of slices.
TEST(JointAllocationTest, OfTheListsOfSlices) {
  v1::MultiplyStreamRequest request;
  *request.add_requests() = IntegerRequest(300, 400, 500);
  const std::string text = request.SerializeAsString();
  std::vector<grpc::Slice> scraps;
  for (size_t i = 0; i < text.size(); i += 100) scraps.emplace_back(text.substr(i, 100));
  {
    grpc::ByteBuffer bytes(scraps.data(), scraps.size());
    until_failure = 1;
    JointRequest joint(bytes);
    until_failure = 0;
    EXPECT_TRUE(absl::IsResourceExhausted(joint.Cut()));
  }
  grpc::ByteBuffer bytes(scraps.data(), scraps.size());
  JointRequest joint(bytes);
  ASSERT_TRUE(joint.Cut().ok());
  until_failure = 1;
  const absl::StatusOr<Incoming> product = joint.Take();
  until_failure = 0;
  EXPECT_TRUE(absl::IsResourceExhausted(product.status()));
  EXPECT_EQ(joint.size(), 0u);
}

}  // namespace
}  // namespace gemmd
