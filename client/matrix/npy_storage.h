// SPDX-License-Identifier: Apache-2.0
//
// How elements lie in a .npy file against how they lie on the wire: which NumPy types stand for
// which element types, packing of elements narrower than a byte, and order.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/matrix/npy_header.h"
#include "gemmd/v1/tensors.pb.h"

namespace gemmd {

// The element type of a file's elements.
// Errors: InvalidArgument where the file's type fits no element type, not the hint, or several
// without one.
absl::StatusOr<v1::ElementType> TypeOfNpy(const NpyHeader& header, v1::ElementType hint);

// The NumPy type (byte order, kind, item_bytes) that files of `type` are written with.
NpyHeader NpyHeaderFor(v1::ElementType type);

// Packs `bytes`, one element each, into lines of `line_length`.
// Errors: InvalidArgument for a byte that is no value of the type, with its index.
absl::StatusOr<std::string> PackLines(v1::ElementType type, absl::string_view bytes,
                                      int64_t line_length);

// The inverse: `count` lines into one element per byte.
std::string UnpackLines(v1::ElementType type, absl::string_view packed, int64_t line_length,
                        int64_t count);

// Exchanges the bytes of each item.
void SwapBytes(int item_bytes, std::string& items);

// An array of items in memory by three extents and the distance of neighbours along each, in items.
struct ItemLayout {
  int64_t extents[3];
  int64_t strides[3];
};

// Copies items into C order (the last extent fastest, no gaps).
std::string ToCOrder(absl::string_view items, int item_bytes, const ItemLayout& layout);

}  // namespace gemmd
