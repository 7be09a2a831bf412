// SPDX-License-Identifier: Apache-2.0
//
// How many bytes tensors may take: one account for all of them, and one within it for each session.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "server/system/mutex.h"

namespace gemmd {

class Account : public std::enable_shared_from_this<Account> {
 public:
  // Bytes of an account, given back by the destructor. Movable. Keeps the account alive.
  class Charge {
   public:
    Charge() = default;
    Charge(Charge&& other) noexcept;
    Charge& operator=(Charge&& other) noexcept;
    ~Charge() { ShrinkTo(0); }

    void ShrinkTo(int64_t bytes);
    int64_t bytes() const { return bytes_; }

   private:
    friend class Account;
    Charge(std::shared_ptr<Account> account, int64_t bytes)
        : account_(std::move(account)), bytes_(bytes) {}

    std::shared_ptr<Account> account_;
    int64_t bytes_ = 0;
  };

  // `name` and `option` are for messages: "all sessions" and "--tensor-bytes". Null as `within`:
  // the account of all.
  Account(const char* name, const char* option, int64_t limit, std::shared_ptr<Account> within)
      : name_(name), option_(option), limit_(limit), within_(std::move(within)) {}

  // Errors: ResourceExhausted, which names the account that is short and what is free in it.
  absl::StatusOr<Charge> Take(int64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);

  // What its tensors may take of devices; before anybody takes bytes. Null: as much as there is.
  void SetOnDevices(std::shared_ptr<Account> account) { on_devices_ = std::move(account); }
  // Its own, or that of the account that this one is within; null where neither has one.
  Account* on_devices() const {
    if (on_devices_ != nullptr || within_ == nullptr) return on_devices_.get();
    return within_->on_devices();
  }

  int64_t limit() const { return limit_; }
  int64_t used() const ABSL_LOCKS_EXCLUDED(mutex_);
  // What may be taken now, also of the account that this one is within.
  int64_t free() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  absl::Status Add(int64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  void GiveBack(int64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);

  const char* const name_;
  const char* const option_;
  const int64_t limit_;
  const std::shared_ptr<Account> within_;
  std::shared_ptr<Account> on_devices_;
  mutable Mutex mutex_;
  int64_t used_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace gemmd
