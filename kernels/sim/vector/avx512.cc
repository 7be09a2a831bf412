// SPDX-License-Identifier: Apache-2.0
//
// Compiled for processors that the rest of the program need not have: nothing here runs before
// code.cc has asked the processor.
#include "kernels/sim/vector/code_tables.h"
#include "kernels/sim/vector/fused.h"
#include "kernels/sim/vector/simple.h"
#include "kernels/sim/vector/vector_avx512.h"

namespace gemmd::sim {

const VectorCode kAvx512Code = {.fused = RunFused<Avx512>,
                                .integers = RunIntegers<Avx512>,
                                .bits = RunBits<Avx512>,
                                .f64 = RunF64<Avx512>,
                                .multiply_adds = RunMultiplyAdds<Avx512>};

}  // namespace gemmd::sim
