// SPDX-License-Identifier: Apache-2.0
#include "client/load/histogram.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace gemmd {
namespace {

constexpr int kBits = 10;  // Precision: 1024 buckets for each power of two.
constexpr uint64_t kHalf = uint64_t{1} << kBits;

size_t BucketOf(int64_t value_ns) {
  const uint64_t value = static_cast<uint64_t>(value_ns);
  const int shift = std::max(0, static_cast<int>(std::bit_width(value)) - kBits - 1);
  return static_cast<size_t>((static_cast<uint64_t>(shift) << kBits) + (value >> shift));
}

// The largest value of a bucket.
int64_t LargestIn(size_t bucket) {
  if (bucket < 2 * kHalf) return static_cast<int64_t>(bucket);
  const size_t shift = (bucket >> kBits) - 1;
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
  least_ns_ = count_ == 0 ? value : std::min(least_ns_, value);
  most_ns_ = std::max(most_ns_, value);
  count_ += count;
  sum_ns_ += static_cast<double>(value) * static_cast<double>(count);
}

void Histogram::Merge(const Histogram& other) {
  if (other.count_ == 0) return;
  if (other.counts_.size() > counts_.size()) counts_.resize(other.counts_.size());
  for (size_t i = 0; i < other.counts_.size(); ++i) counts_[i] += other.counts_[i];
  least_ns_ = count_ == 0 ? other.least_ns_ : std::min(least_ns_, other.least_ns_);
  most_ns_ = std::max(most_ns_, other.most_ns_);
  count_ += other.count_;
  sum_ns_ += other.sum_ns_;
}

double Histogram::MeanNs() const { return count_ == 0 ? 0 : sum_ns_ / static_cast<double>(count_); }

int64_t Histogram::ValueAt(double fraction) const {
  // The product may be a little above the true one, which would make 0.07 of 100 values the eighth.
  const double rank = fraction * static_cast<double>(count_) * (1 - 1e-14);
  return ValueAtRank(static_cast<int64_t>(std::ceil(rank)));
}

int64_t Histogram::ValueAtRank(int64_t rank) const {
  if (count_ == 0) return 0;
  if (rank <= 1) return least_ns_;
  int64_t seen = 0;
  for (size_t i = 0; i < counts_.size(); ++i) {
    seen += counts_[i];
    if (seen >= rank) return std::min(LargestIn(i), most_ns_);
  }
  return most_ns_;
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

Histogram Histogram::FromBuckets(const std::vector<Bucket>& buckets, int64_t least_ns,
                                 int64_t most_ns, double sum_ns) {
  Histogram histogram;
  for (const Bucket& bucket : buckets) histogram.Record(bucket.value_ns, bucket.count);
  if (histogram.count_ == 0) return histogram;
  histogram.least_ns_ = least_ns;
  histogram.most_ns_ = most_ns;
  histogram.sum_ns_ = sum_ns;
  return histogram;
}

}  // namespace gemmd
