// SPDX-License-Identifier: Apache-2.0
#include "server/trust/identity.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/matrix/invalid.h"
#include "kernels/matrix/status.h"
#include "server/trust/json_text.h"

namespace gemmd {

namespace {

constexpr int64_t kMinuteNs = 60'000'000'000;

// In the order of Role.
constexpr std::array<std::string_view, kRoles> kRoleNames = {
    "multiply", "tensors", "statistics", "registry", "reflection", "administer"};

}  // namespace

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

// Earns back used time at the rate of `max_ns` per minute.
void Meter::Earn(int64_t max_ns, int64_t now_ns) {
  const int64_t passed_ns = std::clamp(now_ns - earned_until_ns_, int64_t{0}, kMinuteNs);
  const double earned_ns =
      static_cast<double>(max_ns) * static_cast<double>(passed_ns) / static_cast<double>(kMinuteNs);
  // An amount that rounds to nothing is earned later.
  if (earned_ns < 1) return;
  // Without a limit, all used time is earned back.
  const auto whole_ns = static_cast<int64_t>(std::min(earned_ns, 9e18));
  spent_ns_ = std::max(spent_ns_ - whole_ns, int64_t{0});
  earned_until_ns_ = now_ns;
}

absl::StatusOr<Meter::Entry> Meter::Enter(const MeterLimits& limits, int64_t bytes,
                                          int64_t expected_ns, int64_t now_ns,
                                          int64_t* retry_after_ns) {
  constexpr int64_t kMaxExpectedNs = int64_t{1} << 53;
  expected_ns = std::clamp(expected_ns, int64_t{0}, kMaxExpectedNs);
  *retry_after_ns = 0;
  MutexLock lock(&mutex_);
  Earn(limits.device_ns_a_minute, now_ns);
  if (requests_ >= limits.requests) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "caller: has ", requests_, " requests in progress, its rules allow ", limits.requests));
  }
  if (bytes > limits.bytes - bytes_) {
    return absl::ResourceExhaustedError(absl::StrCat("caller: has ", bytes_,
                                                     " bytes in progress and asks for ", bytes,
                                                     " more, its rules allow ", limits.bytes));
  }
  if (spent_ns_ >= limits.device_ns_a_minute) {
    const double rate = static_cast<double>(limits.device_ns_a_minute) / kMinuteNs;
    const double wait_ns = static_cast<double>(spent_ns_ - limits.device_ns_a_minute + 1) / rate;
    *retry_after_ns = static_cast<int64_t>(std::min(wait_ns, 9e18));
    return absl::ResourceExhaustedError(
        absl::StrCat("caller: has used up its device time, its rules allow ",
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

std::string_view NameOf(Role role) { return kRoleNames[static_cast<size_t>(role)]; }

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

namespace {

using nlohmann::json;

constexpr int64_t kMaxCount = int64_t{1} << 53;  // Every JSON parser represents these exactly.
constexpr size_t kMaxShown = 64;

// The value as an error shows it.
std::string Shown(const json& value) {
  std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true);
  if (text.size() > kMaxShown) text = text.substr(0, kMaxShown) + "...";
  return text;
}

// A name as part of a field's path.
std::string ShownName(const std::string& name) {
  return IsIdentityName(name) && name.size() <= kMaxShown ? name : Shown(json(name));
}

absl::Status BadRule(const std::string& field, const std::string& got, const std::string& want) {
  return Invalid(Concat("rules: ", field), got, want);
}

absl::Status Read(const std::string& field, const json& value, int64_t& result) {
  const bool fits = value.is_number_integer() && value >= 1 && value <= kMaxCount;
  if (!fits) return BadRule(field, Shown(value), absl::StrCat("an integer from 1 to ", kMaxCount));
  result = value.get<int64_t>();
  return absl::OkStatus();
}

absl::Status ReadSeconds(const std::string& field, const json& value, int64_t& result_ns) {
  constexpr double kMin = 0.001;
  constexpr double kMax = 1e6;
  const double seconds = value.is_number() ? value.get<double>() : 0;
  if (!(seconds >= kMin && seconds <= kMax)) {
    return BadRule(field, Shown(value), "a number from 0.001 to 1000000");
  }
  result_ns = std::llround(seconds * 1e9);
  return absl::OkStatus();
}

absl::Status ReadShare(const std::string& field, const json& value, double& result) {
  const double share = value.is_number() ? value.get<double>() : 0;
  if (!(share >= 0.01 && share <= 100)) {
    return BadRule(field, Shown(value), "a number from 0.01 to 100");
  }
  result = share;
  return absl::OkStatus();
}

absl::Status ReadRoles(const std::string& field, const json& value, Roles& roles) {
  const std::string want =
      "a list of multiply, tensors, statistics, registry, reflection, administer";
  if (!value.is_array()) return BadRule(field, Shown(value), want);
  for (const json& name : value) {
    const auto* const known =
        std::find_if(kRoleNames.begin(), kRoleNames.end(), [&name](std::string_view role) {
          return name.is_string() && name.get_ref<const std::string&>() == role;
        });
    if (known == kRoleNames.end()) return BadRule(field, Shown(name), want);
    const auto role = static_cast<Role>(known - kRoleNames.begin());
    if (roles.Has(role)) return BadRule(field, Shown(name), "each role once");
    roles.Add(role);
  }
  return absl::OkStatus();
}

absl::Status ReadDevices(const std::string& field, const json& value,
                         std::vector<std::string>& devices) {
  const std::string want = "a list of names such as cpu, cuda:0";
  if (!value.is_array() || value.empty()) return BadRule(field, Shown(value), want);
  for (const json& name : value) {
    if (!name.is_string() || !IsIdentityName(name.get_ref<const std::string&>())) {
      return BadRule(field, Shown(name), want);
    }
    devices.push_back(name.get<std::string>());
  }
  return absl::OkStatus();
}

absl::Status ReadMember(const std::string& field, const std::string& key, const json& value,
                        Grant& grant) {
  if (key == "may") return ReadRoles(field, value, grant.roles);
  if (key == "requests") return Read(field, value, grant.in_flight.requests);
  if (key == "bytes") return Read(field, value, grant.in_flight.bytes);
  if (key == "tensor_bytes") return Read(field, value, grant.tensor_bytes);
  if (key == "device_tensor_bytes") return Read(field, value, grant.device_tensor_bytes);
  if (key == "share") return ReadShare(field, value, grant.share);
  if (key == "message_bytes") return Read(field, value, grant.message_bytes);
  if (key == "devices") return ReadDevices(field, value, grant.devices);
  if (key == "device_seconds_a_minute") {
    return ReadSeconds(field, value, grant.in_flight.device_ns_a_minute);
  }
  if (key == "priority") {
    if (value != "normal" && value != "low") return BadRule(field, Shown(value), "normal or low");
    grant.is_low_priority = value == "low";
    return absl::OkStatus();
  }
  return BadRule(field, "an unknown name",
                 "may, priority, share, requests, bytes, device_seconds_a_minute, tensor_bytes, "
                 "device_tensor_bytes, message_bytes or devices");
}

absl::StatusOr<Grant> GrantOf(const std::string& field, const json& value) {
  if (!value.is_object()) return BadRule(field, Shown(value), "an object");
  Grant grant;
  for (const auto& [key, member] : value.items()) {
    RETURN_IF_ERROR(ReadMember(absl::StrCat(field, ".", ShownName(key)), key, member, grant));
  }
  if (!value.contains("may")) return BadRule(field, "no \"may\"", "a list of roles");
  return grant;
}

}  // namespace

absl::StatusOr<Rules> Rules::Parse(std::string_view text, Format format) {
  const auto parse = format == Format::kYaml ? ParseYaml : ParseJson;
  ASSIGN_OR_RETURN(const json document, parse("rules", text, kMaxBytes));
  if (!document.is_object()) return BadRule("file", "no object", "{\"identities\": {...}}");
  for (const auto& [key, value] : document.items()) {
    if (key != "identities") return BadRule(ShownName(key), "an unknown name", "identities");
  }
  const auto identities = document.find("identities");
  if (identities == document.end() || !identities->is_object()) {
    return BadRule("identities", identities == document.end() ? "nothing" : Shown(*identities),
                   "an object with a member for each identity");
  }
  Rules rules;
  for (const auto& [name, value] : identities->items()) {
    const std::string field = absl::StrCat("identities.", ShownName(name));
    const bool is_pattern = name.ends_with('*');
    const std::string beginning = is_pattern ? name.substr(0, name.size() - 1) : name;
    // A lone asterisk would apply to every holder of any certificate.
    if (!IsIdentityName(beginning) || beginning.find('*') != beginning.npos) {
      return BadRule(field, "no name",
                     "1 to 256 printable characters without spaces, of which the last may be *");
    }
    ASSIGN_OR_RETURN(Grant grant, GrantOf(field, value));
    grant.rule = name;
    (is_pattern ? rules.prefixes_ : rules.exact_).emplace(beginning, std::move(grant));
  }
  return rules;
}

const Grant* Rules::Find(std::string_view name) const {
  if (const auto exact = exact_.find(name); exact != exact_.end()) return &exact->second;
  const Grant* longest = nullptr;
  size_t length = 0;
  for (const auto& [prefix, grant] : prefixes_) {
    if (!name.starts_with(prefix) || prefix.size() <= length) continue;
    longest = &grant;
    length = prefix.size();
  }
  return longest;
}

}  // namespace gemmd
