// SPDX-License-Identifier: Apache-2.0
//
// A caller that is known by name: what it has under way, what the callers of its rule have had, and
// what the rules say of it.
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
  // Time of devices that a caller earns in a minute, and has at most in store.
  int64_t device_ns_a_minute = std::numeric_limits<int64_t>::max();
};

// What one caller has under way, and how much time of the devices it had lately.
class Meter : public std::enable_shared_from_this<Meter> {
 public:
  // One product of the caller, from its admission until it is answered. Movable.
  class Entry {
   public:
    Entry() = default;
    Entry(Entry&& other) noexcept;
    Entry& operator=(Entry&& other) noexcept;
    ~Entry() { Leave(); }

    // The product had so much time of its device, where it was expected to take another one. A
    // product that never ran had none. Once, and only before the entry ends.
    void Took(int64_t device_ns);

   private:
    friend class Meter;
    Entry(std::shared_ptr<Meter> meter, int64_t bytes, int64_t charged_ns)
        : meter_(std::move(meter)), bytes_(bytes), charged_ns_(charged_ns) {}
    void Leave();

    std::shared_ptr<Meter> meter_;
    int64_t bytes_ = 0;
    int64_t charged_ns_ = 0;  // Given back at the end where Took was not called.
  };

  // A product that is expected to take so much. A caller may overdraw its time by one product, so
  // that a long one can run at all. `retry_after_ns` is when its time suffices again; 0 where the
  // end of another of its products makes room.
  // Errors: ResourceExhausted, which names the limit. Threads: any.
  absl::StatusOr<Entry> Enter(const MeterLimits& limits, int64_t bytes, int64_t expected_ns,
                              int64_t now_ns, int64_t* retry_after_ns) ABSL_LOCKS_EXCLUDED(mutex_);

  int64_t requests() const ABSL_LOCKS_EXCLUDED(mutex_);
  int64_t bytes() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Earn(int64_t max_ns, int64_t now_ns) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;
  int64_t requests_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  // Time that the caller has had and not yet earned; 0 where it may have a whole minute's.
  int64_t spent_ns_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t earned_until_ns_ ABSL_GUARDED_BY(mutex_) = 0;
};

// What the callers of one rule have had of the daemon since the start. Rules are as few as their
// file makes them, while callers choose how many names a pattern stands for.
class RuleUse {
 public:
  struct Totals {
    std::string rule;  // As its file names it, an asterisk included: "spiffe://corp/team/*".
    int64_t answered = 0;
    int64_t failed = 0;   // Products that were let in and got no answer.
    int64_t refused = 0;  // Products that were not let in.
    int64_t compute_ns = 0;
  };

  explicit RuleUse(std::string rule) : rule_(std::move(rule)) {}

  const std::string& rule() const { return rule_; }

  // One product each. Threads: any.
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

// Which callers may do what, as the file of --rules says:
//
//   {"identities": {
//     "batch":                {"may": ["multiply"], "priority": "low", "requests": 16},
//     "spiffe://corp/team/*": {"may": ["multiply", "tensors"], "devices": ["cpu"]},
//     "uid:0":                {"may": ["multiply", "tensors", "statistics", "administer"]}}}
//
// YAML may say the same. An identity that no rule names may do nothing.
class Rules {
 public:
  static constexpr size_t kMaxBytes = size_t{1} << 20;

  // Members of an identity: "may" (names of roles, required), "priority" ("normal" or "low"),
  // "share" (a number), "requests" and "bytes" (most inside at once), "device_seconds_a_minute",
  // "tensor_bytes", "device_tensor_bytes", "message_bytes", "devices" (names).
  // Errors: InvalidArgument: "rules: identities.batch.requests: got 0, want an integer from 1 to
  // 9007199254740992"; for what is no JSON or YAML, with its line.
  enum class Format { kJson, kYaml };
  static absl::StatusOr<Rules> Parse(std::string_view text, Format format = Format::kJson);

  // The grant of the name itself, otherwise of the longest pattern that it begins with; null where
  // no rule is for it.
  const Grant* Find(std::string_view name) const;

  size_t size() const { return exact_.size() + prefixes_.size(); }

 private:
  std::map<std::string, Grant, std::less<>> exact_;
  std::map<std::string, Grant, std::less<>> prefixes_;  // Patterns, without the asterisk.
};

}  // namespace gemmd
