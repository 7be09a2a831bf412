// SPDX-License-Identifier: Apache-2.0
//
// The functions of cuSPARSELt that are called here, declared anew and found at run time: neither
// its header nor the library is needed to build.
//
// Source: cuSPARSELt 0.8, API reference: functions, data types, and enumerators counted from 0
// where it gives no numbers; cusparse.h of the toolkit for orders and operations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/dynamic_library.h"

struct CUstream_st;

namespace gemmd::bench {

enum CusparseLtNumber : int {
  kCusparseSuccess = 0,
  // cusparseOperation_t
  kCusparseNonTranspose = 0,
  kCusparseTranspose = 1,
  // cusparseOrder_t
  kCusparseOrderColumn = 1,
  kCusparseOrderRow = 2,
  // cusparseLtSparsity_t
  kCusparseLtSparsity50Percent = 0,
  // cusparseComputeType
  kCusparseCompute32I = 0,
  kCusparseCompute16F = 1,
  kCusparseCompute32F = 2,
  // cusparseLtMatmulAlg_t
  kCusparseLtAlgorithmDefault = 0,
};

// Any of the library's structures, of which only it knows the contents. They have 512 bytes in
// version 0.8 and had up to 11 kB before; more does no harm.
struct alignas(16) CusparseLtObject {
  std::byte data[16 * 1024];
};

struct CusparseLtApi {
  using Object = CusparseLtObject;

  // From `path`, or where the loader has it.
  // Errors: NotFound.
  static absl::StatusOr<CusparseLtApi> Load(const std::string& path);

  DynamicLibrary library;
  int (*init)(Object* handle) = nullptr;
  int (*destroy)(const Object* handle) = nullptr;
  int (*version)(const Object* handle, int* version) = nullptr;
  const char* (*error_name)(int status) = nullptr;
  int (*init_dense)(const Object* handle, Object* matrix, int64_t rows, int64_t columns,
                    int64_t leading_dimension, uint32_t alignment, int type, int order) = nullptr;
  int (*init_structured)(const Object* handle, Object* matrix, int64_t rows, int64_t columns,
                         int64_t leading_dimension, uint32_t alignment, int type, int order,
                         int sparsity) = nullptr;
  int (*destroy_matrix)(const Object* matrix) = nullptr;
  int (*init_product)(const Object* handle, Object* product, int operation_a, int operation_b,
                      const Object* a, const Object* b, const Object* c, const Object* d,
                      int compute_type) = nullptr;
  int (*init_selection)(const Object* handle, Object* selection, const Object* product,
                        int algorithm) = nullptr;
  int (*workspace_bytes)(const Object* handle, const Object* plan, size_t* bytes) = nullptr;
  int (*init_plan)(const Object* handle, Object* plan, const Object* product,
                   const Object* selection) = nullptr;
  int (*destroy_plan)(const Object* plan) = nullptr;
  int (*compressed_bytes)(const Object* handle, const Object* plan, size_t* bytes,
                          size_t* buffer_bytes) = nullptr;
  int (*compress)(const Object* handle, const Object* plan, const void* dense, void* compressed,
                  void* buffer, CUstream_st* stream) = nullptr;
  int (*search)(const Object* handle, Object* plan, const void* alpha, const void* a, const void* b,
                const void* beta, const void* c, void* d, void* workspace, CUstream_st** streams,
                int32_t stream_count) = nullptr;
  int (*multiply)(const Object* handle, const Object* plan, const void* alpha, const void* a,
                  const void* b, const void* beta, const void* c, void* d, void* workspace,
                  CUstream_st** streams, int32_t stream_count) = nullptr;
};

}  // namespace gemmd::bench
