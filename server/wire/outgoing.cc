// SPDX-License-Identifier: Apache-2.0
#include "server/wire/outgoing.h"

#include <algorithm>
#include <utility>

#include "proto/field_start.h"
#include "server/wire/convert.h"
#include "server/wire/tensor_convert.h"

namespace gemmd {

namespace {

void Fill(const ProductTiming& timing, v1::Timing& wire) {
  wire.set_receive_ns(timing[Stage::kReceive]);
  wire.set_queue_ns(timing[Stage::kQueue]);
  wire.set_copy_in_ns(timing[Stage::kCopyIn]);
  wire.set_compute_ns(timing[Stage::kCompute]);
  wire.set_copy_out_ns(timing[Stage::kCopyOut]);
  wire.set_send_prepare_ns(timing[Stage::kSendPrepare]);
  wire.set_total_ns(timing.total_ns);
}

}  // namespace

void FillMatrix(const Problem& problem, v1::Matrix& matrix) {
  matrix.set_type(ToWire(problem.d.type));
  matrix.set_rows(problem.m);
  matrix.set_columns(problem.n);
  matrix.set_batch(problem.batch);
  matrix.set_order(ToWire(problem.d.order));
  matrix.set_leading_dimension(problem.d.leading_dimension);
  matrix.set_batch_stride(problem.d.batch_stride_bytes);
}

void FillResponse(const Product& product, v1::MultiplyResponse& response) {
  const Problem& problem = product.job.problem;
  response.set_request_id(product.arrival.request_id);
  response.mutable_kernel()->assign(product.kernel().name);
  response.set_device(product.device_name());
  response.set_operations(Operations(problem));
  response.set_bytes_read(BytesRead(problem));
  response.set_bytes_written(BytesWritten(problem));
  response.set_joined(product.joined);
  Fill(product.timing, *response.mutable_timing());
  if (product.tensor) {
    Fill(*product.tensor, Scales::kTold, *response.mutable_tensor());
  } else {
    response.clear_tensor();
  }
  if (product.verification) {
    *response.mutable_verification() = ToWire(*product.verification);
  } else {
    response.clear_verification();
  }
}

v1::VerifyMode ToWire(VerifyMode mode) {
  return static_cast<v1::VerifyMode>(static_cast<int>(mode) + 1);
}

v1::Verification ToWire(const AnswerVerification& verification) {
  v1::Verification wire;
  wire.set_mode(ToWire(verification.mode));
  wire.set_outcome(verification.end == VerifyEnd::kPassed ? v1::VERIFY_OUTCOME_PASSED
                                                          : v1::VERIFY_OUTCOME_NOT_VERIFIED);
  wire.set_reason(std::string(verification.reason));
  wire.set_elements_checked(verification.elements_checked);
  wire.set_miss_probability(verification.miss_probability);
  wire.set_cost(verification.cost);
  wire.set_least_error(verification.least_error);
  wire.set_verify_ns(verification.verify_ns);
  wire.set_kernel(std::string(verification.kernel));
  wire.set_device(std::string(verification.device));
  wire.set_wrong_answers(verification.wrong_answers);
  return wire;
}

v1::Timing ToWire(const ProductTiming& timing) {
  v1::Timing wire;
  Fill(timing, wire);
  return wire;
}

namespace {

using Response = v1::MultiplyResponse;
using Answer = v1::MultiplyStreamAnswer;

constexpr int kAnswers = v1::MultiplyStreamResponse::kAnswersFieldNumber;

// By how much the lengths of times, in varints, may differ between two answers.
constexpr size_t kLongerHeadBytes = 16;

void FreeMatrix(void* matrix) { delete static_cast<HeldBytes*>(matrix); }
void FreeText(void* text) { delete static_cast<std::string*>(text); }

// The number of bytes of D and of the whole matrix message. D's bytes come last.
struct MatrixBytes {
  size_t d = 0;
  size_t all = 0;
};
MatrixBytes EncodedBytes(const v1::Matrix& matrix, size_t d_bytes) {
  return {d_bytes,
          matrix.ByteSizeLong() + EncodedFieldBytes(v1::Matrix::kDataFieldNumber, d_bytes)};
}

// The size of a response with its matrix, which AppendResponse appends. Fields may be in any order.
size_t EncodedBytes(const Response& response, const MatrixBytes& matrix) {
  return response.ByteSizeLong() + EncodedFieldBytes(Response::kDFieldNumber, matrix.all);
}

void AppendResponse(const Response& response, const v1::Matrix& matrix, const MatrixBytes& bytes,
                    std::string& to) {
  response.AppendToString(&to);
  AppendFieldStart(Response::kDFieldNumber, bytes.all, to);
  matrix.AppendToString(&to);
  AppendFieldStart(v1::Matrix::kDataFieldNumber, bytes.d, to);
}

void AppendBytes(const HeldBytes& d, std::string& to) {
  to.append(reinterpret_cast<const char*>(d.bytes().data()), d.size());
}

}  // namespace

grpc::Slice SliceOf(std::string text) {
  auto* const held = new std::string(std::move(text));
  return grpc::Slice(held->data(), held->size(), FreeText, held);
}

grpc::Slice SliceOf(HeldBytes bytes) {
  auto* const held = new HeldBytes(std::move(bytes));
  return grpc::Slice(held->bytes().data(), held->size(), FreeMatrix, held);
}

grpc::ByteBuffer MessageOf(std::string head, HeldBytes d) {
  if (d.size() <= kCopiedBytes) {
    AppendBytes(d, head);
    const grpc::Slice slice = SliceOf(std::move(head));
    return grpc::ByteBuffer(&slice, 1);
  }
  const grpc::Slice slices[] = {SliceOf(std::move(head)), SliceOf(std::move(d))};
  return grpc::ByteBuffer(slices, 2);
}

grpc::ByteBuffer UnaryAnswer(Product& product) {
  MessageOn<Response, 1024> response;
  v1::Matrix matrix;
  FillResponse(product, *response);
  FillMatrix(product.job.problem, matrix);
  HeldBytes d = std::move(product.outcome.d);
  const MatrixBytes bytes = EncodedBytes(matrix, d.size());
  const bool is_copied = d.size() <= kCopiedBytes;
  std::string head;
  head.reserve(EncodedBytes(*response, bytes) - (is_copied ? 0 : d.size()));
  AppendResponse(*response, matrix, bytes, head);
  return MessageOf(std::move(head), std::move(d));
}

void JointAnswer::Add(Product& product) {
  const std::string& request_id = product.arrival.request_id;
  FillResponse(product, *response_);
  FillMatrix(product.job.problem, matrix_);
  HeldBytes d = std::move(product.outcome.d);
  const MatrixBytes bytes = EncodedBytes(matrix_, d.size());
  const size_t response_bytes = EncodedBytes(*response_, bytes);
  const size_t answer_bytes = EncodedFieldBytes(Answer::kRequestIdFieldNumber, request_id.size()) +
                              EncodedFieldBytes(Answer::kResponseFieldNumber, response_bytes);
  const bool is_copied = d.size() <= kCopiedBytes;
  if (copied_.empty() && slices_.empty()) {
    // The other answers are as long as the first one, except for their D's, or as long as counted.
    const size_t head_bytes = EncodedFieldBytes(kAnswers, answer_bytes) - d.size();
    const size_t other_bytes =
        std::min(head_bytes + kLongerHeadBytes, static_cast<size_t>(kAnswerOverheadBytes));
    copied_.reserve(head_bytes + (products_ - 1) * other_bytes + copied_bytes_);
  }
  AppendFieldStart(kAnswers, answer_bytes, copied_);
  AppendFieldStart(Answer::kRequestIdFieldNumber, request_id.size(), copied_);
  copied_ += request_id;
  AppendFieldStart(Answer::kResponseFieldNumber, response_bytes, copied_);
  AppendResponse(*response_, matrix_, bytes, copied_);
  if (is_copied) return AppendBytes(d, copied_);
  EndSlice();
  slices_.push_back(SliceOf(std::move(d)));
}

std::string JointAnswer::RefusalOf(const std::string& request_id, const absl::Status& status) {
  Answer refusal;
  refusal.set_request_id(request_id);
  refusal.mutable_error()->set_code(status.raw_code());
  refusal.mutable_error()->set_message(std::string(status.message()));
  std::string part;
  AppendFieldStart(kAnswers, refusal.ByteSizeLong(), part);
  refusal.AppendToString(&part);
  return part;
}

grpc::ByteBuffer JointAnswer::Take() {
  EndSlice();
  return grpc::ByteBuffer(slices_.data(), slices_.size());
}

void JointAnswer::EndSlice() {
  if (copied_.empty()) return;
  slices_.push_back(SliceOf(std::exchange(copied_, {})));
}

}  // namespace gemmd
