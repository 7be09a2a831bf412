// SPDX-License-Identifier: Apache-2.0
//
// What a worker may not ask of the kernel once it has its GPU: a list of what no GPU's worker
// needs, because what the driver needs differs from one release to the next and is written down
// nowhere.
#pragma once

#include "absl/status/status.h"

namespace gemmd {

// From then on every thread of the process gets EPERM for other programs (execve), other processes
// (ptrace, process_vm_readv), sockets that are not of AF_UNIX, namespaces, mounts, kernel modules,
// keys, BPF, performance events, io_uring, clocks and their like. The threads that there are keep
// their other rights, and children have no more.
//
// Errors: Unimplemented on processors of other instruction sets; Unavailable where the kernel does
// not take the filter; the process has all of its rights then.
absl::Status FilterCalls();

}  // namespace gemmd
