// SPDX-License-Identifier: Apache-2.0
//
// A request about a block: to take it, to give it back, to copy into it or out of it.
#pragma once

#include "absl/status/status.h"
#include "server/crossing/protocol.h"
#include "server/worker/run.h"

namespace gemmd {

class MemoryRun final : public Run {
 public:
  MemoryRun(RunContext& context, const MemoryRequest& request);

 protected:
  absl::Status Issue() override;
  absl::Status FillTimes(Result& result) override;

 private:
  absl::Status Allocate();
  absl::Status CheckRoom();
  absl::Status Free();
  absl::Status Copy();

  const MemoryRequest request_;
  LanePoint begin_;
  LanePoint end_;
};

}  // namespace gemmd
