// SPDX-License-Identifier: Apache-2.0
#include "client/gemmctl/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <sstream>

#include "absl/status/status.h"
#include "client/gemmctl/commands.h"
#include "client/terminal/usage.h"
#include "client/terminal/version.h"

namespace gemmd {
namespace {

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
                 "Longest time for one call with its retries: seconds, or 500ms, 2m (default 60)");
  app.add_option("--session", global.session,
                 "Token of the session that tensors belong to; also $GEMMD_SESSION (default: the "
                 "one that `gemmctl put` keeps for the address)")
      ->type_name("TOKEN");
  AddSecurityFlags(app, global.security);
  app.add_flag("--json", global.json,
               "Print JSON, one value per line, instead of tables; errors too");
}

// A command that the command line knows.
struct KnownCommand {
  CLI::App* app;
  CommandRun run;
};

}  // namespace

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
  std::vector<KnownCommand> commands;
  for (const Command* command : kCommands) {
    CLI::App& own = *app.add_subcommand(command->name, command->summary);
    commands.push_back({&own, command->add(own)});
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
                                  [](const KnownCommand& known) { return known.app->parsed(); });
  Console own = console;
  own.errors_are_json = global.json;
  return given->run(global, own);
}

}  // namespace gemmd
