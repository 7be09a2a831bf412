// SPDX-License-Identifier: Apache-2.0
#include "tests/client/gemmctl/gemmctl_runner.h"

#include <cstdio>

#include "client/gemmctl/command_line.h"

namespace gemmd {
namespace {

std::string Contents(std::FILE* file) {
  std::string text(static_cast<size_t>(std::ftell(file)), '\0');
  std::rewind(file);
  text.resize(std::fread(text.data(), 1, text.size(), file));
  std::fclose(file);
  return text;
}

}  // namespace

Outcome RunGemmctl(const std::vector<std::string>& arguments, const std::string& address,
                   const std::string& in, const std::string& session_folder) {
  const Console console = {std::tmpfile(), std::tmpfile(), std::tmpfile(), "gemmctl"};
  std::fwrite(in.data(), 1, in.size(), console.in);
  std::rewind(console.in);
  Outcome run = {};
  run.code = RunCommandLine(
      arguments, {.address = address, .session = {}, .session_folder = session_folder}, console);
  run.out = Contents(console.out);
  run.err = Contents(console.err);
  std::fclose(console.in);
  return run;
}

}  // namespace gemmd
