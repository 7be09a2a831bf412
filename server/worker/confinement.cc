// SPDX-License-Identifier: Apache-2.0
#include "server/worker/confinement.h"

#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"
#include "server/system/files.h"

// LeakSanitizer uses ptrace to stop the threads of its own process at exit.
#if defined(__SANITIZE_ADDRESS__)
#define GEMMD_NEEDS_PTRACE 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define GEMMD_NEEDS_PTRACE 1
#endif
#endif

namespace gemmd {
namespace {

// Landlock: limits what a worker may change outside its process.

// linux/landlock.h of Debian 12 has only version 1, so these are defined here.
constexpr int kCreateRuleset = 444;
constexpr int kAddRule = 445;
constexpr int kRestrictSelf = 446;
constexpr uint32_t kAskVersion = 1;
constexpr uint32_t kRuleOfPath = 1;

// File rights: all kinds of writing, removing and creating, but neither reading nor execution.
constexpr uint64_t kWriteFile = uint64_t{1} << 1;
constexpr uint64_t kRemoveAndMake = 0x1ff0;  // Bits 4 to 12.
constexpr uint64_t kRefer = uint64_t{1}
                            << 13;  // Moving and linking between folders, from version 2 on.
constexpr uint64_t kTruncate = uint64_t{1} << 14;  // From version 3 on.
constexpr uint64_t kBindAndConnectTcp = 3;         // From version 4 on.
constexpr uint64_t kSignal = 2;                    // From version 6 on.

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

// The part of Ruleset that the version has; older kernels accept no more.
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

// Returns the version of landlock. Errors: Unimplemented if the kernel lacks landlock, Unavailable
// if it refuses the rules; the process then keeps all its rights.
absl::StatusOr<int> LimitWriting(const std::vector<std::string>& writable) {
  const auto version = static_cast<int>(syscall(kCreateRuleset, nullptr, 0, kAskVersion));
  if (version < 1) return absl::UnimplementedError("landlock: not supported by the kernel");
  const Ruleset rules = RulesetOf(version);
  const FileDescriptor ruleset(
      static_cast<int>(syscall(kCreateRuleset, &rules, SizeOf(version), 0)));
  if (!ruleset.is_open()) return Failed("rules");
  for (const std::string& path : writable) {
    RETURN_IF_ERROR(Allow(ruleset.get(), path, rules.files));
  }
  // Without this, only privileged processes may restrict themselves.
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return Failed("no_new_privs");
  if (syscall(kRestrictSelf, ruleset.get(), 0) != 0) return Failed("limits");
  return version;
}

// Seccomp: system calls refused once a worker has opened its GPU. A list of calls that no GPU
// worker needs, because those that the driver needs vary by release and are not documented.

#if defined(__x86_64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_AARCH64;
#else
constexpr uint32_t kArchitecture = 0;
#endif

// Calls of the x32 ABI, which have other numbers.
constexpr uint32_t kX32 = 0x40000000;

// Calls missing from the headers of Linux 6.1 are given by number, which is the same on all
// processors.
constexpr int kRefused[] = {
    // Other programs.
    SYS_execve,
    SYS_execveat,
// Other processes.
#ifndef GEMMD_NEEDS_PTRACE
    SYS_ptrace,
#endif
    SYS_process_vm_readv,
    SYS_process_vm_writev,
    SYS_pidfd_getfd,
    SYS_kcmp,
    // Changing the view of the file system.
    SYS_mount,
    SYS_umount2,
    SYS_pivot_root,
    SYS_chroot,
    SYS_open_tree,
    SYS_move_mount,
    SYS_fsopen,
    SYS_fsconfig,
    SYS_fsmount,
    SYS_fspick,
    442,  // mount_setattr
    SYS_unshare,
    SYS_setns,
    SYS_open_by_handle_at,
    SYS_quotactl,
    443,  // quotactl_fd
    SYS_fanotify_init,
    // The kernel itself.
    SYS_bpf,
    SYS_perf_event_open,
    SYS_userfaultfd,
    SYS_io_uring_setup,
    SYS_io_uring_enter,
    SYS_io_uring_register,
    SYS_init_module,
    SYS_finit_module,
    SYS_delete_module,
    SYS_kexec_load,
    SYS_add_key,
    SYS_request_key,
    SYS_keyctl,
    SYS_syslog,
    // The machine.
    SYS_reboot,
    SYS_swapon,
    SYS_swapoff,
    SYS_acct,
    SYS_settimeofday,
    SYS_clock_settime,
    SYS_adjtimex,
    SYS_clock_adjtime,
    SYS_sethostname,
    SYS_setdomainname,
#ifdef SYS_kexec_file_load
    SYS_kexec_file_load,
#endif
#ifdef SYS_iopl
    SYS_iopl,
    SYS_ioperm,
#endif
};

// A program for the kernel's BPF filter machine, which has one accumulator and jumps only forward.
class Filter {
 public:
  void Load(size_t offset) {
    Add(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<uint32_t>(offset)));
  }
  void Answer(uint32_t action) { Add(BPF_STMT(BPF_RET | BPF_K, action)); }
  // Conditional skips: of the next instruction if the accumulator equals the value, or of several
  // if it does not.
  void SkipOneIf(uint32_t value) { Add(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 1, 0)); }
  void SkipUnless(uint32_t value, uint8_t instructions) {
    Add(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, instructions));
  }
  void SkipOneIfLess(uint32_t value) { Add(BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, value, 0, 1)); }

  sock_fprog program() {
    return {.len = static_cast<uint16_t>(instructions_.size()), .filter = instructions_.data()};
  }

 private:
  void Add(const sock_filter& instruction) { instructions_.push_back(instruction); }

  std::vector<sock_filter> instructions_;
};

constexpr uint32_t kRefusal = SECCOMP_RET_ERRNO | EPERM;

Filter MakeFilter() {
  Filter filter;
  filter.Load(offsetof(seccomp_data, arch));
  filter.SkipOneIf(kArchitecture);
  filter.Answer(kRefusal);
  filter.Load(offsetof(seccomp_data, nr));
  filter.SkipOneIfLess(kX32);
  filter.Answer(kRefusal);
  for (const int call : kRefused) {
    filter.SkipUnless(static_cast<uint32_t>(call), 1);
    filter.Answer(kRefusal);
  }
  for (const int call : {SYS_socket, SYS_socketpair}) {
    filter.SkipUnless(static_cast<uint32_t>(call), 4);
    filter.Load(offsetof(seccomp_data, args));  // The family, on little-endian processors.
    filter.SkipOneIf(AF_UNIX);
    filter.Answer(kRefusal);
    filter.Answer(SECCOMP_RET_ALLOW);
  }
  filter.Answer(SECCOMP_RET_ALLOW);
  return filter;
}

// Errors: Unimplemented on other instruction sets; Unavailable if the kernel refuses the filter;
// the process then keeps all its rights.
absl::Status FilterCalls() {
  if (kArchitecture == 0) {
    return absl::UnimplementedError("seccomp: the system calls of this processor are unknown");
  }
  // Without this, only privileged processes may install a filter.
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) {
    return absl::UnavailableError(Concat("no_new_privs: ", strerror(errno)));
  }
  Filter filter = MakeFilter();
  sock_fprog program = filter.program();
  // The driver already has threads; the filter applies to all of them or none.
  if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) != 0) {
    return absl::UnavailableError(Concat("seccomp: ", strerror(errno)));
  }
  return absl::OkStatus();
}

void AddToList(std::string& list, std::string_view word) {
  list += Concat(list.empty() ? "" : ", ", word);
}

}  // namespace

void Confinement::LimitFiles(const std::vector<std::string>& writable) {
  const absl::StatusOr<int> version = LimitWriting(writable);
  if (version.ok()) {
    AddToList(means_, Concat("landlock ", *version));
  } else {
    AddToList(missing_, std::string(version.status().message()));
  }
}

void Confinement::LimitCalls() {
  prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
  const absl::Status filtered = FilterCalls();
  if (filtered.ok()) {
    AddToList(means_, "seccomp");
  } else {
    AddToList(missing_, std::string(filtered.message()));
  }
}

}  // namespace gemmd
