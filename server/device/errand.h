// SPDX-License-Identifier: Apache-2.0
//
// One request to a worker on its way: what is copied into the staging area before, the record, and
// what is copied out of it after the answer.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "server/crossing/job_layout.h"
#include "server/crossing/protocol.h"
#include "server/device/copy_threads.h"
#include "server/device/job.h"
#include "server/device/result_stamps.h"
#include "server/device/staging_area.h"

namespace gemmd {

class Errand {
 public:
  // Whoever asks for blocks must not take the places of jobs, nor the other way round.
  enum class Kind : uint8_t { kJob, kMemory };

  // How long the request has taken; what is not known is 0.
  struct Times {
    int64_t wait_ns = 0;
    int64_t copy_in_ns = 0;
    int64_t compute_ns = 0;
    int64_t copy_out_ns = 0;
  };

  explicit Errand(Kind of) : kind(of) {}
  virtual ~Errand() = default;
  Errand(const Errand&) = delete;
  Errand& operator=(const Errand&) = delete;

  // What only the bytes of the operands show; may take as long as they are large.
  virtual absl::Status CheckOperands() const { return absl::OkStatus(); }
  // What goes into the range `in`, but for what is cleared here and now.
  virtual std::vector<CopiedBytes> CopiesIn() const { return {}; }
  virtual absl::Status Send(int socket) const = 0;
  // What the worker has written in the range `out`, as it must have.
  virtual absl::Span<std::byte> written() const { return out.bytes(); }
  // Where in the range `in` it finds the first mark of that, to put it where the result is made.
  virtual absl::Span<std::byte> staged_mark() const { return {}; }
  // After an answer that is OK: where that goes.
  // Errors: ResourceExhausted.
  virtual absl::Status PlaceResult(std::vector<CopiedBytes>& /*copies*/) {
    return absl::OkStatus();
  }
  // Tells how it ended. Called once, the last of all.
  virtual void End(const absl::Status& status, const Times& times) = 0;

  // Where it is so small that copying takes less time than waking a thread: what is copied in, and
  // what is marked (result_stamps.h).
  bool is_small() const { return in_bytes <= kMostCopied && out_bytes <= kMostMarked; }
  static constexpr int64_t kMostCopied = int64_t{64} << 10;
  static constexpr int64_t kMostMarked = int64_t{1} << 20;

  // Set before it is given to the device, and constant.
  const Kind kind;
  JobId job_id = 0;
  int64_t in_bytes = 0;  // What it takes of the staging area.
  int64_t out_bytes = 0;
  bool out_may_stay = false;  // Among the results, until somebody has read them.
  // How much of the first mark in `written` is left where the worker did nothing.
  size_t marked_bytes = ResultStamps::kBytes;
  std::vector<BlockUse> uses;
  uint64_t group = 0;  // Errands of one group, but 0, are in no order.
  int64_t predicted_ns = 0;
  std::optional<absl::Status> verdict;  // How it ends without the worker.

  // The device's.
  std::atomic<bool> is_aborted = false;
  StagingRange in;
  StagingRange out;
  uint32_t slot = 0;
  uint64_t id = 0;  // Its record's, once it is sent.
  int64_t submitted_ns = 0;
  int64_t begun_ns = 0;
  int64_t sent_ns = 0;
  int64_t abort_deadline_ns = 0;
  bool is_ended = false;  // End was called, and the worker still has it.
  Times times;
};

}  // namespace gemmd
