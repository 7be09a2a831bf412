// SPDX-License-Identifier: Apache-2.0
//
// Gemm.MultiplyStream as a stream of products, however they are grouped into messages.
#pragma once

#include <grpcpp/grpcpp.h>

#include <deque>
#include <memory>
#include <utility>

#include "gemmd/v1/gemm.grpc.pb.h"

namespace gemmd {

// Threads: one may write while another one reads.
class ClientStream {
 public:
  ClientStream(v1::Gemm::Stub& stub, grpc::ClientContext* context)
      : stream_(stub.MultiplyStream(context)) {}

  // Sends the product as a message of its own.
  bool Write(const v1::MultiplyRequest& request) {
    v1::MultiplyStreamRequest message;
    *message.add_requests() = request;
    return Write(message);
  }
  bool Write(const v1::MultiplyStreamRequest& message) { return stream_->Write(message); }
  void WritesDone() { stream_->WritesDone(); }

  // The next answer; false at the end of the stream.
  bool Read(v1::MultiplyStreamAnswer* answer) {
    while (answers_.empty()) {
      v1::MultiplyStreamResponse message;
      if (!stream_->Read(&message)) return false;
      ++messages_;
      for (v1::MultiplyStreamAnswer& one : *message.mutable_answers()) {
        answers_.push_back(std::move(one));
      }
    }
    *answer = std::move(answers_.front());
    answers_.pop_front();
    return true;
  }

  // The number of messages with answers.
  int messages() const { return messages_; }

  grpc::Status Finish() { return stream_->Finish(); }

 private:
  std::unique_ptr<grpc::ClientReaderWriter<v1::MultiplyStreamRequest, v1::MultiplyStreamResponse>>
      stream_;
  std::deque<v1::MultiplyStreamAnswer> answers_;
  int messages_ = 0;
};

}  // namespace gemmd
