// SPDX-License-Identifier: Apache-2.0
#include "gemmd/element_type.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string_view>

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

namespace {

// The wire numbers the types in the same order, starting at 1.
static_assert(static_cast<size_t>(v1::ElementType_MAX) == kAllElementTypes.size());

std::optional<ElementType> Known(v1::ElementType type) {
  const auto index = static_cast<size_t>(type) - 1;
  if (index >= kAllElementTypes.size()) return std::nullopt;
  return kAllElementTypes[index];
}

}  // namespace

absl::string_view ElementTypeName(v1::ElementType type) {
  const std::optional<ElementType> known = Known(type);
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
  const std::optional<ElementType> known = Known(type);
  return known ? BitsOf(*known) : 0;
}

namespace {

enum class Specials {
  kIeee,     // Exponent of ones: infinity or NaN.
  kNanOnly,  // All ones below the sign: NaN.
  kNone,
};

// A float type: sign, `exponent_bits`, `fraction_bits`, from the top; then `ignored_bits`.
struct FloatLayout {
  int exponent_bits;
  int fraction_bits;
  int ignored_bits;
  Specials specials;

  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  int lowest_exponent() const {
    return 1 - bias();
  }  // The lowest exponent of normal values, shared by subnormal values.
  uint64_t exponent_mask() const { return (uint64_t{1} << exponent_bits) - 1; }
  uint64_t fraction_mask() const { return (uint64_t{1} << fraction_bits) - 1; }
};

bool FindFloatLayout(v1::ElementType type, FloatLayout& layout) {
  switch (type) {
    case v1::ELEMENT_TYPE_F64: layout = {11, 52, 0, Specials::kIeee}; return true;
    case v1::ELEMENT_TYPE_F32: layout = {8, 23, 0, Specials::kIeee}; return true;
    case v1::ELEMENT_TYPE_TF32: layout = {8, 10, 13, Specials::kIeee}; return true;
    case v1::ELEMENT_TYPE_F16: layout = {5, 10, 0, Specials::kIeee}; return true;
    case v1::ELEMENT_TYPE_BF16: layout = {8, 7, 0, Specials::kIeee}; return true;
    case v1::ELEMENT_TYPE_E4M3: layout = {4, 3, 0, Specials::kNanOnly}; return true;
    case v1::ELEMENT_TYPE_E5M2: layout = {5, 2, 0, Specials::kIeee}; return true;
    case v1::ELEMENT_TYPE_E3M2: layout = {3, 2, 0, Specials::kNone}; return true;
    case v1::ELEMENT_TYPE_E2M3: layout = {2, 3, 0, Specials::kNone}; return true;
    case v1::ELEMENT_TYPE_E2M1: layout = {2, 1, 0, Specials::kNone}; return true;
    default: return false;
  }
}

// Whether values too large for the type become infinity.
bool OverflowsToInfinity(v1::ElementType type, const FloatLayout& layout) {
  return layout.specials == Specials::kIeee && type != v1::ELEMENT_TYPE_E5M2;
}

double FloatValue(const FloatLayout& layout, uint64_t pattern) {
  pattern >>= layout.ignored_bits;
  const uint64_t fraction = pattern & layout.fraction_mask();
  const uint64_t exponent = pattern >> layout.fraction_bits & layout.exponent_mask();
  const bool is_negative = (pattern >> (layout.fraction_bits + layout.exponent_bits) & 1) != 0;
  double magnitude = 0;
  if (layout.specials == Specials::kIeee && exponent == layout.exponent_mask()) {
    magnitude = fraction == 0 ? std::numeric_limits<double>::infinity()
                              : std::numeric_limits<double>::quiet_NaN();
  } else if (layout.specials == Specials::kNanOnly && exponent == layout.exponent_mask() &&
             fraction == layout.fraction_mask()) {
    magnitude = std::numeric_limits<double>::quiet_NaN();
  } else {
    const uint64_t significand = exponent == 0 ? fraction : fraction | (layout.fraction_mask() + 1);
    const int scale =
        std::max<int>(static_cast<int>(exponent), 1) - layout.bias() - layout.fraction_bits;
    magnitude = std::ldexp(static_cast<double>(significand), scale);
  }
  return std::copysign(magnitude, is_negative ? -1.0 : 1.0);
}

// The pattern of the largest finite magnitude, sign and ignored bits left out.
uint64_t LargestFinite(const FloatLayout& layout) {
  const uint64_t all_ones = layout.exponent_mask() << layout.fraction_bits | layout.fraction_mask();
  switch (layout.specials) {
    case Specials::kIeee: return all_ones - layout.fraction_mask() - 1;
    case Specials::kNanOnly: return all_ones - 1;
    case Specials::kNone: break;
  }
  return all_ones;
}

// The pattern of a magnitude, sign and ignored bits left out; may exceed the largest finite one.
uint64_t RoundedMagnitude(const FloatLayout& layout, double magnitude) {
  if (magnitude == 0) return 0;  // Zero has no exponent.
  int exponent = 0;
  std::frexp(magnitude, &exponent);  // In [0.5, 1) * 2^exponent.
  exponent = std::max(exponent - 1, layout.lowest_exponent());
  // In units of the last place; nearbyint rounds ties to even. A carry into the next binade, or
  // from subnormal to normal, yields the right bit pattern without extra code.
  const double units = std::nearbyint(std::ldexp(magnitude, layout.fraction_bits - exponent));
  const uint64_t biased = static_cast<uint64_t>(exponent - layout.lowest_exponent());
  return (biased << layout.fraction_bits) + static_cast<uint64_t>(units);
}

uint64_t FloatPattern(v1::ElementType type, const FloatLayout& layout, double value) {
  const uint64_t largest = LargestFinite(layout);
  uint64_t pattern = largest;
  if (std::isnan(value)) {
    // A quiet NaN; all ones if the type has a single NaN; the largest value if it has none.
    if (layout.specials == Specials::kIeee) {
      pattern = layout.exponent_mask() << layout.fraction_bits | (layout.fraction_mask() + 1) >> 1;
    } else if (layout.specials == Specials::kNanOnly) {
      pattern = largest + 1;
    }
  } else {
    if (std::isfinite(value)) pattern = RoundedMagnitude(layout, std::fabs(value));
    const bool is_too_large = !std::isfinite(value) || pattern > largest;
    if (is_too_large) pattern = OverflowsToInfinity(type, layout) ? largest + 1 : largest;
  }
  const uint64_t sign = std::signbit(value) ? 1 : 0;
  return (sign << (layout.exponent_bits + layout.fraction_bits) | pattern) << layout.ignored_bits;
}

struct IntegerRange {
  double least;
  double most;
};

IntegerRange RangeOf(v1::ElementType type) {
  switch (type) {
    case v1::ELEMENT_TYPE_S8: return {-128, 127};
    case v1::ELEMENT_TYPE_U8: return {0, 255};
    case v1::ELEMENT_TYPE_S4: return {-8, 7};
    case v1::ELEMENT_TYPE_U4: return {0, 15};
    case v1::ELEMENT_TYPE_S32: return {-2147483648.0, 2147483647.0};
    default: return {0, 1};
  }
}

}  // namespace

double ElementValue(v1::ElementType type, uint64_t pattern) {
  if (type == v1::ELEMENT_TYPE_F64) return std::bit_cast<double>(pattern);
  if (type == v1::ELEMENT_TYPE_F32) return std::bit_cast<float>(static_cast<uint32_t>(pattern));
  FloatLayout layout = {};
  if (FindFloatLayout(type, layout)) return FloatValue(layout, pattern);
  const int bits = ElementBits(type);
  const int64_t value = static_cast<int64_t>(pattern & ((uint64_t{1} << bits) - 1));
  const bool is_negative = RangeOf(type).least < 0 && (value >> (bits - 1) & 1) != 0;
  return static_cast<double>(is_negative ? value - (int64_t{1} << bits) : value);
}

uint64_t ElementPattern(v1::ElementType type, double value) {
  FloatLayout layout = {};
  if (type == v1::ELEMENT_TYPE_F64) return std::bit_cast<uint64_t>(value);
  if (FindFloatLayout(type, layout)) return FloatPattern(type, layout, value);
  if (std::isnan(value)) return 0;
  const IntegerRange range = RangeOf(type);
  const double rounded = std::nearbyint(std::clamp(value, range.least, range.most));
  return static_cast<uint64_t>(static_cast<int64_t>(rounded)) &
         ((uint64_t{1} << ElementBits(type)) - 1);
}

bool ExceedsRange(v1::ElementType type, double value) {
  if (std::isnan(value)) return false;
  FloatLayout layout = {};
  if (FindFloatLayout(type, layout)) {
    return std::isinf(value) || RoundedMagnitude(layout, std::fabs(value)) > LargestFinite(layout);
  }
  const IntegerRange range = RangeOf(type);
  const double rounded = std::nearbyint(value);
  return rounded < range.least || rounded > range.most;
}

double RoundToElement(v1::ElementType type, double value) {
  return ElementValue(type, ElementPattern(type, value));
}

bool IsFloat(v1::ElementType type) {
  FloatLayout layout = {};
  return FindFloatLayout(type, layout);
}

bool HasNan(v1::ElementType type) {
  FloatLayout layout = {};
  return FindFloatLayout(type, layout) && layout.specials != Specials::kNone;
}

uint64_t LoadElement(v1::ElementType type, absl::string_view line, int64_t index) {
  const int bits = ElementBits(type);
  uint64_t word = 0;
  if (bits >= 8) {
    const size_t bytes = static_cast<size_t>(bits / 8);
    std::memcpy(&word, line.data() + static_cast<size_t>(index) * bytes, bytes);
    return word;
  }
  const size_t bit = static_cast<size_t>(index * bits);
  word = static_cast<uint8_t>(line[bit / 8]);
  if (bit / 8 + 1 < line.size()) {
    word |= static_cast<uint64_t>(static_cast<uint8_t>(line[bit / 8 + 1])) << 8;
  }
  return word >> bit % 8 & ((uint64_t{1} << bits) - 1);
}

void StoreElement(v1::ElementType type, uint64_t pattern, int64_t index, char* line) {
  const int bits = ElementBits(type);
  if (bits >= 8) {
    const size_t bytes = static_cast<size_t>(bits / 8);
    std::memcpy(line + static_cast<size_t>(index) * bytes, &pattern, bytes);
    return;
  }
  const size_t bit = static_cast<size_t>(index * bits);
  const uint64_t shifted = pattern << bit % 8;
  line[bit / 8] = static_cast<char>(static_cast<uint8_t>(line[bit / 8]) | (shifted & 0xff));
  if (shifted > 0xff) {
    line[bit / 8 + 1] = static_cast<char>(static_cast<uint8_t>(line[bit / 8 + 1]) | shifted >> 8);
  }
}

}  // namespace gemmd
