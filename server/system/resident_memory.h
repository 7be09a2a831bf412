// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>

namespace gemmd {

// The resident memory of this process in bytes; nothing where the system does not tell.
std::optional<int64_t> ResidentBytes();

// The bytes that this process may still map (RLIMIT_AS); nothing where there is no limit.
std::optional<int64_t> AddressSpaceLeft();

// The resident memory of a process that is its own alone, without files and memory that it shares;
// 0 where there is no such process.
int64_t OwnResidentBytes(pid_t process);

// What is used of a limit of so many bytes: what is resident. Where the address space ends before
// the limit does, the same part of the limit as of what can be resident.
std::optional<int64_t> UsedBytes(int64_t limit_bytes);

// Has malloc keep little of what is freed, at the start of a program. By default glibc makes eight
// arenas for each core, of which each keeps its own, and recycles blocks of up to 32 MiB. The price
// is that a block of 1 MiB or more is new memory each time, which the system fills with zeros:
// about 0.1 ms for each MiB.
void KeepLittleFreeMemory(int cores);

// Gives back to the system what malloc keeps. Takes milliseconds.
void GiveBackFreeMemory();

}  // namespace gemmd
