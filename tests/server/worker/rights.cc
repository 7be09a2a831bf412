// SPDX-License-Identifier: Apache-2.0
#include "tests/server/worker/rights.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <limits>
#include <thread>

#include "kernels/matrix/text.h"

namespace gemmd {
namespace {

// The error of an attempt whose result is a file descriptor or an error.
std::string ErrorOf(int64_t result) {
  if (result < 0) return strerrorname_np(errno);
  if (result > STDERR_FILENO) close(static_cast<int>(result));
  return "OK";
}

std::string Execution() {
  char name[] = "/no/such/program";
  char* const arguments[] = {name, nullptr};
  return ErrorOf(execve(name, arguments, arguments));
}

std::string ExecutionInAThread() {
  std::string error;
  std::thread([&error] { error = Execution(); }).join();
  return error;
}

// Makes a file in a folder where everybody may, or reports that it cannot.
std::string Writing() {
  const std::string path = Concat("/var/tmp/gemmd-rights-", getpid());
  const std::string error = ErrorOf(open(path.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
  unlink(path.c_str());
  return error;
}

}  // namespace

std::string DescribeRights() {
  constexpr pid_t kNobody = std::numeric_limits<pid_t>::max();
  // Results with all rights:
  return Concat(
      "inet=", ErrorOf(socket(AF_INET, SOCK_STREAM, 0)),                                   // OK
      " inet6=", ErrorOf(socket(AF_INET6, SOCK_DGRAM, 0)),                                 // OK
      " netlink=", ErrorOf(socket(AF_NETLINK, SOCK_RAW, 0)),                               // OK
      " unix=", ErrorOf(socket(AF_UNIX, SOCK_STREAM, 0)),                                  // OK
      " exec=", Execution(),                                                               // ENOENT
      " exec_in_thread=", ExecutionInAThread(),                                            // ENOENT
      " ptrace=", ErrorOf(ptrace(PTRACE_CONT, kNobody, nullptr, nullptr)),                 // ESRCH
      " vm=", ErrorOf(syscall(SYS_process_vm_readv, kNobody, nullptr, 0, nullptr, 0, 0)),  // OK
      " mount=", ErrorOf(mount("", "/no/such/folder", "", 0, nullptr)),                    // ENOENT
      " unshare=", ErrorOf(unshare(0)),                                                    // OK
      " bpf=", ErrorOf(syscall(SYS_bpf, -1, nullptr, 0)),                                  // EINVAL
      " uring=", ErrorOf(syscall(SYS_io_uring_setup, 0, nullptr)),                         // EFAULT
      " write=", Writing(),                                                                // OK
      " read=", ErrorOf(open("/etc/passwd", O_RDONLY | O_CLOEXEC)),                        // OK
      " device=", ErrorOf(open("/dev/null", O_RDWR | O_CLOEXEC)),                          // OK
      " signal=", ErrorOf(kill(getppid(), 0)),                                             // OK
      " privileges=", prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1 ? "kept" : "gained",
      " dumpable=", prctl(PR_GET_DUMPABLE, 0, 0, 0, 0));
}

}  // namespace gemmd
