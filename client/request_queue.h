// SPDX-License-Identifier: Apache-2.0
//
// Products of a stream that wait to be sent, as the message in which they will go.
#pragma once

#include <cstddef>
#include <string>

#include "gemmd/v1/gemm.pb.h"
#include "grpcpp/support/byte_buffer.h"

namespace gemmd {

class RequestQueue {
 public:
  // A product as it lies within a message.
  static std::string PartOf(const v1::MultiplyRequest& request);

  // Whether the message takes a further part. An empty one takes any.
  bool Takes(const std::string& part) const;
  void Add(std::string part);

  bool empty() const { return count_ == 0; }
  void Clear() { *this = RequestQueue(); }

  // The message; then the queue is empty.
  grpc::ByteBuffer Take();

  // What a message holds at most: less than servers take, and not so much that the first product
  // waits long for the last one.
  static constexpr int kMostRequests = 256;
  static constexpr size_t kMostBytes = size_t{1} << 20;  // Where there are several.

 private:
  std::string message_;
  int count_ = 0;
};

}  // namespace gemmd
