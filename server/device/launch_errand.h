// SPDX-License-Identifier: Apache-2.0
//
// A job of a device of the host as a request to its worker, which runs kernels where the matrices
// lie: in memory that both share (server/crossing/shared_memory.h).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/kernel.h"
#include "server/crossing/channel.h"
#include "server/crossing/launcher.h"
#include "server/crossing/protocol.h"
#include "server/crossing/shared_memory.h"
#include "server/device/device.h"
#include "server/device/errand.h"
#include "server/device/held_bytes.h"
#include "server/device/operands.h"
#include "server/system/mutex.h"
#include "server/system/recycled.h"

namespace gemmd {

// What the launches of one host device have in common. Threads: any.
class HostSide {
 public:
  // `threads`: computing threads; 0: every core that this process may use. `poisons_freed`: see
  // server/device/held_bytes.h. Borrows `shared`; null: kernels run in this process.
  HostSide(const Target& target, int threads, bool poisons_freed, SharedMemory* shared);

  // Shared memory for copies of the matrices of one launch; nullopt if there is none. After the
  // launch it is given back, and kept for another one.
  // `is_new`: as WarmMemory::Take.
  std::optional<HeldBytes> TakeScratch(int64_t bytes, bool& is_new) ABSL_LOCKS_EXCLUDED(mutex_);
  void GiveBack(HeldBytes scratch) ABSL_LOCKS_EXCLUDED(mutex_);
  // Frees all memory that is kept.
  void Cool() ABSL_LOCKS_EXCLUDED(mutex_);

  const DeviceInfo info;  // As of a device without a worker.
  const Target target;
  SharedMemory* const shared;
  WarmMemory memory;
  const std::string no_memory_to_join;  // The message of an error.

 private:
  static constexpr size_t kMaxSpares = 4;
  static constexpr size_t kMaxSpareBytes = size_t{4} << 20;

  const bool poisons_freed_;
  Mutex mutex_;
  absl::InlinedVector<HeldBytes, kMaxSpares> spares_ ABSL_GUARDED_BY(mutex_);
};

// Forms of resident A and B (FormKeeper): the kernel's derived data or, if there is none and the
// worker cannot access the bytes, a copy of the bytes.
class TakenForms {
 public:
  // Borrows the job.
  explicit TakenForms(const Job& job) : job_(job) {}

  // Copies the operands' bytes to shared memory, unless they are there. Returns the job to run,
  // valid during the lifetime of this object. Errors: Cancelled if aborted.
  absl::StatusOr<Job> Take(const HostSide& host, AbortFlag abort);
  // Those that hold derived data, of A and of B.
  OperandForm a() const { return a_.is_copy ? OperandForm() : a_.form; }
  OperandForm b() const { return b_.is_copy ? OperandForm() : b_.form; }
  int64_t a_bytes() const { return a_.bytes; }
  int64_t b_bytes() const { return b_.bytes; }
  // After the launch; if `are_made`, all forms were made.
  void End(bool are_made);

 private:
  struct Taken {
    OperandForm form;
    int64_t bytes = 0;
    bool is_copy = false;
    Piece piece;  // The copy.
  };
  absl::Status Take(Source& source, const MatrixLayout& layout, mma::Operand operand, Taken& taken,
                    const HostSide& host, AbortFlag abort);

  const Job& job_;
  Taken a_;
  Taken b_;
};

class LaunchErrand final : public Errand, public Recycled<LaunchErrand> {
 public:
  // Borrows `host`.
  LaunchErrand(const Job& job, Device::Done done, HostSide& host);
  ~LaunchErrand() override { host_.GiveBack(std::move(scratch_)); }

  // Finds or makes the places of all matrices. Errors: InvalidArgument for invalid operands,
  // ResourceExhausted, Cancelled.
  absl::Status Prepare() override;
  absl::Status Send(Channel& channel) const override;
  absl::Span<std::byte> written() const override { return written_; }
  absl::Status PlaceResult(Copies& copies) override;
  void End(const absl::Status& status, const Times& times) override;
  const Job* job() const override { return &job_; }

  // In place of Send and a worker: runs the kernel in this process.
  absl::Status RunHere(Launcher& launcher) const;

 private:
  // A matrix outside shared memory: where it is, and whether the worker writes it.
  struct Outside {
    ByteRange* range = nullptr;
    std::byte* memory = nullptr;
    bool is_read = false;
    bool is_written = false;
  };
  static constexpr size_t kMaxOutside = kOperandRoles.size() + 3;

  absl::Status PlaceAll();
  absl::Status PlaceOutput();
  void Add(ByteRange& range, const std::byte* memory, int64_t bytes, bool is_read, bool is_written);
  void SetWritten(std::byte* memory, bool is_new);
  absl::Status CopyOutside();

  const Job job_;
  Device::Done done_;
  HostSide& host_;
  TakenForms forms_;
  Gathering gathering_;
  PerOperand<Piece> operands_;
  bool is_d_new_ = false;          // WarmMemory::Take
  std::byte* d_at_ = nullptr;      // Where the kernel writes D,
  HeldBytes d_;                    // and its memory, unless it was given.
  absl::Span<std::byte> written_;  // The bytes of D that get marks, where the worker writes them.
  LaunchRequest request_;
  // Copies of the matrices outside shared memory.
  std::array<Outside, kMaxOutside> outside_;
  size_t outside_count_ = 0;
  int64_t scratch_bytes_ = 0;
  HeldBytes scratch_;
};

}  // namespace gemmd
