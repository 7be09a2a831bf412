// SPDX-License-Identifier: Apache-2.0
#include "server/trust/identity.h"

#include <algorithm>

namespace gemmd {

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
