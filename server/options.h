// SPDX-License-Identifier: Apache-2.0
//
// The daemon's command line and configuration file.
#pragma once

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "server/config_place.h"
#include "server/device/devices.h"
#include "server/server.h"
#include "server/system/log.h"

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
  std::string log_file;   // Empty means standard error.
  std::string audit_log;  // A file, or stderr; empty means none.
  int64_t audit_lines_per_second = 1000;
};

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
