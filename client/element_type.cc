// SPDX-License-Identifier: Apache-2.0
#include "gemmd/element_type.h"

#include <cmath>
#include <limits>
#include <string_view>

#include "client/operand_size.h"
#include "gemmd/element_codec.h"
#include "gemmd/v1/gemm.pb.h"
#include "gemmd/v1/tensors.pb.h"
#include "gemmd/wire_types.h"
#include "kernels/matrix/element.h"

namespace gemmd {

namespace v1 {

static_assert(kF64 == ELEMENT_TYPE_F64);
static_assert(kF32 == ELEMENT_TYPE_F32);
static_assert(kTf32 == ELEMENT_TYPE_TF32);
static_assert(kF16 == ELEMENT_TYPE_F16);
static_assert(kBf16 == ELEMENT_TYPE_BF16);
static_assert(kE4m3 == ELEMENT_TYPE_E4M3);
static_assert(kE5m2 == ELEMENT_TYPE_E5M2);
static_assert(kE3m2 == ELEMENT_TYPE_E3M2);
static_assert(kE2m3 == ELEMENT_TYPE_E2M3);
static_assert(kE2m1 == ELEMENT_TYPE_E2M1);
static_assert(kS8 == ELEMENT_TYPE_S8);
static_assert(kU8 == ELEMENT_TYPE_U8);
static_assert(kS4 == ELEMENT_TYPE_S4);
static_assert(kU4 == ELEMENT_TYPE_U4);
static_assert(kB1 == ELEMENT_TYPE_B1);
static_assert(kS32 == ELEMENT_TYPE_S32);
static_assert(static_cast<int>(ELEMENT_TYPE_UNSPECIFIED) == 0);
static_assert(ElementType_ARRAYSIZE == 17);

static_assert(kRowMajor == ORDER_ROW_MAJOR);
static_assert(kColumnMajor == ORDER_COLUMN_MAJOR);
static_assert(Order_ARRAYSIZE == 2);

static_assert(kDense == SPARSITY_NONE);
static_assert(kSparse24 == SPARSITY_2_4);
static_assert(Sparsity_ARRAYSIZE == 2);

static_assert(kFactorF32 == FACTOR_TYPE_F32);
static_assert(kFactorUe8m0 == FACTOR_TYPE_UE8M0);
static_assert(kFactorUe4m3 == FACTOR_TYPE_UE4M3);
static_assert(static_cast<int>(FACTOR_TYPE_UNSPECIFIED) == 0);
static_assert(FactorType_ARRAYSIZE == 4);

static_assert(kBiasRows == BIAS_AXIS_ROWS);
static_assert(kBiasColumns == BIAS_AXIS_COLUMNS);
static_assert(static_cast<int>(BIAS_AXIS_UNSPECIFIED) == 0);
static_assert(BiasAxis_ARRAYSIZE == 3);

static_assert(kNoActivation == ACTIVATION_NONE);
static_assert(kRelu == ACTIVATION_RELU);
static_assert(kGeluErf == ACTIVATION_GELU_ERF);
static_assert(kGeluTanh == ACTIVATION_GELU_TANH);
static_assert(kSilu == ACTIVATION_SILU);
static_assert(Activation_ARRAYSIZE == 5);

static_assert(kBitAnd == BIT_OPERATION_AND);
static_assert(kBitXor == BIT_OPERATION_XOR);
static_assert(BitOperation_ARRAYSIZE == 2);

static_assert(kVerifyNone == VERIFY_MODE_NONE);
static_assert(kVerifySampled == VERIFY_MODE_SAMPLED);
static_assert(kVerifyChecksum == VERIFY_MODE_CHECKSUM);
static_assert(kVerifyDuplicate == VERIFY_MODE_DUPLICATE);
static_assert(static_cast<int>(VERIFY_MODE_UNSPECIFIED) == 0);
static_assert(VerifyMode_ARRAYSIZE == 5);

static_assert(kNormalPriority == PRIORITY_NORMAL);
static_assert(kLowPriority == PRIORITY_LOW);
static_assert(static_cast<int>(PRIORITY_UNSPECIFIED) == 0);
static_assert(Priority_ARRAYSIZE == 3);

}  // namespace v1

// The wire numbers the types in the same order, starting at 1.
static_assert(static_cast<size_t>(v1::ElementType_MAX) == kAllElementTypes.size());

std::optional<ElementType> KnownType(v1::ElementType type) {
  const auto index = static_cast<size_t>(type) - 1;
  if (index >= kAllElementTypes.size()) return std::nullopt;
  return kAllElementTypes[index];
}

absl::string_view ElementTypeName(v1::ElementType type) {
  const std::optional<ElementType> known = KnownType(type);
  if (!known) return "unspecified";
  const std::string_view name = NameOf(*known);
  return {name.data(), name.size()};
}

std::optional<v1::ElementType> ParseElementType(absl::string_view name) {
  for (int type = v1::ELEMENT_TYPE_F64; v1::ElementType_IsValid(type); ++type) {
    if (ElementTypeName(static_cast<v1::ElementType>(type)) == name) {
      return static_cast<v1::ElementType>(type);
    }
  }
  return std::nullopt;
}

int ElementBits(v1::ElementType type) {
  const std::optional<ElementType> known = KnownType(type);
  return known ? BitsOf(*known) : 0;
}

double ElementValue(v1::ElementType type, uint64_t pattern) {
  const std::optional<ElementType> known = KnownType(type);
  return known ? Decode(*known, pattern) : 0;
}

uint64_t ElementPattern(v1::ElementType type, double value) {
  const std::optional<ElementType> known = KnownType(type);
  if (!known) return 0;
  const uint64_t pattern = Encode(*known, value);
  // Encode makes every NaN positive.
  const bool lacks_sign = std::isnan(value) && std::signbit(value) && IsFloat(*known);
  return lacks_sign ? pattern | uint64_t{1} << (BitsOf(*known) - 1) : pattern;
}

bool ExceedsRange(v1::ElementType type, double value) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const std::optional<ElementType> known = KnownType(type);
  if (!known || std::isnan(value)) return false;
  if (IsInteger(*known)) {
    const double rounded = std::nearbyint(value);
    return rounded < RoundToElement(type, -kInfinity) || rounded > RoundToElement(type, kInfinity);
  }
  const FloatFormat format = FactsOf(*known).format;
  const uint64_t infinity = Encode(*known, kInfinity);
  const double largest =
      Decode(*known, std::isinf(Decode(*known, infinity)) ? infinity - 1 : infinity);
  // Halfway to the next value, a tie goes to the even one of the two.
  const double unit = std::ldexp(1, std::ilogb(largest) - format.fraction_bits);
  const bool is_odd = std::fmod(largest / unit, 2) != 0;
  const double edge = largest + unit / 2;
  return is_odd ? std::fabs(value) >= edge : std::fabs(value) > edge;
}

double RoundToElement(v1::ElementType type, double value) {
  return ElementValue(type, ElementPattern(type, value));
}

bool IsFloat(v1::ElementType type) {
  const std::optional<ElementType> known = KnownType(type);
  return known && IsFloat(*known);
}

bool HasNan(v1::ElementType type) {
  const std::optional<ElementType> known = KnownType(type);
  return known && FactsOf(*known).format.has_nan;
}

uint64_t LoadElement(v1::ElementType type, absl::string_view line, int64_t index) {
  const std::optional<ElementType> known = KnownType(type);
  return known ? LoadBits(*known, reinterpret_cast<const std::byte*>(line.data()), index) : 0;
}

void StoreElement(v1::ElementType type, uint64_t pattern, int64_t index, char* line) {
  const std::optional<ElementType> known = KnownType(type);
  if (known) StoreBits(*known, reinterpret_cast<std::byte*>(line), index, pattern);
}

}  // namespace gemmd
