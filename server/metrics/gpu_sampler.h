// SPDX-License-Identifier: Apache-2.0
//
// Reads the GPUs through NVML once a second, on a thread of its own, since a reading may take long,
// and of a GPU that hangs never ends; whoever asks gets the latest one at once.
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
  std::optional<double> joules_at_start;  // At the first reading that told them.
};

struct GpuSamplerOptions {
  std::string library = Nvml::kLibrary;
  absl::Duration interval = absl::Seconds(1);
  // Older readings are no readings any more.
  absl::Duration most_age = absl::Seconds(5);
  // So long the start waits for the first readings, and the end for the one under way.
  absl::Duration patience = absl::Seconds(2);
};

class GpuSampler {
 public:
  // Of the GPUs at these PCI bus addresses; an empty one is no GPU. There may be no NVML: then
  // there are no samples.
  explicit GpuSampler(std::vector<std::string> pci_bus_ids, GpuSamplerOptions options = {});
  // Leaves a thread behind that NVML does not let go of.
  ~GpuSampler();

  // By position; nothing where that is no GPU, or NVML does not know it, or has not answered for
  // too long. Threads: any.
  std::optional<GpuSample> sample(size_t position) const;

  // Why some GPU has no readings, each reason once; empty where all have. Threads: any.
  std::string absence() const;

 private:
  struct State;
  static void Run(State& state);

  // The thread's too, which may live longer than this.
  const std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace gemmd
