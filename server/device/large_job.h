// SPDX-License-Identifier: Apache-2.0
//
// Jobs that are too large for one request to their device. A job larger than the staging area goes
// through it in parts. A job that needs more memory than the device has is computed in panels:
// parts of D, each with its own job.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/kernel.h"
#include "server/crossing/job_layout.h"
#include "server/device/device.h"
#include "server/device/job.h"
#include "server/device/worker_memory.h"
#include "server/system/clock.h"

namespace gemmd {

// The pieces that the sources of a panel point to.
using PanelPieces = PerOperand<std::vector<Piece>>;

// The job of a panel. If D does not go to a block, `whole` has memory for it. Fills `pieces`, which
// must stay valid until the job is done.
Job JobOfPanel(const Job& whole, const JobPlaces& places, const Panel& panel, PanelPieces& pieces);

// Device memory of a job besides the blocks of its matrices: transferred matrices, D, the kernel's
// workspace, and copies of matrices that the kernel cannot use in place. Without a kernel, no
// workspace. Errors: those of LayOutJob and of the kernel.
absl::StatusOr<int64_t> MemoryOf(const Problem& problem, const JobPlaces& places,
                                 const Kernel* kernel);

// Divides a job that needs more memory than its device has into panels that fit.
class PanelPlan {
 public:
  // Divides into few panels of at most `bytes` each, whole matrices first. Errors:
  // ResourceExhausted if not even a panel of 8 x 8 elements of D fits, or the smallest that the
  // places allow, with its size; those of MemoryOf.
  static absl::StatusOr<PanelPlan> Of(const Problem& problem, const JobPlaces& places,
                                      const Kernel* kernel, int64_t max_bytes);

  int64_t count() const;
  // Panels are in the order of D's memory, if possible.
  Panel at(int64_t index) const;

 private:
  // The extents of all panels except the last ones along each axis.
  struct Steps {
    int64_t matrices = 0;
    int64_t rows = 0;
    int64_t columns = 0;
  };
  class Search;

  explicit PanelPlan(const Problem& problem)
      : whole_{problem.batch, problem.m, problem.n}, steps_(whole_) {}

  Steps whole_;
  Steps steps_;
};

// A job that needs more memory than its device has: its panels are computed one after the other,
// each as a job that transfers the operands it needs.
class PaneledJob : public std::enable_shared_from_this<PaneledJob> {
 public:
  // Functions of the device. Threads: any.
  struct Calls {
    std::function<void(const Job&, Device::Done)> submit;  // Runs one panel.
    std::function<void(JobId)> abort;                      // Aborts the running panel.
    // Runs lengthy work on a suitable thread.
    std::function<void(absl::AnyInvocable<void() &&>)> work;
    std::function<void(const PaneledJob&)> ended;  // Called last, after the job's own end.
  };

  PaneledJob(const Job& job, const JobPlaces& places, const PanelPlan& plan, Device::Done done,
             Calls calls);

  // Runs asynchronously; pending callbacks keep this object alive.
  void Start();
  // No further panel begins. The running panel is aborted by its number, which is the job's.
  void Abort() { is_aborted_ = true; }

  JobId id() const { return job_.id; }

 private:
  void RunNext();
  void EndPanel(JobOutcome outcome);
  void End(const absl::Status& status);

  const JobPlaces places_;
  const PanelPlan plan_;
  Device::Done done_;
  const Calls calls_;
  std::atomic<bool> is_aborted_ = false;

  // Used by one step at a time.
  Job job_;
  HeldBytes d_;  // D, if the device returns its memory.
  PanelPieces pieces_;
  int64_t next_ = 0;
  JobOutcome outcome_;  // Sums the panels' times.
};

// A job larger than the staging area: its matrices go through the area in parts, into the job's own
// blocks of GPU memory, and D comes back in the same way.
class StreamedJob : public std::enable_shared_from_this<StreamedJob> {
 public:
  using Submit = std::function<void(const Job&, Device::Done)>;
  using Ended = std::function<void(const StreamedJob&)>;

  // `submit` runs the job once all of its matrices are in blocks. `bytes`: the size of the blocks.
  // `ended` is called last, after the job's own end. Borrows memory and clock.
  StreamedJob(const Job& job, Device::Done done, int64_t bytes, WorkerMemory& memory,
              const Clock& clock, Submit submit, Ended ended);

  // Checks the operands, which takes time linear in their size, and then runs asynchronously;
  // pending callbacks keep this object alive.
  void Start();
  // Makes it end soon. A submitted job is aborted by its number.
  void Abort() { is_aborted_ = true; }

  JobId id() const { return job_.id; }
  int64_t bytes() const { return bytes_; }

 private:
  // Places the next matrix that is not in a block yet.
  void PlaceNext();
  void WriteNext();
  void PlaceD();
  void Run();
  void ReadD();
  void ReadNext();
  // Copies a slice of D to its separate lines.
  void Scatter(int64_t offset, absl::Span<const std::byte> slice) const;
  void Finish();
  // Returns true if the status is OK and the job is not aborted; otherwise ends the job.
  bool ContinueOrEnd(const absl::Status& status);
  void End(const absl::Status& status);

  const Job job_;
  Device::Done done_;
  const int64_t bytes_;
  WorkerMemory& memory_;
  const Clock& clock_;
  const Submit submit_;
  const Ended ended_;
  std::atomic<bool> is_aborted_ = false;

  // Used by one step at a time.
  Job inner_;
  std::vector<Source*> to_place_;  // Sources in `inner_`.
  size_t placing_ = 0;
  std::vector<Piece> left_;  // The rest of the matrix being written in slices.
  int64_t written_ = 0;
  std::vector<DeviceBlock> blocks_;
  HeldBytes d_;              // D, or a slice of it if its lines are separate.
  std::byte* to_ = nullptr;  // Destination of the read.
  int64_t read_ = 0;
  JobOutcome outcome_;
  int64_t submitted_ns_ = 0;
  int64_t ran_ns_ = 0;
};

}  // namespace gemmd
