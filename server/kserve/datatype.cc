// SPDX-License-Identifier: Apache-2.0
#include "server/kserve/datatype.h"

#include <string>

#include "kernels/peer_text.h"
#include "kernels/status_macros.h"
#include "kernels/text.h"
#include "server/wire/convert_operand.h"

namespace gemmd {
namespace {

struct Datatype {
  std::string_view name;
  ElementType type;
  inference::DataType config;
};

constexpr Datatype kDatatypes[] = {
    {"FP64", ElementType::kF64, inference::TYPE_FP64},
    {"FP32", ElementType::kF32, inference::TYPE_FP32},
    {"FP16", ElementType::kF16, inference::TYPE_FP16},
    {"BF16", ElementType::kBf16, inference::TYPE_BF16},
    {"INT8", ElementType::kS8, inference::TYPE_INT8},
    {"UINT8", ElementType::kU8, inference::TYPE_UINT8},
    {"INT32", ElementType::kS32, inference::TYPE_INT32},
};
constexpr std::string_view kWantedDatatypes = "FP64, FP32, FP16, BF16, INT8, UINT8 or INT32";

const Datatype* FindDatatype(std::string_view name) {
  for (const Datatype& datatype : kDatatypes) {
    if (datatype.name == name) return &datatype;
  }
  return nullptr;
}

const Datatype& CarrierOf(ElementType type) {
  for (const Datatype& datatype : kDatatypes) {
    if (datatype.type == type) return datatype;
  }
  return *FindDatatype(type == ElementType::kTf32 ? "FP32" : "UINT8");
}

}  // namespace

std::string_view DatatypeOf(ElementType type) { return CarrierOf(type).name; }
inference::DataType ConfigDatatypeOf(ElementType type) { return CarrierOf(type).config; }
bool IsToldByDatatype(ElementType type) { return CarrierOf(type).type == type; }

int64_t RowExtent(ElementType type, int64_t elements) {
  const int bits = BitsOf(type);
  if (bits >= 8) return elements;
  return elements / 8 * bits + (elements % 8 * bits + 7) / 8;
}

ElementType TypeOfWire(v1::ElementType type) {
  return ParseType("type", type, ElementType::kF32).value_or(ElementType::kF32);
}

absl::StatusOr<ElementType> ParseTypeName(std::string_view field, std::string_view name) {
  if (const std::optional<ElementType> type = ElementTypeFromName(name)) return *type;
  if (const Datatype* const datatype = FindDatatype(name)) return datatype->type;
  return absl::InvalidArgumentError(
      GotWant(field, Shown(name), "an element type such as f16 or e4m3, or a datatype"));
}

absl::StatusOr<ElementType> ParseInputType(std::string_view field, std::string_view datatype,
                                           std::string_view name, std::optional<ElementType> own) {
  const Datatype* const known = FindDatatype(datatype);
  if (known == nullptr) {
    return absl::InvalidArgumentError(
        GotWant(Concat(field, ".datatype"), datatype.empty() ? "none" : Shown(datatype),
                Concat(kWantedDatatypes, ", or UINT8 with a parameter \"type\"")));
  }
  if (name.empty()) {
    return own.has_value() && CarrierOf(*own).name == datatype ? *own : known->type;
  }
  ASSIGN_OR_RETURN(const ElementType type, ParseTypeName(Concat(field, ".parameters.type"), name));
  if (CarrierOf(type).name == datatype) return type;
  return absl::InvalidArgumentError(
      GotWant(Concat(field, ".datatype"), Shown(datatype),
              Concat(CarrierOf(type).name, " for elements of type ", NameOf(type))));
}

}  // namespace gemmd
