// SPDX-License-Identifier: Apache-2.0
//
// The machine that the load comes from: its clock, its processors and its name.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace gemmd {

// The number of stop requests from the user: 1 stops sending, 2 cancels the calls in progress. Set
// by a signal handler.
using StopRequests = std::atomic<int>;
inline constexpr int64_t kStopPatienceNs = 20'000'000;  // The max delay before a stop is noticed.

int64_t SteadyNowNs();

// Sleeps until `time_ns`, or until a stop request, when it returns false. Returns at once if the
// time has passed.
bool SleepUntil(int64_t time_ns, const StopRequests& stop);

// Sets the timer slack of this thread to its minimum. By default the kernel may wake the thread up
// to 50 us late, together with other threads.
void WakeThisThreadOnTime();

// CPU time of all threads so far.
int64_t ProcessCpuNs();

// Cores that this process may use: by its affinity, and by the quota of its control group.
double UsableCores();

// Cores of a quota in the format of a cgroup's cpu.max, "200000 100000"; infinite for "max" and for
// malformed text.
double CoresOfQuota(const std::string& cpu_max);

// Whether a server at `address`, in any gRPC form, runs on this machine, which is named
// `host_name`. For a list, the first address counts.
bool IsThisMachine(absl::string_view address, absl::string_view host_name);

std::string HostName();

struct ClientMachine {
  std::string host = {};
  std::string cpu = {};     // Empty if unknown.
  int cores = 0;            // The machine's.
  double usable_cores = 0;  // Usable by this process.
};
ClientMachine ThisMachine();

}  // namespace gemmd
