// SPDX-License-Identifier: Apache-2.0
#include "client/request_queue.h"

#include <utility>

#include "grpcpp/support/slice.h"
#include "proto/field_start.h"

namespace gemmd {
namespace {

void LetGo(void* text) { delete static_cast<std::string*>(text); }

}  // namespace

std::string RequestQueue::PartOf(const v1::MultiplyRequest& request) {
  std::string part;
  AppendFieldStart(v1::MultiplyStreamRequest::kRequestsFieldNumber, request.ByteSizeLong(), part);
  request.AppendToString(&part);
  return part;
}

bool RequestQueue::Takes(const std::string& part) const {
  if (empty()) return true;
  return count_ < kMostRequests && part.size() <= kMostBytes &&
         message_.size() <= kMostBytes - part.size();
}

void RequestQueue::Add(std::string part) {
  if (empty()) {
    message_ = std::move(part);
  } else {
    message_ += part;
  }
  ++count_;
}

grpc::ByteBuffer RequestQueue::Take() {
  auto* const text = new std::string(std::move(message_));
  Clear();
  const grpc::Slice slice(text->data(), text->size(), LetGo, text);
  return grpc::ByteBuffer(&slice, 1);
}

}  // namespace gemmd
