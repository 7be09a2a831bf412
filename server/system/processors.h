// SPDX-License-Identifier: Apache-2.0
//
// The processors of this process.
#pragma once

namespace gemmd {

// How many of the machine's processors the calling thread may run on: at least 1. What the C++
// library calls its concurrency is those of the whole machine. Source: sched_getaffinity(2).
int UsableProcessors();

}  // namespace gemmd
