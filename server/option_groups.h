// SPDX-License-Identifier: Apache-2.0
//
// Options of the daemon by what their values are, and those that say who may, what is checked and
// what tensors take.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "server/options.h"

namespace gemmd {

// Adds an option whose value is a duration such as 250ms, 5s or 1m30s, from `least` to ten years.
void AddDuration(CLI::App& app, const std::string& name, absl::Duration& value,
                 const std::string& description, const std::string& group,
                 absl::Duration least = absl::ZeroDuration());

// Adds an option whose value is a count of bytes such as 4096, 512MiB or 4GiB: 0, or from `least`.
void AddBytes(CLI::App& app, const std::string& name, int64_t& value,
              const std::string& description, const std::string& group, int64_t least = 0);

// Adds an option that is on or off.
void AddSwitch(CLI::App& app, const std::string& name, bool& value, const std::string& description,
               const std::string& group);

// Adds an option whose value is a list with commas; where the option is repeated, the lists are
// joined.
CLI::Option* AddList(CLI::App& app, const std::string& name, std::vector<std::string>& values,
                     const std::string& description);

// Certificates of addresses, callers, checks of answers, and resident tensors.
void AddUnixSockets(CLI::App& app, SocketAccess& access);
void AddCertificates(CLI::App& app, TransportOptions& transport);
void AddCallers(CLI::App& app, Options& options);
void AddVerification(CLI::App& app, Options& options);
void AddTensors(CLI::App& app, Options& options);

}  // namespace gemmd
