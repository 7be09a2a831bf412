// SPDX-License-Identifier: Apache-2.0
//
// Has the libraries' timed waits go by the steady clock. Abseil 20220623, and with it all of gRPC
// 1.51, waits until a time of the wall clock: were that set back by an hour, gRPC's timers, which
// see to handshakes, pings and the ages of connections, would stand still for an hour.
//
// Abseil asks the kernel through the C library's function `syscall`. This program has its own,
// which all libraries find first; it changes those waits alone and passes on everything else.
#include <dlfcn.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdarg>
#include <cstdint>
#include <ctime>

namespace {

using Word = long;  // NOLINT(google-runtime-int): as the C library declares it.
using Syscall = Word (*)(Word, ...);

constexpr int64_t kNsPerSecond = 1'000'000'000;

int64_t InNs(const timespec& time) { return time.tv_sec * kNsPerSecond + time.tv_nsec; }

int64_t NowNs(clockid_t clock) {
  timespec now = {};
  clock_gettime(clock, &now);
  return InNs(now);
}

// When the steady clock will be as far on as the wall clock is at `until`, unless that is set
// meanwhile.
timespec OnSteadyClock(const timespec& until) {
  const int64_t left_ns = InNs(until) - NowNs(CLOCK_REALTIME);
  const int64_t ns = std::max(NowNs(CLOCK_MONOTONIC) + left_ns, int64_t{0});
  return {.tv_sec = ns / kNsPerSecond, .tv_nsec = ns % kNsPerSecond};
}

bool IsUntilWallTime(Word operation) {
  return (operation & ~FUTEX_PRIVATE_FLAG) == (FUTEX_WAIT_BITSET | FUTEX_CLOCK_REALTIME);
}

Syscall LibrarysSyscall() {
  // No static variable of a function: what guards those may wait by a call of `syscall`.
  static constinit Syscall found = nullptr;
  Syscall known = __atomic_load_n(&found, __ATOMIC_RELAXED);
  if (known == nullptr) {
    known = reinterpret_cast<Syscall>(dlsym(RTLD_NEXT, "syscall"));
    __atomic_store_n(&found, known, __ATOMIC_RELAXED);
  }
  return known;
}

}  // namespace

// Callers pass as many words as their call has; what is read beyond them is passed on and ignored.
extern "C" [[gnu::no_sanitize_address]] Word syscall(Word number, ...) noexcept {
  Word words[6];
  va_list rest;
  va_start(rest, number);
  for (Word& word : words) word = va_arg(rest, Word);
  va_end(rest);
  timespec until = {};
  if (number == SYS_futex && IsUntilWallTime(words[1]) && words[3] != 0) {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): it came as a pointer.
    until = OnSteadyClock(*reinterpret_cast<const timespec*>(words[3]));
    words[1] &= ~Word{FUTEX_CLOCK_REALTIME};
    words[3] = reinterpret_cast<Word>(&until);
  }
  return LibrarysSyscall()(number, words[0], words[1], words[2], words[3], words[4], words[5]);
}
