// SPDX-License-Identifier: Apache-2.0
//
// Answers on their way to gRPC: messages whose matrix is not copied. gRPC borrows the memory of the
// result and lets it go when the call ends.
#pragma once

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <cstddef>
#include <string>

#include "gemmd/v1/gemm.pb.h"
#include "server/device/held_bytes.h"

namespace gemmd {

// A message of all the bytes, of which `d` are the last.
grpc::ByteBuffer MessageOf(std::string head, HeldBytes d);

// The wire's bytes of `answer` with `d` as the bytes of its matrix, which it does not have itself.
grpc::ByteBuffer UnaryAnswer(v1::MultiplyResponse& answer, HeldBytes d);

// A shorter matrix is copied: one slice more would cost more than its bytes.
inline constexpr size_t kCopiedBytes = size_t{16} << 10;

// The bytes without a copy.
grpc::Slice SliceOf(HeldBytes bytes);

}  // namespace gemmd
