// SPDX-License-Identifier: Apache-2.0
#include "server/system/spare_addresses.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>

#include <algorithm>
#include <cstdint>
#include <optional>

#include "absl/strings/str_cat.h"
#include "server/system/resident_memory.h"

namespace gemmd {

namespace {

constexpr size_t kStackBytes = size_t{2} << 20;

void UseSmallerStacks() {
  pthread_attr_t attributes;
  if (pthread_getattr_default_np(&attributes) != 0) return;
  size_t bytes = 0;
  pthread_attr_getstacksize(&attributes, &bytes);
  pthread_attr_setstacksize(&attributes, std::min(bytes, kStackBytes));
  pthread_setattr_default_np(&attributes);
  pthread_attr_destroy(&attributes);
}

}  // namespace

bool HasSpareAddresses() {
  rlimit limit = {};
  // The usual case: a mapping would hold up all threads that wait for pages.
  if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur == RLIM_INFINITY) return true;
  void* const probe =
      mmap(nullptr, kSpareAddresses, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (probe == MAP_FAILED) return false;
  munmap(probe, kSpareAddresses);
  return true;
}

absl::Status PrepareForFewAddresses() {
  const std::optional<int64_t> left_bytes = AddressSpaceLeft();
  if (!left_bytes) return absl::OkStatus();
  UseSmallerStacks();
  constexpr int64_t kMib = int64_t{1} << 20;
  const int processors = get_nprocs_conf();
  const int64_t wanted_mib = 192 + 4 * int64_t{processors};
  if (*left_bytes >= wanted_mib * kMib) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("ulimit -v leaves ", *left_bytes / kMib, " MiB of addresses, want at least ",
                   wanted_mib, " MiB on a machine of ", processors, " processors"));
}

}  // namespace gemmd
