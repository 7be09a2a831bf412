// SPDX-License-Identifier: Apache-2.0
//
// A compression of some lines as a request to a worker.
#pragma once

#include <vector>

#include "server/device/device_memory.h"
#include "server/device/errand.h"

namespace gemmd {

class CompressErrand final : public Errand {
 public:
  // `bytes` are those of the task.
  CompressErrand(const CompressTask& task, const CompressBytes& bytes,
                 DeviceMemory::CompressDone done);

  absl::Status Send(int socket) const override;
  absl::Span<std::byte> written() const override;
  absl::Status PlaceResult(std::vector<CopiedBytes>& copies) override;
  void End(const absl::Status& status, const Times& times) override;

 private:
  const CompressTask task_;
  DeviceMemory::CompressDone done_;
  BadGroup bad_ = kNoBadGroup;
};

}  // namespace gemmd
