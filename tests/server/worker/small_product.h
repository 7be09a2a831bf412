// SPDX-License-Identifier: Apache-2.0
//
// Products of small integers for a GPU's kernels, and their expected results.
#pragma once

#include <cstdint>
#include <future>
#include <string>

#include "server/device/device.h"
#include "tests/testing/patience.h"

namespace gemmd {

// Submits a job and returns its outcome as a future.
std::future<JobOutcome> StartJob(Device& device, const Job& job);

// A of m x k and B of k x n in f16, D in f32, exact. Owns its operands. Not copyable, because jobs
// borrow it.
class SmallProduct {
 public:
  SmallProduct(int64_t m, int64_t n, int64_t k);
  SmallProduct(const SmallProduct&) = delete;
  SmallProduct& operator=(const SmallProduct&) = delete;

  Problem& problem() { return problem_; }
  // A job for the kernel that the device would choose.
  Job JobFor(const Device& device);

  // Submits the job with an id and returns its outcome as a future.
  std::future<JobOutcome> Start(Device& device, JobId id = 0);
  JobOutcome Run(Device& device) { return Awaited(Start(device), "the outcome of a job"); }

  const std::string& a() const { return a_; }
  const std::string& b() const { return b_; }
  const std::string& d() const { return d_; }
  bool IsRight() const { return d_ == Expected(); }
  std::string Expected() const;

 private:
  Problem problem_;
  std::string a_;
  std::string b_;
  std::string d_;  // Until a job is done, contents left from before.
  SourcePieces pieces_;
  Source a_source_;
  Source b_source_;
};

}  // namespace gemmd
