// SPDX-License-Identifier: Apache-2.0
//
// The command line of gemmload: its flags, help, exit codes, and where its report goes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "client/load/client_machine.h"
#include "client/terminal/console.h"
#include "client/terminal/option.h"

namespace gemmd {

struct LoadReport;

// The parsed command line of gemmload.
struct LoadFlags {
  std::vector<std::string> addresses;
  SecurityFlags security = {};
  int channels = 1;
  int owners = 1;
  int streams = 0;  // Streams per client; 0: unary calls.
  int retries = 0;
  bool wait_for_ready = false;

  // Products.
  std::string profile;  // Empty: "small", unless other products are given.
  std::string mix_path;
  std::vector<int64_t> shape;  // m, n, k.
  std::string type;            // Empty: that of the files, or f32.
  std::string output_type;
  bool fast_accumulation = false;
  int64_t batch = 1;
  bool sparse = false;
  std::string b_order = "row";
  std::string kernel;  // For every product without a kernel.
  std::string device;
  std::string a_path;
  std::string b_path;
  std::string operands = "inline";
  std::string values = "integers";
  double verified_share = 0.01;

  // Load.
  std::vector<int> concurrency;
  std::vector<double> rates;
  std::string arrivals = "constant";
  double ramp_to = 0;  // 0: no ramp.
  std::string replay_path;
  std::string slo;
  int64_t max_in_flight = 10000;
  uint64_t seed = 1;

  // Duration.
  std::string duration;  // Empty: 10 s, or until the count is reached.
  std::string warmup = "1s";
  int64_t count = 0;
  std::string timeout = "10s";
  std::string interval = "1s";

  // Files for the report.
  std::string json_path;
  std::string csv_path;
  std::string html_path;
  bool is_quiet = false;
  std::string metrics_address;  // Empty: none are served.

  std::string command;  // The whole command line, for the report.
};

// Runs gemmload with the arguments after its name. `address`: the server's default address.
// `is_terminal`: whether the console's `err` is a terminal, whose line can be rewritten.
// `security`: defaults for the flags.
ExitCode RunGemmload(const std::vector<std::string>& arguments, const std::string& address,
                     const Console& console, bool is_terminal, const StopRequests& stop,
                     const SecurityFlags& security = {});

// The exit code of a session that has a report.
ExitCode ExitCodeOf(const LoadReport& report);

}  // namespace gemmd
