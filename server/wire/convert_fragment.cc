// SPDX-License-Identifier: Apache-2.0
#include "server/wire/convert_fragment.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "kernels/mma/fragment.h"
#include "kernels/mma/metadata.h"
#include "kernels/status_macros.h"
#include "kernels/text.h"
#include "server/wire/convert_instruction.h"
#include "server/wire/convert_operand.h"
#include "server/wire/listing.h"

namespace gemmd {
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

}  // namespace

absl::Status CheckFragment(const v1::DescribeFragmentRequest& request,
                           const Instruction& instruction) {
  RETURN_IF_ERROR(CheckOperand(request.operand(), instruction));
  return CheckSelector(request, instruction);
}

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

}  // namespace gemmd
