// SPDX-License-Identifier: Apache-2.0
//
// Checks a sample of the answers on a thread of its own, so that no call waits for it.
//
// The first answer of every product is in the sample, and a share of the rest. Where answers come
// faster than they can be checked, those beyond a short queue are let go and counted.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "client/load/client_machine.h"
#include "client/load/payload.h"
#include "gemmd/v1/gemm.pb.h"

namespace gemmd {

struct VerifierCounts {
  bool is_asked = false;  // Whether any check was asked for.
  int64_t checked = 0;
  int64_t exact = 0;  // Checked against a fingerprint; other answers within a bound.
  int64_t wrong = 0;
  int64_t let_go = 0;
  std::vector<int64_t> checked_by_product = {};
  std::string first_error = {};  // About the first wrong answer; empty if none is.

  void Add(const VerifierCounts& other);
};

// As CheckAnswer.
using AnswerCheck = std::function<absl::Status(const Payload&, v1::MultiplyResponse)>;

class Verifier {
 public:
  // `payloads` outlives the verifier. `share` of the answers, 0 (not even the first) to 1.
  Verifier(const std::vector<Payload>& payloads, double share, uint64_t seed,
           AnswerCheck check = CheckAnswer);
  ~Verifier();
  Verifier(const Verifier&) = delete;
  Verifier& operator=(const Verifier&) = delete;

  // Whether the answer of that call is to be offered. Any thread.
  bool Wants(size_t product, uint64_t call);

  // Takes an answer. Any thread; never waits for a check.
  void Offer(size_t product, v1::MultiplyResponse response);

  // Waits until everything taken is checked; a second stop lets the rest go.
  VerifierCounts Finish(const StopRequests& stop);

 private:
  struct Answer {
    size_t product;
    v1::MultiplyResponse response;
  };
  void Run();
  void Check(Answer answer) ABSL_LOCKS_EXCLUDED(mutex_);
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !queue_.empty() || is_ending_;
  }
  bool IsIdle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return queue_.empty() && !is_checking_;
  }

  const std::vector<Payload>& payloads_;
  double share_;
  uint64_t seed_;
  const AnswerCheck check_;
  std::vector<std::atomic<bool>> was_seen_;  // By product.

  absl::Mutex mutex_;
  std::deque<Answer> queue_ ABSL_GUARDED_BY(mutex_);
  size_t waiting_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool is_checking_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_ending_ ABSL_GUARDED_BY(mutex_) = false;
  VerifierCounts counts_ ABSL_GUARDED_BY(mutex_);

  std::thread thread_;
};

}  // namespace gemmd
