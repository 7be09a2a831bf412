// SPDX-License-Identifier: Apache-2.0
//
// Converts between NumPy .npy files and wire matrices.
//
// In a file every element takes whole bytes; on the wire sub-byte elements are packed along their
// line. NumPy has no name for most of the narrow types, so numpy.save writes (numpy 1.26 and 2.4,
// ml_dtypes 0.3 to 0.6): bfloat16 as '<V2', float8_e5m2 as '<f1', and float8_e4m3fn, float6_*,
// float4_e2m1fn, int4 and uint4 all as '<V1', which only a hint distinguishes. This writer writes
// '<V2' and '|V1', to be read with `numpy.load(path).view(ml_dtypes.bfloat16)` and so on, because
// numpy.load refuses '<f1'.
//
// Files come from anywhere, so the parser of the header (formats 1.0, 2.0 and 3.0: a Python dict
// literal after a length) is strict and bounded: exactly the three keys, no nesting, at most
// 10,000 bytes, and nothing is allocated by a size that the file claims.
// Source: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gemmd/element_type.h"
#include "gemmd/v1/tensors.pb.h"

namespace gemmd {

struct NpyHeader {
  char byte_order = '<';  // '<' little, '>' big, '|' for not applicable.
  char kind = 'f';        // NumPy's: f, i, u, b or V.
  int item_bytes = 4;
  bool fortran_order = false;
  std::vector<int64_t> shape;  // At most 3 extents, none negative.
};

// Parses the dict literal with its padding.
// Errors: InvalidArgument with the position of the first unexpected character.
absl::StatusOr<NpyHeader> ParseNpyHeader(absl::string_view text);

// Prefix, length and dict literal in format 1.0, padded to a multiple of 64 bytes.
std::string PrintNpyHeader(const NpyHeader& header);

// An array of 1 (a vector: one line), 2 (rows, columns) or 3 (batch, rows, columns) dimensions.
struct NpyArray {
  v1::ElementType type = v1::ELEMENT_TYPE_UNSPECIFIED;
  std::vector<int64_t> shape = {};
  v1::Order order = v1::ORDER_ROW_MAJOR;  // The order of each matrix of a batch.
  std::string data = {};                  // Packed lines without gaps, as tensors.proto says.
};

// Reads one array and nothing after it, so that a stream may contain several. `unnamed` is the hint
// to use if the file contradicts `hint`, or is ambiguous without one.
//
// `hint` is the element type that the caller expects, or ELEMENT_TYPE_UNSPECIFIED. It distinguishes
// '<V1' types; it allows <f4 as tf32, u1 as raw bits of any type of at most 8 bits, u2 as those of
// f16 or bf16, and i1 as s4. Big-endian items are swapped; 3-D Fortran arrays become C order.
//
// Errors: InvalidArgument if the file is not such an array, is truncated, has a value that the
// narrow type lacks, or contradicts the hint.
absl::StatusOr<NpyArray> ReadNpy(std::FILE* file, v1::ElementType hint,
                                 v1::ElementType unnamed = v1::ELEMENT_TYPE_UNSPECIFIED);

// Errors: InvalidArgument unless everything has been read.
absl::Status ExpectEndOfFile(std::FILE* file);

// Reads a whole file. Errors: those of ReadNpy; NotFound or Internal if it cannot be opened; each
// begins with the path.
absl::StatusOr<NpyArray> ReadNpyFile(const std::string& path, v1::ElementType hint,
                                     v1::ElementType unnamed = v1::ELEMENT_TYPE_UNSPECIFIED);
absl::StatusOr<NpyArray> ReadNpyFile(std::FILE* file, const std::string& path, v1::ElementType hint,
                                     v1::ElementType unnamed = v1::ELEMENT_TYPE_UNSPECIFIED);

// Writes one array in format 1.0. Errors: Internal if writing fails.
absl::Status WriteNpy(const NpyArray& array, std::FILE* file);

// Writes an OutputFile. Errors: those of WriteNpy.
absl::Status WriteNpyFile(const NpyArray& array, const std::string& path);

// Packs `bytes`, which have one element each, into lines of `line_length`. Errors: InvalidArgument,
// with the index, for a byte that is not a valid element.
absl::StatusOr<std::string> PackLines(v1::ElementType type, absl::string_view bytes,
                                      int64_t line_length);

// The inverse: `count` lines into one element per byte.
std::string UnpackLines(v1::ElementType type, absl::string_view packed, int64_t line_length,
                        int64_t count);

// Unmaps a file.
struct FileUnmapper {
  size_t bytes = 0;
  void operator()(std::byte* memory) const;
};

using MappedFile = std::unique_ptr<std::byte, FileUnmapper>;

// Maps a regular file that is not empty; null for any other, or if it cannot be mapped.
MappedFile MapFile(int descriptor);

// An array whose bytes are in the array or in a mapped file. Movable.
class MappedNpy {
 public:
  MappedNpy() = default;  // An array without elements.
  explicit MappedNpy(NpyArray array) : array_(std::move(array)) {}

  // Maps the file if its bytes are already in the wire's format. Reads it otherwise: packed or
  // checked elements, big-endian items, and column-major batches. Errors: those of ReadNpyFile.
  static absl::StatusOr<MappedNpy> Open(const std::string& path, v1::ElementType hint);

  // Its `data` is empty if the bytes are in the mapped file.
  const NpyArray& array() const { return array_; }
  std::span<const std::byte> data() const;
  bool is_mapped() const { return mapping_ != nullptr; }

 private:
  NpyArray array_;
  MappedFile mapping_;  // The whole file.
  size_t first_ = 0;    // Where the elements begin.
};

// The prefix and header of a file for the array.
std::string NpyHeaderText(const NpyArray& array);

}  // namespace gemmd
