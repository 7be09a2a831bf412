// SPDX-License-Identifier: Apache-2.0
//
// Enumerations of a product's options. Includes no other headers, because every file of device code
// includes this one.
#pragma once

#include <cstdint>

namespace gemmd {

enum class Order : uint8_t { kRowMajor, kColumnMajor };
enum class Sparsity : uint8_t { kNone, k2To4 };  // 2:4 or the type's own form (sparse24.h).
enum class Activation : uint8_t { kNone, kRelu, kGeluErf, kGeluTanh, kSilu };
enum class BitOperation : uint8_t { kAnd, kXor };
enum class BiasAxis : uint8_t { kNone, kRows, kColumns };
enum class ScaleKind : uint8_t {
  kNone,
  kTensor,
  kVector,  // Per row of A, per column of B.
  kBlocks   // Per block of rows of A or columns of B, and of k (block_scale.h).
};

}  // namespace gemmd
