// SPDX-License-Identifier: Apache-2.0
//
// Keeps room for everything but matrices, where the process may map little (ulimit -v). gRPC and
// Abseil end the process when they cannot get a few bytes or start a thread. So a daemon that would
// leave them too little does not start, and before any large allocation the daemon checks that
// enough would be left for them.
#pragma once

#include <cstddef>

#include "absl/status/status.h"

namespace gemmd {

// What connections, threads and messages take while a matrix is there.
inline constexpr size_t kSpareAddresses = size_t{32} << 20;

// Whether the process may map so much more (ulimit -v). Tries it, because AddressSpaceLeft needs a
// descriptor, which may be short as well. Threads: any.
bool HasSpareAddresses();

// Where addresses are limited, gives the threads that begin from now on stacks of 2 MiB (by default
// they are as large as ulimit -s, mostly 8 MiB), and fails where too few are left for what serves
// even a small product. gRPC starts up to three threads for each processor of the machine.
absl::Status PrepareForFewAddresses();

}  // namespace gemmd
