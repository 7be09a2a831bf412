// SPDX-License-Identifier: Apache-2.0
//
// Whole files of text, read and written.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace gemmd {

// Errors: NotFound, naming the path and why.
absl::StatusOr<std::string> ReadTextFile(const std::string& path);

// Whether WriteTextFile can be expected to succeed; a file that is there stays as it is.
// Errors: PermissionDenied, naming the path and why.
absl::Status CheckWritable(const std::string& path);

// Puts a file with that text in the place of the old one, which stays whole where this fails. What
// is no regular file (a pipe, /dev/stdout) is written to.
// Errors: as CheckWritable.
absl::Status WriteTextFile(const std::string& path, const std::string& text);

}  // namespace gemmd
