// SPDX-License-Identifier: Apache-2.0
//
// Answers on their way to gRPC: messages whose matrix is not copied. gRPC borrows the memory of the
// result and lets it go when the call ends.
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <string>

#include "absl/status/status.h"
#include "gemmd/v1/gemm.pb.h"
#include "server/device/held_bytes.h"

namespace gemmd {

// The wire's bytes of `answer` with `d` as the bytes of its matrix, which it does not have itself.
grpc::ByteBuffer UnaryAnswer(v1::MultiplyResponse answer, HeldBytes d);

// The wire's bytes of the MultiplyStreamResponse that holds it.
grpc::ByteBuffer StreamAnswer(const std::string& request_id, v1::MultiplyResponse answer,
                              HeldBytes d);

// The wire's bytes of the MultiplyStreamResponse that refuses a request.
grpc::ByteBuffer StreamRefusal(const std::string& request_id, const absl::Status& status);

}  // namespace gemmd
