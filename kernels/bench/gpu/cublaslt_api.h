// SPDX-License-Identifier: Apache-2.0
//
// The functions of cuBLASLt used here, declared by the toolkit's header and looked up at run time:
// gemmbench starts without the library.
#pragma once

#include <cublasLt.h>

#include <string>

#include "absl/status/statusor.h"
#include "kernels/dynamic_library.h"

namespace gemmd::bench {

struct CublasLtApi {
  // Loads the library from `path`, or from the loader's or the toolkit's path. Errors: NotFound.
  static absl::StatusOr<CublasLtApi> Load(const std::string& path);

  DynamicLibrary library;
  decltype(&cublasLtGetVersion) version = nullptr;
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtDestroy) destroy = nullptr;
  decltype(&cublasLtMatmulDescCreate) create_product = nullptr;
  decltype(&cublasLtMatmulDescDestroy) destroy_product = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) set_product = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) create_layout = nullptr;
  decltype(&cublasLtMatrixLayoutSetAttribute) set_layout = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) destroy_layout = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) create_preference = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) destroy_preference = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) set_preference = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristics = nullptr;
  decltype(&cublasLtMatmul) multiply = nullptr;
};

}  // namespace gemmd::bench
