// SPDX-License-Identifier: Apache-2.0
#include "server/worker/file_rules.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "kernels/status_macros.h"
#include "kernels/text.h"
#include "server/system/file_descriptor.h"

namespace gemmd {
namespace {

// linux/landlock.h of Debian 12 knows only the first of its versions, so these are written here.
constexpr int kCreateRuleset = 444;
constexpr int kAddRule = 445;
constexpr int kRestrictSelf = 446;
constexpr uint32_t kAskVersion = 1;
constexpr uint32_t kRuleOfPath = 1;

// Rights of files: writing, removing and making of all kinds, but neither reading nor execution.
constexpr uint64_t kWriteFile = uint64_t{1} << 1;
constexpr uint64_t kRemoveAndMake = 0x1ff0;        // Bits 4 to 12.
constexpr uint64_t kRefer = uint64_t{1} << 13;     // To move and link between folders, from 2 on.
constexpr uint64_t kTruncate = uint64_t{1} << 14;  // From 3 on.
constexpr uint64_t kBindAndConnectTcp = 3;         // From 4 on.
constexpr uint64_t kSignal = 2;                    // From 6 on.

struct Ruleset {
  uint64_t files = 0;
  uint64_t network = 0;
  uint64_t scopes = 0;
};

struct [[gnu::packed]] PathRule {
  uint64_t allowed = 0;
  int32_t folder = -1;
};

Ruleset RulesetOf(int version) {
  Ruleset rules = {.files = kWriteFile | kRemoveAndMake};
  if (version >= 2) rules.files |= kRefer;
  if (version >= 3) rules.files |= kTruncate;
  if (version >= 4) rules.network = kBindAndConnectTcp;
  if (version >= 6) rules.scopes = kSignal;
  return rules;
}

// As much of Ruleset as the version has; older kernels take no more.
size_t SizeOf(int version) {
  if (version >= 6) return sizeof(Ruleset);
  return version >= 4 ? 2 * sizeof(uint64_t) : sizeof(uint64_t);
}

absl::Status Failed(std::string_view what) {
  return absl::UnavailableError(Concat("landlock: ", what, ": ", strerror(errno)));
}

absl::Status Allow(int ruleset, const std::string& path, uint64_t rights) {
  const FileDescriptor file(open(path.c_str(), O_PATH | O_CLOEXEC));
  if (!file.is_open()) return absl::OkStatus();
  struct stat status = {};
  if (fstat(file.get(), &status) != 0) return Failed(path);
  if (!S_ISDIR(status.st_mode)) rights &= kWriteFile | kTruncate;
  const PathRule rule = {.allowed = rights, .folder = file.get()};
  return syscall(kAddRule, ruleset, kRuleOfPath, &rule, 0) == 0 ? absl::OkStatus() : Failed(path);
}

}  // namespace

absl::StatusOr<int> LimitWriting(const std::vector<std::string>& writable) {
  const auto version = static_cast<int>(syscall(kCreateRuleset, nullptr, 0, kAskVersion));
  if (version < 1) return absl::UnimplementedError("landlock: the kernel has none");
  const Ruleset rules = RulesetOf(version);
  const FileDescriptor ruleset(
      static_cast<int>(syscall(kCreateRuleset, &rules, SizeOf(version), 0)));
  if (!ruleset.is_open()) return Failed("rules");
  for (const std::string& path : writable) {
    RETURN_IF_ERROR(Allow(ruleset.get(), path, rules.files));
  }
  // Without this, only processes with privileges may limit themselves.
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return Failed("no_new_privs");
  if (syscall(kRestrictSelf, ruleset.get(), 0) != 0) return Failed("limits");
  return version;
}

}  // namespace gemmd
