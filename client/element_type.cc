// SPDX-License-Identifier: Apache-2.0
#include "gemmd/element_type.h"

namespace gemmd {
namespace {

struct ElementTypeRow {
  v1::ElementType type;
  absl::string_view name;
  int bits;
};

constexpr ElementTypeRow kRows[] = {
    {v1::ELEMENT_TYPE_F64, "f64", 64},   {v1::ELEMENT_TYPE_F32, "f32", 32},
    {v1::ELEMENT_TYPE_TF32, "tf32", 32}, {v1::ELEMENT_TYPE_F16, "f16", 16},
    {v1::ELEMENT_TYPE_BF16, "bf16", 16}, {v1::ELEMENT_TYPE_E4M3, "e4m3", 8},
    {v1::ELEMENT_TYPE_E5M2, "e5m2", 8},  {v1::ELEMENT_TYPE_E3M2, "e3m2", 6},
    {v1::ELEMENT_TYPE_E2M3, "e2m3", 6},  {v1::ELEMENT_TYPE_E2M1, "e2m1", 4},
    {v1::ELEMENT_TYPE_S8, "s8", 8},      {v1::ELEMENT_TYPE_U8, "u8", 8},
    {v1::ELEMENT_TYPE_S4, "s4", 4},      {v1::ELEMENT_TYPE_U4, "u4", 4},
    {v1::ELEMENT_TYPE_B1, "b1", 1},      {v1::ELEMENT_TYPE_S32, "s32", 32},
};

}  // namespace

absl::string_view ElementTypeName(v1::ElementType type) {
  for (const ElementTypeRow& row : kRows) {
    if (row.type == type) return row.name;
  }
  return "unspecified";
}

std::optional<v1::ElementType> ParseElementType(absl::string_view name) {
  for (const ElementTypeRow& row : kRows) {
    if (row.name == name) return row.type;
  }
  return std::nullopt;
}

int ElementBits(v1::ElementType type) {
  for (const ElementTypeRow& row : kRows) {
    if (row.type == type) return row.bits;
  }
  return 0;
}

}  // namespace gemmd
