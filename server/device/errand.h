// SPDX-License-Identifier: Apache-2.0
//
// One request to a worker: the copies into the staging area before it, its record, and the copies
// out of the staging area after the answer.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "server/crossing/channel.h"
#include "server/crossing/job_layout.h"
#include "server/crossing/protocol.h"
#include "server/device/device.h"
#include "server/device/held_bytes.h"
#include "server/device/job.h"
#include "server/device/operands.h"
#include "server/device/staging_area.h"

namespace gemmd {

class Errand {
 public:
  // Jobs and memory requests have separate slots, so that neither starves the other.
  enum class Kind : uint8_t { kJob, kMemory };

  // Durations of the request; 0 if unknown.
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

  // What comes before the copies. Takes time linear in the size of the operands, whose contents it
  // checks. Called once.
  virtual absl::Status Prepare() { return absl::OkStatus(); }
  // The copies into the range `in`. Clears the rest immediately.
  virtual Copies CopiesIn() const { return {}; }
  virtual absl::Status Send(Channel& channel) const = 0;
  // The bytes that the worker must have written: a part of the range `out` or, of a launch on the
  // host, of other memory, once Prepare has placed it.
  virtual absl::Span<std::byte> written() const { return out.bytes(); }
  // Where the first mark is staged in the range `in`, for the worker to copy to the result.
  virtual absl::Span<std::byte> staged_mark() const { return {}; }
  // After a successful answer: the copies of the result. Errors: ResourceExhausted.
  virtual absl::Status PlaceResult(Copies& /*copies*/) { return absl::OkStatus(); }
  // Reports the end. Called once, after everything else.
  virtual void End(const absl::Status& status, const Times& times) = 0;
  // Null if it is not a job.
  virtual const Job* job() const { return nullptr; }

  // Whether copying (in, and of marks, see ResultStamps) takes less time than waking a thread.
  bool is_small() const {
    return !prepares_itself && in_bytes <= kMaxCopied && out_bytes <= kMaxMarked;
  }
  static constexpr int64_t kMaxCopied = int64_t{64} << 10;
  static constexpr int64_t kMaxMarked = int64_t{1} << 20;

  // Constant once given to the device.
  const Kind kind;
  JobId job_id = 0;
  bool prepares_itself = false;  // Prepare takes memory and copies, so no lock may be held.
  int64_t in_bytes = 0;          // Bytes that are copied: into the staging area, or by Prepare.
  int64_t out_bytes = 0;         // Bytes that the worker writes, as far as they get marks.
  bool out_may_stay = false;     // The result may stay in the staging area until read.
  // The bytes of the first mark in `written` that remain if the worker did nothing.
  size_t marked_bytes = ResultStamps::kBytes;
  BlockUses uses;
  uint64_t group = 0;                   // Errands of one group (not 0) are unordered.
  int64_t predicted_ns = 0;             // For the watchdog.
  std::optional<absl::Status> verdict;  // Its end without the worker, if set.

  // Used by the device.
  std::atomic<bool> is_aborted = false;
  StagingRange in;
  StagingRange out;
  uint32_t slot = 0;
  uint64_t id = 0;  // The id of its record, once sent.
  int64_t submitted_ns = 0;
  int64_t begun_ns = 0;
  int64_t sent_ns = 0;
  int64_t aborted_ns = 0;
  bool is_ended = false;    // End was called, and the worker still has it.
  bool made_forms = false;  // The worker made the forms of A and B.
  Times times;
};

// Whether D goes to the job's memory with gaps between its lines: only the lines are then copied,
// and the gaps are not changed.
bool HasGaps(const Job& job);

// Appends copies for the parts of D's lines within a range of D's bytes: the range is `from`, and
// `first` bytes of D precede it. The job has memory for D.
void AppendLines(const Job& job, int64_t first, absl::Span<const std::byte> from, Copies& copies);

// A job as a request to a worker.
class JobErrand final : public Errand {
 public:
  // Lays out the matrices; sets `verdict` if they are invalid. Borrows `results`, memory for a D
  // that does not stay in the staging area.
  JobErrand(const Job& job, Device::Done done, WarmMemory& results);

  absl::Status Prepare() override;
  Copies CopiesIn() const override;
  absl::Status Send(Channel& channel) const override;
  absl::Span<std::byte> written() const override;
  absl::Span<std::byte> staged_mark() const override;
  absl::Status PlaceResult(Copies& copies) override;
  void End(const absl::Status& status, const Times& times) override;

  const Job* job() const override { return &job_; }
  // The layout of staged data.
  const JobLayout& layout() const { return layout_; }
  // The blocks of its matrices, with their ranges.
  std::vector<PlacedRange> InBlocks() const;

  static JobPlaces PlacesOf(const Job& job);
  // Errors: Internal if a source's length differs from its matrix's.
  static absl::Status CheckSources(const Job& job, const JobLayout& layout);

 private:
  const Job job_;
  Device::Done done_;
  const JobPlaces places_;
  const std::vector<PlacedPart> parts_;
  JobLayout layout_;
  WarmMemory& results_;
  HeldBytes d_;
};

// Waiting errands. An errand that uses a block that an earlier one writes, or writes a block that
// an earlier one uses, begins once the earlier one has left; others may overtake. Takes no lock.
class ErrandQueue {
 public:
  // Adds a waiting errand, and enters its turns for its blocks.
  void Add(std::unique_ptr<Errand> errand);

  // Whether a new errand could begin at once: nothing is before it.
  bool MayBegin(const Errand& errand) const { return is_empty() && HasTurn(errand); }
  // Enters the turns of an errand that does not wait.
  void Enter(const Errand& errand) { turns_.Enter(NumberOf(errand), errand.uses, errand.group); }
  // Ends the turns of an errand. An errand of a GPU leaves when it is sent, because the worker
  // keeps the order. A launch on the host leaves once it has ended, because others copy what it
  // writes.
  void Leave(const Errand& errand) { turns_.Leave(NumberOf(errand), errand.uses); }

  // The result of reserving a slot and staging ranges for an errand.
  enum class Room : uint8_t { kTaken, kNoSlot, kNoStaging };
  using TakeRoom = std::function<Room(Errand&)>;

  // The next errand that may begin and for which there is space; null if there is none. Jobs and
  // other errands alternate, and nothing overtakes an errand that waits for a range.
  std::unique_ptr<Errand> TakeNext(const TakeRoom& take_room);

  // The waiting job of this number, without its turns; null if there is none.
  std::unique_ptr<Errand> TakeJob(JobId id);
  // Any errand, the oldest of its kind, without its turns; null if there is none.
  std::unique_ptr<Errand> TakeAny();

  bool is_empty() const { return jobs_.empty() && memory_.empty(); }

 private:
  using Waiting = std::deque<std::unique_ptr<Errand>>;

  static uint64_t NumberOf(const Errand& errand) { return reinterpret_cast<uintptr_t>(&errand); }
  bool HasTurn(const Errand& errand) const {
    return turns_.HasTurn(NumberOf(errand), errand.uses, errand.group);
  }
  std::unique_ptr<Errand> TakeNextOf(Waiting& waiting, const TakeRoom& take_room, Room& room);

  Waiting jobs_;
  Waiting memory_;
  BlockTurns turns_;
  bool is_turn_of_memory_ = false;
};

}  // namespace gemmd
