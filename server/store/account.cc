// SPDX-License-Identifier: Apache-2.0
#include "server/store/account.h"

#include <algorithm>
#include <utility>

#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"

namespace gemmd {
namespace {

const char* NameOf(Account::Memory memory) {
  switch (memory) {
    case Account::Memory::kHost: return "host memory";
    case Account::Memory::kDevices: return "device memory";
    case Account::Memory::kHostAddresses: return "host addresses";
  }
  return "";
}

}  // namespace

Account::Charge::Charge(Charge&& other) noexcept
    : account_(std::move(other.account_)), bytes_(std::exchange(other.bytes_, 0)) {}

Account::Charge& Account::Charge::operator=(Charge&& other) noexcept {
  std::swap(account_, other.account_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

void Account::Charge::ShrinkTo(int64_t bytes) {
  if (bytes >= bytes_) return;
  account_->GiveBack(bytes_ - bytes);
  bytes_ = bytes;
}

absl::Status Account::Add(int64_t bytes) {
  MutexLock lock(&mutex_);
  // Neither is negative, so the difference cannot overflow.
  const int64_t free = std::max<int64_t>(0, limit_ - used_);
  if (bytes > free) {
    return absl::ResourceExhaustedError(Concat(
        "quota: got ", bytes, " bytes of ", NameOf(memory_), ", want at most the ", free,
        " that are free of ", name_, ": ", used_, " of ", limit_, " are used (", option_, ")"));
  }
  used_ += bytes;
  return absl::OkStatus();
}

absl::StatusOr<Account::Charge> Account::Take(int64_t bytes) {
  RETURN_IF_ERROR(Add(bytes));
  if (within_ != nullptr) {
    if (absl::Status status = within_->Add(bytes); !status.ok()) {
      MutexLock lock(&mutex_);
      used_ -= bytes;
      return status;
    }
  }
  return Charge(shared_from_this(), bytes);
}

void Account::GiveBack(int64_t bytes) {
  {
    MutexLock lock(&mutex_);
    used_ -= bytes;
  }
  if (within_ != nullptr) within_->GiveBack(bytes);
}

int64_t Account::used() const {
  MutexLock lock(&mutex_);
  return used_;
}

void Account::SetLimit(int64_t limit, const char* option) {
  MutexLock lock(&mutex_);
  limit_ = limit;
  option_ = option;
}

int64_t Account::limit() const {
  MutexLock lock(&mutex_);
  return limit_;
}

int64_t Account::free() const {
  const int64_t own = std::max<int64_t>(0, limit() - used());
  return within_ == nullptr ? own : std::min(own, within_->free());
}

}  // namespace gemmd
