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
  // Before the first thread: nothing outside of `writable` can be changed.
  void LimitFiles(const std::vector<std::string>& writable);
  // Once the GPU is open: refuses what FilterCalls names. What the process holds, operands among
  // it, is in no core dump, and other processes of the same user cannot read it.
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
