// SPDX-License-Identifier: Apache-2.0
//
// An engine: one library's product of one pair of types, as a plain call on row-major matrices.
// CPU rows (rows.h) add widening, transposition and the epilogue to an engine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "kernels/kernel.h"
#include "kernels/matrix/element.h"

namespace gemmd {

// A matrix in the libraries' terms: row major, or (transposed) column major.
struct Factor {
  const std::byte* data = nullptr;
  ElementType type = ElementType::kF32;
  int64_t leading_dimension = 0;
  bool transposed = false;
};

// D = X Y, or D += X Y, where X is m x k, Y is k x n and D is m x n and row major. Nothing is
// empty.
struct PlainProduct {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  Factor x;
  Factor y;
  bool y_is_biased = false;  // Y holds u8 values less 128, as s8 (Engine::biases_unsigned_y).
  std::byte* d = nullptr;
  int64_t leading_dimension = 0;
  bool adds_to_d = false;
};

struct Engine {
  std::string_view name;      // "onednn.f32": each name has one measured rate.
  std::string_view library;   // "onednn": what kernel names begin with.
  std::string_view provider;  // "oneDNN"
  std::string_view call;      // "dnnl_sgemm"
  ElementType operand;        // Operands of other types are widened to it.
  ElementType accumulator;    // The type of D.
  bool takes_unsigned;        // Supports u8 operands directly.
  bool biases_unsigned_y;     // Y must be signed: its u8 elements become s8, less 128.
  bool flushes_subnormals;
  int64_t max_extent;  // The largest m, n, k or leading dimension.
  // Operations per second of one thread, used to keep calls short (panels.h). Calls are still short
  // at half this rate, as on a processor without AVX-512.
  double panel_rate;
  // Factor of panel_rate on a processor with AMX.
  double panel_rate_gain_of_amx = 1;
  // Whether panels along k cost less than panels of rows. A library that works in blocks of k
  // anyway does no work twice.
  bool prefers_panels_along_k;
  // The smallest depth >= k for which the library is correct; null: correct for every k. is_padded:
  // leading dimensions exceed line lengths.
  int64_t (*safe_depth)(int64_t k, bool is_padded);
  absl::Status (*available)(const Target& target);
  absl::Status (*multiply)(const PlainProduct& product);
};

absl::Status AvailableEverywhere(const Target& target);
absl::Status AvailableWithAvx512(const Target& target);
absl::Status AvailableWithVnni(const Target& target);

int64_t SafeDepthOneDnnBf16(int64_t k, bool is_padded);

absl::Status MultiplyOneDnnF32(const PlainProduct& product);
absl::Status MultiplyOneDnnBf16(const PlainProduct& product);
absl::Status MultiplyOneDnnS8(const PlainProduct& product);
absl::Status MultiplyOpenBlasF32(const PlainProduct& product);
absl::Status MultiplyOpenBlasF64(const PlainProduct& product);

inline constexpr int64_t kAnyExtent = INT64_MAX;
inline constexpr int64_t kIntExtent = INT32_MAX;  // A BLAS with 32-bit integers.

// dnnl_sgemm is faster here than the matmul primitive (508 against 437 GFLOP/s at 2048^3), except
// for few rows times a transposed matrix, as in a layer's inputs times its weights.
inline constexpr Engine kOneDnnF32 = {
    .name = "onednn.f32",
    .library = "onednn",
    .provider = "oneDNN",
    .call = "dnnl_sgemm or oneDNN matmul (f32)",
    .operand = ElementType::kF32,
    .accumulator = ElementType::kF32,
    .takes_unsigned = false,
    .biases_unsigned_y = false,
    .flushes_subnormals = false,
    .max_extent = kAnyExtent,
    .panel_rate = 1.2e11,
    .prefers_panels_along_k = true,
    .safe_depth = nullptr,
    .available = AvailableEverywhere,
    .multiply = MultiplyOneDnnF32,
};

// The matmul primitive. VDPBF16PS treats subnormals as zero and flushes them.
inline constexpr Engine kOneDnnBf16 = {
    .name = "onednn.bf16",
    .library = "onednn",
    .provider = "oneDNN",
    .call = "oneDNN matmul (bf16 into f32)",
    .operand = ElementType::kBf16,
    .accumulator = ElementType::kF32,
    .takes_unsigned = false,
    .biases_unsigned_y = false,
    .flushes_subnormals = true,
    .max_extent = kAnyExtent,
    .panel_rate = 1e11,
    .panel_rate_gain_of_amx = 5,
    .prefers_panels_along_k = false,
    .safe_depth = SafeDepthOneDnnBf16,
    .available = AvailableWithAvx512,
    .multiply = MultiplyOneDnnBf16,
};

// dnnl_gemm_s8s8s32 and dnnl_gemm_u8s8s32 are exact modulo 2^32 with VNNI.
inline constexpr Engine kOneDnnS8 = {
    .name = "onednn.s8",
    .library = "onednn",
    .provider = "oneDNN",
    .call = "dnnl_gemm_s8s8s32 or dnnl_gemm_u8s8s32",
    .operand = ElementType::kS8,
    .accumulator = ElementType::kS32,
    .takes_unsigned = true,
    .biases_unsigned_y = true,
    .flushes_subnormals = false,
    .max_extent = kAnyExtent,
    .panel_rate = 5e11,
    .prefers_panels_along_k = false,
    .safe_depth = nullptr,
    .available = AvailableWithVnni,
    .multiply = MultiplyOneDnnS8,
};

inline constexpr Engine kOpenBlasF32 = {
    .name = "openblas.f32",
    .library = "openblas",
    .provider = "OpenBLAS",
    .call = "cblas_sgemm",
    .operand = ElementType::kF32,
    .accumulator = ElementType::kF32,
    .takes_unsigned = false,
    .biases_unsigned_y = false,
    .flushes_subnormals = false,
    .max_extent = kIntExtent,
    .panel_rate = 1.2e11,
    .prefers_panels_along_k = true,
    .safe_depth = nullptr,
    .available = AvailableEverywhere,
    .multiply = MultiplyOpenBlasF32,
};

inline constexpr Engine kOpenBlasF64 = {
    .name = "openblas.f64",
    .library = "openblas",
    .provider = "OpenBLAS",
    .call = "cblas_dgemm",
    .operand = ElementType::kF64,
    .accumulator = ElementType::kF64,
    .takes_unsigned = false,
    .biases_unsigned_y = false,
    .flushes_subnormals = false,
    .max_extent = kIntExtent,
    .panel_rate = 6e10,
    .prefers_panels_along_k = true,
    .safe_depth = nullptr,
    .available = AvailableEverywhere,
    .multiply = MultiplyOpenBlasF64,
};

}  // namespace gemmd
