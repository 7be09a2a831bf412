// SPDX-License-Identifier: Apache-2.0
//
// Which files the options of a program make it write.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace gemmd {

// A file that an option names; an empty path names none.
struct OptionFile {
  std::string_view option;
  std::string path;
};

// Checks that each output is a file of its own: neither another output nor one of the inputs, by
// whatever path. A device such as /dev/null may be named twice.
// Errors: InvalidArgument, naming both options.
absl::Status CheckOutputs(std::span<const OptionFile> outputs, std::span<const OptionFile> inputs);

}  // namespace gemmd
