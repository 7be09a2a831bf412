// SPDX-License-Identifier: Apache-2.0
//
// Files that a user names. A pipe or a device that is named by mistake is refused at once: opening
// or reading one may last for ever.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "server/system/file_descriptor.h"

namespace gemmd {

// Opens with the flags of open(2); a new file can be read by others. Symbolic links are followed.
// Errors: InvalidArgument: "cannot open FILE: No such file or directory", "got FILE, want a regular
// file".
absl::StatusOr<FileDescriptor> OpenRegularFile(const std::string& path, int flags);

// The bytes of a file, but no more than one beyond `most_bytes`. Errors: as above, and where
// reading fails.
absl::StatusOr<std::string> ReadRegularFile(const std::string& path, size_t most_bytes);

}  // namespace gemmd
