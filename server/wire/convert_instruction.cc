// SPDX-License-Identifier: Apache-2.0
#include "server/wire/convert_instruction.h"

#include <fnmatch.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/mma/find.h"
#include "kernels/mma/fragment.h"
#include "kernels/mma/instructions.h"
#include "kernels/mma/metadata.h"
#include "kernels/mma/support.h"
#include "kernels/nearest_names.h"
#include "kernels/status_macros.h"
#include "kernels/text.h"
#include "server/wire/convert_operand.h"

namespace gemmd {
namespace {

using mma::Instruction;
using mma::Operand;

constexpr int kGroupBits = 4;  // Bits of metadata for one group.

v1::InstructionSupport ToWire(mma::Support support) {
  switch (support) {
    case mma::Support::kUnavailable: return v1::INSTRUCTION_SUPPORT_UNAVAILABLE;
    case mma::Support::kEmulated: return v1::INSTRUCTION_SUPPORT_EMULATED;
    case mma::Support::kNative: return v1::INSTRUCTION_SUPPORT_NATIVE;
  }
  return v1::INSTRUCTION_SUPPORT_UNSPECIFIED;
}

absl::Status UnknownChip(std::string_view name) {
  std::vector<std::string_view> known;
  for (const mma::Chip chip : mma::kAllChips) known.push_back(mma::NameOf(chip));
  return UnknownName("chip", name, "a chip that is known here", known);
}

absl::Status UnknownInstruction(std::string_view name) {
  std::vector<mma::InstructionName> names;
  for (const Instruction& instruction : mma::kInstructions) {
    names.push_back(mma::NameOf(instruction));
  }
  std::vector<std::string_view> known;
  for (const mma::InstructionName& known_name : names) known.push_back(known_name.view());
  return UnknownName("instruction", name, "an instruction of PTX", known);
}

// The operands that have a fragment.
std::string FragmentsOf(const Instruction& instruction) {
  return Concat("A, ", instruction.is_warpgroup() ? "" : "B, ",
                instruction.is_sparse() ? "C, D or METADATA" : "C or D");
}

absl::Status CheckOperand(v1::FragmentOperand operand, const Instruction& instruction) {
  if (!v1::FragmentOperand_IsValid(operand)) return UnknownValue("operand", operand);
  std::string_view refused;
  if (operand == v1::FRAGMENT_OPERAND_UNSPECIFIED) refused = "none";
  if (operand == v1::FRAGMENT_OPERAND_B && instruction.is_warpgroup()) {
    refused = "B of a warpgroup, which is read from shared memory";
  }
  if (operand == v1::FRAGMENT_OPERAND_METADATA && !instruction.is_sparse()) {
    refused = "METADATA of a dense instruction";
  }
  if (refused.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(GotWant("operand", refused, FragmentsOf(instruction)));
}

// The selectors that a request may name.
absl::Status CheckSelector(const v1::DescribeFragmentRequest& request,
                           const Instruction& instruction) {
  const bool is_metadata = request.operand() == v1::FRAGMENT_OPERAND_METADATA;
  const int count = is_metadata ? mma::SelectorCount(instruction) : 1;
  if (request.selector() >= 0 && request.selector() < count) return absl::OkStatus();
  return absl::InvalidArgumentError(
      GotWant("selector", Concat(request.selector()),
              count == 1 ? std::string("0") : Concat("0 to ", count - 1)));
}

void DescribeOperand(const Instruction& instruction, Operand operand,
                     v1::DescribeFragmentResponse& response) {
  const int container_bits = mma::ContainerBits(instruction, operand);
  response.set_rows(mma::RowsOf(instruction, operand));
  response.set_columns(mma::ColumnsOf(instruction, operand));
  response.set_type(ToWire(mma::TypeOf(instruction, operand)));
  response.set_element_bits(BitsOf(mma::TypeOf(instruction, operand)));
  response.set_container_bits(container_bits);
  response.set_container_shift(mma::ContainerShift(instruction, operand));
  for (int lane = 0; lane < instruction.lanes(); ++lane) {
    for (int i = 0; i < mma::ElementsPerLane(instruction, operand); ++i) {
      const mma::Position position = mma::PositionOf(instruction, operand, lane, i);
      v1::FragmentEntry* entry = response.add_entries();
      entry->set_lane(lane);
      entry->set_element(i);
      entry->set_first_bit(i * container_bits);
      entry->set_row(position.row);
      entry->set_column(position.column);
      entry->set_product(position.product);
    }
  }
}

void DescribeMetadata(const Instruction& instruction, int selector,
                      v1::DescribeFragmentResponse& response) {
  const int groups = mma::MetadataGroups(instruction);
  response.set_rows(instruction.m);
  response.set_columns(groups);
  response.set_element_bits(kGroupBits);
  response.set_container_bits(kGroupBits);
  for (int row = 0; row < instruction.m; ++row) {
    for (int group = 0; group < groups; ++group) {
      const mma::MetadataField field = mma::MetadataFieldOf(instruction, selector, row, group);
      v1::FragmentEntry* entry = response.add_entries();
      entry->set_lane(field.lane);
      entry->set_element(field.first_bit / kGroupBits);
      entry->set_first_bit(field.first_bit);
      entry->set_row(row);
      entry->set_column(group);
    }
  }
  std::sort(response.mutable_entries()->begin(), response.mutable_entries()->end(),
            [](const v1::FragmentEntry& x, const v1::FragmentEntry& y) {
              return x.lane() != y.lane() ? x.lane() < y.lane() : x.first_bit() < y.first_bit();
            });
}

void SetRegisters(const Instruction& instruction, v1::Instruction& wire) {
  wire.set_a_registers(mma::WordsPerLane(instruction, Operand::kA));
  wire.set_b_registers(mma::WordsPerLane(instruction, Operand::kB));
  wire.set_c_registers(mma::WordsPerLane(instruction, Operand::kC));
  wire.set_d_registers(mma::WordsPerLane(instruction, Operand::kD));
}

}  // namespace

v1::Instruction ToWire(const Instruction& instruction) {
  v1::Instruction wire;
  wire.set_name(std::string(mma::NameOf(instruction).view()));
  wire.set_family(std::string(mma::NameOf(instruction.family)));
  wire.set_m(instruction.m);
  wire.set_n(instruction.n);
  wire.set_k(instruction.k);
  wire.set_a_type(ToWire(instruction.a));
  wire.set_b_type(ToWire(instruction.b));
  wire.set_c_type(ToWire(instruction.c));
  wire.set_d_type(ToWire(instruction.d));
  wire.set_a_layout(std::string(mma::NameOf(instruction.a_layout)));
  wire.set_b_layout(std::string(mma::NameOf(instruction.b_layout)));
  wire.set_lanes(instruction.lanes());
  SetRegisters(instruction, wire);
  wire.set_products(instruction.products());
  wire.set_sparsity(std::string(mma::NameOf(mma::SparsityOf(instruction))));
  wire.set_selectors(mma::SelectorCount(instruction));
  wire.set_scale_type(std::string(mma::NameOf(instruction.scale)));
  wire.set_scale_block(instruction.scale_block());
  wire.set_min_target(Concat("sm_", instruction.min_target));
  for (const mma::Chip chip : mma::kAllChips) {
    v1::ChipSupport* support = wire.add_chips();
    support->set_chip(std::string(mma::NameOf(chip)));
    support->set_support(ToWire(mma::SupportOn(instruction, chip)));
    support->set_lowering(std::string(mma::LoweringOn(instruction, chip)));
  }
  return wire;
}

absl::Status ListInstructions(const v1::ListInstructionsRequest& request,
                              v1::ListInstructionsResponse& response) {
  const std::optional<mma::Chip> chip = mma::ChipFromName(request.chip());
  if (!request.chip().empty() && !chip.has_value()) return UnknownChip(request.chip());
  for (const Instruction& instruction : mma::kInstructions) {
    const bool is_missing =
        chip.has_value() && mma::SupportOn(instruction, *chip) == mma::Support::kUnavailable;
    if (is_missing) continue;
    const std::string name(mma::NameOf(instruction).view());
    const bool is_named = request.name_pattern().empty() ||
                          fnmatch(request.name_pattern().c_str(), name.c_str(), 0) == 0;
    if (is_named) *response.add_instructions() = ToWire(instruction);
  }
  return absl::OkStatus();
}

absl::Status DescribeFragment(const v1::DescribeFragmentRequest& request,
                              v1::DescribeFragmentResponse& response) {
  const Instruction* instruction = mma::FindInstruction(request.instruction());
  if (instruction == nullptr) return UnknownInstruction(request.instruction());
  RETURN_IF_ERROR(CheckOperand(request.operand(), *instruction));
  RETURN_IF_ERROR(CheckSelector(request, *instruction));
  *response.mutable_instruction() = ToWire(*instruction);
  response.set_operand(request.operand());
  response.set_selector(request.selector());
  switch (request.operand()) {
    case v1::FRAGMENT_OPERAND_A: DescribeOperand(*instruction, Operand::kA, response); break;
    case v1::FRAGMENT_OPERAND_B: DescribeOperand(*instruction, Operand::kB, response); break;
    case v1::FRAGMENT_OPERAND_C: DescribeOperand(*instruction, Operand::kC, response); break;
    case v1::FRAGMENT_OPERAND_D: DescribeOperand(*instruction, Operand::kD, response); break;
    default: DescribeMetadata(*instruction, request.selector(), response);
  }
  return absl::OkStatus();
}

}  // namespace gemmd
