// SPDX-License-Identifier: Apache-2.0
#include "server/metrics/gpu_sampler.h"

#include <pthread.h>

#include <utility>

namespace gemmd {

GpuSampler::GpuSampler(const std::vector<std::string>& pci_bus_ids, const std::string& library,
                       absl::Duration interval) {
  std::vector<std::optional<GpuSample>> samples(pci_bus_ids.size());
  for (size_t i = 0; i < pci_bus_ids.size(); ++i) {
    if (pci_bus_ids[i].empty()) continue;
    absl::StatusOr<Nvml> nvml = Nvml::Open(pci_bus_ids[i], library);
    if (!nvml.ok()) {
      absence_ = std::string(nvml.status().message());
      continue;
    }
    const GpuReading reading = nvml->Read();
    samples[i] = {nvml->uuid(), reading, reading.energy_joules.value_or(0)};
    gpus_.push_back({i, *std::move(nvml)});
  }
  {
    MutexLock lock(&mutex_);
    samples_ = std::move(samples);
  }
  if (!gpus_.empty()) thread_ = std::thread([this, interval] { Run(interval); });
}

GpuSampler::~GpuSampler() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

void GpuSampler::Run(absl::Duration interval) {
  pthread_setname_np(pthread_self(), "gemmd-nvml");
  while (true) {
    {
      MutexLock lock(&mutex_);
      const auto is_stopping = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_; };
      if (mutex_.AwaitWithTimeout(is_stopping, interval)) return;
    }
    for (const Gpu& gpu : gpus_) {
      const GpuReading reading = gpu.nvml.Read();
      MutexLock lock(&mutex_);
      samples_[gpu.position]->reading = reading;
    }
  }
}

std::optional<GpuSample> GpuSampler::sample(size_t position) const {
  MutexLock lock(&mutex_);
  return samples_[position];
}

}  // namespace gemmd
