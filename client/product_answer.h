// SPDX-License-Identifier: Apache-2.0
//
// The answer to a product as it arrives: D is copied once, to where it stays.
#pragma once

#include <cstddef>
#include <span>

#include "absl/status/statusor.h"
#include "gemmd/product.h"
#include "grpcpp/support/byte_buffer.h"

namespace gemmd {

// Reads a MultiplyResponse. D goes to `into`, of exactly as many bytes, unless that is empty.
// Errors: DataLoss where the bytes are no such answer; InvalidArgument where `into` is of another
// size.
absl::StatusOr<MultiplyResult> ReadProductAnswer(grpc::ByteBuffer& answer,
                                                 std::span<std::byte> into);

}  // namespace gemmd
