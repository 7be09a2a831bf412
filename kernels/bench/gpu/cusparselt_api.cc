// SPDX-License-Identifier: Apache-2.0
#include "kernels/bench/gpu/cusparselt_api.h"

#include <utility>
#include <vector>

#include "kernels/matrix/status.h"

namespace gemmd::bench {
namespace {

std::vector<std::string> SparseNames(const std::string& path) {
  if (!path.empty()) return {path};
  return {"libcusparseLt.so.0", "libcusparseLt.so"};
}

}  // namespace

absl::StatusOr<CusparseLtApi> CusparseLtApi::Load(const std::string& path) {
  ASSIGN_OR_RETURN(DynamicLibrary library, DynamicLibrary::Load(SparseNames(path)));
  CusparseLtApi api;
  api.library = std::move(library);
  const DynamicLibrary& in = api.library;
  RETURN_IF_ERROR(in.Find("cusparseLtInit", api.init));
  RETURN_IF_ERROR(in.Find("cusparseLtDestroy", api.destroy));
  RETURN_IF_ERROR(in.Find("cusparseLtGetVersion", api.version));
  RETURN_IF_ERROR(in.Find("cusparseLtGetErrorName", api.error_name));
  RETURN_IF_ERROR(in.Find("cusparseLtDenseDescriptorInit", api.init_dense));
  RETURN_IF_ERROR(in.Find("cusparseLtStructuredDescriptorInit", api.init_structured));
  RETURN_IF_ERROR(in.Find("cusparseLtMatDescriptorDestroy", api.destroy_matrix));
  RETURN_IF_ERROR(in.Find("cusparseLtMatmulDescriptorInit", api.init_product));
  RETURN_IF_ERROR(in.Find("cusparseLtMatmulAlgSelectionInit", api.init_selection));
  RETURN_IF_ERROR(in.Find("cusparseLtMatmulGetWorkspace", api.workspace_bytes));
  RETURN_IF_ERROR(in.Find("cusparseLtMatmulPlanInit", api.init_plan));
  RETURN_IF_ERROR(in.Find("cusparseLtMatmulPlanDestroy", api.destroy_plan));
  RETURN_IF_ERROR(in.Find("cusparseLtSpMMACompressedSize", api.compressed_bytes));
  RETURN_IF_ERROR(in.Find("cusparseLtSpMMACompress", api.compress));
  RETURN_IF_ERROR(in.Find("cusparseLtMatmulSearch", api.search));
  RETURN_IF_ERROR(in.Find("cusparseLtMatmul", api.multiply));
  return api;
}

}  // namespace gemmd::bench
