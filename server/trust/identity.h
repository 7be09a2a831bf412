// SPDX-License-Identifier: Apache-2.0
//
// A caller that is known by name: its products in progress, the totals of its rule, and the rights
// that the rules grant.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "server/system/mutex.h"

namespace gemmd {

struct MeterLimits {
  int64_t requests = std::numeric_limits<int64_t>::max();
  int64_t bytes = std::numeric_limits<int64_t>::max();
  // Device time that a caller earns per minute, which is also the maximum that it can save up.
  int64_t device_ns_a_minute = std::numeric_limits<int64_t>::max();
};

// Tracks one caller's products in progress, and the device time that it used recently.
class Meter : public std::enable_shared_from_this<Meter> {
 public:
  // One product of the caller, from its admission to its answer. Movable.
  class Entry {
   public:
    Entry() = default;
    Entry(Entry&& other) noexcept = default;
    Entry& operator=(Entry&& other) noexcept;
    ~Entry() { Leave(); }

    // Corrects the charge to the device time that the product really took; 0 if it never ran. Call
    // it at most once, before the entry ends.
    void Took(int64_t device_ns);

   private:
    friend class Meter;
    Entry(std::shared_ptr<Meter> meter, int64_t bytes, int64_t charged_ns)
        : meter_(std::move(meter)), bytes_(bytes), charged_ns_(charged_ns) {}
    void Leave();

    std::shared_ptr<Meter> meter_;
    int64_t bytes_ = 0;
    int64_t charged_ns_ = 0;  // Refunded at the end if Took was not called.
  };

  // Enters a product that is expected to take `expected_ns`. A caller may overdraw its device time
  // by one product, so that a long one can run at all. On error, sets `retry_after_ns` to the time
  // until the caller has device time again, or to 0 if the limit is one that the end of another
  // product relieves. Errors: ResourceExhausted, naming the limit. Threads: any.
  absl::StatusOr<Entry> Enter(const MeterLimits& limits, int64_t bytes, int64_t expected_ns,
                              int64_t now_ns, int64_t* retry_after_ns) ABSL_LOCKS_EXCLUDED(mutex_);

  int64_t requests() const ABSL_LOCKS_EXCLUDED(mutex_);
  int64_t bytes() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Earn(int64_t max_ns, int64_t now_ns) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;
  int64_t requests_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  // Device time that the caller has used and not yet earned; 0 if it may use a whole minute's.
  int64_t spent_ns_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t earned_until_ns_ ABSL_GUARDED_BY(mutex_) = 0;
};

// What the callers of one rule have used since the daemon's start. Counted per rule, because the
// file limits the number of rules, while callers could use any number of the names that match a
// pattern.
class RuleUse {
 public:
  struct Totals {
    std::string rule;  // As in the rules, with its asterisk: "spiffe://corp/team/*".
    int64_t answered = 0;
    int64_t failed = 0;   // Admitted products without an answer.
    int64_t refused = 0;  // Products that were not admitted.
    int64_t compute_ns = 0;
  };

  explicit RuleUse(std::string rule) : rule_(std::move(rule)) {}

  const std::string& rule() const { return rule_; }

  // Add one product each. Threads: any.
  void AddAnswer(int64_t compute_ns) {
    ++answered_;
    compute_ns_ += compute_ns;
  }
  void AddFailure() { ++failed_; }
  void AddRefusal() { ++refused_; }

  Totals totals() const { return {rule_, answered_, failed_, refused_, compute_ns_}; }

 private:
  const std::string rule_;
  std::atomic<int64_t> answered_ = 0;
  std::atomic<int64_t> failed_ = 0;
  std::atomic<int64_t> refused_ = 0;
  std::atomic<int64_t> compute_ns_ = 0;
};

// The rights that a caller may have, independent of each other.
enum class Role : uint8_t {
  kMultiply,
  kTensors,     // To keep resident tensors.
  kStatistics,  // To read the server's statistics.
  kRegistry,    // To list kernels and devices, and to ask which kernel is chosen.
  kReflection,
  kAdminister
};
inline constexpr size_t kRoles = 6;
std::string_view NameOf(Role role);  // As the rules name it, for example "multiply".

class Roles {
 public:
  void Add(Role role) { bits_ |= BitOf(role); }
  bool Has(Role role) const { return (bits_ & BitOf(role)) != 0; }

 private:
  static uint32_t BitOf(Role role) { return uint32_t{1} << static_cast<uint32_t>(role); }
  uint32_t bits_ = 0;
};

inline constexpr int64_t kNoBound = std::numeric_limits<int64_t>::max();

// The rights and limits that the rules give to one caller.
struct Grant {
  std::string rule;  // The name or pattern of the rule; empty if no rule applies to the caller.
  Roles roles;
  bool is_low_priority = false;  // Its products wait for those of others.
  MeterLimits in_flight;
  double share = 1;                        // Share of a device's time; the default is 1.
  int64_t tensor_bytes = kNoBound;         // Host memory of all sessions together.
  int64_t device_tensor_bytes = kNoBound;  // Device memory.
  int64_t message_bytes = kNoBound;        // Maximum size of one request.
  std::vector<std::string> devices;        // Devices that it may use; empty: all.

  bool MayUse(std::string_view device) const;
};

struct Identity {
  std::string name;
  Grant grant;
  // Both are kept when the rules change.
  std::shared_ptr<Meter> meter;
  std::shared_ptr<RuleUse> use;  // Null if no rule applies to the caller, which then may do
                                 // nothing.
};

// The name of a caller that shows no proof of its identity. Rules may name it like any other.
inline constexpr std::string_view kAnonymous = "anonymous";

// The prefix of the names of unix-socket users: "uid:1000".
inline constexpr std::string_view kUserPrefix = "uid:";

// The maximum length of a name.
inline constexpr size_t kMaxIdentityBytes = 256;

// Whether a certificate or a token may give this name: printable ASCII without spaces, and neither
// of the names reserved above.
bool IsOutsideName(std::string_view name);

// Whether rules may have this name: as above, or one of the reserved names.
bool IsIdentityName(std::string_view name);

// What each caller may do, as the --rules file says:
//
//   {"identities": {
//     "batch":                {"may": ["multiply"], "priority": "low", "requests": 16},
//     "spiffe://corp/team/*": {"may": ["multiply", "tensors"], "devices": ["cpu"]},
//     "uid:0":                {"may": ["multiply", "tensors", "statistics", "administer"]}}}
//
// The file may also be YAML. An identity that no rule names may do nothing.
class Rules {
 public:
  static constexpr size_t kMaxBytes = size_t{1} << 20;

  // Members of an identity: "may" (names of roles, required), "priority" ("normal" or "low"),
  // "share" (a number), "requests" and "bytes" (the maximum in progress),
  // "device_seconds_a_minute", "tensor_bytes", "device_tensor_bytes", "message_bytes", "devices"
  // (names). Errors: InvalidArgument, for example "rules: identities.batch.requests: got 0, want an
  // integer from 1 to 9007199254740992"; with the line if the text is not JSON or YAML.
  enum class Format { kJson, kYaml };
  static absl::StatusOr<Rules> Parse(std::string_view text, Format format = Format::kJson);

  // The grant of the name itself, or of the longest pattern that it matches; null if no rule
  // applies.
  const Grant* Find(std::string_view name) const;

  size_t size() const { return exact_.size() + prefixes_.size(); }

 private:
  std::map<std::string, Grant, std::less<>> exact_;
  std::map<std::string, Grant, std::less<>> prefixes_;  // Patterns without their asterisk.
};

}  // namespace gemmd
