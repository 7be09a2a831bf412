// SPDX-License-Identifier: Apache-2.0
//
// The daemon at one moment: its counts, its queues, the state of its devices. All published numbers
// come from here.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "server/device/device.h"
#include "server/metrics/gpu_sampler.h"
#include "server/metrics/handler_times.h"
#include "server/product/admission.h"
#include "server/product/counts.h"
#include "server/product/scheduler.h"
#include "server/store/tensor_store.h"
#include "server/system/files.h"
#include "server/system/log.h"
#include "server/trust/trust.h"

namespace gemmd {

// Counts of connections.
struct ConnectionCounts {
  int64_t open = 0;
  int64_t limit = 0;          // For all peers.
  int64_t limit_of_peer = 0;  // For one peer.
  int64_t accepted = 0;
  // Closed at once:
  int64_t refused_of_all = 0;     // The limit for all peers was reached.
  int64_t refused_of_peer = 0;    // The limit of its peer was reached.
  int64_t refused_for_rate = 0;   // Its peer had begun too many just before.
  int64_t refused_for_files = 0;  // No file descriptor was left.
  // Closed later:
  int64_t closed_for_frames = 0;  // The frames cost more than they brought.
  int64_t closed_stalled = 0;     // The rest of a message did not come.
  int64_t closed_unread = 0;      // What was sent was read too slowly.
};

// The daemon's certificate for TLS; zeros if it has none.
struct CertificateCounts {
  int64_t not_after_s = 0;  // Its expiry, in seconds since 1970.
  int64_t loads = 0;
  int64_t refusals = 0;  // Changed files with invalid content.
};

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
  std::array<Counter, kRefusalReasons> refusals = {};  // Indexed by RefusalReason.
  ConnectionCounts connections;
  CertificateCounts certificate;
  LogCounts log;
  LineFile::Counts spans;  // Written for --traces.
  TensorStore::Load tensors;
  int64_t silent_calls = 0;  // Calls ended because the peer did not read the answer.
  std::array<VerifyTotals, kVerifyModes> verifications = {};  // Indexed by VerifyMode.
  std::vector<DeviceSnapshot> devices;
  std::vector<Stats::KernelTotals> kernels;
  std::vector<RuleUse::Totals> callers;  // By rule; empty if callers are not known by name.
  SignedTokenCounts signed_tokens;
  // Filled only by ObserveForScrape:
  std::vector<Stats::KindTotals> kinds;
  HandlerTimes::Snapshot handlers;
  HandlerTimes::LongestTimes handlers_cpu;
};

struct RefusalCount {
  std::string_view reason;
  int64_t count = 0;
};

// The refusals before admission and by admission, each reason once.
std::vector<RefusalCount> RefusalCounts(const Snapshot& snapshot);

class Observer {
 public:
  // Borrows everything. `add` adds values from elsewhere; called by any thread.
  Observer(const std::vector<ServedDevice>& devices, const Scheduler& scheduler,
           const Admission& admission, const Stats& stats, const HandlerTimes& handlers,
           const GpuSampler& gpus, std::function<void(Snapshot&)> add)
      : devices_(devices),
        scheduler_(scheduler),
        admission_(admission),
        stats_(stats),
        handlers_(handlers),
        gpus_(gpus),
        add_(std::move(add)) {}

  // These hold locks of other components only while they copy a few numbers. Threads: any.
  Snapshot Observe() const;
  // Also with kinds of devices and handlers, about a thousand more numbers.
  Snapshot ObserveForScrape() const;
  bool is_draining() const { return admission_.closed(); }

 private:
  const std::vector<ServedDevice>& devices_;
  const Scheduler& scheduler_;
  const Admission& admission_;
  const Stats& stats_;
  const HandlerTimes& handlers_;
  const GpuSampler& gpus_;
  const std::function<void(Snapshot&)> add_;
};

}  // namespace gemmd
