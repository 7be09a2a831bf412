// SPDX-License-Identifier: Apache-2.0
//
// Files that a user told a program to write.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace gemmd::bench {

// Whether the path leads to a pipe, a terminal or a device, or to what standard output goes to.
bool IsStream(const std::string& path);

// Writes into a stream. Another file is replaced by a new one once that is whole, and stays as it
// is if that fails. Links are followed, even to a file that is not there yet. Errors: NotFound,
// with the path and why.
absl::Status WriteOutputFile(const std::string& path, std::string_view text);

}  // namespace gemmd::bench
