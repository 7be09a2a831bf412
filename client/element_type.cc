// SPDX-License-Identifier: Apache-2.0
#include "gemmd/element_type.h"

#include "gemmd/v1/tensors.pb.h"

namespace gemmd {
namespace {

struct ElementTypeRow {
  absl::string_view name;
  v1::ElementType type;
  int bits;
};

constexpr ElementTypeRow kRows[] = {
    {"f64", v1::ELEMENT_TYPE_F64, 64},   {"f32", v1::ELEMENT_TYPE_F32, 32},
    {"tf32", v1::ELEMENT_TYPE_TF32, 32}, {"f16", v1::ELEMENT_TYPE_F16, 16},
    {"bf16", v1::ELEMENT_TYPE_BF16, 16}, {"e4m3", v1::ELEMENT_TYPE_E4M3, 8},
    {"e5m2", v1::ELEMENT_TYPE_E5M2, 8},  {"e3m2", v1::ELEMENT_TYPE_E3M2, 6},
    {"e2m3", v1::ELEMENT_TYPE_E2M3, 6},  {"e2m1", v1::ELEMENT_TYPE_E2M1, 4},
    {"s8", v1::ELEMENT_TYPE_S8, 8},      {"u8", v1::ELEMENT_TYPE_U8, 8},
    {"s4", v1::ELEMENT_TYPE_S4, 4},      {"u4", v1::ELEMENT_TYPE_U4, 4},
    {"b1", v1::ELEMENT_TYPE_B1, 1},      {"s32", v1::ELEMENT_TYPE_S32, 32},
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
