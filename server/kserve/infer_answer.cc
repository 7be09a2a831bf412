// SPDX-License-Identifier: Apache-2.0
#include "server/kserve/infer_answer.h"

#include <utility>

#include "kernels/text.h"
#include "kserve/v2/inference.pb.h"
#include "proto/field_start.h"
#include "server/kserve/datatype.h"
#include "server/kserve/models.h"
#include "server/wire/outgoing.h"

namespace gemmd {
namespace {

using inference::ModelInferResponse;
using inference::ModelStreamInferResponse;

constexpr int kRaw = ModelInferResponse::kRawOutputContentsFieldNumber;

void DescribeD(const InferSubject& subject, const v1::Matrix& d,
               ModelInferResponse::InferOutputTensor& output) {
  const ElementType type = TypeOfWire(d.type());
  output.set_name("D");
  output.set_datatype(std::string(DatatypeOf(type)));
  if (subject.has_batch) output.add_shape(d.batch());
  output.add_shape(d.rows());
  output.add_shape(RowExtent(type, d.columns()));
  auto& parameters = *output.mutable_parameters();
  parameters["type"].set_string_param(std::string(NameOf(type)));
  if (BitsOf(type) < 8) parameters["columns"].set_int64_param(d.columns());
}

void DescribeProduct(const v1::MultiplyResponse& product, ModelInferResponse& answer) {
  auto& parameters = *answer.mutable_parameters();
  parameters["kernel"].set_string_param(product.kernel());
  parameters["device"].set_string_param(product.device());
  parameters["operations"].set_int64_param(product.operations());
  const v1::Timing& timing = product.timing();
  const std::pair<const char*, int64_t> stages[] = {
      {"receive_ns", timing.receive_ns()},   {"queue_ns", timing.queue_ns()},
      {"copy_in_ns", timing.copy_in_ns()},   {"compute_ns", timing.compute_ns()},
      {"copy_out_ns", timing.copy_out_ns()}, {"send_prepare_ns", timing.send_prepare_ns()},
      {"total_ns", timing.total_ns()}};
  for (const auto& [name, ns] : stages) parameters[name].set_int64_param(ns);
  if (!product.has_verification()) return;
  const bool is_passed = product.verification().outcome() == v1::VERIFY_OUTCOME_PASSED;
  parameters["verification"].set_string_param(is_passed ? "passed" : "not_verified");
}

ModelInferResponse WithoutD(const InferSubject& subject, const v1::MultiplyResponse& product) {
  ModelInferResponse answer;
  answer.set_model_name(subject.model);
  answer.set_model_version(std::string(kModelVersion));
  answer.set_id(subject.id);
  DescribeProduct(product, answer);
  DescribeD(subject, product.d(), *answer.add_outputs());
  return answer;
}

}  // namespace

grpc::ByteBuffer InferAnswer(const InferSubject& subject, const v1::MultiplyResponse& product,
                             HeldBytes d) {
  std::string head = WithoutD(subject, product).SerializeAsString();
  AppendFieldStart(kRaw, d.size(), head);
  return MessageOf(std::move(head), std::move(d));
}

grpc::ByteBuffer StreamedInferAnswer(const InferSubject& subject,
                                     const v1::MultiplyResponse& product, HeldBytes d) {
  ModelInferResponse answer = WithoutD(subject, product);
  (*answer.mutable_parameters())["triton_final_response"].set_bool_param(true);
  const std::string inner = answer.SerializeAsString();
  std::string head;
  AppendFieldStart(ModelStreamInferResponse::kInferResponseFieldNumber,
                   inner.size() + EncodedFieldBytes(kRaw, d.size()), head);
  head += inner;
  AppendFieldStart(kRaw, d.size(), head);
  return MessageOf(std::move(head), std::move(d));
}

grpc::ByteBuffer StreamedRefusal(const std::string& id, const absl::Status& status) {
  ModelStreamInferResponse answer;
  answer.set_error_message(
      Concat(absl::StatusCodeToString(status.code()), ": ", std::string(status.message())));
  answer.mutable_infer_response()->set_id(id);
  auto& parameters = *answer.mutable_infer_response()->mutable_parameters();
  parameters["triton_final_response"].set_bool_param(true);
  const grpc::Slice slice(answer.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

}  // namespace gemmd
