// SPDX-License-Identifier: Apache-2.0
//
// Checks a sample of the answers on a separate thread, so that no call waits for a check. The
// sample has the first answer of every product, and a share of the rest. If answers arrive faster
// than they can be checked, answers beyond a short queue are dropped and counted.
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
  bool is_requested = false;  // Whether any check was requested.
  int64_t checked = 0;
  int64_t exact = 0;  // Checked exactly, against a fingerprint; the rest within a bound.
  int64_t wrong = 0;
  int64_t skipped = 0;
  std::vector<int64_t> checked_by_product = {};
  std::string first_error = {};  // The error of the first wrong answer; empty if none was wrong.

  void Add(const VerifierCounts& other);
};

// As CheckAnswer.
using AnswerCheck = std::function<absl::Status(const Payload&, v1::MultiplyResponse)>;

class Verifier {
 public:
  // `payloads` must outlive the verifier. `share`: the share of answers to check, 0 (none, not even
  // the first) to 1.
  Verifier(const std::vector<Payload>& payloads, double share, uint64_t seed,
           AnswerCheck check = CheckAnswer);
  ~Verifier();
  Verifier(const Verifier&) = delete;
  Verifier& operator=(const Verifier&) = delete;

  // Whether to offer the answer of that call. Any thread.
  bool Wants(size_t product, uint64_t call);

  // Takes an answer. Any thread; never waits for a check.
  void Offer(size_t product, v1::MultiplyResponse response);

  // Waits until every answer taken is checked; a second stop request drops the rest.
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
