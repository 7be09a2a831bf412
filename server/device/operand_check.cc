// SPDX-License-Identifier: Apache-2.0
#include "server/device/operand_check.h"

#include <algorithm>
#include <string>

#include "kernels/sparse24.h"
#include "kernels/status_macros.h"
#include "kernels/text.h"
#include "server/device/gather.h"

namespace gemmd {

absl::Status CheckOperands(const Problem& problem, const std::byte* a, AbortFlag abort) {
  const MatrixLayout& layout = problem.a;
  if (!layout.is_sparse() || a == nullptr) return absl::OkStatus();
  ASSIGN_OR_RETURN(const SparseLayout one,
                   SparseLayoutOf("a", layout.type, layout.rows, layout.columns));
  const int64_t batch = problem.batch;
  const int64_t matrices = layout.batch_stride_bytes == 0 ? std::min<int64_t>(1, batch) : batch;
  for (int64_t i = 0; i < matrices && !IsSet(abort); ++i) {
    const std::string place = matrices == 1 ? "a.data" : Concat("a.data: matrix ", i);
    RETURN_IF_ERROR(CheckCompressed(place, one, a + i * layout.batch_stride_bytes, abort));
  }
  return absl::OkStatus();
}

absl::Status CheckOperands(const Job& job, AbortFlag abort) {
  if (!job.problem.a.is_sparse()) return absl::OkStatus();
  if (job.a.block != 0 || !job.a.parts.empty()) return absl::OkStatus();
  Source source = job.a;
  source.keeper = nullptr;  // The pieces are copied again afterwards.
  WarmMemory memory(0);
  Gathering gathering(memory, /*threads=*/1);
  ASSIGN_OR_RETURN(const std::byte* const a, gathering.Take(source, 1, abort));
  return CheckOperands(job.problem, a, abort);
}

}  // namespace gemmd
