// SPDX-License-Identifier: Apache-2.0
//
// Counts of times with a bounded relative error; any number of histograms merge without loss.
//
// The layout is that of HdrHistogram: values below 2048 have a bucket each; above, every power of
// two is cut into 1024 equal buckets, so that a value is known to one part in 1024 whatever its
// size. (Debian 12 has no package of HdrHistogram_c; percentiles of merged histograms are what a
// load tester must not get wrong, so the test compares them with sorted values.)
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace gemmd {

class Histogram {
 public:
  // A bucket that is not empty. `value_ns` is the largest value that falls into it.
  struct Bucket {
    int64_t value_ns = 0;
    int64_t count = 0;
  };

  // A negative value counts as 0.
  void Record(int64_t value_ns, int64_t count = 1);
  void Merge(const Histogram& other);

  int64_t count() const { return count_; }
  int64_t least_ns() const { return count_ == 0 ? 0 : least_ns_; }
  int64_t most_ns() const { return most_ns_; }  // 0 where empty.
  double sum_ns() const { return sum_ns_; }
  double MeanNs() const;

  // The value at `fraction` (0 to 1) by nearest rank: the smallest value that at least that share
  // of the values does not exceed, up to the width of its bucket and never above most_ns(). 0 where
  // empty.
  int64_t ValueAt(double fraction) const;

  // The value at `rank`, 1 to count().
  int64_t ValueAtRank(int64_t rank) const;

  // How many values lie in buckets above that of `value_ns`.
  int64_t CountAbove(int64_t value_ns) const;

  std::vector<Bucket> Buckets() const;

  // The inverse of Buckets(), with what the buckets do not tell.
  static Histogram FromBuckets(const std::vector<Bucket>& buckets, int64_t least_ns,
                               int64_t most_ns, double sum_ns);

 private:
  std::vector<int64_t> counts_;  // By bucket, as far as there are any.
  int64_t count_ = 0;
  int64_t least_ns_ = 0;
  int64_t most_ns_ = 0;
  double sum_ns_ = 0;
};

}  // namespace gemmd
