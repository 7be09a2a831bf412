// SPDX-License-Identifier: Apache-2.0
#include "server/trust/identity.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace gemmd {

namespace {

constexpr int64_t kMinuteNs = 60'000'000'000;

}  // namespace

Meter::Entry::Entry(Entry&& other) noexcept
    : meter_(std::move(other.meter_)), bytes_(other.bytes_), charged_ns_(other.charged_ns_) {}

Meter::Entry& Meter::Entry::operator=(Entry&& other) noexcept {
  if (this == &other) return *this;
  Leave();
  meter_ = std::move(other.meter_);
  bytes_ = other.bytes_;
  charged_ns_ = other.charged_ns_;
  return *this;
}

void Meter::Entry::Took(int64_t device_ns) {
  if (meter_ == nullptr) return;
  MutexLock lock(&meter_->mutex_);
  meter_->spent_ns_ = std::max(meter_->spent_ns_ + device_ns - charged_ns_, int64_t{0});
  charged_ns_ = 0;
}

void Meter::Entry::Leave() {
  const std::shared_ptr<Meter> meter = std::move(meter_);
  if (meter == nullptr) return;
  MutexLock lock(&meter->mutex_);
  --meter->requests_;
  meter->bytes_ -= bytes_;
  meter->spent_ns_ = std::max(meter->spent_ns_ - charged_ns_, int64_t{0});
}

// What was spent is earned again at the rate of `most_ns` a minute.
void Meter::Earn(int64_t most_ns, int64_t now_ns) {
  const int64_t passed_ns = std::clamp(now_ns - earned_until_ns_, int64_t{0}, kMinuteNs);
  const double earned_ns = static_cast<double>(most_ns) * static_cast<double>(passed_ns) /
                           static_cast<double>(kMinuteNs);
  // So little that it rounds to nothing is earned later.
  if (earned_ns < 1) return;
  // A rate without a bound earns whatever was spent.
  const auto whole_ns = static_cast<int64_t>(std::min(earned_ns, 9e18));
  spent_ns_ = std::max(spent_ns_ - whole_ns, int64_t{0});
  earned_until_ns_ = now_ns;
}

absl::StatusOr<Meter::Entry> Meter::Enter(const MeterLimits& limits, int64_t bytes,
                                          int64_t expected_ns, int64_t now_ns,
                                          int64_t* retry_after_ns) {
  constexpr int64_t kMostExpectedNs = int64_t{1} << 53;
  expected_ns = std::clamp(expected_ns, int64_t{0}, kMostExpectedNs);
  *retry_after_ns = 0;
  MutexLock lock(&mutex_);
  Earn(limits.device_ns_a_minute, now_ns);
  if (requests_ >= limits.requests) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "caller: has ", requests_, " requests inside, its rules allow ", limits.requests));
  }
  if (bytes > limits.bytes - bytes_) {
    return absl::ResourceExhaustedError(absl::StrCat("caller: has ", bytes_,
                                                     " bytes inside and asks for ", bytes,
                                                     " more, its rules allow ", limits.bytes));
  }
  if (spent_ns_ >= limits.device_ns_a_minute) {
    const double rate = static_cast<double>(limits.device_ns_a_minute) / kMinuteNs;
    const double wait_ns = static_cast<double>(spent_ns_ - limits.device_ns_a_minute + 1) / rate;
    *retry_after_ns = static_cast<int64_t>(std::min(wait_ns, 9e18));
    return absl::ResourceExhaustedError(
        absl::StrCat("caller: has used up its time of devices, its rules allow ",
                     limits.device_ns_a_minute / 1'000'000, " ms a minute"));
  }
  ++requests_;
  bytes_ += bytes;
  if (limits.device_ns_a_minute == std::numeric_limits<int64_t>::max()) expected_ns = 0;
  spent_ns_ += expected_ns;
  return Entry(shared_from_this(), bytes, expected_ns);
}

int64_t Meter::requests() const {
  MutexLock lock(&mutex_);
  return requests_;
}

int64_t Meter::bytes() const {
  MutexLock lock(&mutex_);
  return bytes_;
}

std::string_view NameOf(Role role) {
  switch (role) {
    case Role::kMultiply: return "multiply";
    case Role::kTensors: return "tensors";
    case Role::kStatistics: return "statistics";
    case Role::kRegistry: return "registry";
    case Role::kReflection: return "reflection";
    case Role::kAdminister: return "administer";
  }
  return "";
}

bool Grant::MayUse(std::string_view device) const {
  return devices.empty() || std::find(devices.begin(), devices.end(), device) != devices.end();
}

bool IsIdentityName(std::string_view name) {
  const auto is_plain = [](char c) { return c > ' ' && c <= '~' && c != '"' && c != '\\'; };
  return !name.empty() && name.size() <= kMaxIdentityBytes &&
         std::all_of(name.begin(), name.end(), is_plain);
}

bool IsOutsideName(std::string_view name) {
  return IsIdentityName(name) && name != kAnonymous && !name.starts_with(kUserPrefix);
}

}  // namespace gemmd
