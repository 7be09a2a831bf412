// SPDX-License-Identifier: Apache-2.0
#include "client/gemmctl/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <sstream>
#include <utility>

#include "absl/status/status.h"
#include "client/terminal/version.h"

namespace gemmd {
namespace {

constexpr char kCompletionHelp[] =
    "Prints a script that lets Tab complete commands, options, their values, and files. An "
    "installation has both scripts in their usual places (share/bash-completion/completions and "
    "share/zsh/site-functions).\n\n"
    "Examples:\n"
    "  gemmctl completion zsh > ~/.zfunc/_gemmctl          With ~/.zfunc in $fpath.\n"
    "  source <(gemmctl completion bash)                   In this shell.";

CommandRun AddCompletion(CLI::App& app) {
  auto shell = std::make_unique<std::string>();
  SetFooter(app, kCompletionHelp);
  AddChoice(app, "SHELL", *shell, "The shell to print the script for", {"bash", "zsh"}).Require();
  return [shell = std::move(shell), &app](const GlobalFlags&, const Console& console) {
    console.Print(*shell == "bash" ? BashCompletion(app) : ZshCompletion(app));
    return ExitCode::kOk;
  };
}

constexpr char kExitCodes[] =
    "Exit codes:\n"
    "  0  done; health: serving\n"
    "  1  the server refused or failed (message with its status on standard error); diff: bits\n"
    "     differ\n"
    "  2  bad usage, or a local file that cannot be read or written\n"
    "  3  server unreachable or unavailable, or no answer within the timeout\n"
    "  4  verification failed: the server's result is wrong";

void AddGlobalFlags(CLI::App& app, GlobalFlags& global) {
  app.set_help_all_flag("--help-all", "Print the help of all commands");
  app.set_version_flag("--version", ToolVersionText("gemmctl"));
  app.add_option("--address", global.address,
                 "Address of the server: host:port, tls:host:port or unix:/path; also "
                 "$GEMMD_ADDRESS")
      ->capture_default_str();
  app.add_option("--timeout", global.timeout,
                 "Timeout of one call with its retries: seconds, or 500ms, 2m (default 60)");
  app.add_option("--session", global.session,
                 "Token of the session that owns the tensors; also $GEMMD_SESSION (default: the "
                 "token that `gemmctl put` stored for the address)")
      ->type_name("TOKEN");
  AddSecurityFlags(app, global.security);
  app.add_flag("--json", global.json,
               "Print JSON, one value per line, instead of tables; errors too");
}

constexpr Command kCommands[] = {
    {"multiply", "Multiply two matrices and print where the time went", AddMultiply},
    {"explain", "Show which kernel would run a product, and why others would not", AddExplain},
    {"random", "Write a random matrix to a .npy file (needs no server)", AddRandom},
    {"convert",
     "Convert matrices of .npy and .safetensors files to other types, orders, shapes and forms "
     "(needs no server)",
     AddConvert},
    {"diff", "Show where two files, or the results of two chips, differ in bits, and by how much",
     AddDiff},
    {"put", "Keep a matrix on the server, for use as @NAME in products", AddPut},
    {"get", "Write a tensor on the server to a .npy file", AddGet},
    {"ls", "List the tensors that the session keeps on the server", AddLs},
    {"rm", "Delete a tensor on the server", AddRm},
    {"keep", "Renew the lease of a tensor, pin it or unpin it", AddKeep},
    {"compress", "Make a 2:4 tensor from a dense one on the server", AddCompress},
    {"kernels", "List the server's kernels", AddKernels},
    {"instructions", "List the PTX matrix instructions and the chips that have them",
     AddInstructions},
    {"fragment", "Draw which register of which lane holds which element of an instruction",
     AddFragment},
    {"devices", "List the server's devices, their queues and measured rates", AddDevices},
    {"info", "Show the server's version, limits and features", AddInfo},
    {"top", "Watch the server's devices, queues and rates", AddTop},
    {"health", "Ask whether the server is serving (grpc.health.v1)", AddHealth},
    {"doctor", "Check a deployed server from end to end and say what to do", AddDoctor},
    {"restart-device", "Replace the worker process of a device (over a unix socket)", AddRestart},
    {"sessions", "List the sessions of all callers that own tensors on the server", AddSessions},
    {"drop-session", "End a session and delete its tensors (over a unix socket)", AddDropSession},
    {"incidents", "List wrong answers that the server caught before sending them", AddIncidents},
    {"replay", "Compute the product of an incident again, with the check that found it", AddReplay},
    {"completion", "Print a script that completes gemmctl's commands and options in a shell",
     AddCompletion},
};

}  // namespace

absl::Span<const Command> Commands() { return kCommands; }

ExitCode RunCommandLine(const std::vector<std::string>& arguments, const Environment& environment,
                        const Console& console) {
  CLI::App app("Matrix products on a gemmd server", "gemmctl");
  app.footer(kExitCodes);
  app.require_subcommand(1);
  app.fallthrough();
  GlobalFlags global = {.address = environment.address,
                        .timeout = "",
                        .session = environment.session,
                        .session_folder = environment.session_folder,
                        .security = environment.security};
  AddGlobalFlags(app, global);
  std::vector<std::pair<CLI::App*, CommandRun>> commands;
  for (const Command& command : kCommands) {
    CLI::App& own = *app.add_subcommand(command.name, command.summary);
    commands.emplace_back(&own, command.add(own));
  }
  // CLI11 takes the last argument first.
  std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
  try {
    app.parse(reversed);
  } catch (const CLI::ParseError& error) {
    std::ostringstream out;
    std::ostringstream err;
    out << HelpAskedFor(app);
    if (out.str().empty() && app.exit(error, out, err) != 0) {
      Console own = console;
      own.errors_are_json =
          std::find(arguments.begin(), arguments.end(), "--json") != arguments.end();
      return FailLocally(own, absl::InvalidArgumentError(DescribeUsageError(app, error)));
    }
    console.Print(out.str());
    return ExitCode::kOk;
  }
  const auto given = std::find_if(commands.begin(), commands.end(),
                                  [](const auto& known) { return known.first->parsed(); });
  Console own = console;
  own.errors_are_json = global.json;
  return given->second(global, own);
}

}  // namespace gemmd
