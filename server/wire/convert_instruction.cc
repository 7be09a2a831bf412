// SPDX-License-Identifier: Apache-2.0
#include "server/wire/convert_instruction.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/mma/find.h"
#include "kernels/mma/fragment.h"
#include "kernels/mma/instructions.h"
#include "kernels/mma/metadata.h"
#include "kernels/mma/support.h"
#include "kernels/peer_text.h"
#include "kernels/status_macros.h"
#include "kernels/text.h"
#include "server/wire/convert.h"
#include "server/wire/listing.h"

namespace gemmd {

std::optional<grpc::Slice> FragmentCache::Find(const FragmentKey& key) {
  MutexLock lock(&mutex_);
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) return std::nullopt;
  entries_.splice(entries_.begin(), entries_, found->second);
  return found->second->answer;
}

void FragmentCache::Add(const FragmentKey& key, grpc::Slice answer) {
  if (answer.size() > max_bytes_) return;
  Entries dropped;  // Freed without the lock.
  MutexLock lock(&mutex_);
  if (by_key_.count(key) > 0) return;
  bytes_ += answer.size();
  entries_.push_front({key, std::move(answer)});
  by_key_[key] = entries_.begin();
  while (bytes_ > max_bytes_) {
    const auto oldest = std::prev(entries_.end());
    bytes_ -= oldest->answer.size();
    by_key_.erase(oldest->key);
    dropped.splice(dropped.begin(), entries_, oldest);
  }
}

size_t FragmentCache::bytes() const {
  MutexLock lock(&mutex_);
  return bytes_;
}

namespace {

using mma::Instruction;
using mma::Operand;

constexpr int kGroupBits = 4;  // Bits of metadata for one group.

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

// The entries of an answer as bytes: the messages of all of them at once would take a hundred
// times the room of one.
class EntryWriter {
 public:
  explicit EntryWriter(std::string& answer) : answer_(answer) {}

  void Write(const v1::FragmentEntry& entry) {
    entry.SerializeToString(&one_);
    AppendField(v1::DescribeFragmentResponse::kEntriesFieldNumber, one_, answer_);
  }

 private:
  std::string& answer_;
  std::string one_;
};

void DescribeOperand(const Instruction& instruction, Operand operand,
                     v1::DescribeFragmentResponse& head, std::string& answer) {
  const int container_bits = mma::ContainerBits(instruction, operand);
  head.set_rows(mma::RowsOf(instruction, operand));
  head.set_columns(mma::ColumnsOf(instruction, operand));
  head.set_type(ToWire(mma::TypeOf(instruction, operand)));
  head.set_element_bits(BitsOf(mma::TypeOf(instruction, operand)));
  head.set_container_bits(container_bits);
  head.set_container_shift(mma::ContainerShift(instruction, operand));
  head.AppendToString(&answer);
  EntryWriter writer(answer);
  v1::FragmentEntry entry;
  for (int lane = 0; lane < instruction.lanes(); ++lane) {
    for (int i = 0; i < mma::ElementsPerLane(instruction, operand); ++i) {
      const mma::Position position = mma::PositionOf(instruction, operand, lane, i);
      entry.set_lane(lane);
      entry.set_element(i);
      entry.set_first_bit(i * container_bits);
      entry.set_row(position.row);
      entry.set_column(position.column);
      entry.set_product(position.product);
      writer.Write(entry);
    }
  }
}

void DescribeMetadata(const Instruction& instruction, int selector,
                      v1::DescribeFragmentResponse& head, std::string& answer) {
  const int groups = mma::MetadataGroups(instruction);
  head.set_rows(instruction.m);
  head.set_columns(groups);
  head.set_element_bits(kGroupBits);
  head.set_container_bits(kGroupBits);
  head.AppendToString(&answer);
  std::vector<v1::FragmentEntry> entries;
  for (int row = 0; row < instruction.m; ++row) {
    for (int group = 0; group < groups; ++group) {
      const mma::MetadataField field = mma::MetadataFieldOf(instruction, selector, row, group);
      v1::FragmentEntry& entry = entries.emplace_back();
      entry.set_lane(field.lane);
      entry.set_element(field.first_bit / kGroupBits);
      entry.set_first_bit(field.first_bit);
      entry.set_row(row);
      entry.set_column(group);
    }
  }
  std::sort(entries.begin(), entries.end(),
            [](const v1::FragmentEntry& x, const v1::FragmentEntry& y) {
              return x.lane() != y.lane() ? x.lane() < y.lane() : x.first_bit() < y.first_bit();
            });
  EntryWriter writer(answer);
  for (const v1::FragmentEntry& entry : entries) writer.Write(entry);
}

// Errors: InvalidArgument for an operand or a selector that the instruction does not have.
absl::Status CheckFragment(const v1::DescribeFragmentRequest& request,
                           const Instruction& instruction) {
  RETURN_IF_ERROR(CheckOperand(request.operand(), instruction));
  return CheckSelector(request, instruction);
}

// The bytes of the answer to a request that CheckFragment accepts.
std::string DescribeFragment(const Instruction& instruction, v1::FragmentOperand operand,
                             int selector) {
  v1::DescribeFragmentResponse head;
  *head.mutable_instruction() = ToWire(instruction);
  head.set_operand(operand);
  head.set_selector(selector);
  std::string answer;
  switch (operand) {
    case v1::FRAGMENT_OPERAND_A: DescribeOperand(instruction, Operand::kA, head, answer); break;
    case v1::FRAGMENT_OPERAND_B: DescribeOperand(instruction, Operand::kB, head, answer); break;
    case v1::FRAGMENT_OPERAND_C: DescribeOperand(instruction, Operand::kC, head, answer); break;
    case v1::FRAGMENT_OPERAND_D: DescribeOperand(instruction, Operand::kD, head, answer); break;
    default: DescribeMetadata(instruction, selector, head, answer);
  }
  return answer;
}

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
