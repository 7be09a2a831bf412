// SPDX-License-Identifier: Apache-2.0
//
// The daemon's command line and configuration file.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "server/device/devices.h"
#include "server/server.h"
#include "server/system/log.h"

namespace CLI {
class App;
}  // namespace CLI

namespace gemmd {

struct Options {
  ServerOptions server;
  DeviceOptions devices;
  std::string ready_file;  // Written once the daemon serves; contains its addresses.
  absl::Duration lame_duck = absl::Seconds(1);
  absl::Duration grace = absl::Seconds(20);
  absl::Duration max_backlog = absl::Nanoseconds(Admission::Limits().max_backlog_ns);
  std::string log_level = "info";
  LogFormat log_format = LogFormat::kText;
  std::string audit_log;  // A file, or stderr; empty means none.
};

// The lines of the --config file on which options are set.
class ConfigPlaces {
 public:
  ConfigPlaces() = default;  // There is no file.

  // Leaves out options that are on the command line, which override the file.
  ConfigPlaces(const CLI::App& app, int argc, const char* const* argv);

  // "FILE:LINE: " if a message is about an option from the file: "--grace: got soon, want ...",
  // "tls-cert: got ...", or CLI11's own text; otherwise empty. If several lines set the option,
  // prefers the line whose value the message quotes, then the first.
  std::string Of(std::string_view message) const;

 private:
  struct Line {
    int number = 0;
    std::string option;  // Or the name of a section.
    std::string value;
  };

  std::string path_;
  std::vector<Line> lines_;
};

// The text of an error: where, and what is wrong with a value, without repeating the option's name.
std::string TextOf(const ConfigPlaces& places, const std::string& text);

// The result of parsing: options to run with, or a text to print and the exit code.
struct ParsedOptions {
  Options options;
  bool should_run = false;
  int exit_code = 0;
  std::string text;  // Help, version or the error.
  ConfigPlaces places;
};

// Parses the command line. The file of `--config FILE` sets options by the same names; the command
// line overrides it.
ParsedOptions ParseOptions(int argc, const char* const* argv);

}  // namespace gemmd
