// SPDX-License-Identifier: Apache-2.0
#include "client/lane_choice.h"

#include <bit>

namespace gemmd {
namespace {

// The weight of the last transfer: one that something else disturbed does not decide alone.
constexpr double kWeight = 0.25;

}  // namespace

LaneChoice::Size& LaneChoice::SizeOf(int64_t bytes) {
  return sizes_[std::bit_width(static_cast<uint64_t>(bytes))];
}

int LaneChoice::For(int64_t bytes, int64_t least_bytes) {
  if (bytes <= least_bytes) return 1;
  absl::MutexLock lock(&mutex_);
  Size& size = SizeOf(bytes);
  const bool is_trial = ++size.transfers % kTransfersPerTrial == 0;
  const bool knows_one = size.ns_per_byte_of_one > 0;
  const bool knows_several = size.ns_per_byte_of_several > 0;
  bool takes_several = bytes > kLargeBytes;
  if (knows_one != knows_several) takes_several = knows_one;
  if (knows_one && knows_several) {
    const bool are_several_faster = size.ns_per_byte_of_several < size.ns_per_byte_of_one;
    takes_several = are_several_faster != is_trial;
  }
  return takes_several ? kSeveralLanes : 1;
}

void LaneChoice::Tell(int64_t bytes, int lanes, absl::Duration took) {
  const double ns = absl::ToDoubleNanoseconds(took);
  if (bytes <= 0 || !(ns > 0)) return;
  absl::MutexLock lock(&mutex_);
  Size& size = SizeOf(bytes);
  double& known = lanes == 1 ? size.ns_per_byte_of_one : size.ns_per_byte_of_several;
  const double seen = ns / static_cast<double>(bytes);
  known = known > 0 ? known + kWeight * (seen - known) : seen;
}

}  // namespace gemmd
