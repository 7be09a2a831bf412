// SPDX-License-Identifier: Apache-2.0
//
// The constants are those that protobuf makes, and none is missing.
#include "gemmd/wire_types.h"

#include "gemmd/v1/gemm.pb.h"

namespace gemmd::v1 {

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

}  // namespace gemmd::v1
