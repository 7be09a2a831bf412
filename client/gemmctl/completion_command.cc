// SPDX-License-Identifier: Apache-2.0
//
// gemmctl completion.
#include <memory>
#include <string>

#include "client/gemmctl/commands.h"
#include "client/terminal/completion.h"
#include "client/terminal/option.h"

namespace gemmd {
namespace {

constexpr char kCompletionHelp[] =
    "Prints a script after which Tab completes commands, options, their values, and files. An "
    "installation has both in their usual places (share/bash-completion/completions and "
    "share/zsh/site-functions).\n\n"
    "Examples:\n"
    "  gemmctl completion zsh > ~/.zfunc/_gemmctl          With ~/.zfunc in $fpath.\n"
    "  source <(gemmctl completion bash)                   In this shell.";

struct CompletionFlags {
  std::string shell;
};

CommandRun AddCompletion(CLI::App& app) {
  auto flags = std::make_unique<CompletionFlags>();
  SetFooter(app, kCompletionHelp);
  AddChoice(app, "SHELL", flags->shell, "The shell that is to complete", {"bash", "zsh"}).Require();
  return [flags = std::move(flags), &app](const GlobalFlags&, const Console& console) {
    console.Print(flags->shell == "bash" ? BashCompletion(app) : ZshCompletion(app));
    return ExitCode::kOk;
  };
}

}  // namespace

constexpr Command kCompletionCommand = {
    "completion", "Print a script that completes gemmctl's commands and options in a shell",
    AddCompletion};

}  // namespace gemmd
