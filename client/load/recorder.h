// SPDX-License-Identifier: Apache-2.0
//
// Outcomes of calls: samples, recorded by many threads; histograms and tallies of samples without
// the warm-up; and the result of a step.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "gemmd/v1/gemm.pb.h"

namespace gemmd {

// Counts of times with a bounded relative error; any number of histograms merge without loss.
//
// The layout is that of HdrHistogram: values below 2048 have a bucket each; above, every power of
// two is divided into 1024 equal buckets, for a relative precision of 1/1024. (Debian 12 has no
// package of HdrHistogram_c; the test compares percentiles of merged histograms with those of
// sorted values.)
class Histogram {
 public:
  // A nonempty bucket. `value_ns` is the largest value that falls into it.
  struct Bucket {
    int64_t value_ns = 0;
    int64_t count = 0;
  };

  // A negative value counts as 0.
  void Record(int64_t value_ns, int64_t count = 1);
  void Merge(const Histogram& other);

  int64_t count() const { return count_; }
  int64_t min_ns() const { return count_ == 0 ? 0 : min_ns_; }
  int64_t max_ns() const { return max_ns_; }  // 0 where empty.
  double sum_ns() const { return sum_ns_; }
  double MeanNs() const;

  // The value at `fraction` (0 to 1) by nearest rank: the smallest value such that at least that
  // share of the values is not larger, to the precision of its bucket and at most max_ns(). 0 if
  // empty.
  int64_t ValueAt(double fraction) const;

  // The value at `rank`, 1 to count().
  int64_t ValueAtRank(int64_t rank) const;

  // How many values lie in buckets above that of `value_ns`.
  int64_t CountAbove(int64_t value_ns) const;

  std::vector<Bucket> Buckets() const;

  // The inverse of Buckets(), with the data that buckets lack.
  static Histogram FromBuckets(const std::vector<Bucket>& buckets, int64_t min_ns, int64_t max_ns,
                               double sum_ns);

 private:
  std::vector<int64_t> counts_;  // By bucket, up to the last nonempty one.
  int64_t count_ = 0;
  int64_t min_ns_ = 0;
  int64_t max_ns_ = 0;
  double sum_ns_ = 0;
};

// Outcomes of calls: one sample per call, and histograms of samples. Beware of where the clock
// starts. `latency` counts from the time at which a call was due, so that a stalled server is
// charged for every call that had to wait, including calls not yet sent. `service` counts from the
// actual send, for comparison.

// Canonical status codes: 0 to 16.
inline constexpr size_t kCallCodes = 17;
using CallsByCode = std::array<int64_t, kCallCodes>;
size_t CodeIndex(absl::StatusCode code);  // Unknown codes count as the last.
int64_t FailedOf(const CallsByCode& calls);

// One call. Times are of the monotonic clock.
struct CallSample {
  size_t product = 0;       // Index in the mix.
  int64_t intended_ns = 0;  // When the call was due; in a closed loop, when its turn came.
  int64_t admitted_ns =
      0;  // When the limit of calls in flight admitted the call; not before `intended_ns`.
  int64_t sent_ns = 0;
  int64_t ended_ns = 0;
  absl::StatusCode code = absl::StatusCode::kOk;
  v1::Timing timing = {};  // The server's timing, if the code is OK.
  int64_t operations = 0;
  int64_t bytes = 0;
  absl::string_view kernel = {};  // Set if the code is OK.
  absl::string_view device = {};
};

// The stages of the server's timing in order, then their total, then the rest of the service time:
// network, gRPC and this client.
inline constexpr std::array kStageNames = {"receive",  "queue",        "copy_in", "compute",
                                           "copy_out", "send_prepare", "total",   "outside"};
inline constexpr size_t kCallStages = kStageNames.size();
enum CallStage : size_t {
  kReceive,
  kQueue,
  kCopyIn,
  kCompute,
  kCopyOut,
  kSendPrepare,
  kTotal,
  kOutside
};

// The calls that one kernel answered on one device.
struct KernelTally {
  std::string kernel;
  std::string device;
  Histogram latency;
  std::array<double, kCallStages> stage_sums_ns = {};

  double StageMeanNs(size_t stage) const;
};

struct Tally {
  Histogram latency;         // From when the call was due to its answer, for calls that ended OK.
  Histogram service;         // From the actual send to the answer, for calls that ended OK.
  Histogram punctual;        // The latency without the send error, for calls that ended OK.
  Histogram blocked;         // Waiting for the limit of calls in flight, for all calls.
  Histogram send_error;      // From when the call could be sent to when it was sent, for all calls.
  Histogram failed_latency;  // From when the call was due, for calls that failed.
  std::array<Histogram, kCallStages> stages;
  std::vector<Histogram> latency_by_product;
  // In order of first appearance. If a server names too many kernels, the last entry,
  // kOtherKernels, takes the rest.
  std::vector<KernelTally> kernels;
  CallsByCode calls_by_code = {};
  int64_t operations = 0;
  int64_t bytes = 0;

  void Add(const CallSample& sample);
  void Merge(const Tally& other);

  int64_t calls() const;
  int64_t ok() const { return calls_by_code[0]; }
  int64_t failed() const { return calls() - ok(); }
};

inline constexpr size_t kMaxKernels = 64;
inline constexpr size_t kMaxTallyNameBytes = 200;
inline constexpr absl::string_view kOtherKernels = "(other kernels)";

// "OK 120, UNAVAILABLE 3"; without codes that did not occur.
std::string CodesText(const CallsByCode& calls_by_code);

// "3 of 123 (UNAVAILABLE 3)": failed calls.
std::string FailedCodesText(const CallsByCode& calls_by_code);

// The calls that ended within one interval. Only a few figures, no histogram: a run of a week has
// many intervals.
struct LoadInterval {
  int64_t from_ns = 0;  // Since the end of the warm-up; negative during the warm-up.
  int64_t to_ns = 0;
  int64_t in_flight = 0;  // At the interval's end.
  int64_t ok = 0;
  int64_t failed = 0;
  int64_t p50_ns = 0;  // Latencies from the intended send; 0 if no call ended OK.
  int64_t p99_ns = 0;
  int64_t max_ns = 0;
};

// Merges neighbouring intervals to at most `max_intervals` (at least one): adds up calls and takes
// the worst latencies, so that every stall remains visible.
std::vector<LoadInterval> Thinned(const std::vector<LoadInterval>& intervals, size_t max_intervals);

// CPU utilization above which the client counts as the bottleneck.
inline constexpr double kMaxClientShare = 0.8;

struct StepResult {
  Tally tally;  // The calls due within the window.
  // From the end of the warm-up to the end of the duration; with a call count, to the last answer.
  double window_s = 0;
  double rate = 0;     // Calls that ended OK within the window, per second.
  double offered = 0;  // Calls due per second, over the time in which calls were due.
  int64_t unsent =
      0;  // Due calls that the limit of calls in flight held back until the window's end.
  int64_t sent_late = 0;  // Calls sent more than 1 ms after they could have been.
  int64_t max_in_flight = 0;
  double client_cores = 0;  // Average number of cores that this process used in the window.
  double usable_cores = 0;  // Cores that this process may use.
  bool was_interrupted = false;
  std::map<absl::StatusCode, std::string> first_messages = {};  // First message of each failure.
  std::vector<LoadInterval> intervals = {};                     // Intervals of the window.

  // Whether this process is too busy to measure the server.
  bool IsClientBusy() const { return client_cores > kMaxClientShare * usable_cores; }

  // Appends a later run of the same load.
  void Append(const StepResult& next);
};

// Calls that ended within an interval, including the warm-up: for the live view and plots over
// time.
struct IntervalTally {
  Histogram latency;  // Calls that ended OK.
  CallsByCode calls_by_code = {};

  int64_t ok() const { return calls_by_code[0]; }
  int64_t failed() const { return FailedOf(calls_by_code); }
  void Merge(const IntervalTally& other);
};

class Recorder {
 public:
  // Calls that were due before `from_ns` are warm-up; only calls that end within the window count
  // towards the rate.
  Recorder(int64_t from_ns, int64_t to_ns) : window_from_ns_(from_ns), window_to_ns_(to_ns) {}

  // Any thread.
  void Add(const CallSample& sample);

  // Ends the window earlier.
  void EndWindow(int64_t to_ns) { window_to_ns_.store(to_ns); }

  // All samples so far, of all threads, without the warm-up's.
  Tally Total() const;

  // Calls that ended OK within the window, whenever they were due. The rate counts these.
  int64_t EndedInWindow() const { return ended_in_window_.load(); }

  // Sets the end of the interval. Calls that end later belong to the next interval, however late
  // this one is taken.
  void SetIntervalEnd(int64_t to_ns);

  // Takes the interval's calls; the next interval ends at `next_to_ns`.
  IntervalTally TakeInterval(int64_t next_to_ns);

  // Takes all remaining calls.
  IntervalTally TakeRest();

 private:
  // Sharded so that gRPC threads seldom contend.
  struct alignas(64) Shard {
    mutable absl::Mutex mutex;
    Tally total ABSL_GUARDED_BY(mutex);
    int64_t interval_to_ns ABSL_GUARDED_BY(mutex) = std::numeric_limits<int64_t>::max();
    IntervalTally interval ABSL_GUARDED_BY(mutex);
    IntervalTally later ABSL_GUARDED_BY(mutex);
  };
  Shard& ShardOfThisThread();

  int64_t window_from_ns_;
  std::atomic<int64_t> window_to_ns_;
  std::atomic<int64_t> ended_in_window_ = 0;
  std::array<Shard, 8> shards_;
};

}  // namespace gemmd
