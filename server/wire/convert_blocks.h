// SPDX-License-Identifier: Apache-2.0
//
// Factors of blocks: what they are, and their bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "gemmd/v1/tensors.pb.h"
#include "kernels/problem.h"
#include "server/wire/convert_operand.h"
#include "server/wire/held_fields.h"

namespace gemmd {

// Rows of op(A) or columns of op(B).
struct NamedExtent {
  std::string_view name;  // "m"
  int64_t value;
};

// Errors: InvalidArgument for no type or an unknown one; Validate checks the rest.
absl::StatusOr<BlockScale> ParseBlocks(std::string_view field, const v1::BlockScale& wire);

// The factors of a valid problem's operand; none where they are not read.
// Errors: InvalidArgument where their count is not that of the blocks.
absl::StatusOr<FieldBytes> ParseBlockFactors(std::string_view field, const NamedExtent& extent,
                                             const v1::BlockScale& wire, const BlockScale& blocks,
                                             const Problem& problem, const HeldFields& held);

void Fill(const BlockScale& blocks, const std::vector<std::byte>& factors, v1::BlockScale& wire);

}  // namespace gemmd
