// SPDX-License-Identifier: Apache-2.0
//
// Widening copies an operand to a type that its engine supports and that holds its values exactly.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/matrix/abort.h"
#include "kernels/matrix/element.h"
#include "kernels/problem.h"

namespace gemmd {

enum class Widening : uint8_t {
  kValue,    // Each element's value; tf32 without its low 13 bits.
  kLess128,  // u8 into s8: the value less 128.
  kSign,     // b1: 0 into 1 and 1 into -1.
};

// Copies one matrix, line by line; `to` has the shape and order of `from` and type f64, f32, bf16
// or s8.
// Once the flag is set, the rest is not written. Threads: parallel inside, on the calling thread's
// OpenMP threads, if the matrix is large.
void Widen(Widening widening, const MatrixLayout& from, const std::byte* source,
           const MatrixLayout& to, std::byte* copy, AbortFlag abort = nullptr);

}  // namespace gemmd
