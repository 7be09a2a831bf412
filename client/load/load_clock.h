// SPDX-License-Identifier: Apache-2.0
//
// The clock of the load tester: monotone nanoseconds, and sleep that ends close to its time.
#pragma once

#include <atomic>
#include <cstdint>

namespace gemmd {

// How often the user has asked for the end: 1 stops sending, 2 gives up the calls under way. Set by
// a signal handler.
using StopRequests = std::atomic<int>;

int64_t SteadyNowNs();

// Sleeps until then, or until a stop is asked for; false in that case. Returns at once for the
// past.
bool SleepUntil(int64_t time_ns, const StopRequests& stop);

// Asks the kernel to wake this thread at the time asked for. Otherwise the kernel may wake it up to
// 50 us later, together with other threads.
void WakeThisThreadOnTime();

}  // namespace gemmd
