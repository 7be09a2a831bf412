// SPDX-License-Identifier: Apache-2.0
//
// gemmctl fragment.
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/gemmctl/commands.h"
#include "client/gemmctl/connect.h"
#include "client/gemmctl/fragment_drawing.h"
#include "client/gemmctl/fragment_grid.h"
#include "client/gemmctl/fragment_values.h"
#include "client/gemmctl/message_json.h"
#include "client/gemmctl/operand_input.h"
#include "client/terminal/option.h"
#include "client/terminal/text_file.h"
#include "gemmd/v1/instructions.pb.h"
#include "gemmd/v1/tensors.pb.h"

namespace gemmd {
namespace {

constexpr char kFragmentHelp[] =
    "T5:{a0,a1} is elements 0 and 1 of A's fragment in lane 5, T5:[15:0] bits 15 to 0 of its "
    "metadata.\n\n"
    "Examples:\n"
    "  gemmctl fragment mma.m16n8k16.f32.f16.f16.f32\n"
    "  gemmctl fragment mma.sp.m16n8k32.f32.f16.f16.f32 --operand metadata --selector 1\n"
    "  gemmctl fragment wgmma.m64n16k16.f32.bf16.bf16 --svg wgmma.svg\n"
    "  gemmctl fragment mma.m16n8k16.f32.f16.f16.f32 --operand a --values A.npy --svg a.svg";

struct FragmentFlags {
  std::string instruction;
  std::string operand;  // Empty: all of them.
  int selector = 0;
  std::string svg_path;     // Empty: text. "-": standard output.
  std::string values_path;  // A matrix whose elements are drawn; empty: none.
};

// An operand to show, and what its drawing is called.
struct Shown {
  v1::FragmentOperand operand;
  std::string name;
};

struct ShownFragment {
  std::string name;
  v1::DescribeFragmentResponse fragment;
};

Shown ShownOperand(const std::string& operand) {
  if (operand == "a") return {v1::FRAGMENT_OPERAND_A, "A"};
  if (operand == "b") return {v1::FRAGMENT_OPERAND_B, "B"};
  if (operand == "c") return {v1::FRAGMENT_OPERAND_C, "C"};
  if (operand == "d") return {v1::FRAGMENT_OPERAND_D, "D"};
  return {v1::FRAGMENT_OPERAND_METADATA, "metadata"};
}

// Every operand that has a fragment, after A. One drawing serves C and D where they are of one
// type.
std::vector<Shown> OperandsAfterA(const v1::Instruction& instruction, bool merges_c_and_d) {
  std::vector<Shown> operands;
  if (!instruction.sparsity().empty()) operands.push_back(ShownOperand("metadata"));
  if (instruction.b_registers() > 0) operands.push_back(ShownOperand("b"));
  if (merges_c_and_d && instruction.c_type() == instruction.d_type()) {
    operands.push_back({v1::FRAGMENT_OPERAND_D, "D, and C alike"});
  } else {
    operands.push_back(ShownOperand("c"));
    operands.push_back(ShownOperand("d"));
  }
  return operands;
}

absl::StatusOr<ShownFragment> Ask(Client& client, const FragmentFlags& flags, const Shown& shown) {
  v1::DescribeFragmentRequest request;
  request.set_instruction(flags.instruction);
  request.set_operand(shown.operand);
  const bool has_selector =
      !flags.operand.empty() || shown.operand == v1::FRAGMENT_OPERAND_METADATA;
  if (has_selector) request.set_selector(flags.selector);
  auto fragment = client.DescribeFragment(request);
  if (!fragment.ok()) return fragment.status();
  return ShownFragment{shown.name, *std::move(fragment)};
}

absl::StatusOr<std::vector<ShownFragment>> AskAll(Client& client, const FragmentFlags& flags,
                                                  bool merges_c_and_d) {
  auto first = Ask(client, flags, ShownOperand(flags.operand.empty() ? "a" : flags.operand));
  if (!first.ok()) return first.status();
  const v1::Instruction instruction = first->fragment.instruction();
  std::vector<ShownFragment> fragments;
  fragments.push_back(*std::move(first));
  if (!flags.operand.empty()) return fragments;
  if (flags.selector != 0 && instruction.sparsity().empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--selector: got ", flags.selector, ", want none for a dense instruction"));
  }
  for (const Shown& shown : OperandsAfterA(instruction, merges_c_and_d)) {
    auto next = Ask(client, flags, shown);
    if (!next.ok()) return next.status();
    fragments.push_back(*std::move(next));
  }
  return fragments;
}

// The elements of the matrix that the flags name, where they name one.
absl::StatusOr<std::optional<FragmentValues>> ReadValues(
    const FragmentFlags& flags, const v1::DescribeFragmentResponse& fragment,
    const Console& console) {
  if (flags.values_path.empty()) return std::nullopt;
  // A file that does not say what its type is has the operand's.
  const auto matrix =
      ReadArray(flags.values_path, v1::ELEMENT_TYPE_UNSPECIFIED, console, fragment.type());
  if (!matrix.ok()) return matrix.status();
  auto values = ValuesOf(fragment, *matrix);
  if (!values.ok()) return values.status();
  return *std::move(values);
}

absl::StatusOr<std::vector<FragmentGrid>> GridsOf(const std::vector<ShownFragment>& fragments,
                                                  const std::optional<FragmentValues>& values) {
  std::vector<FragmentGrid> all;
  for (const ShownFragment& shown : fragments) {
    auto grids = MakeGrids(shown.fragment, shown.name, values.has_value() ? &*values : nullptr);
    if (!grids.ok()) return grids.status();
    for (FragmentGrid& grid : *grids) all.push_back(std::move(grid));
  }
  return all;
}

std::string GridsText(const std::string& title, const std::vector<FragmentGrid>& grids,
                      bool has_colours) {
  std::string text = title + "\n";
  for (const FragmentGrid& grid : grids) absl::StrAppend(&text, "\n", GridText(grid, has_colours));
  return text;
}

ExitCode Draw(const FragmentFlags& flags, const std::vector<ShownFragment>& fragments,
              const Console& console) {
  const auto values = ReadValues(flags, fragments.front().fragment, console);
  if (!values.ok()) return FailLocally(console, values.status());
  const auto grids = GridsOf(fragments, *values);
  if (!grids.ok()) return FailCall(console, grids.status());
  const v1::Instruction& instruction = fragments.front().fragment.instruction();
  std::string title = instruction.name();
  if (instruction.b_registers() == 0) title += " (B is read from shared memory)";
  if (flags.svg_path.empty()) {
    console.Print(GridsText(title, *grids, isatty(fileno(console.out)) != 0));
    return ExitCode::kOk;
  }
  const std::string svg = GridsSvg(title, *grids);
  if (flags.svg_path == "-") {
    console.Print(svg);
    return ExitCode::kOk;
  }
  const absl::Status status = WriteTextFile(flags.svg_path, svg);
  return status.ok() ? ExitCode::kOk : FailLocally(console, status);
}

ExitCode RunFragment(const GlobalFlags& global, const FragmentFlags& flags,
                     const Console& console) {
  const absl::Status outputs =
      CheckOutputFiles(global, {{"--svg", flags.svg_path}}, {{"--values", flags.values_path}});
  if (!outputs.ok()) return FailLocally(console, outputs);
  auto client = Connect(global);
  if (!client.ok()) return FailLocally(console, client.status());
  const auto fragments = AskAll(*client, flags, !global.json);
  if (!fragments.ok()) return FailCall(console, fragments.status());
  if (!global.json) return Draw(flags, *fragments, console);
  for (const ShownFragment& shown : *fragments) {
    console.Print(JsonLine(MessageJson(shown.fragment)));
  }
  return ExitCode::kOk;
}

CommandRun AddFragment(CLI::App& app) {
  auto flags = std::make_unique<FragmentFlags>();
  SetFooter(app, kFragmentHelp);
  AddOption(app, "NAME", flags->instruction,
            "Name of an instruction; gemmctl instructions lists all names")
      .Require()
      .TypeName("");
  const CommandOption operand =
      AddChoice(app, "--operand", flags->operand, "Operand to draw (default: all)",
                {"a", "b", "c", "d", "metadata"});
  AddOption(app, "--selector", flags->selector, "Sparsity selector of the metadata", 0)
      .ShowDefault()
      .TypeName("S");
  const CommandOption svg =
      AddOption(app, "--svg", flags->svg_path,
                "File for a drawing in SVG, instead of text; - is standard output. Under the "
                "pointer a cell tells where each of its elements lies")
          .TypeName("PATH");
  AddOption(app, "--values", flags->values_path,
            "Draw the elements of this .npy matrix into the cells: its upper left part, rounded to "
            "the operand's type; of a sparse A the elements that are kept")
      .Need(svg)
      .Need(operand)
      .TypeName("PATH");
  return [flags = std::move(flags)](const GlobalFlags& global, const Console& console) {
    return RunFragment(global, *flags, console);
  };
}

}  // namespace

constexpr Command kFragmentCommand = {
    "fragment", "Draw which register of which lane holds which element of an instruction",
    AddFragment};

}  // namespace gemmd
