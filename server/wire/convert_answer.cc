// SPDX-License-Identifier: Apache-2.0
#include "server/wire/convert_answer.h"

#include "server/wire/convert_operand.h"
#include "server/wire/tensor_convert.h"

namespace gemmd {
namespace {

// Shape and layout of D.
void FillMatrix(const Problem& problem, v1::Matrix& matrix) {
  matrix.set_type(ToWire(problem.d.type));
  matrix.set_rows(problem.m);
  matrix.set_columns(problem.n);
  matrix.set_batch(problem.batch);
  matrix.set_order(problem.d.order == Order::kRowMajor ? v1::ORDER_ROW_MAJOR
                                                       : v1::ORDER_COLUMN_MAJOR);
  matrix.set_leading_dimension(problem.d.leading_dimension);
  matrix.set_batch_stride(problem.d.batch_stride_bytes);
}

}  // namespace

void FillResponse(const Product& product, v1::MultiplyResponse& response) {
  const Problem& problem = product.job.problem;
  response.set_request_id(product.arrival.request_id);
  FillMatrix(problem, *response.mutable_d());
  response.mutable_kernel()->assign(product.kernel().name);
  response.set_device(product.device_name());
  response.set_operations(Operations(problem));
  response.set_bytes_read(BytesRead(problem));
  response.set_bytes_written(BytesWritten(problem));
  if (product.tensor) *response.mutable_tensor() = ToWire(*product.tensor);
  if (product.verification) *response.mutable_verification() = ToWire(*product.verification);
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
  wire.set_receive_ns(timing[Stage::kReceive]);
  wire.set_queue_ns(timing[Stage::kQueue]);
  wire.set_copy_in_ns(timing[Stage::kCopyIn]);
  wire.set_compute_ns(timing[Stage::kCompute]);
  wire.set_copy_out_ns(timing[Stage::kCopyOut]);
  wire.set_send_prepare_ns(timing[Stage::kSendPrepare]);
  wire.set_total_ns(timing.total_ns);
  return wire;
}

}  // namespace gemmd
