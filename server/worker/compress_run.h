// SPDX-License-Identifier: Apache-2.0
//
// A request to compress some lines of a block into another one.
#pragma once

#include "absl/status/status.h"
#include "server/crossing/protocol.h"
#include "server/worker/run.h"

namespace gemmd {

class CompressRun final : public Run {
 public:
  // The request was checked (CheckCompressRequest).
  CompressRun(RunContext& context, const CompressRequest& request);
  ~CompressRun() override;

 protected:
  absl::Status Issue() override;
  absl::Status FillTimes(Result& result) override;

 private:
  // False where there will be memory later.
  absl::StatusOr<bool> TakeMemory();

  const CompressRequest request_;
  DeviceArena::Range bad_;  // The first group that a mask leaves too full.
  LanePoint begin_;
  LanePoint compressed_;
  LanePoint end_;
};

}  // namespace gemmd
