// SPDX-License-Identifier: Apache-2.0
#include "server/wire/convert_instruction.h"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/mma/find.h"
#include "kernels/mma/fragment.h"
#include "kernels/mma/instructions.h"
#include "kernels/mma/support.h"
#include "kernels/peer_text.h"
#include "kernels/status_macros.h"
#include "kernels/text.h"
#include "server/wire/convert_fragment.h"
#include "server/wire/convert_operand.h"
#include "server/wire/name_pattern.h"

namespace gemmd {
namespace {

using mma::Instruction;
using mma::Operand;

v1::InstructionSupport ToWire(mma::Support support) {
  switch (support) {
    case mma::Support::kUnavailable: return v1::INSTRUCTION_SUPPORT_UNAVAILABLE;
    case mma::Support::kEmulated: return v1::INSTRUCTION_SUPPORT_EMULATED;
    case mma::Support::kNative: return v1::INSTRUCTION_SUPPORT_NATIVE;
  }
  return v1::INSTRUCTION_SUPPORT_UNSPECIFIED;
}

// What answers keep at most.
constexpr size_t kMaxCachedBytes = size_t{8} << 20;

NameIndex IndexOfChips() {
  std::vector<std::string_view> names;
  for (const mma::Chip chip : mma::kAllChips) names.push_back(mma::NameOf(chip));
  return NameIndex(names);
}

NameIndex IndexOfInstructions() {
  std::vector<mma::InstructionName> names;
  for (const Instruction& instruction : mma::kInstructions) {
    names.push_back(mma::NameOf(instruction));
  }
  std::vector<std::string_view> views;
  for (const mma::InstructionName& name : names) views.push_back(name.view());
  return NameIndex(views);
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

namespace {

Listing ListingOfInstructions() {
  std::vector<ListedItem> items;
  for (const Instruction& instruction : mma::kInstructions) {
    const v1::Instruction wire = gemmd::ToWire(instruction);
    items.push_back({wire.name(), wire.SerializeAsString()});
  }
  return Listing(v1::ListInstructionsResponse::kInstructionsFieldNumber, items);
}

}  // namespace

InstructionAnswers::InstructionAnswers()
    : chips_(IndexOfChips()),
      names_(IndexOfInstructions()),
      listing_(ListingOfInstructions()),
      fragments_(kMaxCachedBytes) {}

absl::StatusOr<grpc::ByteBuffer> InstructionAnswers::List(
    const v1::ListInstructionsRequest& request) const {
  RETURN_IF_ERROR(CheckNameLength("chip", request.chip()));
  ASSIGN_OR_RETURN(const NamePattern pattern,
                   NamePattern::Parse("name_pattern", request.name_pattern()));
  const bool all_names = request.name_pattern().empty();
  if (request.chip().empty()) {
    if (all_names) return listing_.All();
    return listing_.Answer([&](size_t, std::string_view name) { return pattern.Matches(name); });
  }
  const std::optional<mma::Chip> chip = mma::ChipFromName(request.chip());
  if (!chip) return chips_.Unknown("chip", request.chip(), "a chip that is known here");
  return listing_.Answer([&](size_t position, std::string_view name) {
    return mma::SupportOn(mma::kInstructions[position], *chip) != mma::Support::kUnavailable &&
           (all_names || pattern.Matches(name));
  });
}

absl::StatusOr<grpc::ByteBuffer> InstructionAnswers::Fragment(
    const v1::DescribeFragmentRequest& request) {
  RETURN_IF_ERROR(CheckNameLength("instruction", request.instruction()));
  const std::optional<size_t> position = names_.Find(request.instruction());
  if (!position) {
    return names_.Unknown("instruction", request.instruction(), "an instruction of PTX");
  }
  const Instruction& instruction = mma::kInstructions[*position];
  RETURN_IF_ERROR(CheckFragment(request, instruction));
  const FragmentKey key = {*position, request.operand(), request.selector()};
  std::optional<grpc::Slice> answer = fragments_.Find(key);
  if (!answer) {
    answer = grpc::Slice(DescribeFragment(instruction, request.operand(), request.selector()));
    fragments_.Add(key, *answer);
  }
  return grpc::ByteBuffer(&*answer, 1);
}

}  // namespace gemmd
