// SPDX-License-Identifier: Apache-2.0
//
// A MultiplyStreamResponse that is made of several answers. Long matrices are not copied: gRPC
// borrows the memory of the results.
#pragma once

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gemmd/v1/gemm.pb.h"
#include "server/device/held_bytes.h"

namespace gemmd {

// What one message holds at most; more bytes only where there is one answer. Many clients take no
// message above 4 MiB.
inline constexpr size_t kMostJointAnswers = 256;
inline constexpr int64_t kMostJointAnswerBytes = int64_t{1} << 20;

class JointAnswer {
 public:
  // An answer with `d` as the bytes of its matrix, which it does not have itself. The matrix is
  // taken out of `answer`.
  void Add(const std::string& request_id, v1::MultiplyResponse& answer, HeldBytes d);

  // What a message has of a request that is refused.
  static std::string RefusalOf(const std::string& request_id, const absl::Status& status);
  void Add(const std::string& refusal) { copied_ += refusal; }

  // The wire's bytes, once.
  grpc::ByteBuffer Take();

 private:
  void EndSlice();

  std::string copied_;  // The bytes after the last slice.
  std::vector<grpc::Slice> slices_;
};

}  // namespace gemmd
