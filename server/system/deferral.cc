// SPDX-License-Identifier: Apache-2.0
#include "server/system/deferral.h"

#include <algorithm>
#include <utility>

namespace gemmd {

namespace {

thread_local Deferral* outermost = nullptr;

}  // namespace

Deferral::Deferral() {
  if (outermost != nullptr) return;
  is_outermost_ = true;
  outermost = this;
}

Deferral::~Deferral() {
  if (!is_outermost_) return;
  outermost = nullptr;
  for (size_t i = 0; i < count_; ++i) waiting_[i]->RunDeferred();
}

bool Deferral::PutOff(std::shared_ptr<Deferred> work) {
  if (outermost == nullptr) return false;
  auto& waiting = outermost->waiting_;
  size_t& count = outermost->count_;
  const auto end = waiting.begin() + count;
  if (std::find(waiting.begin(), end, work) != end) return true;
  if (count == waiting.size()) return false;
  waiting[count++] = std::move(work);
  return true;
}

}  // namespace gemmd
