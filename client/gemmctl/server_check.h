// SPDX-License-Identifier: Apache-2.0
//
// The check of D that the server makes before it answers: how the command line asks for it, and
// what came of it. (`multiply --verify` compares D here instead, once it has come.)
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/terminal/option.h"
#include "gemmd/product.h"
#include "gemmd/v1/gemm.pb.h"

namespace gemmd {

// "none", "sampled", "sampled:0.001", "checksum" or "duplicate"; nothing leaves it to the server.
// Errors: InvalidArgument.
absl::StatusOr<ServerCheck> ParseServerCheck(absl::string_view text);

// Adds --server-verify, which sets `text`.
CommandOption AddServerCheck(CLI::App& app, std::string& text);

// Lines that say what was checked, at what cost, and how likely a wrong element was missed.
std::string ServerCheckText(const v1::Verification& check, int64_t total_ns);

}  // namespace gemmd
