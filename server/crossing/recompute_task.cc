// SPDX-License-Identifier: Apache-2.0
#include "server/crossing/recompute_task.h"

#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"
#include "kernels/verify/sub_product.h"

namespace gemmd {

absl::StatusOr<RecomputeLayout> LayOutRecompute(const RecomputeTask& task) {
  const Problem& whole = task.problem;
  const bool are_some = task.rows > 0 && task.rows <= whole.m && task.columns > 0 &&
                        task.columns <= whole.n && whole.batch > 0;
  if (!are_some) {
    return absl::InvalidArgumentError(
        GotWant("recompute", Concat(task.rows, " rows and ", task.columns, " columns"),
                Concat("some of ", whole.m, " and ", whole.n, " in 1 matrix or more")));
  }
  RecomputeLayout layout;
  ASSIGN_OR_RETURN(layout.sub, verify::SubProblemOf(whole, task.rows, task.columns));
  ASSIGN_OR_RETURN(layout.whole, LayOutJob(whole, task.places));
  ASSIGN_OR_RETURN(layout.operands, LayOutJob(layout.sub));
  JobPlaces places = task.places;
  places.d = {};
  ASSIGN_OR_RETURN(layout.staged, LayOutJob(layout.sub, places));
  const Checked numbers = Checked(task.rows) + Checked(task.columns);
  AlignedRanges ranges;
  ranges.Take(numbers * Checked(int64_t{sizeof(int64_t)}));
  layout.lists = ranges.end().value_or(0);
  ranges.Take(layout.operands.end);
  if (task.places.d.block != 0) layout.found = ranges.Take(layout.operands.d.bytes);
  if (!ranges.end()) {
    return absl::ResourceExhaustedError("the rows and columns take more than 2^63 bytes");
  }
  layout.end = *ranges.end();
  layout.mark = MarkOf(layout.sub, layout.operands, {}, {});
  return layout;
}

}  // namespace gemmd
