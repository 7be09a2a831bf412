// SPDX-License-Identifier: Apache-2.0
//
// The daemon at one moment: what it counts, what is queued, how its devices are. All numbers that
// are shown come from here.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "server/device/served_device.h"
#include "server/metrics/gpu_sampler.h"
#include "server/scheduling/admission.h"
#include "server/scheduling/scheduler.h"
#include "server/scheduling/stats.h"

namespace gemmd {

struct DeviceSnapshot {
  const DeviceInfo* info = nullptr;
  bool is_ready = false;
  DeviceLoad load;
  Stats::DeviceTotals totals;
  DeviceCondition condition;  // Includes the server's own canary.
  std::optional<GpuSample> gpu;
};

struct Snapshot {
  Admission::Load admission;
  Admission::Limits limits;
  bool is_draining = false;
  std::array<int64_t, kRefusalReasons> refusals = {};  // Indexed by RefusalReason.
  std::vector<DeviceSnapshot> devices;
  std::vector<Stats::KernelTotals> kernels;  // Filled by ObserveWithKernels alone.
};

struct RefusalCount {
  std::string_view reason;
  int64_t count = 0;
};

// The refusals before admission and by admission, each reason once.
std::vector<RefusalCount> RefusalCounts(const Snapshot& snapshot);

class Observer {
 public:
  // Borrows everything.
  Observer(const std::vector<ServedDevice>& devices, const Scheduler& scheduler,
           const Admission& admission, const Stats& stats, const GpuSampler& gpus)
      : devices_(devices),
        scheduler_(scheduler),
        admission_(admission),
        stats_(stats),
        gpus_(gpus) {}

  // These hold locks of other parts only while they copy a few numbers. Threads: any.
  Snapshot Observe() const;
  Snapshot ObserveWithKernels() const;  // A thousand more numbers, for a scrape.
  bool is_draining() const { return admission_.closed(); }

 private:
  const std::vector<ServedDevice>& devices_;
  const Scheduler& scheduler_;
  const Admission& admission_;
  const Stats& stats_;
  const GpuSampler& gpus_;
};

}  // namespace gemmd
