// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/engine.h"

#include <cblas.h>
#include <dnnl_debug.h>
#include <omp.h>

#include <dnnl.hpp>
#include <optional>

#include "absl/base/const_init.h"
#include "absl/synchronization/mutex.h"
#include "kernels/matrix/text.h"

namespace gemmd {
namespace {

char Flag(const Factor& factor) { return factor.transposed ? 'T' : 'N'; }

absl::Status Failed(std::string_view what, dnnl_status_t status) {
  const std::string message =
      Concat("oneDNN: ", what, " failed: ", std::string_view(dnnl_status2str(status)));
  return status == dnnl_out_of_memory ? absl::ResourceExhaustedError(message)
                                      : absl::InternalError(message);
}

absl::Status StatusOf(std::string_view what, dnnl_status_t status) {
  return status == dnnl_success ? absl::OkStatus() : Failed(what, status);
}

dnnl::memory::data_type TypeOf(const Factor& factor) {
  return factor.type == ElementType::kBf16 ? dnnl::memory::data_type::bf16
                                           : dnnl::memory::data_type::f32;
}

dnnl::memory::desc Describe(int64_t rows, int64_t columns, const Factor& factor) {
  const int64_t ld = factor.leading_dimension;
  const dnnl::memory::dims strides =
      factor.transposed ? dnnl::memory::dims{1, ld} : dnnl::memory::dims{ld, 1};
  return {{rows, columns}, TypeOf(factor), strides};
}

// The engine and the primitives may throw; no exception leaves this file.
void MatMul(const PlainProduct& p) {
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  const dnnl::memory::desc x = Describe(p.m, p.k, p.x);
  const dnnl::memory::desc y = Describe(p.k, p.n, p.y);
  const dnnl::memory::desc d({p.m, p.n}, dnnl::memory::data_type::f32,
                             dnnl::memory::dims{p.leading_dimension, 1});
  dnnl::primitive_attr attributes;
  if (p.adds_to_d) {
    dnnl::post_ops addition;
    addition.append_sum(1);
    attributes.set_post_ops(addition);
  }
  // oneDNN caches primitives: creating one costs some 200 us at first, some 2 us later.
#if DNNL_VERSION_MAJOR < 3
  const dnnl::matmul matmul(
      dnnl::matmul::primitive_desc(dnnl::matmul::desc(x, y, d), attributes, engine));
#else
  const dnnl::matmul matmul(dnnl::matmul::primitive_desc(engine, x, y, d, attributes));
#endif
  dnnl::stream stream(engine);
  matmul.execute(stream,
                 {{DNNL_ARG_SRC, dnnl::memory(x, engine, const_cast<std::byte*>(p.x.data))},
                  {DNNL_ARG_WEIGHTS, dnnl::memory(y, engine, const_cast<std::byte*>(p.y.data))},
                  {DNNL_ARG_DST, dnnl::memory(d, engine, p.d)}});
  stream.wait();
}

absl::Status TryMatMul(const PlainProduct& p) {
  try {
    MatMul(p);
  } catch (const dnnl::error& error) {
    return Failed(error.message, error.status);
  }
  return absl::OkStatus();
}

// dnnl_sgemm first copies a transposed Y into another order, which takes longer than multiplying it
// with a few rows: the matmul primitive takes 0.5 to 0.8 of its time for 8 to 128 rows. The
// primitive is slower for fewer rows, for small products (each call costs some us), and for large
// ones.
bool IsFewRowsOfTransposed(const PlainProduct& p) {
  return p.y.transposed && p.m >= 8 && p.m < 256 && p.n >= 1024 && p.k >= 64;
}

constexpr int64_t kTileDepth = 32;  // Elements of bf16 in a line of an AMX tile.

bool IsVersion(int major, int first_minor, int last_minor) {
  const dnnl_version_t& version = *dnnl_version();
  return version.major == major && version.minor >= first_minor && version.minor <= last_minor;
}

// Before 3.1, brgemm rounds the rest of k up to an even number. If that makes it as deep as a whole
// block of k (k = 63: 31 after 32), it does not configure the tiles for the rest of m and of n:
// products are wrong, or the processor raises SIGILL
// (https://github.com/uxlfoundation/oneDNN/issues/1661). An even k is never rounded.
bool KeepsTilesOfOddDepth() { return dnnl_version()->major < 3 || IsVersion(3, 0, 0); }

// From 3.7 to 3.14, brgemm fills the last tiles of X with the bytes after the k elements of a row
// and pairs them with zeros of Y: infinities and NaNs of one row become NaN in another
// (https://github.com/uxlfoundation/oneDNN/issues/5717).
bool ReadsTilesBeyondK() { return IsVersion(3, 7, 14); }

}  // namespace

// oneDNN multiplies bf16 in two ways. brgemm takes matrices without padding, on processors that
// multiply bf16 themselves. The other implementation ("gemm:jit") pairs the last element of an odd
// k with a zero of Y, so that infinities there give NaN (seen with oneDNN 2.6.3). brgemm without
// AMX is correct for every k; with AMX it has its own faults.
int64_t SafeDepthOneDnnBf16(int64_t k, bool is_padded) {
  const auto isa = static_cast<unsigned>(dnnl_get_effective_cpu_isa());
  const auto has = [isa](unsigned wanted) { return (isa & wanted) == wanted; };
  const bool has_amx = has(dnnl_cpu_isa_avx512_core_amx);
  if (has_amx && ReadsTilesBeyondK() && k > kTileDepth) {
    return (k + kTileDepth - 1) / kTileDepth * kTileDepth;
  }
  const bool needs_even_depth =
      is_padded || !has(dnnl_cpu_isa_avx512_core_bf16) || (has_amx && KeepsTilesOfOddDepth());
  return needs_even_depth ? k + k % 2 : k;
}

absl::Status MultiplyOneDnnF32(const PlainProduct& p) {
  if (IsFewRowsOfTransposed(p)) return TryMatMul(p);
  return StatusOf(
      "dnnl_sgemm",
      dnnl_sgemm(Flag(p.x), Flag(p.y), p.m, p.n, p.k, 1, reinterpret_cast<const float*>(p.x.data),
                 p.x.leading_dimension, reinterpret_cast<const float*>(p.y.data),
                 p.y.leading_dimension, p.adds_to_d ? 1 : 0, reinterpret_cast<float*>(p.d),
                 p.leading_dimension));
}

absl::Status MultiplyOneDnnBf16(const PlainProduct& p) { return TryMatMul(p); }

absl::Status MultiplyOneDnnS8(const PlainProduct& p) {
  const auto* y = reinterpret_cast<const int8_t*>(p.y.data);
  auto* d = reinterpret_cast<int32_t*>(p.d);
  const int32_t no_offset = 0;                     // Added to all of D.
  const int8_t y_zero = p.y_is_biased ? -128 : 0;  // Subtracted from every element of Y.
  const float beta = p.adds_to_d ? 1 : 0;          // With 1, oneDNN adds integers.
  if (p.x.type == ElementType::kU8) {
    return StatusOf(
        "dnnl_gemm_u8s8s32",
        dnnl_gemm_u8s8s32(Flag(p.x), Flag(p.y), 'F', p.m, p.n, p.k, 1,
                          reinterpret_cast<const uint8_t*>(p.x.data), p.x.leading_dimension, 0, y,
                          p.y.leading_dimension, y_zero, beta, d, p.leading_dimension, &no_offset));
  }
  return StatusOf(
      "dnnl_gemm_s8s8s32",
      dnnl_gemm_s8s8s32(Flag(p.x), Flag(p.y), 'F', p.m, p.n, p.k, 1,
                        reinterpret_cast<const int8_t*>(p.x.data), p.x.leading_dimension, 0, y,
                        p.y.leading_dimension, y_zero, beta, d, p.leading_dimension, &no_offset));
}

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

// `gemm`: cblas_sgemm or cblas_dgemm.
template <typename Float, typename Gemm>
absl::Status Multiply(Gemm gemm, const PlainProduct& p) {
  const ParallelCall call;
  gemm(CblasRowMajor, Transposition(p.x), Transposition(p.y), Extent(p.m), Extent(p.n), Extent(p.k),
       1, reinterpret_cast<const Float*>(p.x.data), Extent(p.x.leading_dimension),
       reinterpret_cast<const Float*>(p.y.data), Extent(p.y.leading_dimension), p.adds_to_d ? 1 : 0,
       reinterpret_cast<Float*>(p.d), Extent(p.leading_dimension));
  return absl::OkStatus();
}

}  // namespace

absl::Status MultiplyOpenBlasF32(const PlainProduct& p) { return Multiply<float>(cblas_sgemm, p); }
absl::Status MultiplyOpenBlasF64(const PlainProduct& p) { return Multiply<double>(cblas_dgemm, p); }

}  // namespace gemmd
