// SPDX-License-Identifier: Apache-2.0
//
// Compiled for processors that the rest of the program need not have: nothing here runs before
// code.cc has asked the processor.
#include "kernels/sim/vector/code_tables.h"
#include "kernels/sim/vector/fused.h"
#include "kernels/sim/vector/simple.h"
#include "kernels/sim/vector/vector_avx2.h"

namespace gemmd::sim {

const VectorCode kAvx2Code = {.fused = RunFused<Avx2>,
                              .integers = RunIntegers<Avx2>,
                              .bits = RunBits<Avx2>,
                              .f64 = RunF64<Avx2>,
                              .multiply_adds = RunMultiplyAdds<Avx2>};

}  // namespace gemmd::sim
