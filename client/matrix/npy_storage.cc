// SPDX-License-Identifier: Apache-2.0
#include "client/matrix/npy_storage.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gemmd/element_type.h"

namespace gemmd {
namespace {

// What a NumPy type can stand for. The first row of a type is written; `is_default` needs no hint.
struct NpyTypeRow {
  v1::ElementType type;
  int item_bytes;
  char kind;
  bool is_default;
};

constexpr NpyTypeRow kNpyTypes[] = {
    {v1::ELEMENT_TYPE_F64, 8, 'f', true},   {v1::ELEMENT_TYPE_F32, 4, 'f', true},
    {v1::ELEMENT_TYPE_TF32, 4, 'f', false}, {v1::ELEMENT_TYPE_F16, 2, 'f', true},
    {v1::ELEMENT_TYPE_BF16, 2, 'V', true},  {v1::ELEMENT_TYPE_E4M3, 1, 'V', false},
    {v1::ELEMENT_TYPE_E5M2, 1, 'V', false}, {v1::ELEMENT_TYPE_E3M2, 1, 'V', false},
    {v1::ELEMENT_TYPE_E2M3, 1, 'V', false}, {v1::ELEMENT_TYPE_E2M1, 1, 'V', false},
    {v1::ELEMENT_TYPE_S4, 1, 'V', false},   {v1::ELEMENT_TYPE_U4, 1, 'V', false},
    {v1::ELEMENT_TYPE_E5M2, 1, 'f', true},  {v1::ELEMENT_TYPE_S8, 1, 'i', true},
    {v1::ELEMENT_TYPE_U8, 1, 'u', true},    {v1::ELEMENT_TYPE_S32, 4, 'i', true},
    {v1::ELEMENT_TYPE_B1, 1, 'b', true},    {v1::ELEMENT_TYPE_S4, 1, 'i', false},
    {v1::ELEMENT_TYPE_E4M3, 1, 'u', false}, {v1::ELEMENT_TYPE_E5M2, 1, 'u', false},
    {v1::ELEMENT_TYPE_E3M2, 1, 'u', false}, {v1::ELEMENT_TYPE_E2M3, 1, 'u', false},
    {v1::ELEMENT_TYPE_E2M1, 1, 'u', false}, {v1::ELEMENT_TYPE_U4, 1, 'u', false},
    {v1::ELEMENT_TYPE_B1, 1, 'u', false},   {v1::ELEMENT_TYPE_F16, 2, 'u', false},
    {v1::ELEMENT_TYPE_BF16, 2, 'u', false},
};

std::string Descr(char kind, int item_bytes) {
  return absl::StrCat("'", item_bytes == 1 ? "|" : "<", absl::string_view(&kind, 1), item_bytes,
                      "'");
}

// Whether a byte of a file is a value of a type narrower than a byte. Bits above the element are
// zero; those of s4 may also repeat its sign.
bool IsValue(v1::ElementType type, uint8_t byte) {
  if (type == v1::ELEMENT_TYPE_S4 && byte >= 0xf8) return true;
  return byte < 1 << ElementBits(type);
}

}  // namespace

absl::StatusOr<v1::ElementType> TypeOfNpy(const NpyHeader& header, v1::ElementType hint) {
  std::vector<absl::string_view> possible;
  std::vector<std::string> of_hint;
  absl::string_view of_file;  // What the file's type is where no hint says otherwise.
  for (const NpyTypeRow& row : kNpyTypes) {
    const bool is_of_file = row.kind == header.kind && row.item_bytes == header.item_bytes;
    if (is_of_file &&
        (row.type == hint || (hint == v1::ELEMENT_TYPE_UNSPECIFIED && row.is_default))) {
      return row.type;
    }
    if (is_of_file && row.is_default) of_file = ElementTypeName(row.type);
    if (is_of_file) possible.push_back(ElementTypeName(row.type));
    if (row.type == hint) of_hint.push_back(Descr(row.kind, row.item_bytes));
  }
  const std::string got =
      absl::StrCat("npy descr: got ", Descr(header.kind, header.item_bytes), ", ");
  if (hint != v1::ELEMENT_TYPE_UNSPECIFIED) {
    const std::string advice =
        of_file.empty() ? ""
                        : absl::StrCat(" (the file is of ", of_file, ": gemmctl convert --type ",
                                       ElementTypeName(hint), " makes another one)");
    return absl::InvalidArgumentError(absl::StrCat(got, "want ", absl::StrJoin(of_hint, " or "),
                                                   " for type ", ElementTypeName(hint), advice));
  }
  if (possible.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(got, "want f8, f4, f2, i4, i1, u1, b1 or an ml_dtypes type"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat(got, "which may be ", absl::StrJoin(possible, ", "), ": want its type named"));
}

NpyHeader NpyHeaderFor(v1::ElementType type) {
  NpyHeader header;
  for (const NpyTypeRow& row : kNpyTypes) {
    if (row.type != type) continue;
    header.kind = row.kind;
    header.item_bytes = row.item_bytes;
    header.byte_order = row.item_bytes == 1 ? '|' : '<';
    break;
  }
  return header;
}

absl::StatusOr<std::string> PackLines(v1::ElementType type, absl::string_view bytes,
                                      int64_t line_length) {
  const int bits = ElementBits(type);
  const size_t length = static_cast<size_t>(line_length);
  if (length == 0) return std::string();
  const size_t line_bytes = (length * static_cast<size_t>(bits) + 7) / 8;
  std::string packed(bytes.size() / length * line_bytes, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) {
    const uint8_t byte = static_cast<uint8_t>(bytes[i]);
    if (!IsValue(type, byte)) {
      return absl::InvalidArgumentError(
          absl::StrCat("npy element ", i, ": got byte ", static_cast<int>(byte),
                       ", want a value of type ", ElementTypeName(type)));
    }
    const size_t bit = i % length * static_cast<size_t>(bits);
    char* const target = &packed[i / length * line_bytes + bit / 8];
    // An element of at most 6 bits reaches into the next byte at most, which is of the same line.
    const unsigned shifted = (byte & ((1u << bits) - 1)) << bit % 8;
    target[0] = static_cast<char>(static_cast<uint8_t>(target[0]) | (shifted & 0xff));
    if (shifted > 0xff) {
      target[1] = static_cast<char>(static_cast<uint8_t>(target[1]) | shifted >> 8);
    }
  }
  return packed;
}

std::string UnpackLines(v1::ElementType type, absl::string_view packed, int64_t line_length,
                        int64_t count) {
  const size_t bits = static_cast<size_t>(ElementBits(type));
  const size_t length = static_cast<size_t>(line_length);
  const size_t line_bytes = (length * bits + 7) / 8;
  std::string bytes;
  bytes.reserve(length * static_cast<size_t>(count));
  for (size_t line = 0; line < static_cast<size_t>(count); ++line) {
    const absl::string_view source = packed.substr(line * line_bytes, line_bytes);
    for (size_t i = 0; i < length; ++i) {
      const size_t bit = i * bits;
      unsigned word = static_cast<uint8_t>(source[bit / 8]);
      if (bit / 8 + 1 < source.size()) {
        word |= static_cast<unsigned>(static_cast<uint8_t>(source[bit / 8 + 1])) << 8;
      }
      bytes.push_back(static_cast<char>(word >> bit % 8 & ((1u << bits) - 1)));
    }
  }
  return bytes;
}

void SwapBytes(int item_bytes, std::string& items) {
  const auto size = static_cast<std::string::difference_type>(item_bytes);
  for (auto item = items.begin(); item != items.end(); item += size)
    std::reverse(item, item + size);
}

std::string ToCOrder(absl::string_view items, int item_bytes, const ItemLayout& layout) {
  std::string ordered(items.size(), '\0');
  const size_t bytes = static_cast<size_t>(item_bytes);
  char* target = ordered.data();
  for (int64_t i = 0; i < layout.extents[0]; ++i) {
    for (int64_t j = 0; j < layout.extents[1]; ++j) {
      for (int64_t l = 0; l < layout.extents[2]; ++l, target += bytes) {
        const int64_t index = i * layout.strides[0] + j * layout.strides[1] + l * layout.strides[2];
        std::memcpy(target, items.data() + static_cast<size_t>(index) * bytes, bytes);
      }
    }
  }
  return ordered;
}

}  // namespace gemmd
