// SPDX-License-Identifier: Apache-2.0
#include "server/metrics/gpu_sampler.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "kernels/matrix/text.h"
#include "server/system/clock.h"
#include "server/system/mutex.h"

namespace gemmd {
namespace {

struct Gpu {
  size_t position = 0;
  Nvml nvml;
};

}  // namespace

struct GpuSampler::State {
  State(std::vector<std::string> ids, GpuSamplerOptions chosen)
      : pci_bus_ids(std::move(ids)), options(std::move(chosen)), samples(pci_bus_ids.size()) {}

  const std::vector<std::string> pci_bus_ids;
  const GpuSamplerOptions options;
  const SteadyClock clock;

  Mutex mutex;
  std::vector<std::optional<GpuSample>> samples ABSL_GUARDED_BY(mutex);
  std::vector<std::string> absences ABSL_GUARDED_BY(mutex);
  bool has_begun ABSL_GUARDED_BY(mutex) = false;  // The first round of readings is done.
  bool is_stopping ABSL_GUARDED_BY(mutex) = false;
  bool has_ended ABSL_GUARDED_BY(mutex) = false;  // Whether the thread has ended.

  std::vector<Gpu> OpenGpus() ABSL_LOCKS_EXCLUDED(mutex);
  void Read(const Gpu& gpu) ABSL_LOCKS_EXCLUDED(mutex);
};

std::vector<Gpu> GpuSampler::State::OpenGpus() {
  std::vector<Gpu> gpus;
  for (size_t i = 0; i < pci_bus_ids.size(); ++i) {
    if (pci_bus_ids[i].empty()) continue;
    absl::StatusOr<Nvml> nvml = Nvml::Open(pci_bus_ids[i], options.library);
    if (nvml.ok()) {
      gpus.push_back({i, *std::move(nvml)});
      continue;
    }
    std::string reason(nvml.status().message());
    MutexLock lock(&mutex);
    if (std::find(absences.begin(), absences.end(), reason) == absences.end()) {
      absences.push_back(std::move(reason));
    }
  }
  return gpus;
}

void GpuSampler::State::Read(const Gpu& gpu) {
  const GpuReading reading = gpu.nvml.Read();
  const std::string uuid = gpu.nvml.uuid();
  MutexLock lock(&mutex);
  std::optional<GpuSample>& sample = samples[gpu.position];
  if (!sample) sample.emplace();
  sample->read_ns = clock.NowNs();
  sample->uuid = uuid;
  sample->reading = reading;
  if (!sample->joules_at_start) sample->joules_at_start = reading.energy_joules;
}

GpuSampler::GpuSampler(std::vector<std::string> pci_bus_ids, GpuSamplerOptions options)
    : state_(std::make_shared<State>(std::move(pci_bus_ids), std::move(options))) {
  State& state = *state_;
  if (std::all_of(state.pci_bus_ids.begin(), state.pci_bus_ids.end(),
                  [](const std::string& id) { return id.empty(); })) {
    return;
  }
  thread_ = std::thread([shared = state_] { Run(*shared); });
  MutexLock lock(&state.mutex);
  const auto has_begun = [&state]()
                             ABSL_EXCLUSIVE_LOCKS_REQUIRED(state.mutex) { return state.has_begun; };
  if (!state.mutex.AwaitWithTimeout(has_begun, state.options.patience)) {
    state.absences.push_back(
        Concat("NVML has not answered within ", absl::FormatDuration(state.options.patience)));
  }
}

GpuSampler::~GpuSampler() {
  if (!thread_.joinable()) return;
  State& state = *state_;
  bool has_ended = false;
  {
    MutexLock lock(&state.mutex);
    state.is_stopping = true;
    const auto is_over = [&state]()
                             ABSL_EXCLUSIVE_LOCKS_REQUIRED(state.mutex) { return state.has_ended; };
    has_ended = state.mutex.AwaitWithTimeout(is_over, state.options.patience);
  }
  // A call into a hung driver cannot be ended; the thread holds only the shared state.
  if (has_ended) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

void GpuSampler::Run(State& state) {
  pthread_setname_np(pthread_self(), "gemmd-nvml");
  const std::vector<Gpu> gpus = state.OpenGpus();
  bool goes_on = !gpus.empty();
  while (goes_on) {
    for (const Gpu& gpu : gpus) state.Read(gpu);
    MutexLock lock(&state.mutex);
    state.has_begun = true;
    const auto is_stopping = [&state]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(state.mutex) {
      return state.is_stopping;
    };
    goes_on = !state.mutex.AwaitWithTimeout(is_stopping, state.options.interval);
  }
  MutexLock lock(&state.mutex);
  state.has_begun = state.has_ended = true;
}

std::optional<GpuSample> GpuSampler::sample(size_t position) const {
  MutexLock lock(&state_->mutex);
  const std::optional<GpuSample>& latest = state_->samples[position];
  if (!latest) return std::nullopt;
  const absl::Duration age = absl::Nanoseconds(state_->clock.NowNs() - latest->read_ns);
  if (age > state_->options.max_age) return std::nullopt;
  return latest;
}

std::string GpuSampler::absence() const {
  MutexLock lock(&state_->mutex);
  std::string all;
  for (const std::string& reason : state_->absences) all += Concat(all.empty() ? "" : "; ", reason);
  return all;
}

}  // namespace gemmd
