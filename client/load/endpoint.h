// SPDX-License-Identifier: Apache-2.0
//
// What the address of a server says about where it is.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace gemmd {

// Whether a server at that address, in any form that gRPC takes, runs on the machine of that name,
// which is this one. If `address` is a list, its first address counts.
bool IsThisMachine(absl::string_view address, absl::string_view host_name);

std::string HostName();

}  // namespace gemmd
