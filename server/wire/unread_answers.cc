// SPDX-License-Identifier: Apache-2.0
#include "server/wire/unread_answers.h"

#include <utility>

#include "kernels/text.h"
#include "server/scheduling/admission.h"

namespace gemmd {
namespace {

// An answer is gone long before, where its reader reads.
constexpr int64_t kRetryAfterMs = 100;

}  // namespace

UnreadAnswers::Room::Room(Room&& other) noexcept
    : answers_(std::exchange(other.answers_, nullptr)), bytes_(other.bytes_) {}

UnreadAnswers::Room& UnreadAnswers::Room::operator=(Room&& other) noexcept {
  std::swap(answers_, other.answers_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

UnreadAnswers::Room::~Room() {
  if (answers_ != nullptr) answers_->GiveBack(bytes_);
}

absl::StatusOr<UnreadAnswers::Room> UnreadAnswers::Hold(int64_t bytes) {
  if (bytes <= kUncountedBytes) return Room();
  MutexLock lock(&mutex_);
  const int64_t free = max_bytes_ - bytes_;
  if (bytes > free) {
    return WithRetryAfterMs(
        absl::ResourceExhaustedError(
            GotWant("registry", Concat("an answer of ", bytes, " bytes"),
                    Concat("at most ", free, " now: ", bytes_, " wait for their readers"))),
        kRetryAfterMs);
  }
  bytes_ += bytes;
  return Room(this, bytes);
}

int64_t UnreadAnswers::bytes() const {
  MutexLock lock(&mutex_);
  return bytes_;
}

void UnreadAnswers::GiveBack(int64_t bytes) {
  MutexLock lock(&mutex_);
  bytes_ -= bytes;
}

}  // namespace gemmd
