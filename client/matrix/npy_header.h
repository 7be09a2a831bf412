// SPDX-License-Identifier: Apache-2.0
//
// The header of a NumPy .npy file, formats 1.0, 2.0 and 3.0: a Python dict literal after a length.
//
// Files come from anywhere, so the parser is strict and bounded: exactly the three keys, no
// nesting, at most kMostNpyHeaderBytes, and nothing is allocated by a size that the file claims.
// Source: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gemmd {

// NumPy's own limit for files that are not trusted.
inline constexpr int64_t kMostNpyHeaderBytes = 10000;

// Magic string and version.
inline constexpr int64_t kNpyPrefixBytes = 8;

struct NpyHeader {
  char byte_order = '<';  // '<' little, '>' big, '|' not applicable.
  char kind = 'f';        // NumPy's: f, i, u, b or V.
  int item_bytes = 4;
  bool fortran_order = false;
  std::vector<int64_t> shape;  // At most kMostNpyDimensions extents, none negative.
};

inline constexpr int kMostNpyDimensions = 3;

// The size of the length field after the prefix: 2 or 4.
// Errors: InvalidArgument unless `prefix` is that of a known format.
absl::StatusOr<int> NpyLengthBytes(absl::string_view prefix);

// The count of header bytes that a length field gives.
// Errors: InvalidArgument where it exceeds kMostNpyHeaderBytes.
absl::StatusOr<int64_t> NpyHeaderBytes(absl::string_view length_field);

// Parses the dict literal with its padding.
// Errors: InvalidArgument with the position of the first thing that does not belong there.
absl::StatusOr<NpyHeader> ParseNpyHeader(absl::string_view text);

// Prefix, length and dict literal in format 1.0, padded to a multiple of 64 bytes.
std::string PrintNpyHeader(const NpyHeader& header);

}  // namespace gemmd
