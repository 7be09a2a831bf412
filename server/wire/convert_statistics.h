// SPDX-License-Identifier: Apache-2.0
//
// The daemon at one moment, as the wire shows it.
#pragma once

#include "gemmd/v1/statistics.pb.h"
#include "server/metrics/observer.h"

namespace gemmd {

v1::GetStatisticsResponse ToWire(const Snapshot& snapshot, int64_t uptime_ns,
                                 int64_t started_unix_ns);

}  // namespace gemmd
