// SPDX-License-Identifier: Apache-2.0
//
// Room that matrices leave to everything else. gRPC and Abseil end the process where they get no
// memory for a few bytes, so whoever takes much looks whether little is left, and then does
// without.
#pragma once

#include <cstddef>

namespace gemmd {

// What connections, threads and messages take while a matrix is there.
inline constexpr size_t kSpareAddresses = size_t{32} << 20;

// Whether the process may map so much more (ulimit -v). Tries it, because AddressSpaceLeft needs a
// descriptor, which may be short as well. Threads: any.
bool HasSpareAddresses();

}  // namespace gemmd
