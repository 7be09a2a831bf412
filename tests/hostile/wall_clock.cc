// SPDX-License-Identifier: Apache-2.0
//
// A wall clock that a test sets while a daemon runs, without touching the machine's own: preloaded
// (LD_PRELOAD), it adds to CLOCK_REALTIME the nanoseconds that the file GEMMD_WALL_CLOCK holds.
//
// Waits until a time of that clock follow its jumps, also those under way, as they do where the
// kernel's clock is set: one whose time has come ends, one whose time is further away now goes on.
// Debian's libfaketime leaves such waits (futex) alone, so each would last as long as the clock is
// ahead.
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstdlib>
#include <ctime>

namespace {

constexpr int64_t kNsPerSecond = 1'000'000'000;
// The maximum delay until a wait notices that the clock has jumped.
constexpr int64_t kSliceNs = 20'000'000;

using Syscall = long (*)(long, ...);                 // NOLINT(google-runtime-int)
using ClockGettime = int (*)(clockid_t, timespec*);  // NOLINT(readability-identifier-naming)

constinit std::atomic<int64_t> no_offset = 0;
constinit std::atomic<std::atomic<int64_t>*> offset = &no_offset;
constinit std::atomic<Syscall> next_syscall = nullptr;
constinit std::atomic<ClockGettime> next_clock_gettime = nullptr;

template <typename Function>
Function Next(std::atomic<Function>& known, const char* name) {
  Function function = known.load(std::memory_order_relaxed);
  if (function != nullptr) return function;
  function = reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
  known.store(function, std::memory_order_relaxed);
  return function;
}

[[gnu::constructor]] void MapOffset() {
  const char* const path = std::getenv("GEMMD_WALL_CLOCK");
  if (path == nullptr) return;
  const int file = open(path, O_RDWR | O_CLOEXEC);
  if (file < 0) std::abort();
  void* const mapped =
      mmap(nullptr, sizeof(std::atomic<int64_t>), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (mapped == MAP_FAILED) std::abort();
  offset = static_cast<std::atomic<int64_t>*>(mapped);
}

bool IsWall(clockid_t clock) { return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE; }

int64_t InNs(const timespec& time) { return time.tv_sec * kNsPerSecond + time.tv_nsec; }

timespec OfNs(int64_t ns) { return {.tv_sec = ns / kNsPerSecond, .tv_nsec = ns % kNsPerSecond}; }

int64_t OffsetNs() {
  return offset.load(std::memory_order_relaxed)->load(std::memory_order_relaxed);
}

int64_t MachineNs(clockid_t clock) {
  timespec now = {};
  Next(next_clock_gettime, "clock_gettime")(clock, &now);
  return InNs(now);
}

int64_t WallNs() { return MachineNs(CLOCK_REALTIME) + OffsetNs(); }

// FUTEX_WAIT_BITSET until a time of the wall clock.
long WaitUntil(const long (&words)[6]) {  // NOLINT(google-runtime-int)
  // NOLINTNEXTLINE(performance-no-int-to-ptr): it came as a pointer.
  const int64_t until_ns = InNs(*reinterpret_cast<const timespec*>(words[3]));
  while (true) {
    const int64_t left_ns = until_ns - WallNs();
    if (left_ns <= 0) {
      errno = ETIMEDOUT;
      return -1;
    }
    const timespec until = OfNs(MachineNs(CLOCK_REALTIME) + std::min(left_ns, kSliceNs));
    const auto result = Next(next_syscall, "syscall")(SYS_futex, words[0], words[1], words[2],
                                                      &until, words[4], words[5]);
    if (result == 0 || errno != ETIMEDOUT) return result;
  }
}

}  // namespace

extern "C" {

int clock_gettime(clockid_t clock, timespec* time) noexcept {
  const int result = Next(next_clock_gettime, "clock_gettime")(clock, time);
  if (result == 0 && IsWall(clock)) *time = OfNs(InNs(*time) + OffsetNs());
  return result;
}

int gettimeofday(timeval* time, void* /*zone*/) noexcept {
  const int64_t now_ns = WallNs();
  time->tv_sec = now_ns / kNsPerSecond;
  time->tv_usec = now_ns % kNsPerSecond / 1000;
  return 0;
}

time_t time(time_t* result) noexcept {
  const time_t now = WallNs() / kNsPerSecond;
  if (result != nullptr) *result = now;
  return now;
}

long syscall(long number, ...) noexcept {  // NOLINT(google-runtime-int)
  long words[6];                           // NOLINT(google-runtime-int)
  va_list rest;
  va_start(rest, number);
  for (auto& word : words) word = va_arg(rest, long);  // NOLINT(google-runtime-int)
  va_end(rest);
  constexpr int kUntilWall = FUTEX_WAIT_BITSET | FUTEX_CLOCK_REALTIME;
  if (number == SYS_futex && words[3] != 0 && (words[1] & ~FUTEX_PRIVATE_FLAG) == kUntilWall) {
    return WaitUntil(words);
  }
  return Next(next_syscall, "syscall")(number, words[0], words[1], words[2], words[3], words[4],
                                       words[5]);
}

}  // extern "C"
