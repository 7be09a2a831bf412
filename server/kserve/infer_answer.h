// SPDX-License-Identifier: Apache-2.0
//
// ModelInferResponses on their way to gRPC. D is not copied: gRPC borrows the memory of the result.
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <string>

#include "absl/status/status.h"
#include "gemmd/v1/gemm.pb.h"
#include "server/device/held_bytes.h"

namespace gemmd {

// What an answer repeats of its request.
struct InferSubject {
  std::string model;
  std::string id;
  bool has_batch = false;
};

// The bytes of a ModelInferResponse. `product` lacks the bytes of D.
grpc::ByteBuffer InferAnswer(const InferSubject& subject, const v1::MultiplyResponse& product,
                             HeldBytes d);

// The bytes of a ModelStreamInferResponse.
grpc::ByteBuffer StreamedInferAnswer(const InferSubject& subject,
                                     const v1::MultiplyResponse& product, HeldBytes d);
grpc::ByteBuffer StreamedRefusal(const std::string& id, const absl::Status& status);

}  // namespace gemmd
