// SPDX-License-Identifier: Apache-2.0
//
// A kernel row for tests of the code around kernels: it supports everything and fills D with one
// bits.
#pragma once

#include <cstring>
#include <string>

#include "kernels/kernel.h"
#include "server/device/device.h"

namespace gemmd {

inline const Kernel& TestKernel() {
  static constexpr KernelFamily kFamily = {
      .available = [](const Kernel&, const Target&) { return absl::OkStatus(); },
      .supports = [](const Kernel&, const Problem&) { return absl::OkStatus(); },
      .workspace_bytes = [](const Kernel&, const Problem&) -> absl::StatusOr<int64_t> { return 0; },
      .launch =
          [](const Kernel&, const GemmArgs& args) {
            std::memset(args.d, 0xff, static_cast<size_t>(BytesWritten(args.problem)));
            return absl::OkStatus();
          },
  };
  static constexpr Kernel kKernel = {
      .name = "test.f32.f32.f32",
      .device_kind = DeviceKind::kCpu,
      .provider = "test",
      .engine = "test.f32",
      .how = "fills D with 0xff",
      .a = ElementType::kF32,
      .b = ElementType::kF32,
      .recipe = {.a_compute = ElementType::kF32,
                 .b_compute = ElementType::kF32,
                 .accumulation = ElementType::kF32,
                 .exact = false,
                 .flushes_subnormals = false},
      .deterministic = true,
      .batch_invariant = true,
      .family = &kFamily,
  };
  return kKernel;
}

// A 1x1x1 job of the test kernel that writes into `d`.
inline Job TestJob(std::string* d) {
  Job job;
  job.kernel = &TestKernel();
  job.problem.m = job.problem.n = job.problem.k = 1;
  job.problem.a = *TightLayout("a", ElementType::kF32, Order::kRowMajor, 1, 1);
  job.problem.b = job.problem.a;
  job.problem.d = job.problem.a;
  job.d_bytes = 4;
  d->resize(4);
  job.d.memory = reinterpret_cast<std::byte*>(d->data());
  return job;
}

}  // namespace gemmd
