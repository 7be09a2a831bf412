// SPDX-License-Identifier: Apache-2.0
//
// The client that the global flags ask for.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/gemmctl/command.h"
#include "gemmd/client.h"

namespace gemmd {

// "90", "1.5" (seconds), "500ms", "2m".
// Errors: InvalidArgument unless it is a positive, finite time; names the flag.
absl::StatusOr<absl::Duration> ParseTimeout(const std::string& text,
                                            const std::string& flag = "--timeout");

// Errors: InvalidArgument for a bad address or timeout. `default_timeout` where no flag gives one.
absl::StatusOr<Client> Connect(const GlobalFlags& flags,
                               absl::Duration default_timeout = absl::Seconds(60));

}  // namespace gemmd
