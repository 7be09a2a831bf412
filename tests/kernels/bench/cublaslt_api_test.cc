// SPDX-License-Identifier: Apache-2.0
//
// The declarations of cublaslt_api.h are those of the toolkit's header. Nothing is called.
#include "kernels/bench/gpu/cublaslt_api.h"

#include <cublasLt.h>
#include <gtest/gtest.h>

#include <cstddef>

#include "kernels/bench/gpu/cuda_types.h"

namespace gemmd::bench {
namespace {

static_assert(int{kCublasSuccess} == CUBLAS_STATUS_SUCCESS);
static_assert(int{kCublasOpN} == CUBLAS_OP_N && int{kCublasOpT} == CUBLAS_OP_T);
static_assert(int{kCublasCompute16F} == CUBLAS_COMPUTE_16F);
static_assert(int{kCublasCompute32F} == CUBLAS_COMPUTE_32F);
static_assert(int{kCublasCompute64F} == CUBLAS_COMPUTE_64F);
static_assert(int{kCublasCompute32I} == CUBLAS_COMPUTE_32I);
static_assert(int{kCublasCompute32FFastTf32} == CUBLAS_COMPUTE_32F_FAST_TF32);
static_assert(int{kCublasLtDescTransA} == CUBLASLT_MATMUL_DESC_TRANSA);
static_assert(int{kCublasLtDescTransB} == CUBLASLT_MATMUL_DESC_TRANSB);
static_assert(int{kCublasLtDescFastAccum} == CUBLASLT_MATMUL_DESC_FAST_ACCUM);
static_assert(int{kCublasLtPrefMaxWorkspaceBytes} == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
static_assert(int{kCublasLtPrefMinAlignmentA} == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES);
static_assert(int{kCublasLtPrefMinAlignmentB} == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES);
static_assert(int{kCublasLtPrefMinAlignmentC} == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES);
static_assert(int{kCublasLtPrefMinAlignmentD} == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES);

static_assert(sizeof(CublasLtAlgorithm) == sizeof(cublasLtMatmulAlgo_t));
static_assert(sizeof(CublasLtHeuristicResult) == sizeof(cublasLtMatmulHeuristicResult_t));
static_assert(offsetof(CublasLtHeuristicResult, workspace_bytes) ==
              offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize));
static_assert(offsetof(CublasLtHeuristicResult, status) ==
              offsetof(cublasLtMatmulHeuristicResult_t, state));
static_assert(offsetof(CublasLtHeuristicResult, waves) ==
              offsetof(cublasLtMatmulHeuristicResult_t, wavesCount));

static_assert(int{kCudaR32F} == CUDA_R_32F && int{kCudaR64F} == CUDA_R_64F);
static_assert(int{kCudaR16F} == CUDA_R_16F && int{kCudaR16Bf} == CUDA_R_16BF);
static_assert(int{kCudaR8I} == CUDA_R_8I && int{kCudaR32I} == CUDA_R_32I);
static_assert(int{kCudaR8FE4m3} == CUDA_R_8F_E4M3 && int{kCudaR8FE5m2} == CUDA_R_8F_E5M2);

// Counts the parameters of a function, and of a pointer to one.
template <typename Result, typename... Parameters>
constexpr size_t Count(Result (*)(Parameters...)) {
  return sizeof...(Parameters);
}

TEST(CublasLtApiTest, FunctionsHaveAsManyParameters) {
  const CublasLtApi api;
  EXPECT_EQ(Count(api.create), Count(&cublasLtCreate));
  EXPECT_EQ(Count(api.create_product), Count(&cublasLtMatmulDescCreate));
  EXPECT_EQ(Count(api.set_product), Count(&cublasLtMatmulDescSetAttribute));
  EXPECT_EQ(Count(api.create_layout), Count(&cublasLtMatrixLayoutCreate));
  EXPECT_EQ(Count(api.create_preference), Count(&cublasLtMatmulPreferenceCreate));
  EXPECT_EQ(Count(api.set_preference), Count(&cublasLtMatmulPreferenceSetAttribute));
  EXPECT_EQ(Count(api.heuristics), Count(&cublasLtMatmulAlgoGetHeuristic));
  EXPECT_EQ(Count(api.multiply), Count(&cublasLtMatmul));
}

}  // namespace
}  // namespace gemmd::bench
