// SPDX-License-Identifier: Apache-2.0
//
// Files of tensors with names, read where they lie and written tensor by tensor.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/matrix/npy_map.h"
#include "client/matrix/safetensors_header.h"
#include "client/output_file.h"

namespace gemmd {

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
