// SPDX-License-Identifier: Apache-2.0
//
// A .npy file whose bytes are used where they lie: files may be larger than memory.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "client/matrix/npy.h"
#include "gemmd/v1/tensors.pb.h"

namespace gemmd {

// Gives a mapping of a file back.
struct FileUnmapper {
  size_t bytes = 0;
  void operator()(std::byte* memory) const;
};

// An array and its bytes, which lie in the array or in the file. Movable.
class MappedNpy {
 public:
  // Maps the file where its bytes are those of the wire already, and reads it otherwise: elements
  // that are packed or checked, big-endian ones, and batches of columns. Errors: as ReadNpyFile.
  static absl::StatusOr<MappedNpy> Open(const std::string& path, v1::ElementType hint);

  // Its `data` is empty where the bytes lie in the file.
  const NpyArray& array() const { return array_; }
  std::span<const std::byte> data() const;
  bool is_mapped() const { return mapping_ != nullptr; }

 private:
  NpyArray array_;
  std::unique_ptr<std::byte, FileUnmapper> mapping_;  // The whole file.
  size_t first_ = 0;                                  // Where the elements begin.
};

// What a file has before the elements of its array: prefix and header.
// Precondition: elements of whole bytes, and no batch of columns.
std::string NpyBeginning(const NpyArray& array);

}  // namespace gemmd
