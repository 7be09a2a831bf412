// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/blas_core.h"

#include <cblas.h>

#include <string_view>

namespace gemmd {

std::string BetterBlasCore() {
#if defined(__x86_64__)
  const std::string_view chosen = openblas_get_corename();
  const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                          __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
  if (has_avx512 && (chosen == "Haswell" || chosen == "Zen")) return "SkylakeX";
#endif
  return "";
}

}  // namespace gemmd
