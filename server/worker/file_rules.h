// SPDX-License-Identifier: Apache-2.0
//
// What a worker may change outside of itself, by landlock: nothing but what it is given.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace gemmd {

// From then on this thread, and the threads that it starts, may write, make and remove files in
// these folders (or write these files) only; what there is not of them is left out. Reading is as
// before. Where the kernel knows how, they may neither use TCP nor signal other processes.
//
// Returns the version of landlock. Errors: Unimplemented where the kernel has none, Unavailable
// where it does not take the rules; the process has all of its rights then.
absl::StatusOr<int> LimitWriting(const std::vector<std::string>& writable);

}  // namespace gemmd
