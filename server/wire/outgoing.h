// SPDX-License-Identifier: Apache-2.0
//
// Answers of products, from the outcome to the bytes that gRPC sends.
#pragma once

#include <google/protobuf/arena.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gemmd/v1/gemm.pb.h"
#include "server/device/held_bytes.h"
#include "server/product/product.h"

namespace gemmd {

// The answer of a product as the wire has it.
//
// Writes the answer of a product that is OK, without its matrix, over what the message had: one
// message serves many products, and its memory is allocated once.
void FillResponse(const Product& product, v1::MultiplyResponse& response);
// The matrix of that, without its bytes, likewise.
void FillMatrix(const Problem& problem, v1::Matrix& matrix);

v1::Timing ToWire(const ProductTiming& timing);
v1::VerifyMode ToWire(VerifyMode mode);
v1::Verification ToWire(const AnswerVerification& verification);

// Answers on their way to gRPC: messages whose long matrices are not copied. gRPC borrows the
// memory of a result and lets it go when the call ends.
//
// A message in memory of its owner. What does not fit into so many bytes is allocated, and so is
// what another thread than the one that made it adds.
template <typename Message, size_t kBytes>
class MessageOn {
 public:
  MessageOn() = default;
  MessageOn(const MessageOn&) = delete;
  MessageOn& operator=(const MessageOn&) = delete;

  Message& operator*() { return *message_; }
  const Message& operator*() const { return *message_; }
  Message* operator->() { return message_; }

 private:
  alignas(std::max_align_t) char bytes_[kBytes];
  google::protobuf::Arena arena_{bytes_, kBytes};
  Message* const message_ = google::protobuf::Arena::CreateMessage<Message>(&arena_);
};

// A message of all the bytes, of which `d` are the last.
grpc::ByteBuffer MessageOf(std::string head, HeldBytes d);

// The answer of a product that is OK, whose D it takes.
grpc::ByteBuffer UnaryAnswer(Product& product);

// A shorter matrix is copied: one slice more would cost more than its bytes.
inline constexpr size_t kCopiedBytes = size_t{16} << 10;

// The bytes without a copy.
grpc::Slice SliceOf(HeldBytes bytes);

// What one message holds at most; more bytes only where there is one answer. Many clients take no
// message above 4 MiB.
inline constexpr size_t kMaxJointAnswers = 256;
inline constexpr int64_t kMaxJointAnswerBytes = int64_t{1} << 20;

// A MultiplyStreamResponse that is made of several answers.
class JointAnswer {
 public:
  // As UnaryAnswer.
  void Add(Product& product);

  // What a message has of a request that is refused.
  static std::string RefusalOf(const std::string& request_id, const absl::Status& status);
  void Add(const std::string& refusal) { copied_ += refusal; }

  // The wire's bytes, once.
  grpc::ByteBuffer Take();

 private:
  void EndSlice();

  // Those of the last product, whose memory the next one uses.
  MessageOn<v1::MultiplyResponse, 1024> response_;
  v1::Matrix matrix_;
  std::string copied_;  // The bytes after the last slice.
  std::vector<grpc::Slice> slices_;
};

}  // namespace gemmd
