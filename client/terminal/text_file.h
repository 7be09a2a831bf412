// SPDX-License-Identifier: Apache-2.0
//
// Whole files of text, read and written.
#pragma once

#include <atomic>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace gemmd {

// Errors: NotFound, naming the path and why.
absl::StatusOr<std::string> ReadTextFile(const std::string& path);

// Whether WriteTextFile can be expected to succeed; a file that is there stays as it is.
// Errors: PermissionDenied, naming the path and why.
absl::Status CheckWritable(const std::string& path);

// Writes an OutputFile; `stops` is that of its Open. Errors: as CheckWritable.
absl::Status WriteTextFile(const std::string& path, const std::string& text,
                           const std::atomic<int>* stops = nullptr);

}  // namespace gemmd
