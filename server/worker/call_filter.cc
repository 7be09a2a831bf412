// SPDX-License-Identifier: Apache-2.0
#include "server/worker/call_filter.h"

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/text.h"

// LeakSanitizer stops the threads of its own process with ptrace when that ends.
#if defined(__SANITIZE_ADDRESS__)
#define GEMMD_NEEDS_PTRACE 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define GEMMD_NEEDS_PTRACE 1
#endif
#endif

namespace gemmd {
namespace {

#if defined(__x86_64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_AARCH64;
#else
constexpr uint32_t kArchitecture = 0;
#endif

// Calls of the x32 form of x86-64, which go by other numbers.
constexpr uint32_t kX32 = 0x40000000;

// Calls that the headers of Linux 6.1 may not name have their number, the same on all processors.
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
    // Another view of the files.
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

// A program for the kernel's filter machine: it has one number at a time, and jumps forward only.
class Filter {
 public:
  void Load(size_t offset) {
    Add(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<uint32_t>(offset)));
  }
  void Answer(uint32_t action) { Add(BPF_STMT(BPF_RET | BPF_K, action)); }
  // Skips the next instruction where the number is this one, or so many where it is not.
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

}  // namespace

absl::Status FilterCalls() {
  if (kArchitecture == 0) {
    return absl::UnimplementedError("seccomp: this processor's calls are not known");
  }
  // Without this, only processes with privileges may have a filter.
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) {
    return absl::UnavailableError(Concat("no_new_privs: ", strerror(errno)));
  }
  Filter filter = MakeFilter();
  sock_fprog program = filter.program();
  // The driver has threads of its own by now, and all of them get the filter or none does.
  if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) != 0) {
    return absl::UnavailableError(Concat("seccomp: ", strerror(errno)));
  }
  return absl::OkStatus();
}

}  // namespace gemmd
