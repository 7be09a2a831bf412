// SPDX-License-Identifier: Apache-2.0
//
// gemmctl explain.
#include <memory>

#include "absl/strings/str_cat.h"
#include "client/gemmctl/commands.h"
#include "client/gemmctl/connect.h"
#include "client/gemmctl/explanation.h"
#include "client/gemmctl/message_json.h"
#include "client/gemmctl/product_flags.h"
#include "client/gemmctl/product_input.h"
#include "client/gemmctl/tensor_session.h"
#include "client/terminal/option.h"

namespace gemmd {
namespace {

constexpr char kHelp[] =
    "Examples:\n"
    "  gemmctl explain --random 4095,4097,4093 --type bf16\n"
    "  gemmctl explain A.npy B.npy --deterministic\n"
    "  gemmctl explain --random 1,4096,4096 --type s8 --output-type s8 --json";

struct ExplainFlags {
  ProductFlags product;
  bool all = false;  // Every kernel on a line of its own.
};

ExitCode RunExplain(const GlobalFlags& global, const ExplainFlags& flags, const Console& console) {
  auto client =
      NamesTensors(flags.product) ? ConnectSession(global, false, console) : Connect(global);
  if (!client.ok()) return FailSession(console, client.status());
  const auto request = ProductRequest(flags.product, false, console, &*client);
  if (!request.ok()) return FailLocally(console, request.status());
  const auto explanation = client->Explain(*request);
  if (!explanation.ok()) return FailCall(console, explanation.status());
  console.Print(global.json ? JsonLine(MessageJson(*explanation))
                            : ExplanationTable(*request, *explanation, flags.all));
  return ExitCode::kOk;
}

CommandRun AddExplain(CLI::App& app) {
  auto flags = std::make_unique<ExplainFlags>();
  SetFooter(app, absl::StrCat(TypeHelp(), "\n\n", kHelp));
  AddProductFlags(app, flags->product);
  AddFlag(app, "--all", flags->all, "Print every candidate and every refused kernel, one a line")
      .Group("Output");
  return [flags = std::move(flags)](const GlobalFlags& global, const Console& console) {
    return RunExplain(global, *flags, console);
  };
}

}  // namespace

constexpr Command kExplainCommand = {
    "explain", "Show which kernel would run a product, and why not the others", AddExplain};

}  // namespace gemmd
