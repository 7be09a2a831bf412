// SPDX-License-Identifier: Apache-2.0
//
// gemmctl instructions.
#include "client/gemmctl/commands.h"
#include "client/gemmctl/connect.h"
#include "client/gemmctl/instruction_table.h"
#include "client/gemmctl/message_json.h"

namespace gemmd {

ExitCode RunInstructions(const GlobalFlags& global, const InstructionsFlags& flags,
                         const Console& console) {
  auto client = Connect(global);
  if (!client.ok()) return FailLocally(console, client.status());
  const auto instructions = client->ListInstructions(flags.chip, flags.pattern);
  if (!instructions.ok()) return FailCall(console, instructions.status());
  if (global.json) {
    console.Print(JsonLine(MessageJson(*instructions)));
  } else if (flags.families) {
    console.Print(FamilyTable(*instructions));
  } else {
    console.Print(InstructionTable(*instructions, flags));
  }
  return ExitCode::kOk;
}

}  // namespace gemmd
