// SPDX-License-Identifier: Apache-2.0
#include "server/wire/joint_answer.h"

#include <utility>

#include "proto/field_start.h"
#include "server/wire/outgoing.h"

namespace gemmd {
namespace {

using Response = v1::MultiplyResponse;
using Answer = v1::MultiplyStreamAnswer;

constexpr int kAnswers = v1::MultiplyStreamResponse::kAnswersFieldNumber;

void LetGo(void* text) { delete static_cast<std::string*>(text); }

}  // namespace

// The bytes of D come last, so that they may follow as a slice. Fields may come in any order.
void JointAnswer::Add(const std::string& request_id, v1::MultiplyResponse& answer, HeldBytes d) {
  const v1::Matrix matrix = answer.d();
  answer.clear_d();
  const size_t matrix_bytes =
      matrix.ByteSizeLong() + EncodedFieldBytes(v1::Matrix::kDataFieldNumber, d.size());
  const size_t response_bytes =
      answer.ByteSizeLong() + EncodedFieldBytes(Response::kDFieldNumber, matrix_bytes);
  const size_t answer_bytes = EncodedFieldBytes(Answer::kRequestIdFieldNumber, request_id.size()) +
                              EncodedFieldBytes(Answer::kResponseFieldNumber, response_bytes);
  const bool is_copied = d.size() <= kCopiedBytes;
  if (copied_.empty()) {
    copied_.reserve(EncodedFieldBytes(kAnswers, answer_bytes) - (is_copied ? 0 : d.size()));
  }
  AppendFieldStart(kAnswers, answer_bytes, copied_);
  AppendFieldStart(Answer::kRequestIdFieldNumber, request_id.size(), copied_);
  copied_ += request_id;
  AppendFieldStart(Answer::kResponseFieldNumber, response_bytes, copied_);
  answer.AppendToString(&copied_);
  AppendFieldStart(Response::kDFieldNumber, matrix_bytes, copied_);
  matrix.AppendToString(&copied_);
  AppendFieldStart(v1::Matrix::kDataFieldNumber, d.size(), copied_);
  if (is_copied) {
    copied_.append(reinterpret_cast<const char*>(d.bytes().data()), d.size());
    return;
  }
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
  auto* const text = new std::string(std::move(copied_));
  copied_.clear();
  slices_.emplace_back(text->data(), text->size(), LetGo, text);
}

}  // namespace gemmd
