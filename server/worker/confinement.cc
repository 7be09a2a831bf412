// SPDX-License-Identifier: Apache-2.0
#include "server/worker/confinement.h"

#include <sys/prctl.h>

#include "kernels/text.h"
#include "server/worker/call_filter.h"
#include "server/worker/file_rules.h"

namespace gemmd {
namespace {

void AddToList(std::string& list, std::string_view word) {
  list += Concat(list.empty() ? "" : ", ", word);
}

}  // namespace

void Confinement::LimitFiles(const std::vector<std::string>& writable) {
  const absl::StatusOr<int> version = LimitWriting(writable);
  if (version.ok()) {
    AddToList(means_, Concat("landlock ", *version));
  } else {
    AddToList(missing_, std::string(version.status().message()));
  }
}

void Confinement::LimitCalls() {
  prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
  const absl::Status filtered = FilterCalls();
  if (filtered.ok()) {
    AddToList(means_, "seccomp");
  } else {
    AddToList(missing_, std::string(filtered.message()));
  }
}

}  // namespace gemmd
