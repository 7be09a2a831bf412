// SPDX-License-Identifier: Apache-2.0
//
// gemmctl explain.
#include <string>

#include "absl/strings/str_cat.h"
#include "client/gemmctl/commands.h"
#include "client/gemmctl/connect.h"
#include "client/gemmctl/explanation.h"
#include "client/gemmctl/message_json.h"
#include "client/gemmctl/product_input.h"

namespace gemmd {

ExitCode RunExplain(const GlobalFlags& global, const ExplainFlags& flags, const Console& console) {
  const auto request = ProductRequest(flags.product, false, console);
  if (!request.ok()) return FailLocally(console, request.status());
  auto client = Connect(global);
  if (!client.ok()) return FailLocally(console, client.status());
  const auto explanation = client->Explain(*request);
  if (!explanation.ok()) return FailCall(console, explanation.status());
  console.Print(global.json ? JsonLine(MessageJson(*explanation))
                            : ExplanationTable(*request, *explanation, flags.all));
  return ExitCode::kOk;
}

}  // namespace gemmd
