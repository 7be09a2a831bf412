// SPDX-License-Identifier: Apache-2.0
#include "server/scheduling/memory_pressure.h"

#include <algorithm>
#include <utility>

namespace gemmd {
namespace {

// Memory is given back where at least so much has come since the last time and is held by nobody.
constexpr int64_t kWorthGivingBack = int64_t{16} << 20;

// What could not be given back may have been in use by gRPC, which says nothing of it: so it is
// tried again after this many measurements.
constexpr int kMeasuresToNextTry = 20;

constexpr int64_t kHighPercent = 85;

}  // namespace

std::string_view NameOf(Pressure pressure) {
  constexpr std::string_view kNames[] = {"none", "high", "severe", "critical"};
  return kNames[static_cast<size_t>(pressure)];
}

MemoryPressure::MemoryPressure(int64_t limit_bytes, ReadResidentBytes read,
                               std::function<void()> give_back)
    : limit_bytes_(limit_bytes), read_(std::move(read)), give_back_(std::move(give_back)) {}

// In a hundredth of the limit, which so cannot overflow.
int64_t MemoryPressure::PercentOf(int64_t bytes) const {
  return bytes / std::max<int64_t>(1, limit_bytes_ / 100);
}

Pressure MemoryPressure::Measure(int64_t held_bytes) {
  std::optional<int64_t> resident = read_();
  if (!resident) return last_;
  if (lowest_bytes_ == 0) floor_bytes_ = lowest_bytes_ = *resident;
  floor_bytes_ = std::min(floor_bytes_, *resident);
  lowest_bytes_ = std::min(lowest_bytes_, *resident);
  ++measures_;
  const bool is_retried = measures_ >= kMeasuresToNextTry;
  const int64_t usual_bytes = is_retried ? lowest_bytes_ : floor_bytes_;
  // What is held may not be resident yet, and so hides what is free.
  const bool is_short = is_retried && PercentOf(*resident) >= kHighPercent;
  if (is_short || *resident - usual_bytes - held_bytes >= kWorthGivingBack) {
    give_back_();
    measures_ = 0;
    resident = read_();
    if (!resident) return last_;
    floor_bytes_ = std::max<int64_t>(1, *resident - held_bytes);
  }
  used_bytes_ = *resident;
  const int64_t percent = PercentOf(*resident);
  last_ = percent >= 95             ? Pressure::kCritical
          : percent >= 92           ? Pressure::kSevere
          : percent >= kHighPercent ? Pressure::kHigh
                                    : Pressure::kNone;
  return last_;
}

}  // namespace gemmd
