// SPDX-License-Identifier: Apache-2.0
//
// Quotas of tensor bytes: one account for all tensors, and one within it for each owner.
#pragma once

#include <cstdint>
#include <functional>
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
    const Account* account() const { return account_.get(); }  // For comparison only.

   private:
    friend class Account;
    Charge(std::shared_ptr<Account> account, int64_t bytes)
        : account_(std::move(account)), bytes_(bytes) {}

    std::shared_ptr<Account> account_;
    int64_t bytes_ = 0;
  };

  // Host addresses are mapped, and have no memory before it is charged.
  enum class Memory : uint8_t { kHost, kDevices, kHostAddresses };

  // `name` and `option` are for messages: "all sessions" and "--tensor-bytes". A null `within`: the
  // account for all tensors.
  Account(const char* name, const char* option, int64_t limit, std::shared_ptr<Account> within,
          Memory memory = Memory::kHost)
      : name_(name), memory_(memory), within_(std::move(within)), option_(option), limit_(limit) {}

  // Errors: ResourceExhausted, with the exhausted account and its used and free bytes.
  absl::StatusOr<Charge> Take(int64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);

  // Sets the quota for memory of devices; call before the first Take. Null: no limit.
  void SetOnDevices(std::shared_ptr<Account> account) { on_devices_ = std::move(account); }
  // Its own, or that of the enclosing account; null if neither has one.
  Account* on_devices() const {
    if (on_devices_ != nullptr || within_ == nullptr) return on_devices_.get();
    return within_->on_devices();
  }

  // The same for addresses of the host. Null: there are none.
  void SetAddresses(std::shared_ptr<Account> account) { addresses_ = std::move(account); }
  Account* addresses() const { return addresses_.get(); }

  // Sets how space is made; call before the first Take, of the account for all tensors.
  using MakesRoom = std::function<void(const Account&, int64_t bytes)>;
  void SetMakesRoom(MakesRoom makes_room) { makes_room_ = std::move(makes_room); }
  // Drops what is kept only while no tensor needs the space, until `bytes` are free, or nothing is
  // left to drop. Locks held meanwhile: none of KeptForms or below.
  void MakeRoom(int64_t bytes) const {
    const Account* all = this;
    while (all->within_ != nullptr) all = all->within_.get();
    if (all->makes_room_) all->makes_room_(*this, bytes);
  }

  // If more than the limit is used, nothing is free until enough is given back.
  void SetLimit(int64_t limit, const char* option) ABSL_LOCKS_EXCLUDED(mutex_);
  const char* name() const { return name_; }
  int64_t limit() const ABSL_LOCKS_EXCLUDED(mutex_);
  int64_t used() const ABSL_LOCKS_EXCLUDED(mutex_);
  // The bytes that may be taken now, limited also by the enclosing account; never negative.
  int64_t free() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  absl::Status Add(int64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  void GiveBack(int64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);

  const char* const name_;
  const Memory memory_;
  const std::shared_ptr<Account> within_;
  std::shared_ptr<Account> on_devices_;
  std::shared_ptr<Account> addresses_;
  MakesRoom makes_room_;
  mutable Mutex mutex_;
  const char* option_ ABSL_GUARDED_BY(mutex_);
  int64_t limit_ ABSL_GUARDED_BY(mutex_);
  int64_t used_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace gemmd
