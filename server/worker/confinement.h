// SPDX-License-Identifier: Apache-2.0
//
// The rights that a worker gives up, in two steps: what the driver's threads inherit before there
// are any, and what the driver may still have needed after it has opened the GPU. Where the kernel
// lacks a means the worker goes on without it, and says so.
#pragma once

#include <string>
#include <vector>

namespace gemmd {

class Confinement {
 public:
  // Before the first thread, by landlock: this thread, and those that it starts, may write, make
  // and remove files in these folders (or write these files) only; what there is not of them is
  // left out. Reading is as before. Where the kernel knows how, they may neither use TCP nor signal
  // other processes.
  void LimitFiles(const std::vector<std::string>& writable);
  // Once the GPU is open, by seccomp: every thread of the process gets EPERM for other programs
  // (execve), other processes (ptrace, process_vm_readv), sockets that are not of AF_UNIX,
  // namespaces, mounts, kernel modules, keys, BPF, performance events, io_uring, clocks and their
  // like. The threads that there are keep their other rights, and children have no more. What the
  // process holds, operands among it, is in no core dump, and other processes of the same user
  // cannot read it.
  void LimitCalls();

  // For people: "seccomp, landlock 7"; empty where there is none.
  const std::string& means() const { return means_; }
  // Why one is missing: "landlock: the kernel has none".
  const std::string& missing() const { return missing_; }

 private:
  std::string means_;
  std::string missing_;
};

}  // namespace gemmd
