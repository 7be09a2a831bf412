// SPDX-License-Identifier: Apache-2.0
//
// Several copies of a problem's operands on a device, at different addresses: calls use them in
// turn, so that none finds its operands in the L2 cache.
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
  // Makes at least two sets, enough that their A and B have at least `min_bytes`; all with the same
  // random data, or those of `host`. Errors: those of Device.
  static absl::StatusOr<OperandSets> Make(Device& device, const Problem& problem,
                                          int64_t min_bytes);
  static absl::StatusOr<OperandSets> Make(Device& device, const Problem& problem, Operands host,
                                          int64_t min_bytes);

  const Problem& problem() const { return problem_; }
  int count() const { return static_cast<int>(sets_.size()); }
  std::byte* a(int set) const { return at(set).a.get(); }
  std::byte* b(int set) const { return at(set).b.get(); }
  std::byte* d(int set) const { return at(set).d.get(); }
  std::byte* bias() const { return bias_.get(); }  // Shared by all sets; null if there is none.

  // Factors of blocks, shared by all sets; null if there are none.
  std::byte* a_factors() const { return a_factors_.get(); }
  std::byte* b_factors() const { return b_factors_.get(); }

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
  DeviceBytes a_factors_;
  DeviceBytes b_factors_;
  std::vector<Set> sets_;
};

}  // namespace gemmd::bench
