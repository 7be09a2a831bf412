// SPDX-License-Identifier: Apache-2.0
#include <cblas.h>
#include <omp.h>

#include <optional>

#include "absl/base/const_init.h"
#include "absl/synchronization/mutex.h"
#include "kernels/cpu/engine.h"

namespace gemmd {
namespace {

// OpenBLAS built for OpenMP keeps its count of threads and their buffers in globals. A call from a
// thread with another count replaces them while another call uses them. Calls on several threads
// wait for each other inside the library anyway; calls on one thread touch none of this.
class ParallelCall {
 public:
  ParallelCall() {
    ABSL_CONST_INIT static absl::Mutex mutex(absl::kConstInit);
    if (omp_get_max_threads() > 1 && !omp_in_parallel()) lock_.emplace(&mutex);
  }

 private:
  std::optional<absl::MutexLock> lock_;
};

CBLAS_TRANSPOSE Transposition(const Factor& factor) {
  return factor.transposed ? CblasTrans : CblasNoTrans;
}

// Every extent was checked against Engine::max_extent.
blasint Extent(int64_t value) { return static_cast<blasint>(value); }

}  // namespace

absl::Status MultiplyOpenBlasF32(const PlainProduct& p) {
  const ParallelCall call;
  cblas_sgemm(CblasRowMajor, Transposition(p.x), Transposition(p.y), Extent(p.m), Extent(p.n),
              Extent(p.k), 1, reinterpret_cast<const float*>(p.x.data),
              Extent(p.x.leading_dimension), reinterpret_cast<const float*>(p.y.data),
              Extent(p.y.leading_dimension), p.adds_to_d ? 1 : 0, reinterpret_cast<float*>(p.d),
              Extent(p.leading_dimension));
  return absl::OkStatus();
}

absl::Status MultiplyOpenBlasF64(const PlainProduct& p) {
  const ParallelCall call;
  cblas_dgemm(CblasRowMajor, Transposition(p.x), Transposition(p.y), Extent(p.m), Extent(p.n),
              Extent(p.k), 1, reinterpret_cast<const double*>(p.x.data),
              Extent(p.x.leading_dimension), reinterpret_cast<const double*>(p.y.data),
              Extent(p.y.leading_dimension), p.adds_to_d ? 1 : 0, reinterpret_cast<double*>(p.d),
              Extent(p.leading_dimension));
  return absl::OkStatus();
}

}  // namespace gemmd
