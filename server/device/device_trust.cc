// SPDX-License-Identifier: Apache-2.0
#include "server/device/device_trust.h"

#include <algorithm>

#include "kernels/text.h"

namespace gemmd {

bool DeviceTrust::AddWrongAnswer(const Kernel& kernel) {
  MutexLock lock(&mutex_);
  if (std::find(quarantined_.begin(), quarantined_.end(), &kernel) == quarantined_.end()) {
    quarantined_.push_back(&kernel);
  }
  return ++wrong_answers_ == kMostWrongAnswers + 1;
}

std::vector<const Kernel*> DeviceTrust::quarantined() const {
  if (wrong_answers_ == 0) return {};
  MutexLock lock(&mutex_);
  return quarantined_;
}

absl::Status DeviceTrust::status() const {
  const int64_t count = wrong_answers_;
  if (count <= kMostWrongAnswers) return absl::OkStatus();
  return absl::UnavailableError(Concat("it gave ", count, " wrong answers"));
}

}  // namespace gemmd
