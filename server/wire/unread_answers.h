// SPDX-License-Identifier: Apache-2.0
//
// How much memory answers of the Registry hold until their readers have taken them. It is a bound
// apart from Admission's: who asks much about the server takes no room from products, and the other
// way round. Calls at work need no bound of their own: their answers are prepared, so there are as
// many as gRPC has threads.
#pragma once

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "server/system/mutex.h"

namespace gemmd {

class UnreadAnswers {
 public:
  // An answer of at most so many bytes is not counted and never refused: the call itself takes
  // more.
  static constexpr int64_t kUncountedBytes = 4096;

  // The room of one answer, given back by the destructor. Movable. Threads: one at a time.
  class Room {
   public:
    Room() = default;
    Room(Room&& other) noexcept;
    Room& operator=(Room&& other) noexcept;
    ~Room();

   private:
    friend class UnreadAnswers;
    Room(UnreadAnswers* answers, int64_t bytes) : answers_(answers), bytes_(bytes) {}

    UnreadAnswers* answers_ = nullptr;
    int64_t bytes_ = 0;
  };

  explicit UnreadAnswers(int64_t max_bytes) : max_bytes_(max_bytes) {}

  // Errors: ResourceExhausted, to be tried again, where all answers would hold too many bytes.
  // Threads: any. Outlives the rooms.
  absl::StatusOr<Room> Hold(int64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);

  int64_t bytes() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void GiveBack(int64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);

  const int64_t max_bytes_;
  mutable Mutex mutex_;
  int64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace gemmd
