// SPDX-License-Identifier: Apache-2.0
//
// The header of a .safetensors file: its length in 8 bytes, then JSON that says which tensor lies
// where in the bytes that follow.
//
// Files come from anywhere, so the parser is strict and bounded: nothing is allocated by a size
// that the file claims, and the tensors' bytes must follow each other from the first byte to the
// last, so that none overlap and none are hidden.
// Source: https://github.com/huggingface/safetensors#format
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gemmd/v1/tensors.pb.h"

namespace gemmd {

// The format's own limit.
inline constexpr int64_t kMostSafetensorsHeaderBytes = 100'000'000;

// The field in front of the header.
inline constexpr int64_t kSafetensorsLengthBytes = 8;

struct SafetensorsEntry {
  std::string name;
  std::string type = {};            // The file's name of it: "BF16".
  std::vector<int64_t> shape = {};  // Any number of extents, none negative. Row major.
  int64_t begin = 0;                // In the bytes behind the header.
  int64_t end = 0;

  int64_t bytes() const { return end - begin; }
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> tensors;  // In the order of their bytes.
  std::vector<std::pair<std::string, std::string>> metadata;
};

// The element type that a file's type stands for; unspecified where there is none, as for "I64".
v1::ElementType TypeOfSafetensors(absl::string_view type);

// The inverse; empty for types that a file cannot name. A tf32 is written as the F32 that it is.
absl::string_view SafetensorsTypeOf(v1::ElementType type);

// The bytes of a tensor. Errors: InvalidArgument for an unknown type, and where they leave 63 bits
// or end within a byte.
absl::StatusOr<int64_t> SafetensorsBytes(absl::string_view type, const std::vector<int64_t>& shape);

// The count of header bytes that the length field gives.
// Errors: InvalidArgument where it exceeds kMostSafetensorsHeaderBytes or what the file has.
absl::StatusOr<int64_t> SafetensorsHeaderBytes(absl::string_view length_field, int64_t file_bytes);

// `data_bytes` are those behind the header.
// Errors: InvalidArgument, naming the tensor, for all that is not as the format says.
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::string_view json,
                                                         int64_t data_bytes);

// Length and JSON, padded so that the bytes behind it are aligned to 8.
std::string PrintSafetensorsHeader(const SafetensorsHeader& header);

}  // namespace gemmd
