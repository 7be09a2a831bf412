// SPDX-License-Identifier: Apache-2.0
//
// The operands of one problem on a device, several times over, at different addresses: calls take
// them in turns, so that none finds its own in the second-level cache.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/bench/gpu/device.h"
#include "kernels/bench/operands.h"
#include "kernels/kernel.h"

namespace gemmd::bench {

class OperandSets {
 public:
  // So many sets that A and B of all of them are at least `min_bytes`, two or more; the same
  // random data in each, or those of `host`.
  // Errors: as of Device.
  static absl::StatusOr<OperandSets> Make(Device& device, const Problem& problem,
                                          int64_t min_bytes);
  static absl::StatusOr<OperandSets> Make(Device& device, const Problem& problem, Operands host,
                                          int64_t min_bytes);

  const Problem& problem() const { return problem_; }
  int count() const { return static_cast<int>(sets_.size()); }
  std::byte* a(int set) const { return at(set).a.get(); }
  std::byte* b(int set) const { return at(set).b.get(); }
  std::byte* d(int set) const { return at(set).d.get(); }
  std::byte* bias() const { return bias_.get(); }  // All sets share it; null where there is none.

  // The same data on the host.
  const Operands& host() const { return host_; }

 private:
  struct Set {
    DeviceBytes a;
    DeviceBytes b;
    DeviceBytes d;
  };
  const Set& at(int set) const { return sets_[static_cast<size_t>(set)]; }

  Problem problem_;
  Operands host_;
  DeviceBytes bias_;
  std::vector<Set> sets_;
};

}  // namespace gemmd::bench
