// SPDX-License-Identifier: Apache-2.0
//
// What the daemon counts about products, in counters and histograms to which many threads add
// without a lock.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "kernels/kernel.h"
#include "server/product/verification.h"
#include "server/system/mutex.h"

namespace gemmd {

// Counters that stop at their largest value: one that has wrapped around would be negative, and to
// whoever scrapes it, a restart.
//
// The sum of two counts; a negative one counts as none.
inline int64_t SaturatingSum(int64_t x, int64_t y) {
  int64_t sum = 0;
  const bool overflows = __builtin_add_overflow(x < 0 ? 0 : x, y < 0 ? 0 : y, &sum);
  return overflows ? std::numeric_limits<int64_t>::max() : sum;
}

// Threads: any.
inline void AddSaturating(std::atomic<int64_t>& counter, int64_t amount) {
  int64_t before = counter.load(std::memory_order_relaxed);
  while (!counter.compare_exchange_weak(before, SaturatingSum(before, amount),
                                        std::memory_order_relaxed)) {
  }
}

// How many durations fell into which bucket. Many threads add without a lock while others read. A
// reader sees each number at some moment; the count is always the sum of the buckets.
class LatencyHistogram {
 public:
  // The largest duration of each bucket, 1 us to 50 s in steps of 1, 2, 5. One more bucket is for
  // all longer durations.
  static constexpr size_t kBounds = 24;
  static constexpr std::array<int64_t, kBounds> kBoundsNs = [] {
    std::array<int64_t, kBounds> bounds = {};
    int64_t decade_ns = 1'000;
    for (size_t i = 0; i < kBounds; i += 3, decade_ns *= 10) {
      bounds[i] = decade_ns;
      bounds[i + 1] = 2 * decade_ns;
      bounds[i + 2] = 5 * decade_ns;
    }
    return bounds;
  }();

  struct Snapshot {
    std::array<int64_t, kBounds + 1> counts = {};  // Each bucket's own, not cumulative.
    int64_t sum_ns = 0;

    int64_t count() const { return std::accumulate(counts.begin(), counts.end(), int64_t{0}); }
  };

  // Threads: any.
  void Add(int64_t duration_ns) {
    const auto bound = std::lower_bound(kBoundsNs.begin(), kBoundsNs.end(), duration_ns);
    counts_[static_cast<size_t>(bound - kBoundsNs.begin())].fetch_add(1, std::memory_order_relaxed);
    AddSaturating(sum_ns_, duration_ns);
  }

  // Threads: any.
  Snapshot Read() const {
    Snapshot snapshot;
    for (size_t i = 0; i < counts_.size(); ++i) {
      snapshot.counts[i] = counts_[i].load(std::memory_order_relaxed);
    }
    snapshot.sum_ns = sum_ns_.load(std::memory_order_relaxed);
    return snapshot;
  }

 private:
  std::array<std::atomic<int64_t>, kBounds + 1> counts_ = {};
  std::atomic<int64_t> sum_ns_ = 0;
};

// Why a product was refused before admission saw it; Admission counts its own refusals.
enum class RefusalReason : uint8_t {
  kInvalid,
  kNotFound,
  kUnsupported,
  kTooLarge,
  kNotReady,
  kInternal,
  kTooLong,       // Longer than a product may take here.
  kDeadline,      // Longer than its own deadline.
  kBacklog,       // Too much is ahead of it.
  kShare,         // Its caller has more than its share of the places.
  kKernelRefused  // Workers of the device died of its kernel.
};
inline constexpr size_t kRefusalReasons = 11;
std::string_view NameOf(RefusalReason reason);  // "not_ready"

// The reason that a status stands for where it refuses a product before admission.
RefusalReason ReasonOf(const absl::Status& status);

// The stages of a product in their order, as Timing of the wire contract has them.
enum class Stage : uint8_t { kReceive, kQueue, kCopyIn, kCompute, kCopyOut, kSendPrepare };
inline constexpr size_t kStages = 6;
std::string_view NameOf(Stage stage);  // "copy_in"

struct ProductTiming {
  std::array<int64_t, kStages> stage_ns = {};  // Indexed by Stage.
  int64_t total_ns = 0;                        // Since the request arrived.

  int64_t& operator[](Stage stage) { return stage_ns[static_cast<size_t>(stage)]; }
  int64_t operator[](Stage stage) const { return stage_ns[static_cast<size_t>(stage)]; }
};

inline constexpr size_t kStatusCodes = 17;  // gRPC and absl::StatusCode have the same ones.

// How an admitted product ended.
struct Completion {
  size_t device = 0;  // The position among the served devices.
  const Kernel* kernel = nullptr;
  absl::StatusCode code = absl::StatusCode::kOk;
  // Only used where the product is OK:
  ProductTiming timing;
  int64_t joined = 1;  // So many products ran as one, this one among them.
  int64_t operations = 0;
  int64_t bytes_read = 0;
  int64_t bytes_written = 0;
  int64_t batch = 0;
};

// Refusals by reason, ends by status, durations by kind of device and stage, and what each kernel
// did. Adding takes no lock, except for a kernel's first product, so that readers never delay a
// product.
class Stats {
 public:
  struct DeviceTotals {
    std::array<int64_t, kStatusCodes> ends = {};  // Indexed by status.
    int64_t operations = 0;
    int64_t bytes_read = 0;
    int64_t bytes_written = 0;
    int64_t matrices = 0;  // Each matrix of a batch counts.
    LatencyHistogram::Snapshot total;
  };
  struct KindTotals {
    DeviceKind device_kind = DeviceKind::kCpu;
    LatencyHistogram::Snapshot total;
    std::array<LatencyHistogram::Snapshot, kStages> stages;
  };
  struct KernelTotals {
    DeviceKind device_kind = DeviceKind::kCpu;
    std::string_view kernel;  // The kernel's name, or kOtherKernels.
    int64_t products = 0;
    int64_t compute_ns = 0;  // How long it ran; products that ran as one have equal parts of it.
  };

  // The first kernels that run, up to this number, are counted one by one, and all others together:
  // a caller can name every kernel of the catalogue, and each has series of its own.
  static constexpr size_t kMaxKernels = 48;
  static constexpr std::string_view kOtherKernels = "other";

  explicit Stats(size_t devices);

  // Threads: any.
  void AddRefusal(RefusalReason reason);
  void AddCompletion(const Completion& completion);
  void AddSilentCalls(int64_t calls) { silent_calls_ += calls; }
  void AddVerification(VerifyMode mode, VerifyEnd end, int64_t took_ns) {
    VerifyCounters& counters = verifications_[static_cast<size_t>(mode)];
    ++counters.ends[static_cast<size_t>(end)];
    counters.took_ns += took_ns;
  }
  // The same for an answer that is given, with what its check could miss and cost where it passed.
  void AddVerification(const AnswerVerification& given) {
    AddVerification(given.mode, given.end, given.verify_ns);
    if (given.end != VerifyEnd::kPassed) return;
    VerifyCounters& counters = verifications_[static_cast<size_t>(given.mode)];
    counters.miss_probability += given.miss_probability;
    counters.cost += given.cost;
  }

  // Threads: any.
  std::array<int64_t, kRefusalReasons> refusals() const;  // Indexed by RefusalReason.
  // Calls that were ended because their peer did not read the answer.
  int64_t silent_calls() const { return silent_calls_; }
  // Checks of answers by how they ended, and the time from D to their ends.
  int64_t verifications(VerifyMode mode, VerifyEnd end) const {
    return verifications_[static_cast<size_t>(mode)].ends[static_cast<size_t>(end)];
  }
  int64_t verify_ns(VerifyMode mode) const {
    return verifications_[static_cast<size_t>(mode)].took_ns;
  }
  // Sums over those that passed, of AnswerVerification's members of the same names.
  double miss_probability(VerifyMode mode) const {
    return verifications_[static_cast<size_t>(mode)].miss_probability;
  }
  double verify_cost(VerifyMode mode) const {
    return verifications_[static_cast<size_t>(mode)].cost;
  }
  DeviceTotals device(size_t position) const;
  // The kinds of devices that have computed.
  std::vector<KindTotals> kinds() const;
  // The kernels that have run and are counted one by one, in the order in which they first ran;
  // then the other kernels of each kind of device.
  std::vector<KernelTotals> kernels() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  using Counter = std::atomic<int64_t>;
  struct DeviceCounters {
    std::array<Counter, kStatusCodes> ends = {};
    Counter operations = 0;
    Counter bytes_read = 0;
    Counter bytes_written = 0;
    Counter matrices = 0;
    LatencyHistogram total;
  };
  struct KindHistograms {
    LatencyHistogram total;
    std::array<LatencyHistogram, kStages> stages;
  };
  struct KernelCounters {
    Counter products = 0;
    Counter compute_ns = 0;
  };

  static constexpr size_t kDeviceKinds = 3;
  static_assert(static_cast<size_t>(DeviceKind::kCuda) + 1 == kDeviceKinds);

  // Where a kernel is counted: a position in kernels_.
  using Place = uint8_t;
  static constexpr Place kNoPlace = 255;  // The kernel has not run.
  static_assert(kMaxKernels + kDeviceKinds <= kNoPlace);

  KernelCounters* CountersOf(const Kernel& kernel);
  Place TakePlace(size_t row) ABSL_LOCKS_EXCLUDED(mutex_);

  std::array<Counter, kRefusalReasons> refusals_ = {};
  Counter silent_calls_ = 0;
  struct VerifyCounters {
    std::array<Counter, kVerifyEnds> ends = {};
    Counter took_ns = 0;
    std::atomic<double> miss_probability = 0;
    std::atomic<double> cost = 0;
  };
  std::array<VerifyCounters, kVerifyModes> verifications_ = {};
  std::vector<DeviceCounters> devices_;
  std::array<KindHistograms, kDeviceKinds> kinds_;
  std::array<KernelCounters, kMaxKernels + kDeviceKinds> kernels_;
  std::vector<std::atomic<Place>> places_;  // One for each row of the catalogue.

  mutable Mutex mutex_;  // Taken for a kernel that runs for the first time.
  std::vector<const Kernel*> taken_ ABSL_GUARDED_BY(mutex_);  // Indexed by place.
};

}  // namespace gemmd
