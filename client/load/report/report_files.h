// SPDX-License-Identifier: Apache-2.0
//
// The files that a report goes to.
#pragma once

#include "absl/status/status.h"
#include "client/load/load_clock.h"
#include "client/load/load_flags.h"
#include "client/load/report/report.h"

namespace gemmd {

// Whether each file can be written and none is also another one or what the load is made from.
// This is known before a long run, not after it, and changes no file.
// Errors: InvalidArgument, PermissionDenied.
absl::Status CheckReportFiles(const LoadFlags& flags, const Mix& mix);

// Writes as many of them as it can. A pipe without a reader is not waited for once `stop` counts.
// Errors: PermissionDenied, of the first that it could not.
absl::Status WriteReportFiles(const LoadFlags& flags, const LoadReport& report,
                              const StopRequests& stop);

}  // namespace gemmd
