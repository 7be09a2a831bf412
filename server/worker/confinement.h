// SPDX-License-Identifier: Apache-2.0
//
// Drops a worker's rights in two steps: before there are threads, so that the driver's threads
// inherit the limits; and after the GPU is open, for rights that opening may need. If the kernel
// lacks a mechanism, the worker continues without it, and reports that.
#pragma once

#include <string>
#include <vector>

namespace gemmd {

class Confinement {
 public:
  // Landlock; call before starting threads: this thread, and threads that it starts, may write,
  // create and remove files only in these folders (or write these files); missing paths are
  // ignored. Reading is not limited. If the kernel supports it, they may neither use TCP nor signal
  // other processes.
  void LimitFiles(const std::vector<std::string>& writable);
  // Seccomp; call once the GPU is open: every thread of the process gets EPERM for other programs
  // (execve), other processes (ptrace, process_vm_readv), sockets other than AF_UNIX, namespaces,
  // mounts, kernel modules, keys, BPF, performance events, io_uring, clocks and similar calls.
  // Children are limited alike. The process's memory, including operands, is excluded from core
  // dumps, and other processes of the same user cannot read it.
  void LimitCalls();

  // The mechanisms in effect: "seccomp, landlock 7"; empty if none.
  const std::string& means() const { return means_; }
  // Why a mechanism is missing: "landlock: not supported by the kernel".
  const std::string& missing() const { return missing_; }

 private:
  std::string means_;
  std::string missing_;
};

}  // namespace gemmd
