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

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "gemmd/v1/gemm.pb.h"
#include "server/device/held_bytes.h"
#include "server/product/product.h"

namespace gemmd {

// Messages that answer a product.
//
// Fills `response` with the answer of a product that is OK, except its matrix. Overwrites all
// fields, so that one message object serves many products and its memory is allocated once.
void FillResponse(const Product& product, v1::MultiplyResponse& response);
// Fills the answer's matrix, except its bytes, in the same way.
void FillMatrix(const Problem& problem, v1::Matrix& matrix);

v1::Timing ToWire(const ProductTiming& timing);
v1::VerifyMode ToWire(VerifyMode mode);
v1::Verification ToWire(const AnswerVerification& verification);

// Answers on their way to gRPC. Long matrices are not copied: gRPC borrows the memory of a result
// and releases it when the call ends.

// Later releases of Protobuf have one name for both, which 3.21 has for other types.
template <typename Message>
Message* MadeOn(google::protobuf::Arena& arena) {
#if GOOGLE_PROTOBUF_VERSION < 5026000
  return google::protobuf::Arena::CreateMessage<Message>(&arena);
#else
  return google::protobuf::Arena::Create<Message>(&arena);
#endif
}

// A message whose memory is inside its owner. What does not fit into kBytes is allocated, and so is
// what a thread other than its creator adds.
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
  Message* const message_ = MadeOn<Message>(arena_);
};

// A message of all the bytes, `d` last.
grpc::ByteBuffer MessageOf(std::string head, HeldBytes d);

// The answer of a product that is OK. Takes its D.
grpc::ByteBuffer UnaryAnswer(Product& product);

// A shorter matrix is copied, since another slice would cost more than its bytes.
inline constexpr size_t kCopiedBytes = size_t{16} << 10;

// A slice of the bytes, without a copy.
grpc::Slice SliceOf(HeldBytes bytes);
grpc::Slice SliceOf(std::string text);

// The limits of one message; a single answer may be longer. Many clients accept no message above 4
// MiB.
inline constexpr size_t kMaxJointAnswers = 256;
inline constexpr int64_t kMaxJointAnswerBytes = int64_t{1} << 20;

// A MultiplyStreamResponse made of several answers.
class JointAnswer {
 public:
  // Expects this many products, with D's of `copied_bytes` bytes that are copied.
  JointAnswer(size_t products, size_t copied_bytes)
      : products_(products), copied_bytes_(copied_bytes) {}

  // See UnaryAnswer.
  void Add(Product& product);

  // The part of a message that reports the refusal of a request.
  static std::string RefusalOf(const std::string& request_id, const absl::Status& status);
  void Add(const std::string& refusal) { copied_ += refusal; }

  // The serialized message. Call it once.
  grpc::ByteBuffer Take();

 private:
  void EndSlice();

  const size_t products_;
  const size_t copied_bytes_;
  // Of the last product; the next one reuses their memory.
  MessageOn<v1::MultiplyResponse, 1024> response_;
  v1::Matrix matrix_;
  std::string copied_;  // The bytes after the last slice.
  absl::InlinedVector<grpc::Slice, 1> slices_;
};

}  // namespace gemmd
