// SPDX-License-Identifier: Apache-2.0
//
// Files of tensors with names, read where they lie and written tensor by tensor. Such a file begins
// with the length of its header in 8 bytes, then JSON that says which tensor lies where in the
// bytes that follow.
//
// Files come from anywhere, so the parser is strict and bounded: nothing is allocated by a size
// that the file claims, and the tensors' bytes must follow each other from the first byte to the
// last, so that none overlap and none are hidden. Source:
// https://github.com/huggingface/safetensors#format
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
// Errors: InvalidArgument where it exceeds 100,000,000 or what the file has.
absl::StatusOr<int64_t> SafetensorsHeaderBytes(absl::string_view length_field, int64_t file_bytes);

// `data_bytes` are those behind the header.
// Errors: InvalidArgument, naming the tensor, for all that is not as the format says.
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::string_view json,
                                                         int64_t data_bytes);

// Length and JSON, padded so that the bytes behind it are aligned to 8.
std::string PrintSafetensorsHeader(const SafetensorsHeader& header);

// A .safetensors file; the tensors' bytes lie in it. Movable. What cuts the file short meanwhile
// ends the program, as with all mappings.
class MappedSafetensors {
 public:
  // Errors: NotFound where it cannot be opened, InvalidArgument where it is not such a file; each
  // begins with the path.
  static absl::StatusOr<MappedSafetensors> Open(const std::string& path);

  const SafetensorsHeader& header() const { return header_; }
  absl::string_view BytesOf(const SafetensorsEntry& tensor) const;
  // Null where there is none.
  const SafetensorsEntry* Find(absl::string_view name) const;

 private:
  SafetensorsHeader header_;
  std::unique_ptr<std::byte, FileUnmapper> mapping_;  // The whole file.
  int64_t first_ = 0;                                 // Where the tensors begin.
};

// Writes a file that takes the place of the old one when it is whole, even if the old one is read
// meanwhile. Without End(), nothing stays.
class SafetensorsWriter {
 public:
  explicit SafetensorsWriter(std::string path) : path_(std::move(path)) {}

  // First the header, then the bytes of every tensor in its order.
  // Errors: Internal, with the path, where they cannot be written.
  absl::Status Begin(const SafetensorsHeader& header);
  absl::Status Add(absl::string_view bytes) { return file_.Write(bytes); }
  absl::Status End() { return file_.Commit(); }

 private:
  const std::string path_;
  OutputFile file_;
};

}  // namespace gemmd
