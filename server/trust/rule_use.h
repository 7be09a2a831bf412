// SPDX-License-Identifier: Apache-2.0
//
// What the callers of one rule have had of the daemon since the start. Rules are as few as their
// file makes them, while callers choose how many names a pattern stands for.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>

namespace gemmd {

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

}  // namespace gemmd
