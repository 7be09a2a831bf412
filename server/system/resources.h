// SPDX-License-Identifier: Apache-2.0
//
// What this process uses of memory, addresses and processors, and what it may use.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"

namespace gemmd {

// The resident memory of this process in bytes; nothing where the system does not tell.
std::optional<int64_t> ResidentBytes();

// The bytes that this process may still map (RLIMIT_AS); nothing where there is no limit.
std::optional<int64_t> AddressSpaceLeft();

// The resident memory of a process that is its own alone, without files and memory that it shares;
// 0 where there is no such process.
int64_t OwnResidentBytes(pid_t process);

// What is used of a limit of so many bytes: what is resident, and `shared_bytes` of memory that
// this process shares with others, which is there although only another one has touched it. Where
// the address space ends before the limit does, the same part of the limit as of what can be
// resident.
std::optional<int64_t> UsedBytes(int64_t limit_bytes, int64_t shared_bytes);

// Has malloc keep little of what is freed, at the start of a program. By default glibc makes eight
// arenas for each core, of which each keeps its own, and recycles blocks of up to 32 MiB. The price
// is that a block of 1 MiB or more is new memory each time, which the system fills with zeros:
// about 0.1 ms for each MiB.
void KeepLittleFreeMemory(int cores);

// Gives back to the system what malloc keeps. Takes milliseconds.
void GiveBackFreeMemory();

// The addresses that connections, threads and messages take while a matrix is there. gRPC and
// Abseil end the process when they cannot get a few bytes or start a thread. So a daemon that would
// leave them too few (ulimit -v) does not start, and before any large allocation the daemon checks
// that enough would be left for them.
inline constexpr size_t kSpareAddresses = size_t{32} << 20;

// Whether the process may map so much more (ulimit -v). Tries it, because AddressSpaceLeft needs a
// descriptor, which may be short as well. Threads: any.
bool HasSpareAddresses();

// Where addresses are limited, gives the threads that begin from now on stacks of 2 MiB (by default
// they are as large as ulimit -s, mostly 8 MiB), and fails where too few are left for what serves
// even a small product. gRPC starts up to three threads for each processor of the machine.
absl::Status PrepareForFewAddresses();

// The memory in bytes to which the control groups of this process, of version 1 or 2, limit it: the
// least limit of its own group and of those that contain it. Nothing where none has a limit.
// `root` stands for the root of the file system.
std::optional<int64_t> ControlGroupMemoryLimit(const std::string& root = "/");

// How many of the machine's processors the calling thread may run on: at least 1. What the C++
// library calls its concurrency is those of the whole machine. Source: sched_getaffinity(2).
int UsableProcessors();

}  // namespace gemmd
