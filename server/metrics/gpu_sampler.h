// SPDX-License-Identifier: Apache-2.0
//
// Reads the GPUs through NVML once a second, on a thread of its own, since a reading may take long;
// whoever asks gets the latest one at once.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "kernels/nvml.h"
#include "server/mutex.h"

namespace gemmd {

// The latest reading of one GPU.
struct GpuSample {
  std::string uuid;
  GpuReading reading;
  double joules_at_start = 0;
};

class GpuSampler {
 public:
  // Of the GPUs at these PCI bus addresses; an empty one is no GPU. Takes the first readings before
  // it returns. There may be no NVML: then there are no samples.
  explicit GpuSampler(const std::vector<std::string>& pci_bus_ids,
                      const std::string& library = Nvml::kLibrary,
                      absl::Duration interval = absl::Seconds(1));
  ~GpuSampler();

  // By position; nothing where that is no GPU, or NVML does not know it. Threads: any.
  std::optional<GpuSample> sample(size_t position) const ABSL_LOCKS_EXCLUDED(mutex_);

  // Why there is no NVML for some GPU; empty where there is.
  const std::string& absence() const { return absence_; }

 private:
  struct Gpu {
    size_t position = 0;
    Nvml nvml;
  };

  void Run(absl::Duration interval) ABSL_LOCKS_EXCLUDED(mutex_);

  // Constant once made.
  std::vector<Gpu> gpus_;
  std::string absence_;

  mutable Mutex mutex_;
  std::vector<std::optional<GpuSample>> samples_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  std::thread thread_;
};

}  // namespace gemmd
