// SPDX-License-Identifier: Apache-2.0
//
// gemmctl random.
#include "absl/status/status.h"
#include "client/gemmctl/commands.h"
#include "client/gemmctl/operand_input.h"
#include "client/matrix/npy.h"
#include "gemmd/element_type.h"

namespace gemmd {

ExitCode RunRandom(const RandomFlags& flags, const Console& console) {
  if (flags.shape.size() < 2 || flags.shape.size() > 3) {
    return FailLocally(
        console, absl::InvalidArgumentError("shape: want rows,columns or batch,rows,columns"));
  }
  const bool is_batch = flags.shape.size() == 3;
  const RandomOperand operand = {
      .type = ParseElementType(flags.type).value_or(v1::ELEMENT_TYPE_F32),
      .batch = is_batch ? flags.shape[0] : 1,
      .rows = flags.shape[flags.shape.size() - 2],
      .columns = flags.shape.back(),
      .order = flags.order == "column" ? v1::ORDER_COLUMN_MAJOR : v1::ORDER_ROW_MAJOR,
      .transpose = false,
      .seed = flags.seed};
  auto array = MakeRandomArray("shape", operand, true);
  if (!array.ok()) return FailLocally(console, array.status());
  if (!is_batch) array->shape.erase(array->shape.begin());
  const absl::Status status = WriteArray(*array, flags.output_path, console);
  return status.ok() ? ExitCode::kOk : FailLocally(console, status);
}

}  // namespace gemmd
