// SPDX-License-Identifier: Apache-2.0
//
// .safetensors files: memory-mapped to read, and written tensor by tensor. A file begins with the
// length of its header in 8 bytes, followed by a JSON header that gives the place of each tensor in
// the bytes after it.
//
// Files come from anywhere, so the parser is strict and bounded: no allocation depends on a size
// that the file claims, and the tensors must cover the bytes without gaps or overlaps, so that no
// bytes are hidden. Source: https://github.com/huggingface/safetensors#format
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/matrix/npy.h"
#include "client/output_file.h"
#include "gemmd/v1/tensors.pb.h"

namespace gemmd {

struct SafetensorsEntry {
  std::string name;
  std::string type = {};            // The file's name of it: "BF16".
  std::vector<int64_t> shape = {};  // Any number of extents, none negative. Row major.
  int64_t begin = 0;                // Offset in the bytes after the header.
  int64_t end = 0;

  int64_t bytes() const { return end - begin; }
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> tensors;  // In the order of their bytes.
  std::vector<std::pair<std::string, std::string>> metadata;
};

// The element type for a file's type; unspecified if there is none, as for "I64".
v1::ElementType TypeOfSafetensors(absl::string_view type);

// The inverse; empty for types that a file cannot name. tf32 is written as F32.
absl::string_view SafetensorsTypeOf(v1::ElementType type);

// The bytes of a tensor. Errors: InvalidArgument for an unknown type, or if the size exceeds 63
// bits or is not a whole number of bytes.
absl::StatusOr<int64_t> SafetensorsBytes(absl::string_view type, const std::vector<int64_t>& shape);

// The number of header bytes in the length field. Errors: InvalidArgument if it exceeds 100,000,000
// or the file's size.
absl::StatusOr<int64_t> SafetensorsHeaderBytes(absl::string_view length_field, int64_t file_bytes);

// `data_bytes`: the number of bytes after the header. Errors: InvalidArgument, naming the tensor,
// for any violation of the format.
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::string_view json,
                                                         int64_t data_bytes);

// Length and JSON, padded so that the following bytes are aligned to 8.
std::string PrintSafetensorsHeader(const SafetensorsHeader& header);

// A memory-mapped .safetensors file. Movable. If another program truncates the file meanwhile, this
// program gets SIGBUS, as with any mapping.
class MappedSafetensors {
 public:
  // Errors: NotFound if it cannot be opened, InvalidArgument if it is malformed; each begins with
  // the path.
  static absl::StatusOr<MappedSafetensors> Open(const std::string& path);

  const SafetensorsHeader& header() const { return header_; }
  absl::string_view BytesOf(const SafetensorsEntry& tensor) const;
  // Null if there is none.
  const SafetensorsEntry* Find(absl::string_view name) const;

 private:
  SafetensorsHeader header_;
  MappedFile mapping_;  // The whole file.
  int64_t first_ = 0;   // Where the tensors begin.
};

// Opens a file and writes its header. It replaces the old one once it is committed, even while the
// old one is being read; the bytes of every tensor follow in order. Errors: Internal, with the
// path, if writing fails.
absl::Status BeginSafetensors(const std::string& path, const SafetensorsHeader& header,
                              OutputFile& file);

}  // namespace gemmd
