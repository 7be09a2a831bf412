// SPDX-License-Identifier: Apache-2.0
//
// Elements that came as numbers of a message, not as bytes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "server/wire/received_slices.h"

namespace gemmd {

// Numbers that have to be decoded one by one, of all inputs of a request.
inline constexpr int64_t kMostDecodedBytes = int64_t{16} << 10;

// The most bytes of elements that a byte of such numbers becomes.
inline constexpr int64_t kDecodedGrowth = 4;

// Where numbers lie on the wire as the bytes of their elements, which is how every encoder has FP32
// and FP64: removes what is around them, and returns whether it did.
bool StripPackedFloats(std::string_view datatype, ReceivedSlices& contents);

// The elements of an InferTensorContents as bytes. `field` is the input's. Errors: InvalidArgument
// numbers of another datatype's field, or beyond its range; FP16 and BF16 have no field.
absl::StatusOr<std::string> DecodeContents(std::string_view field, std::string_view datatype,
                                           ReceivedSlices& contents);

}  // namespace gemmd
