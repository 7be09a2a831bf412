// SPDX-License-Identifier: Apache-2.0
//
// What uploads and downloads have in common: how many connections carry them, and when whoever
// waits for one tells how far it is, or gives it up.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/lane_choice.h"
#include "client/steady_time.h"
#include "gemmd/tensor.h"

namespace gemmd {

// A message with bytes of a tensor. Of 256 KiB to 4 MiB, the rates of one connection differ by less
// than a tenth; four connections gain until here.
inline constexpr int64_t kTransferChunkBytes = int64_t{2} << 20;

// Between two looks at what goes on.
inline constexpr absl::Duration kLookEvery = absl::Milliseconds(100);

// How often a transfer whose connections broke is tried again without that any byte has moved.
inline constexpr int kMostFruitlessTries = 5;

// Connections for so many bytes; `asked` is what the caller said, and 0 leaves it to `choice`.
// Errors: InvalidArgument for fewer than 0 or more than 16.
absl::StatusOr<int> LanesFor(int64_t bytes, int asked, LaneChoice& choice);

// No more connections than there are chunks.
int LanesWithin(int64_t bytes, int lanes);

// Whether what broke off may go on over another connection.
bool IsBrokenConnection(const absl::Status& status);

struct TransferTerms {
  std::function<void(const TransferProgress&)> progress = {};
  std::optional<absl::Duration> timeout = {};  // For all of it, from `entry` on.
  SteadyTime entry = SteadyTime::Now();        // When the caller asked.
  absl::Duration patience;                     // Without any byte, where there is no timeout.
};

// Threads: that of the caller who waits.
class TransferWatch {
 public:
  TransferWatch(TransferTerms terms, int64_t bytes_total);

  // When gRPC itself should end the calls.
  SteadyTime deadline() const { return deadline_; }
  void SetTotal(int64_t bytes) { total_ = bytes; }

  // To be called every kLookEvery. Errors: DeadlineExceeded where it is time to give up.
  absl::Status Look(int64_t bytes_done);

  // Tells that all is done.
  void Finish();

 private:
  void Tell(int64_t bytes_done) const;

  const TransferTerms terms_;
  const SteadyTime start_;
  const SteadyTime deadline_;
  int64_t total_;
  int64_t moved_bytes_ = -1;
  SteadyTime moved_at_;
};

}  // namespace gemmd
