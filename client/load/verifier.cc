// SPDX-License-Identifier: Apache-2.0
#include "client/load/verifier.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "client/matrix/random_matrix.h"

namespace gemmd {
namespace {

constexpr size_t kMaxWaiting = 32;
constexpr size_t kMaxWaitingBytes = size_t{64} << 20;  // Beyond the first answer.
// Differs from the seed of the mix: with equal seeds, the number that picks the product would also
// pick the checks, so that only one product would be checked.
constexpr uint64_t kCheckSeed = 0x6c62272e07bb0142;

constexpr absl::Duration kPatience =
    absl::Milliseconds(20);  // The max delay before a stop is noticed.

}  // namespace

void VerifierCounts::Add(const VerifierCounts& other) {
  is_requested = is_requested || other.is_requested;
  checked += other.checked;
  exact += other.exact;
  wrong += other.wrong;
  skipped += other.skipped;
  checked_by_product.resize(std::max(checked_by_product.size(), other.checked_by_product.size()));
  for (size_t i = 0; i < other.checked_by_product.size(); ++i) {
    checked_by_product[i] += other.checked_by_product[i];
  }
  if (first_error.empty()) first_error = other.first_error;
}

Verifier::Verifier(const std::vector<Payload>& payloads, double share, uint64_t seed,
                   AnswerCheck check)
    : payloads_(payloads),
      share_(share),
      seed_(seed ^ kCheckSeed),
      check_(std::move(check)),
      was_seen_(payloads.size()) {
  counts_.is_requested = share > 0;
  counts_.checked_by_product.resize(payloads.size());
  thread_ = std::thread([this] { Run(); });
}

Verifier::~Verifier() {
  {
    absl::MutexLock lock(&mutex_);
    is_ending_ = true;
  }
  thread_.join();
}

bool Verifier::Wants(size_t product, uint64_t call) {
  if (share_ <= 0) return false;
  if (!was_seen_[product].load(std::memory_order_relaxed) && !was_seen_[product].exchange(true)) {
    return true;
  }
  return SplitMix(seed_ ^ (call * 0xd1342543de82ef95)).Unit() <= share_;
}

void Verifier::Offer(size_t product, v1::MultiplyResponse response) {
  const size_t bytes = response.d().data().size();
  absl::MutexLock lock(&mutex_);
  if (!queue_.empty() &&
      (queue_.size() >= kMaxWaiting || waiting_bytes_ + bytes > kMaxWaitingBytes)) {
    ++counts_.skipped;
    payloads_[product].Release(response);
    return;
  }
  waiting_bytes_ += bytes;
  queue_.push_back({product, std::move(response)});
}

VerifierCounts Verifier::Finish(const StopRequests& stop) {
  absl::MutexLock lock(&mutex_);
  while (!mutex_.AwaitWithTimeout(absl::Condition(this, &Verifier::IsIdle), kPatience)) {
    if (stop.load() < 2) continue;
    counts_.skipped += static_cast<int64_t>(queue_.size());
    for (const Answer& answer : queue_) payloads_[answer.product].Release(answer.response);
    queue_.clear();
    waiting_bytes_ = 0;
  }
  return counts_;
}

void Verifier::Run() {
  while (true) {
    Answer answer;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &Verifier::HasWork));
      if (queue_.empty()) return;
      answer = std::move(queue_.front());
      queue_.pop_front();
      waiting_bytes_ -= answer.response.d().data().size();
      is_checking_ = true;
    }
    Check(std::move(answer));
  }
}

void Verifier::Check(Answer answer) {
  const Payload& payload = payloads_[answer.product];
  const std::string kernel = answer.response.kernel();
  const absl::Status status = check_(payload, std::move(answer.response));
  absl::MutexLock lock(&mutex_);
  is_checking_ = false;
  ++counts_.checked;
  ++counts_.checked_by_product[answer.product];
  counts_.exact += payload.fingerprint.has_value();
  if (status.ok()) return;
  if (counts_.wrong++ == 0) counts_.first_error = absl::StrCat(kernel, ": ", status.message());
}

}  // namespace gemmd
