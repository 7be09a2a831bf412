// SPDX-License-Identifier: Apache-2.0
//
// The operands of one problem on a device, several times over, at different addresses: calls take
// them in turns, so that none finds its own in the second-level cache.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/bench/gpu/device.h"
#include "kernels/bench/gpu/random_operand.h"
#include "kernels/kernel.h"

namespace gemmd::bench {

class OperandSets {
 public:
  // So many sets that A and B of all of them are at least `least_bytes`, two or more; the same
  // random data in each.
  // Errors: as of Device.
  static absl::StatusOr<OperandSets> Make(Device& device, const Problem& problem,
                                          int64_t least_bytes);

  const Problem& problem() const { return problem_; }
  int count() const { return static_cast<int>(sets_.size()); }
  std::byte* a(int set) const { return at(set).a.get(); }
  std::byte* b(int set) const { return at(set).b.get(); }
  std::byte* d(int set) const { return at(set).d.get(); }

  // The same data on the host: A as the problem has it, that is compressed where it is sparse.
  const std::vector<std::byte>& host_a() const { return host_a_; }
  const std::vector<std::byte>& host_b() const { return host_b_; }
  // Of a sparse A: as it is dense, row major, no gaps.
  const std::vector<std::byte>& host_dense_a() const { return host_dense_a_; }

 private:
  struct Set {
    DeviceBytes a;
    DeviceBytes b;
    DeviceBytes d;
  };
  const Set& at(int set) const { return sets_[static_cast<size_t>(set)]; }
  absl::Status DrawHostOperands();

  Problem problem_;
  std::vector<std::byte> host_a_;
  std::vector<std::byte> host_b_;
  std::vector<std::byte> host_dense_a_;
  std::vector<Set> sets_;
};

}  // namespace gemmd::bench
