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

// Reads a time such as "90", "1.5" (seconds), "500ms" or "2m".
// Errors: InvalidArgument, naming the flag, unless the text is a positive, finite time.
absl::StatusOr<absl::Duration> ParseTimeout(const std::string& text,
                                            const std::string& flag = "--timeout");

// `default_timeout` counts where no flag gives one. Errors: InvalidArgument for a bad address or
// timeout.
absl::StatusOr<Client> Connect(const GlobalFlags& flags,
                               absl::Duration default_timeout = absl::Seconds(60));

}  // namespace gemmd
