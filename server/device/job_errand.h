// SPDX-License-Identifier: Apache-2.0
//
// A job as a request to a worker.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "server/device/device.h"
#include "server/device/errand.h"
#include "server/device/warm_memory.h"

namespace gemmd {

class JobErrand final : public Errand {
 public:
  // Lays the matrices out; `verdict` says where they are none.
  // Borrows `results`, memory for a D that does not stay where it is staged.
  JobErrand(const Job& job, Device::Done done, const DeviceProfile& profile, WarmMemory& results);

  absl::Status CheckOperands() const override;
  std::vector<CopiedBytes> CopiesIn() const override;
  absl::Status Send(int socket) const override;
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
  int64_t kernel_ns_ = 0;
  WarmMemory& results_;
  HeldBytes d_;
};

}  // namespace gemmd
