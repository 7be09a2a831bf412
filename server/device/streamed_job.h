// SPDX-License-Identifier: Apache-2.0
//
// A job that is larger than the staging area: its matrices go through that in parts, into blocks of
// the GPU's memory that are its own, and D comes back in the same way.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "server/device/device.h"
#include "server/device/worker_memory.h"
#include "server/system/clock.h"

namespace gemmd {

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
