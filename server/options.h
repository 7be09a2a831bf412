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
  std::string ready_file;  // Written with the addresses once the daemon serves.
  absl::Duration lame_duck = absl::Seconds(1);
  absl::Duration grace = absl::Seconds(20);
  absl::Duration max_backlog = absl::Nanoseconds(Admission::Limits().max_backlog_ns);
  std::string log_level = "info";
  LogFormat log_format = LogFormat::kText;
  std::string audit_log;  // A file, or stderr; empty means none.
};

// Which line of the file that --config names gives which option.
class ConfigPlaces {
 public:
  ConfigPlaces() = default;  // There is no file.

  // Options that are on the command line are not of the file: they are taken from there.
  ConfigPlaces(const CLI::App& app, int argc, const char* const* argv);

  // "FILE:LINE: " where a message is about an option of the file: "--grace: got soon, want ...",
  // "tls-cert: got ...", or CLI11's own words; otherwise empty. Of several lines of an option the
  // one whose value the message says it got, or else the first.
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

// What is wrong with a value, where, without the option's name a second time.
std::string TextOf(const ConfigPlaces& places, const std::string& text);

// How parsing ended: with options to run with, or with text to show and the exit code.
struct ParsedOptions {
  Options options;
  bool should_run = false;
  int exit_code = 0;
  std::string text;  // Help, version or the error.
  ConfigPlaces places;
};

// Parses the command line. `--config FILE` gives options by the same names; the command line wins.
ParsedOptions ParseOptions(int argc, const char* const* argv);

}  // namespace gemmd
