// SPDX-License-Identifier: Apache-2.0
//
// Between the wire's messages of resident tensors and the words of server/store.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "absl/status/statusor.h"
#include "gemmd/v1/resident.pb.h"
#include "server/store/compression.h"
#include "server/store/tensor_store.h"
#include "server/store/upload.h"

namespace gemmd {

// Errors, but for ParseRange: InvalidArgument, as the wire contract says: "field: got X, want Y".
absl::StatusOr<TensorSpec> ParseTensorSpec(const v1::TensorSpec& spec);
absl::StatusOr<TensorName> ParseTensorRef(std::string_view field, const v1::TensorRef& ref);
Keeping ParseKeeping(const v1::NewTensor& keep);
absl::StatusOr<Compressor::Request> ParseCompress(const v1::CompressRequest& request);

// What a Put begins.
struct NewUpload {
  TensorSpec spec;
  Keeping keep;
  std::optional<Sha256Digest> digest;
};
absl::StatusOr<NewUpload> ParsePutBegin(const v1::PutBegin& begin);

// Which bytes a Get wants of a tensor of `size` bytes. Errors: OutOfRange.
absl::StatusOr<ByteRange> ParseRange(const v1::GetRequest& request, int64_t size);

// Whether the factors of 8-bit types are told: a listing would be long.
enum class Scales { kTold, kLeftOut };
v1::TensorInfo ToWire(const TensorState& state, Scales scales = Scales::kTold);

}  // namespace gemmd
