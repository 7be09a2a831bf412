// SPDX-License-Identifier: Apache-2.0
//
// One request to a worker on its way: what is copied into the staging area before, the record, and
// what is copied out of it after the answer.
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
  virtual absl::Status Send(Channel& channel) const = 0;
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
  // what is marked (ResultStamps).
  bool is_small() const { return in_bytes <= kMaxCopied && out_bytes <= kMaxMarked; }
  static constexpr int64_t kMaxCopied = int64_t{64} << 10;
  static constexpr int64_t kMaxMarked = int64_t{1} << 20;

  // Set before it is given to the device, and constant.
  const Kind kind;
  JobId job_id = 0;
  int64_t in_bytes = 0;  // What it takes of the staging area.
  int64_t out_bytes = 0;
  bool out_may_stay = false;  // Among the results, until somebody has read them.
  // How much of the first mark in `written` is left where the worker did nothing.
  size_t marked_bytes = ResultStamps::kBytes;
  std::vector<BlockUse> uses;
  uint64_t group = 0;                   // Errands of one group, but 0, are in no order.
  int64_t predicted_ns = 0;             // For the watchdog.
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
  bool is_ended = false;    // End was called, and the worker still has it.
  bool made_forms = false;  // The worker made what it was to make of A and B.
  Times times;
};

// Whether D goes to memory of the job's in which there is more than its elements: its lines alone
// are then copied, and what lies between them is left as it is.
bool HasGaps(const Job& job);

// What of D's lines is in a range of D's bytes, as the problem lays them out: the range is `from`,
// and `first` bytes of D precede it. The job has memory for D.
void AppendLines(const Job& job, int64_t first, absl::Span<const std::byte> from,
                 std::vector<CopiedBytes>& copies);

// A job as a request to a worker.
class JobErrand final : public Errand {
 public:
  // Lays the matrices out; `verdict` says where they are none.
  // Borrows `results`, memory for a D that does not stay where it is staged.
  JobErrand(const Job& job, Device::Done done, WarmMemory& results);

  absl::Status CheckOperands() const override;
  std::vector<CopiedBytes> CopiesIn() const override;
  absl::Status Send(Channel& channel) const override;
  absl::Span<std::byte> written() const override;
  absl::Span<std::byte> staged_mark() const override;
  absl::Status PlaceResult(std::vector<CopiedBytes>& copies) override;
  void End(const absl::Status& status, const Times& times) override;

  const Job& job() const { return job_; }
  // All that is staged.
  const JobLayout& layout() const { return layout_; }
  // The blocks of its matrices, with their ranges there.
  std::vector<PlacedRange> InBlocks() const;

  static JobPlaces PlacesOf(const Job& job);
  // Errors: Internal where the sources are not as long as their matrices.
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

// Errands that wait for their turn. One that uses a block that an earlier one writes, or writes one
// that an earlier one uses, begins once that was sent; others overtake. Takes no lock.
class ErrandQueue {
 public:
  // Waits. Its turns with its blocks begin.
  void Add(std::unique_ptr<Errand> errand);

  // Whether one that is added now could begin at once: nothing is before it.
  bool MayBegin(const Errand& errand) const { return is_empty() && HasTurn(errand); }
  // Its turns begin although it does not wait.
  void Enter(const Errand& errand) { turns_.Enter(NumberOf(errand), errand.uses, errand.group); }
  // It was sent, or will never be: its turns are over.
  void Leave(const Errand& errand) { turns_.Leave(NumberOf(errand), errand.uses); }

  // Whether an errand has what it needs to begin: a slot and its ranges of the staging area.
  enum class Room : uint8_t { kTaken, kNoSlot, kNoStaging };
  using TakeRoom = std::function<Room(Errand&)>;

  // The next errand that may begin and for which there is room; null where there is none. Jobs and
  // others take turns, and nothing overtakes an errand that waits for a range.
  std::unique_ptr<Errand> TakeNext(const TakeRoom& take_room);

  // The waiting job of this number, without its turns; null where there is none.
  std::unique_ptr<Errand> TakeJob(JobId id);
  // Any errand, the oldest of its kind, without its turns; null where there is none.
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
