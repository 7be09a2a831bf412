// SPDX-License-Identifier: Apache-2.0
#include "client/load/recorder.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <numeric>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/terminal/text.h"

namespace gemmd {
namespace {

constexpr int kPrecisionBits = 10;  // 1024 buckets for each power of two.
constexpr uint64_t kHalf = uint64_t{1} << kPrecisionBits;

size_t BucketOf(int64_t value_ns) {
  const uint64_t value = static_cast<uint64_t>(value_ns);
  const int shift = std::max(0, static_cast<int>(std::bit_width(value)) - kPrecisionBits - 1);
  return static_cast<size_t>((static_cast<uint64_t>(shift) << kPrecisionBits) + (value >> shift));
}

// The largest value of a bucket.
int64_t LargestIn(size_t bucket) {
  if (bucket < 2 * kHalf) return static_cast<int64_t>(bucket);
  const size_t shift = (bucket >> kPrecisionBits) - 1;
  const uint64_t leading = (bucket & (kHalf - 1)) + kHalf;
  return static_cast<int64_t>(((leading + 1) << shift) - 1);
}

}  // namespace

void Histogram::Record(int64_t value_ns, int64_t count) {
  if (count <= 0) return;
  const int64_t value = std::max<int64_t>(0, value_ns);
  const size_t bucket = BucketOf(value);
  if (bucket >= counts_.size()) counts_.resize(bucket + 1);
  counts_[bucket] += count;
  min_ns_ = count_ == 0 ? value : std::min(min_ns_, value);
  max_ns_ = std::max(max_ns_, value);
  count_ += count;
  sum_ns_ += static_cast<double>(value) * static_cast<double>(count);
}

void Histogram::Merge(const Histogram& other) {
  if (other.count_ == 0) return;
  if (other.counts_.size() > counts_.size()) counts_.resize(other.counts_.size());
  for (size_t i = 0; i < other.counts_.size(); ++i) counts_[i] += other.counts_[i];
  min_ns_ = count_ == 0 ? other.min_ns_ : std::min(min_ns_, other.min_ns_);
  max_ns_ = std::max(max_ns_, other.max_ns_);
  count_ += other.count_;
  sum_ns_ += other.sum_ns_;
}

double Histogram::MeanNs() const { return count_ == 0 ? 0 : sum_ns_ / static_cast<double>(count_); }

int64_t Histogram::ValueAt(double fraction) const {
  // Corrects rounding: 0.07 * 100 is slightly above 7, which would select the eighth value.
  const double rank = fraction * static_cast<double>(count_) * (1 - 1e-14);
  return ValueAtRank(static_cast<int64_t>(std::ceil(rank)));
}

int64_t Histogram::ValueAtRank(int64_t rank) const {
  if (count_ == 0) return 0;
  if (rank <= 1) return min_ns_;
  int64_t seen = 0;
  for (size_t i = 0; i < counts_.size(); ++i) {
    seen += counts_[i];
    if (seen >= rank) return std::min(LargestIn(i), max_ns_);
  }
  return max_ns_;
}

int64_t Histogram::CountAbove(int64_t value_ns) const {
  int64_t above = 0;
  for (size_t i = BucketOf(std::max<int64_t>(0, value_ns)) + 1; i < counts_.size(); ++i) {
    above += counts_[i];
  }
  return above;
}

std::vector<Histogram::Bucket> Histogram::Buckets() const {
  std::vector<Bucket> buckets;
  for (size_t i = 0; i < counts_.size(); ++i) {
    if (counts_[i] > 0) buckets.push_back({LargestIn(i), counts_[i]});
  }
  return buckets;
}

Histogram Histogram::FromBuckets(const std::vector<Bucket>& buckets, int64_t min_ns, int64_t max_ns,
                                 double sum_ns) {
  Histogram histogram;
  for (const Bucket& bucket : buckets) histogram.Record(bucket.value_ns, bucket.count);
  if (histogram.count_ == 0) return histogram;
  histogram.min_ns_ = min_ns;
  histogram.max_ns_ = max_ns;
  histogram.sum_ns_ = sum_ns;
  return histogram;
}

namespace {

std::array<int64_t, kCallStages> StagesOf(const CallSample& sample) {
  const v1::Timing& timing = sample.timing;
  return {timing.receive_ns(),  timing.queue_ns(),
          timing.copy_in_ns(),  timing.compute_ns(),
          timing.copy_out_ns(), timing.send_prepare_ns(),
          timing.total_ns(),    sample.ended_ns - sample.sent_ns - timing.total_ns()};
}

// Linear search: only a few kernels answer a load.
KernelTally& KernelOf(std::vector<KernelTally>& kernels, absl::string_view kernel,
                      absl::string_view device) {
  for (KernelTally& known : kernels) {
    if (known.kernel == kernel && known.device == device) return known;
  }
  if (kernels.size() >= kMaxKernels && kernel != kOtherKernels) {
    return KernelOf(kernels, kOtherKernels, "");
  }
  return kernels.emplace_back(
      KernelTally{.kernel = std::string(kernel), .device = std::string(device), .latency = {}});
}

}  // namespace

double KernelTally::StageMeanNs(size_t stage) const {
  const double calls = static_cast<double>(latency.count());
  return calls > 0 ? stage_sums_ns[stage] / calls : 0;
}

size_t CodeIndex(absl::StatusCode code) {
  return std::min(static_cast<size_t>(code), kCallCodes - 1);
}

int64_t FailedOf(const CallsByCode& calls) {
  return std::accumulate(calls.begin() + 1, calls.end(), int64_t{0});
}

void Tally::Add(const CallSample& sample) {
  ++calls_by_code[CodeIndex(sample.code)];
  blocked.Record(sample.admitted_ns - sample.intended_ns);
  send_error.Record(sample.sent_ns - sample.admitted_ns);
  const int64_t latency_ns = sample.ended_ns - sample.intended_ns;
  if (sample.code != absl::StatusCode::kOk) {
    failed_latency.Record(latency_ns);
    return;
  }
  latency.Record(latency_ns);
  service.Record(sample.ended_ns - sample.sent_ns);
  punctual.Record(latency_ns - (sample.sent_ns - sample.admitted_ns));
  const std::array<int64_t, kCallStages> stages_ns = StagesOf(sample);
  KernelTally& of_kernel = KernelOf(kernels, sample.kernel.substr(0, kMaxTallyNameBytes),
                                    sample.device.substr(0, kMaxTallyNameBytes));
  of_kernel.latency.Record(latency_ns);
  for (size_t i = 0; i < kCallStages; ++i) {
    stages[i].Record(stages_ns[i]);
    of_kernel.stage_sums_ns[i] += static_cast<double>(stages_ns[i]);
  }
  if (latency_by_product.size() <= sample.product) latency_by_product.resize(sample.product + 1);
  latency_by_product[sample.product].Record(latency_ns);
  operations += sample.operations;
  bytes += sample.bytes;
}

void Tally::Merge(const Tally& other) {
  latency.Merge(other.latency);
  service.Merge(other.service);
  punctual.Merge(other.punctual);
  blocked.Merge(other.blocked);
  send_error.Merge(other.send_error);
  failed_latency.Merge(other.failed_latency);
  for (size_t i = 0; i < kCallStages; ++i) stages[i].Merge(other.stages[i]);
  if (latency_by_product.size() < other.latency_by_product.size()) {
    latency_by_product.resize(other.latency_by_product.size());
  }
  for (size_t i = 0; i < other.latency_by_product.size(); ++i) {
    latency_by_product[i].Merge(other.latency_by_product[i]);
  }
  for (const KernelTally& theirs : other.kernels) {
    KernelTally& ours = KernelOf(kernels, theirs.kernel, theirs.device);
    ours.latency.Merge(theirs.latency);
    for (size_t i = 0; i < kCallStages; ++i) ours.stage_sums_ns[i] += theirs.stage_sums_ns[i];
  }
  for (size_t i = 0; i < calls_by_code.size(); ++i) calls_by_code[i] += other.calls_by_code[i];
  operations += other.operations;
  bytes += other.bytes;
}

int64_t Tally::calls() const {
  return std::accumulate(calls_by_code.begin(), calls_by_code.end(), int64_t{0});
}

std::string CodesText(const CallsByCode& calls_by_code) {
  std::string text;
  for (size_t i = 0; i < calls_by_code.size(); ++i) {
    if (calls_by_code[i] == 0) continue;
    absl::StrAppend(&text, text.empty() ? "" : ", ",
                    absl::StatusCodeToString(static_cast<absl::StatusCode>(i)), " ",
                    FormatCount(calls_by_code[i]));
  }
  return text;
}

std::string FailedCodesText(const CallsByCode& calls_by_code) {
  CallsByCode failed = calls_by_code;
  failed[0] = 0;
  const int64_t calls = FailedOf(calls_by_code);
  if (calls == 0) return "none";
  return absl::StrCat(FormatCount(calls), " of ", FormatCount(calls + calls_by_code[0]), " (",
                      CodesText(failed), ")");
}

std::vector<LoadInterval> Thinned(const std::vector<LoadInterval>& intervals,
                                  size_t max_intervals) {
  const size_t group = (intervals.size() + max_intervals - 1) / max_intervals;
  if (group <= 1) return intervals;
  std::vector<LoadInterval> thinned;
  for (size_t i = 0; i < intervals.size(); ++i) {
    const LoadInterval& next = intervals[i];
    if (i % group == 0) {
      thinned.push_back(next);
      continue;
    }
    LoadInterval& sum = thinned.back();
    sum.to_ns = next.to_ns;
    sum.in_flight = next.in_flight;
    sum.ok += next.ok;
    sum.failed += next.failed;
    sum.p50_ns = std::max(sum.p50_ns, next.p50_ns);
    sum.p99_ns = std::max(sum.p99_ns, next.p99_ns);
    sum.max_ns = std::max(sum.max_ns, next.max_ns);
  }
  return thinned;
}

void StepResult::Append(const StepResult& next) {
  const double both_s = window_s + next.window_s;
  const auto mean = [&](double a, double b) {
    return both_s > 0 ? (a * window_s + b * next.window_s) / both_s : 0;
  };
  rate = mean(rate, next.rate);
  offered = mean(offered, next.offered);
  client_cores = mean(client_cores, next.client_cores);
  usable_cores = next.usable_cores;
  // Answers after the window were only waited for.
  int64_t end_ns = std::llround(window_s * 1e9);
  if (!intervals.empty()) end_ns = std::max(end_ns, intervals.back().to_ns);
  for (LoadInterval interval : next.intervals) {
    interval.from_ns += end_ns;
    interval.to_ns += end_ns;
    intervals.push_back(interval);
  }
  tally.Merge(next.tally);
  window_s = both_s;
  unsent += next.unsent;
  sent_late += next.sent_late;
  max_in_flight = std::max(max_in_flight, next.max_in_flight);
  was_interrupted = was_interrupted || next.was_interrupted;
  first_messages.insert(next.first_messages.begin(), next.first_messages.end());
}

Recorder::Shard& Recorder::ShardOfThisThread() {
  // Thread ids are addresses, with equal low bits.
  const size_t hash = std::hash<std::thread::id>()(std::this_thread::get_id());
  return shards_[(hash ^ hash >> 13 ^ hash >> 21) % shards_.size()];
}

void Recorder::Add(const CallSample& sample) {
  const bool is_ok = sample.code == absl::StatusCode::kOk;
  if (is_ok && sample.ended_ns >= window_from_ns_ && sample.ended_ns < window_to_ns_.load()) {
    ended_in_window_.fetch_add(1, std::memory_order_relaxed);
  }
  Shard& shard = ShardOfThisThread();
  absl::MutexLock lock(&shard.mutex);
  IntervalTally& interval = sample.ended_ns < shard.interval_to_ns ? shard.interval : shard.later;
  if (is_ok) interval.latency.Record(sample.ended_ns - sample.intended_ns);
  ++interval.calls_by_code[CodeIndex(sample.code)];
  if (sample.intended_ns >= window_from_ns_) shard.total.Add(sample);
}

Tally Recorder::Total() const {
  Tally total;
  for (const Shard& shard : shards_) {
    absl::MutexLock lock(&shard.mutex);
    total.Merge(shard.total);
  }
  return total;
}

void IntervalTally::Merge(const IntervalTally& other) {
  latency.Merge(other.latency);
  for (size_t i = 0; i < calls_by_code.size(); ++i) calls_by_code[i] += other.calls_by_code[i];
}

void Recorder::SetIntervalEnd(int64_t to_ns) {
  for (Shard& shard : shards_) {
    absl::MutexLock lock(&shard.mutex);
    shard.interval_to_ns = to_ns;
  }
}

IntervalTally Recorder::TakeInterval(int64_t next_to_ns) {
  IntervalTally all;
  for (Shard& shard : shards_) {
    IntervalTally part;
    {
      absl::MutexLock lock(&shard.mutex);
      part = std::exchange(shard.interval, std::exchange(shard.later, {}));
      shard.interval_to_ns = next_to_ns;
    }
    all.Merge(part);
  }
  return all;
}

IntervalTally Recorder::TakeRest() {
  constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  IntervalTally all = TakeInterval(kNever);
  all.Merge(TakeInterval(kNever));  // Calls that ended after the interval.
  return all;
}

}  // namespace gemmd
