// SPDX-License-Identifier: Apache-2.0
#include "kernels/bench/gpu/cublaslt_api.h"

#include <utility>
#include <vector>

#include "kernels/matrix/status.h"

namespace gemmd::bench {
namespace {

std::vector<std::string> Names(const std::string& path) {
  if (!path.empty()) return {path};
  return {"libcublasLt.so.13", "libcublasLt.so.12", "/usr/local/cuda/lib64/libcublasLt.so"};
}

}  // namespace

absl::StatusOr<CublasLtApi> CublasLtApi::Load(const std::string& path) {
  ASSIGN_OR_RETURN(DynamicLibrary library, DynamicLibrary::Load(Names(path)));
  CublasLtApi api;
  api.library = std::move(library);
  const DynamicLibrary& in = api.library;
  RETURN_IF_ERROR(in.Find("cublasLtGetVersion", api.version));
  RETURN_IF_ERROR(in.Find("cublasLtCreate", api.create));
  RETURN_IF_ERROR(in.Find("cublasLtDestroy", api.destroy));
  RETURN_IF_ERROR(in.Find("cublasLtMatmulDescCreate", api.create_product));
  RETURN_IF_ERROR(in.Find("cublasLtMatmulDescDestroy", api.destroy_product));
  RETURN_IF_ERROR(in.Find("cublasLtMatmulDescSetAttribute", api.set_product));
  RETURN_IF_ERROR(in.Find("cublasLtMatrixLayoutCreate", api.create_layout));
  RETURN_IF_ERROR(in.Find("cublasLtMatrixLayoutSetAttribute", api.set_layout));
  RETURN_IF_ERROR(in.Find("cublasLtMatrixLayoutDestroy", api.destroy_layout));
  RETURN_IF_ERROR(in.Find("cublasLtMatmulPreferenceCreate", api.create_preference));
  RETURN_IF_ERROR(in.Find("cublasLtMatmulPreferenceDestroy", api.destroy_preference));
  RETURN_IF_ERROR(in.Find("cublasLtMatmulPreferenceSetAttribute", api.set_preference));
  RETURN_IF_ERROR(in.Find("cublasLtMatmulAlgoGetHeuristic", api.heuristics));
  RETURN_IF_ERROR(in.Find("cublasLtMatmul", api.multiply));
  return api;
}

}  // namespace gemmd::bench
