// SPDX-License-Identifier: Apache-2.0
#include "server/system/spare_addresses.h"

#include <sys/mman.h>
#include <sys/resource.h>

namespace gemmd {

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

}  // namespace gemmd
