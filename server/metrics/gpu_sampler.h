// SPDX-License-Identifier: Apache-2.0
//
// Reads the GPUs through NVML once a second, on its own thread, because a reading may take long,
// and on a hung GPU never ends. Callers get the latest reading at once.
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
  std::optional<double> joules_at_start = {};  // From the first reading with an energy.
  int64_t read_ns = 0;                         // When it was read.
};

struct GpuSamplerOptions {
  std::string library = Nvml::kLibrary;
  absl::Duration interval = absl::Seconds(1);
  // Older readings are dropped.
  absl::Duration max_age = absl::Seconds(5);
  // How long the constructor waits for the first readings, and the destructor for the last one.
  absl::Duration patience = absl::Seconds(2);
};

class GpuSampler {
 public:
  // Reads the GPUs at these PCI bus addresses; an empty address means no GPU. Without NVML there
  // are no samples.
  explicit GpuSampler(std::vector<std::string> pci_bus_ids, GpuSamplerOptions options = {});
  // Leaves the thread running if NVML does not return.
  ~GpuSampler();

  // The sample of the GPU at a position. nullopt if there is no GPU, or if NVML does not know the
  // GPU or has not answered for too long. Threads: any.
  std::optional<GpuSample> sample(size_t position) const;

  // Why a GPU has no readings, each reason once; empty if all GPUs have readings. Threads: any.
  std::string absence() const;

 private:
  struct State;
  static void Run(State& state);

  // Shared with the thread, which may outlive the sampler.
  const std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace gemmd
