// SPDX-License-Identifier: Apache-2.0
//
// Jobs that are too large for one request to their device. One that is larger than the staging area
// goes through it in parts. One that takes more memory than the device has is computed in panels,
// parts of D with a job each.
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

// A part of D that is computed by a job of its own: several whole matrices of a batch, or some rows
// and columns of one. k is never divided: every element of D is one sum, and has the bits that it
// has in the whole, with the same kernel.
struct Panel {
  struct Extent {
    int64_t first = 0;  // Along lines of matrices: a multiple of 8, so that it begins a byte.
    int64_t count = 0;
  };
  Extent matrices;
  Extent rows;
  Extent columns;
};

// The problem of a panel. An operand in memory of the host that is divided along its lines is to be
// gathered into lines without gaps, and such a D is scattered; all others keep the lines and the
// strides of the whole.
struct PanelProblem {
  Problem problem;
  // Where each matrix begins: in its block, or, in memory of the host, counted from where that of
  // the whole begins.
  JobPlaces places;
};
PanelProblem ProblemOfPanel(const Problem& whole, const JobPlaces& places, const Panel& panel);

// What the sources of a panel point at.
using PanelPieces = PerOperand<std::vector<Piece>>;

// The job of a panel. Where D does not go into a block, `whole` has memory for it. Fills `pieces`,
// which stay until the job is done.
Job JobOfPanel(const Job& whole, const JobPlaces& places, const Panel& panel, PanelPieces& pieces);

// Bytes of a device's memory that a job takes beside the blocks in which its matrices lie: those
// that are brought, D, the kernel's workspace, and copies of what a kernel cannot use as it lies.
// Without a kernel there is no workspace.
// Errors: those of LayOutJob and of the kernel.
absl::StatusOr<int64_t> MemoryOf(const Problem& problem, const JobPlaces& places,
                                 const Kernel* kernel);

// Divides a job that takes more memory than its device has into panels that fit.
class PanelPlan {
 public:
  // Panels that take at most so many bytes each: few, whole matrices first.
  // Errors: ResourceExhausted where not even a panel of 8 x 8 elements of D would fit, or none that
  // the places allow; says what the least one takes. Those of MemoryOf.
  static absl::StatusOr<PanelPlan> Of(const Problem& problem, const JobPlaces& places,
                                      const Kernel* kernel, int64_t max_bytes);

  int64_t count() const;
  // They follow each other in memory of D, as far as can be.
  Panel at(int64_t index) const;

 private:
  // Each but the last ones along its axis is so long.
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

// A job that takes more memory than its device has: its panels are computed one after the other,
// each as a job that brings the operands that it needs.
class PaneledJob : public std::enable_shared_from_this<PaneledJob> {
 public:
  // What the job needs of its device. All may be called from any thread.
  struct Calls {
    std::function<void(const Job&, Device::Done)> submit;  // Runs one panel.
    std::function<void(JobId)> abort;                      // Aborts the panel that runs.
    // Does work that takes some time on a thread that may take it.
    std::function<void(absl::AnyInvocable<void() &&>)> work;
    std::function<void(const PaneledJob&)> ended;  // The last of all, after the job's own end.
  };

  PaneledJob(const Job& job, const JobPlaces& places, const PanelPlan& plan, Device::Done done,
             Calls calls);

  // Goes on by itself from there; whoever it waits for keeps it.
  void Start();
  // No further panel begins. The one that runs is aborted by its number, which is the job's.
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

  // One step after the other uses what follows.
  Job job_;
  HeldBytes d_;  // Where the device gives the memory.
  PanelPieces pieces_;
  int64_t next_ = 0;
  JobOutcome outcome_;  // The sums of the panels' times.
};

// A job that is larger than the staging area: its matrices go through that in parts, into blocks of
// the GPU's memory that are its own, and D comes back in the same way.
class StreamedJob : public std::enable_shared_from_this<StreamedJob> {
 public:
  using Submit = std::function<void(const Job&, Device::Done)>;
  using Ended = std::function<void(const StreamedJob&)>;

  // `submit` runs the job once all of its matrices lie in blocks. `bytes` is what the blocks take.
  // `ended` is called last, after the job's own end. Borrows memory and clock.
  StreamedJob(const Job& job, Device::Done done, int64_t bytes, WorkerMemory& memory,
              const Clock& clock, Submit submit, Ended ended);

  // Looks at the operands, which takes as long as they are large, and goes on by itself from there;
  // whoever it waits for keeps it.
  void Start();
  // It ends soon. The job that was submitted is aborted by its number.
  void Abort() { is_aborted_ = true; }

  JobId id() const { return job_.id; }
  int64_t bytes() const { return bytes_; }

 private:
  // The matrix of this number, of those that do not lie in blocks yet; then the next one.
  void PlaceNext();
  void WriteNext();
  void PlaceD();
  void Run();
  void ReadD();
  void ReadNext();
  // Copies a slice of D to where its lines lie apart.
  void Scatter(int64_t offset, absl::Span<const std::byte> slice) const;
  void Finish();
  // Whether it goes on; otherwise it has ended.
  bool GoesOn(const absl::Status& status);
  void End(const absl::Status& status);

  const Job job_;
  Device::Done done_;
  const int64_t bytes_;
  WorkerMemory& memory_;
  const Clock& clock_;
  const Submit submit_;
  const Ended ended_;
  std::atomic<bool> is_aborted_ = false;

  // One step after the other uses what follows.
  Job inner_;
  std::vector<Source*> to_place_;  // Sources in `inner_`.
  size_t placing_ = 0;
  std::vector<Piece> left_;  // What is left of the matrix that is written, in slices.
  int64_t written_ = 0;
  std::vector<DeviceBlock> blocks_;
  HeldBytes d_;              // D, or a slice of it where its lines lie apart.
  std::byte* to_ = nullptr;  // Where it is read to.
  int64_t read_ = 0;
  JobOutcome outcome_;
  int64_t submitted_ns_ = 0;
  int64_t ran_ns_ = 0;
};

}  // namespace gemmd
