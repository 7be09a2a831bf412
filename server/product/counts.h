// SPDX-License-Identifier: Apache-2.0
//
// What the daemon counts about products: counters and histograms to which many threads add without
// a lock.
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

// The sum of two counts. A negative count is treated as 0.
inline int64_t SaturatingSum(int64_t x, int64_t y) {
  int64_t sum = 0;
  const bool overflows = __builtin_add_overflow(x < 0 ? 0 : x, y < 0 ? 0 : y, &sum);
  return overflows ? std::numeric_limits<int64_t>::max() : sum;
}
inline double SaturatingSum(double x, double y) { return x + y; }

// A sum to which many threads add without a lock. A copy is the sum of that moment. It saturates:
// one that wrapped around would be negative, which looks like a restart to a scraper.
template <typename Number>
class SumOf {
 public:
  SumOf(Number value = 0) : value_(value) {}
  SumOf(const SumOf& other) : value_(Number{other}) {}
  SumOf& operator=(const SumOf& other) {
    value_.store(other, std::memory_order_relaxed);
    return *this;
  }

  operator Number() const { return value_.load(std::memory_order_relaxed); }

  void Add(Number amount) {
    Number before = *this;
    while (!value_.compare_exchange_weak(before, SaturatingSum(before, amount),
                                         std::memory_order_relaxed)) {
    }
  }

 private:
  std::atomic<Number> value_;
};
using Counter = SumOf<int64_t>;

// A histogram of durations. Many threads add without a lock while others copy it. A copy may have
// the buckets of slightly different moments; the count is always the sum of the buckets.
struct LatencyHistogram {
  // The upper bound of each bucket, 1 us to 50 s in steps of 1, 2, 5. One more bucket holds all
  // longer durations.
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

  // Threads: any.
  void Add(int64_t duration_ns) {
    const auto bound = std::lower_bound(kBoundsNs.begin(), kBoundsNs.end(), duration_ns);
    counts[static_cast<size_t>(bound - kBoundsNs.begin())].Add(1);
    sum_ns.Add(duration_ns);
  }
  int64_t count() const { return std::accumulate(counts.begin(), counts.end(), int64_t{0}); }

  std::array<Counter, kBounds + 1> counts = {};  // Per bucket, not cumulative.
  Counter sum_ns;
};

// Why a product was refused before admission, which counts its own refusals.
enum class RefusalReason : uint8_t {
  kInvalid,
  kNotFound,
  kUnsupported,
  kTooLarge,
  kNotReady,
  kInternal,
  kTooLong,       // Longer than the maximum of this server.
  kDeadline,      // Longer than its own deadline allows.
  kBacklog,       // Too much work is ahead of it.
  kShare,         // Its caller has used up its share of the room.
  kKernelRefused  // Workers of the device died of its kernel.
};
inline constexpr size_t kRefusalReasons = 11;
std::string_view NameOf(RefusalReason reason);  // For example "not_ready".

// The reason for a status that refuses a product before admission.
RefusalReason ReasonOf(const absl::Status& status);

// The stages of a product in their order, as in Timing of the wire contract.
enum class Stage : uint8_t { kReceive, kQueue, kCopyIn, kCompute, kCopyOut, kSendPrepare };
inline constexpr size_t kStages = 6;
std::string_view NameOf(Stage stage);  // For example "copy_in".

struct ProductTiming {
  std::array<int64_t, kStages> stage_ns = {};  // Indexed by Stage.
  int64_t total_ns = 0;                        // Since the request arrived.

  int64_t& operator[](Stage stage) { return stage_ns[static_cast<size_t>(stage)]; }
  int64_t operator[](Stage stage) const { return stage_ns[static_cast<size_t>(stage)]; }
};

inline constexpr size_t kStatusCodes = 17;  // The codes are the same in gRPC and absl::StatusCode.

// How an admitted product ended.
struct Completion {
  size_t device = 0;  // The index in the list of served devices.
  const Kernel* kernel = nullptr;
  absl::StatusCode code = absl::StatusCode::kOk;
  // Used only if the product is OK:
  ProductTiming timing;
  int64_t joined = 1;  // The number of products that ran as one, this one included.
  int64_t operations = 0;
  int64_t bytes_read = 0;
  int64_t bytes_written = 0;
  int64_t batch = 0;
};

// Checks of answers in one mode.
struct VerifyTotals {
  std::array<Counter, kVerifyEnds> ends = {};  // Indexed by VerifyEnd.
  Counter took_ns;                             // From D to the end of the check.
  // Sums, over the checks that passed, of the members of AnswerVerification with these names.
  SumOf<double> miss_probability;
  SumOf<double> cost;
};

// Counts refusals by reason, ends by status, durations by kind of device and stage, and what each
// kernel did. Adding takes no lock, except for a kernel's first product, so readers never delay a
// product.
class Stats {
 public:
  struct DeviceTotals {
    std::array<Counter, kStatusCodes> ends = {};  // Indexed by status.
    Counter operations;
    Counter bytes_read;
    Counter bytes_written;
    Counter matrices;  // Each matrix of a batch counts.
    LatencyHistogram total;
  };
  struct KindTotals {
    DeviceKind device_kind = DeviceKind::kCpu;
    LatencyHistogram total;
    std::array<LatencyHistogram, kStages> stages;
  };
  struct KernelTotals {
    DeviceKind device_kind = DeviceKind::kCpu;
    std::string_view kernel;  // The kernel's name, or kOtherKernels.
    Counter products;
    Counter compute_ns;  // Products that ran as one each add an equal part.
  };

  // The first kMaxKernels kernels that run are counted each on its own, all others together. A
  // caller can name every kernel of the catalogue, and each has its own time series.
  static constexpr size_t kMaxKernels = 48;
  static constexpr std::string_view kOtherKernels = "other";

  explicit Stats(size_t devices);

  // Threads: any.
  void AddRefusal(RefusalReason reason) { refusals_[static_cast<size_t>(reason)].Add(1); }
  void AddCompletion(const Completion& completion);
  void AddSilentCalls(int64_t calls) { silent_calls_.Add(calls); }
  void AddVerification(VerifyMode mode, VerifyEnd end, int64_t took_ns) {
    VerifyTotals& totals = verifications_[static_cast<size_t>(mode)];
    totals.ends[static_cast<size_t>(end)].Add(1);
    totals.took_ns.Add(took_ns);
  }
  // The same for an answer that was sent. If its check passed, also adds the check's miss
  // probability and cost.
  void AddVerification(const AnswerVerification& given) {
    AddVerification(given.mode, given.end, given.verify_ns);
    if (given.end != VerifyEnd::kPassed) return;
    VerifyTotals& totals = verifications_[static_cast<size_t>(given.mode)];
    totals.miss_probability.Add(given.miss_probability);
    totals.cost.Add(given.cost);
  }

  // Threads: any.
  std::array<Counter, kRefusalReasons> refusals() const { return refusals_; }  // By RefusalReason.
  // Calls that were ended because their peer did not read the answer.
  int64_t silent_calls() const { return silent_calls_; }
  VerifyTotals verifications(VerifyMode mode) const {
    return verifications_[static_cast<size_t>(mode)];
  }
  DeviceTotals device(size_t position) const { return devices_[position]; }
  // The kinds of devices that have computed products.
  std::vector<KindTotals> kinds() const;
  // The kernels that are counted each on its own, in the order in which they first ran; then the
  // other kernels, by kind of device.
  std::vector<KernelTotals> kernels() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  static constexpr size_t kDeviceKinds = 3;
  static_assert(static_cast<size_t>(DeviceKind::kCuda) + 1 == kDeviceKinds);

  // Where a kernel is counted: an index of kernels_.
  using Place = uint8_t;
  static constexpr Place kNoPlace = 255;  // The kernel has not run.
  static_assert(kMaxKernels + kDeviceKinds <= kNoPlace);

  KernelTotals* TotalsOf(const Kernel& kernel);
  Place TakePlace(size_t row) ABSL_LOCKS_EXCLUDED(mutex_);

  std::array<Counter, kRefusalReasons> refusals_ = {};
  Counter silent_calls_;
  std::array<VerifyTotals, kVerifyModes> verifications_ = {};
  std::vector<DeviceTotals> devices_;
  std::array<KindTotals, kDeviceKinds> kinds_;
  // Names and kinds are written and read under the lock.
  std::array<KernelTotals, kMaxKernels + kDeviceKinds> kernels_;
  std::vector<std::atomic<Place>> places_;  // One per row of the catalogue.

  mutable Mutex mutex_;                       // Locked for a kernel that runs for the first time.
  size_t taken_ ABSL_GUARDED_BY(mutex_) = 0;  // The number of kernels counted each on its own.
};

}  // namespace gemmd
