// SPDX-License-Identifier: Apache-2.0
//
// The functions of cuBLASLt that are called here, declared anew and found at run time: neither its
// header nor the library is needed to build. tests/kernels/bench/cublaslt_api_test.cc compares the
// numbers with the header where there is one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/dynamic_library.h"

struct CUstream_st;

namespace gemmd::bench {

enum CublasLtNumber : int {
  kCublasSuccess = 0,
  // cublasOperation_t
  kCublasOpN = 0,
  kCublasOpT = 1,
  // cublasComputeType_t
  kCublasCompute16F = 64,
  kCublasCompute32F = 68,
  kCublasCompute64F = 70,
  kCublasCompute32I = 72,
  kCublasCompute32FFastTf32 = 77,
  // cublasLtMatmulDescAttributes_t
  kCublasLtDescTransA = 3,
  kCublasLtDescTransB = 4,
  kCublasLtDescFastAccum = 25,
  // cublasLtMatmulPreferenceAttributes_t
  kCublasLtPrefMaxWorkspaceBytes = 1,
  kCublasLtPrefMinAlignmentA = 5,
  kCublasLtPrefMinAlignmentB = 6,
  kCublasLtPrefMinAlignmentC = 7,
  kCublasLtPrefMinAlignmentD = 8,
};

struct CublasLtAlgorithm {
  uint64_t data[8];
};

struct CublasLtHeuristicResult {
  CublasLtAlgorithm algorithm;
  size_t workspace_bytes;
  int status;
  float waves;
  int reserved[4];
};

// Handles and descriptors are pointers to what only the library knows.
struct CublasLtApi {
  // From `path`, or where the loader and the toolkit have it.
  // Errors: NotFound.
  static absl::StatusOr<CublasLtApi> Load(const std::string& path);

  DynamicLibrary library;
  size_t (*version)() = nullptr;
  int (*create)(void** handle) = nullptr;
  int (*destroy)(void* handle) = nullptr;
  int (*create_product)(void** product, int compute_type, int scale_type) = nullptr;
  int (*destroy_product)(void* product) = nullptr;
  int (*set_product)(void* product, int attribute, const void* value, size_t bytes) = nullptr;
  int (*create_layout)(void** layout, int type, uint64_t rows, uint64_t columns,
                       int64_t leading_dimension) = nullptr;
  int (*destroy_layout)(void* layout) = nullptr;
  int (*create_preference)(void** preference) = nullptr;
  int (*destroy_preference)(void* preference) = nullptr;
  int (*set_preference)(void* preference, int attribute, const void* value, size_t bytes) = nullptr;
  int (*heuristics)(void* handle, void* product, void* a, void* b, void* c, void* d,
                    void* preference, int wanted, CublasLtHeuristicResult* results,
                    int* count) = nullptr;
  int (*multiply)(void* handle, void* product, const void* alpha, const void* a, void* a_layout,
                  const void* b, void* b_layout, const void* beta, const void* c, void* c_layout,
                  void* d, void* d_layout, const CublasLtAlgorithm* algorithm, void* workspace,
                  size_t workspace_bytes, CUstream_st* stream) = nullptr;
};

}  // namespace gemmd::bench
