// SPDX-License-Identifier: Apache-2.0
//
// Room for everything but matrices, where the process may map little (ulimit -v). gRPC and Abseil
// end the process where they get no memory for a few bytes or for a thread, so a daemon that would
// have too little for them does not start, and whoever takes much looks whether little is left, and
// then does without.
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
