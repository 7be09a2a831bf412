// SPDX-License-Identifier: Apache-2.0
//
// gemmctl instructions.
#include <memory>
#include <string>

#include "client/gemmctl/commands.h"
#include "client/gemmctl/connect.h"
#include "client/gemmctl/instruction_table.h"
#include "client/terminal/option.h"

namespace gemmd {
namespace {

constexpr char kInstructionsHelp[] =
    "Examples:\n"
    "  gemmctl instructions --chip sm_90\n"
    "  gemmctl instructions --pattern 'mma.sp.*bf16*'\n"
    "  gemmctl instructions --families";

struct InstructionsFlags {
  std::string chip;
  std::string pattern;
  bool all = false;  // Each width of wgmma.
  bool families = false;
};

ExitCode RunInstructions(const GlobalFlags& global, const InstructionsFlags& flags,
                         const Console& console) {
  return PrintAnswer(
      global, console,
      [&](Client& client) { return client.ListInstructions(flags.chip, flags.pattern); },
      [&](const v1::ListInstructionsResponse& instructions) {
        return flags.families ? FamilyTable(instructions)
                              : InstructionTable(instructions, flags.chip, flags.all);
      });
}

CommandRun AddInstructions(CLI::App& app) {
  auto flags = std::make_unique<InstructionsFlags>();
  SetFooter(app, kInstructionsHelp);
  AddOption(app, "--chip", flags->chip,
            "List only instructions that this chip (sm_90) has, with what ptxas makes of "
            "emulated ones")
      .TypeName("CHIP");
  AddOption(app, "--pattern", flags->pattern,
            "List only instructions whose names match; * is any run of characters")
      .TypeName("PATTERN");
  AddFlag(app, "--all", flags->all, "List each N of wgmma on a line of its own");
  AddFlag(app, "--families", flags->families,
          "Count the instructions by family and chip instead of listing them");
  return [flags = std::move(flags)](const GlobalFlags& global, const Console& console) {
    return RunInstructions(global, *flags, console);
  };
}

}  // namespace

constexpr Command kInstructionsCommand = {
    "instructions", "List the matrix instructions of PTX and which chip has them", AddInstructions};

}  // namespace gemmd
