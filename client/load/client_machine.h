// SPDX-License-Identifier: Apache-2.0
//
// The machine that the load comes from: its clock, its processors and its name.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace gemmd {

// How often the user has asked for the end: 1 stops sending, 2 gives up the calls under way. Set by
// a signal handler.
using StopRequests = std::atomic<int>;
inline constexpr int64_t kStopPatienceNs = 20'000'000;  // How late a stop may be noticed.

int64_t SteadyNowNs();

// Sleeps until then, or until a stop is asked for; false in that case. Returns at once for the
// past.
bool SleepUntil(int64_t time_ns, const StopRequests& stop);

// Asks the kernel to wake this thread at the time asked for. Otherwise the kernel may wake it up to
// 50 us later, together with other threads.
void WakeThisThreadOnTime();

// CPU time of all threads so far.
int64_t ProcessCpuNs();

// Cores that this process may use: by its affinity, and by the quota of its control group.
double UsableCores();

// Cores of a quota as cpu.max of a control group has it, "200000 100000"; infinite for "max" and
// for what is none.
double CoresOfQuota(const std::string& cpu_max);

// Whether a server at that address, in any form that gRPC takes, runs on the machine of that name,
// which is this one. If `address` is a list, its first address counts.
bool IsThisMachine(absl::string_view address, absl::string_view host_name);

std::string HostName();

struct ClientMachine {
  std::string host = {};
  std::string cpu = {};     // Empty: the system does not say.
  int cores = 0;            // The machine's.
  double usable_cores = 0;  // By this process.
};
ClientMachine ThisMachine();

}  // namespace gemmd
