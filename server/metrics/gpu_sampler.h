// SPDX-License-Identifier: Apache-2.0
//
// Reads the GPUs through NVML once a second, on a thread of its own, because a reading may take
// long, and that of a GPU that hangs never ends. Callers get the latest reading at once.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "kernels/nvml.h"

namespace gemmd {

// The latest reading of one GPU.
struct GpuSample {
  std::string uuid;
  GpuReading reading;
  std::optional<double> joules_at_start;  // From the first reading that told the energy.
};

struct GpuSamplerOptions {
  std::string library = Nvml::kLibrary;
  absl::Duration interval = absl::Seconds(1);
  // Readings that are older than this are dropped.
  absl::Duration max_age = absl::Seconds(5);
  // How long the constructor waits for the first readings, and the destructor for the last one.
  absl::Duration patience = absl::Seconds(2);
};

class GpuSampler {
 public:
  // Reads the GPUs at these PCI bus addresses; an empty address stands for no GPU. Without NVML
  // there are no samples.
  explicit GpuSampler(std::vector<std::string> pci_bus_ids, GpuSamplerOptions options = {});
  // Leaves the thread running where NVML does not let go of it.
  ~GpuSampler();

  // The sample of the GPU at a position. Nothing where there is no GPU, or NVML does not know the
  // GPU or has not answered for too long. Threads: any.
  std::optional<GpuSample> sample(size_t position) const;

  // Why some GPU has no readings, each reason once; empty where all have. Threads: any.
  std::string absence() const;

 private:
  struct State;
  static void Run(State& state);

  // Shared with the thread, which may live longer than the sampler.
  const std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace gemmd
