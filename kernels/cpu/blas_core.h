// SPDX-License-Identifier: Apache-2.0
//
// Which of its kernels OpenBLAS chose when it was loaded, and whether it has better ones.
#pragma once

#include <string>

namespace gemmd {

// The name to put into OPENBLAS_CORETYPE before OpenBLAS is loaded; empty if its own choice is
// best.
//
// OpenBLAS 0.3.21 chooses its AVX2 kernels on AMD processors with AVX-512, where its AVX-512
// kernels were measured 1.6 times as fast (f64, 2048^3, Zen 5: 204 against 124 GFLOP/s).
std::string BetterBlasCore();

}  // namespace gemmd
