// SPDX-License-Identifier: Apache-2.0
//
// A caller that is known by name, and what the rules say of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/trust/meter.h"
#include "server/trust/rule_use.h"

namespace gemmd {

// What a caller may be allowed, each on its own.
enum class Role : uint8_t {
  kMultiply,
  kTensors,     // To hold resident tensors.
  kStatistics,  // To read what the server counts.
  kRegistry,    // To list kernels and devices, and to ask why a kernel is chosen.
  kReflection,
  kAdminister
};
inline constexpr size_t kRoles = 6;
std::string_view NameOf(Role role);  // As the rules name it: "multiply".

class Roles {
 public:
  void Add(Role role) { bits_ |= BitOf(role); }
  bool Has(Role role) const { return (bits_ & BitOf(role)) != 0; }

 private:
  static uint32_t BitOf(Role role) { return uint32_t{1} << static_cast<uint32_t>(role); }
  uint32_t bits_ = 0;
};

inline constexpr int64_t kNoBound = std::numeric_limits<int64_t>::max();

// What the rules give to one caller.
struct Grant {
  std::string rule;  // The name or pattern that it is for; empty where no rule is for the caller.
  Roles roles;
  bool is_low_priority = false;  // Its products wait for those of others.
  MeterLimits in_flight;
  double share = 1;                        // Its part of a device's time, beside the 1 of others.
  int64_t tensor_bytes = kNoBound;         // Memory of the host, in all sessions together,
  int64_t device_tensor_bytes = kNoBound;  // and memory of devices.
  int64_t message_bytes = kNoBound;        // In one request.
  std::vector<std::string> devices;        // Empty stands for all.

  bool MayUse(std::string_view device) const;
};

struct Identity {
  std::string name;
  Grant grant;
  // These outlive changes of the rules.
  std::shared_ptr<Meter> meter;
  std::shared_ptr<RuleUse> use;  // Null where no rule is for the caller, who may do nothing then.
};

// The name of whoever shows nothing. Rules may name it like any other.
inline constexpr std::string_view kAnonymous = "anonymous";

// The names of users of unix sockets begin so: "uid:1000".
inline constexpr std::string_view kUserPrefix = "uid:";

// Names have at most so many bytes.
inline constexpr size_t kMaxIdentityBytes = 256;

// Whether a certificate or a token may give this name: printable ASCII without spaces that is not
// one of those above.
bool IsOutsideName(std::string_view name);

// Whether rules may have this name: as above, or one of those.
bool IsIdentityName(std::string_view name);

}  // namespace gemmd
