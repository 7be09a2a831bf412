// SPDX-License-Identifier: Apache-2.0
#include "server/device/operand_check.h"

#include <algorithm>
#include <string>

#include "kernels/sparse24.h"
#include "kernels/status_macros.h"
#include "kernels/text.h"

namespace gemmd {

absl::Status CheckOperands(const Job& job) {
  const MatrixLayout& a = job.problem.a;
  if (!a.is_sparse() || job.a == nullptr) return absl::OkStatus();
  ASSIGN_OR_RETURN(const SparseLayout one, SparseLayoutOf("a", a.type, a.rows, a.columns));
  const int64_t batch = job.problem.batch;
  const int64_t matrices = a.batch_stride_bytes == 0 ? std::min<int64_t>(1, batch) : batch;
  for (int64_t i = 0; i < matrices; ++i) {
    const std::string place = matrices == 1 ? "a.data" : Concat("a.data: matrix ", i);
    RETURN_IF_ERROR(CheckCompressed(place, one, job.a + i * a.batch_stride_bytes));
  }
  return absl::OkStatus();
}

}  // namespace gemmd
