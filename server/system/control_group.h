// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace gemmd {

// The memory in bytes to which the control groups of this process, of version 1 or 2, limit it: the
// least limit of its own group and of those that contain it. Nothing where none has a limit.
// `root` stands for the root of the file system.
std::optional<int64_t> ControlGroupMemoryLimit(const std::string& root = "/");

}  // namespace gemmd
