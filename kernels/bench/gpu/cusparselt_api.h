// SPDX-License-Identifier: Apache-2.0
//
// The functions of cuSPARSELt used here, looked up at run time: gemmbench starts without the
// library. They are declared here, because cusparseLt.h is not in the toolkit, and the sizes of its
// structures depend on the version, which is known only when the library is loaded. Types shared
// with cuSPARSE come from the toolkit's header.
//
// Source: cuSPARSELt 0.8, API reference.
#pragma once

#include <cusparse.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/dynamic_library.h"

namespace gemmd::bench {

enum class CusparseLtSparsity : int { k50Percent = 0 };
enum class CusparseLtComputeType : int { k32I = 0, k32F = 2 };
enum class CusparseLtAlgorithm : int { kDefault = 0 };

// Storage for any opaque structure of the library: 512 bytes in version 0.8, up to 11 kB before;
// larger is harmless.
struct alignas(16) CusparseLtObject {
  std::byte data[16 * 1024];
};

struct CusparseLtApi {
  using Object = CusparseLtObject;
  using Status = cusparseStatus_t;
  // Computes D = alpha A B + beta C; the signature of both `search` and `multiply`.
  using Multiply = Status(const Object* handle, Object* plan, const void* alpha, const void* a,
                          const void* b, const void* beta, const void* c, void* d, void* workspace,
                          cudaStream_t* streams, int32_t stream_count);

  // Loads the library from `path`, or from the loader's path. Errors: NotFound.
  static absl::StatusOr<CusparseLtApi> Load(const std::string& path);

  DynamicLibrary library;
  Status (*init)(Object* handle) = nullptr;
  Status (*destroy)(const Object* handle) = nullptr;
  Status (*version)(const Object* handle, int* version) = nullptr;
  const char* (*error_name)(Status status) = nullptr;
  Status (*init_dense)(const Object* handle, Object* matrix, int64_t rows, int64_t columns,
                       int64_t leading_dimension, uint32_t alignment, cudaDataType_t type,
                       cusparseOrder_t order) = nullptr;
  Status (*init_structured)(const Object* handle, Object* matrix, int64_t rows, int64_t columns,
                            int64_t leading_dimension, uint32_t alignment, cudaDataType_t type,
                            cusparseOrder_t order, CusparseLtSparsity sparsity) = nullptr;
  Status (*destroy_matrix)(const Object* matrix) = nullptr;
  Status (*init_product)(const Object* handle, Object* product, cusparseOperation_t operation_a,
                         cusparseOperation_t operation_b, const Object* a, const Object* b,
                         const Object* c, const Object* d,
                         CusparseLtComputeType compute_type) = nullptr;
  Status (*init_selection)(const Object* handle, Object* selection, const Object* product,
                           CusparseLtAlgorithm algorithm) = nullptr;
  Status (*workspace_bytes)(const Object* handle, const Object* plan, size_t* bytes) = nullptr;
  Status (*init_plan)(const Object* handle, Object* plan, const Object* product,
                      const Object* selection) = nullptr;
  Status (*destroy_plan)(const Object* plan) = nullptr;
  Status (*compressed_bytes)(const Object* handle, const Object* plan, size_t* bytes,
                             size_t* buffer_bytes) = nullptr;
  Status (*compress)(const Object* handle, const Object* plan, const void* dense, void* compressed,
                     void* buffer, cudaStream_t stream) = nullptr;
  Multiply* search = nullptr;
  Multiply* multiply = nullptr;  // The library declares its plan const.
};

}  // namespace gemmd::bench
