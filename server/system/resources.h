// SPDX-License-Identifier: Apache-2.0
//
// The memory, address space and processors that this process uses and may use.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"

namespace gemmd {

// The resident memory of this process in bytes; nullopt if the system does not report it.
std::optional<int64_t> ResidentBytes();

// The bytes that this process may still map (RLIMIT_AS); nullopt if there is no limit.
std::optional<int64_t> AddressSpaceLeft();

// The private resident memory of a process, without files and shared memory; 0 if there is no such
// process.
int64_t OwnResidentBytes(pid_t process);

// The used bytes of a limit: resident memory, and `shared_bytes` of memory shared with other
// processes, which is resident although only another process has touched it. If the address space
// ends before the limit, the result is scaled: the same share of the limit as of what can be
// resident.
std::optional<int64_t> UsedBytes(int64_t limit_bytes, int64_t shared_bytes);

// Makes malloc keep little freed memory; call it at the start of a program. By default glibc makes
// eight arenas per core, each with its own free memory, and recycles blocks of up to 32 MiB. The
// cost: a block of 1 MiB or more is new memory each time, which the system fills with zeros, about
// 0.1 ms per MiB.
void KeepLittleFreeMemory(int cores);

// Returns the free memory of malloc to the system. Takes milliseconds.
void GiveBackFreeMemory();

// Address space for connections, threads and messages while a matrix is in memory. gRPC and Abseil
// end the process when they cannot allocate a few bytes or start a thread. So the daemon does not
// start if too little would be left for them (ulimit -v), and checks this before any large
// allocation.
inline constexpr size_t kSpareAddresses = size_t{32} << 20;

// Whether the process can map that much more (ulimit -v). Tries it, because AddressSpaceLeft needs
// a file descriptor, and none may be left. Threads: any.
bool HasSpareAddresses();

// If the address space is limited, gives threads started from now on stacks of 2 MiB (the default
// is ulimit -s, mostly 8 MiB), and fails if too little is left to serve even a small product. gRPC
// starts up to three threads for each processor of the machine.
absl::Status PrepareForFewAddresses();

// The memory limit in bytes from the control groups of this process, version 1 or 2: the lowest
// limit of its group and the parents of that. nullopt if none has a limit. `root` replaces the root
// of the file system.
std::optional<int64_t> ControlGroupMemoryLimit(const std::string& root = "/");

// The number of processors on which the calling thread may run: at least 1.
// std::thread::hardware_concurrency may count those of the whole machine. Source:
// sched_getaffinity(2).
int UsableProcessors();

}  // namespace gemmd
