// SPDX-License-Identifier: Apache-2.0
#include "server/wire/convert_blocks.h"

#include <string>

#include "kernels/status_macros.h"
#include "kernels/text.h"

namespace gemmd {
namespace {

static_assert(static_cast<int>(FactorType::kF32) + 1 == v1::FACTOR_TYPE_F32);
static_assert(static_cast<int>(FactorType::kUe8m0) + 1 == v1::FACTOR_TYPE_UE8M0);
static_assert(static_cast<int>(FactorType::kUe4m3) + 1 == v1::FACTOR_TYPE_UE4M3);

}  // namespace

absl::StatusOr<BlockScale> ParseBlocks(std::string_view field, const v1::BlockScale& wire) {
  const std::string type_field = Concat(field, ".type");
  if (wire.type() == v1::FACTOR_TYPE_UNSPECIFIED) {
    return absl::InvalidArgumentError(GotWant(type_field, "none", "F32, UE8M0 or UE4M3"));
  }
  if (!v1::FactorType_IsValid(wire.type())) return UnknownValue(type_field, wire.type());
  return BlockScale{.type = static_cast<FactorType>(wire.type() - 1),
                    .lines = wire.rows_per_block(),
                    .depth = wire.k_per_block(),
                    .per_matrix = wire.per_matrix()};
}

absl::StatusOr<FieldBytes> ParseBlockFactors(std::string_view field, const NamedExtent& extent,
                                             const v1::BlockScale& wire, const BlockScale& blocks,
                                             const Problem& problem, const HeldFields& held) {
  ASSIGN_OR_RETURN(const int64_t want,
                   FactorBytes(field, blocks, extent.value, problem.k, problem.batch));
  FieldBytes bytes = FindBytes(wire, v1::BlockScale::kFactorsFieldNumber, wire.factors(), held);
  const int64_t got = bytes.size();
  const bool may_be_absent = !problem.has_product() && got == 0;
  if (got != want && !may_be_absent) {
    const std::string matrices =
        blocks.per_matrix ? Concat(" for each of ", problem.batch, " matrices") : "";
    return absl::InvalidArgumentError(
        Concat(field, ".factors: got ", got, " bytes, want ", extent.name, "/", blocks.lines,
               " lines of k/", blocks.depth, ", each rounded up, ", BytesOf(blocks.type),
               " bytes each", matrices, " = ", want));
  }
  if (!problem.has_product()) return NoBytes();
  return bytes;
}

void Fill(const BlockScale& blocks, const std::vector<std::byte>& factors, v1::BlockScale& wire) {
  wire.set_type(static_cast<v1::FactorType>(static_cast<int>(blocks.type) + 1));
  wire.set_rows_per_block(blocks.lines);
  wire.set_k_per_block(blocks.depth);
  wire.set_per_matrix(blocks.per_matrix);
  wire.set_factors(reinterpret_cast<const char*>(factors.data()), factors.size());
}

}  // namespace gemmd
