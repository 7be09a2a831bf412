// SPDX-License-Identifier: Apache-2.0
//
// The checks of `gemmctl doctor`, one after the other.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/gemmctl/command.h"
#include "client/gemmctl/doctor_report.h"

namespace gemmd {

// Looks at the server until `deadline`; what is not looked at by then is a failure. Where the
// server does not answer at all, the checks that need an answer are left out.
// Errors: InvalidArgument for a bad address or option.
absl::StatusOr<std::vector<Check>> Examine(const GlobalFlags& global, absl::Time deadline);

}  // namespace gemmd
