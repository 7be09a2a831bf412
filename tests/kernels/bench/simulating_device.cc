// SPDX-License-Identifier: Apache-2.0
#include "tests/kernels/bench/simulating_device.h"

#include <cstdlib>
#include <cstring>
#include <utility>

#include "kernels/kernel.h"
#include "kernels/matrix/status.h"
#include "kernels/mma/instruction.h"

namespace gemmd::bench {
namespace {

// Makes its calls once for each run, whatever `times` says.
class TimedLoop : public Loop {
 public:
  TimedLoop(int calls, Call call, double seconds_per_call)
      : calls_(calls), call_(std::move(call)), seconds_per_call_(seconds_per_call) {}

  absl::StatusOr<double> Run(int times) override {
    RETURN_IF_ERROR(call_(0));
    return times * calls_ * seconds_per_call_;
  }
  int calls() const override { return calls_; }
  int sm_clock_mhz() const override { return 1980; }

 private:
  const int calls_;
  const Call call_;
  const double seconds_per_call_;
};

}  // namespace

SimulatingDevice::SimulatingDevice() {
  facts_.name = "Simulating device";
  facts_.driver = "1.2.3";
  facts_.cuda = "13.0";
  facts_.target = {.kind = DeviceKind::kCuda, .chip = mma::Chip::kSm90, .multiprocessors = 132};
  facts_.l2_bytes = 10'000;
  facts_.max_sm_clock_mhz = 1980;
}

absl::StatusOr<DeviceBytes> SimulatingDevice::Allocate(int64_t bytes) {
  allocated_bytes += bytes;
  auto* const data = static_cast<std::byte*>(std::malloc(static_cast<size_t>(bytes) + 1));
  return DeviceBytes(data, [this, bytes](std::byte* memory) {
    allocated_bytes -= bytes;
    std::free(memory);
  });
}

absl::Status SimulatingDevice::Write(std::byte* to, const std::byte* from, int64_t bytes) {
  std::memcpy(to, from, static_cast<size_t>(bytes));
  return absl::OkStatus();
}

absl::Status SimulatingDevice::Read(std::byte* to, const std::byte* from, int64_t bytes) {
  return Write(to, from, bytes);
}

absl::Status SimulatingDevice::Fill(std::byte* to, uint8_t value, int64_t bytes) {
  std::memset(to, value, static_cast<size_t>(bytes));
  return absl::OkStatus();
}

absl::Status SimulatingDevice::Launch(const Kernel& kernel, const GemmArgs& args) {
  if (refuse) RETURN_IF_ERROR(refuse(kernel));
  ASSIGN_OR_RETURN(const Kernel* const simulated,
                   FindKernel(mma::NameOf(*kernel.instruction).view()));
  ASSIGN_OR_RETURN(const int64_t bytes, simulated->workspace_bytes(args.problem));
  std::vector<std::byte> workspace(static_cast<size_t>(bytes));
  GemmArgs simulated_args = args;
  simulated_args.target = {.kind = DeviceKind::kSim, .chip = args.target.chip};
  simulated_args.workspace = absl::MakeSpan(workspace);
  RETURN_IF_ERROR(simulated->launch(simulated_args));
  if (spoil) spoil(launches, args.problem, args.d);
  ++launches;
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Loop>> SimulatingDevice::MakeLoop(int calls, const Call& call) {
  return std::make_unique<TimedLoop>(calls, call, seconds_per_call);
}

absl::StatusOr<std::unique_ptr<Loop>> SimulatingDevice::MakeLastKernelLoop(int calls,
                                                                           const Call& call) {
  if (seconds_per_last_kernel == 0) return nullptr;
  return std::make_unique<TimedLoop>(calls, call, seconds_per_last_kernel);
}

const Kernel& GpuRow(std::string_view instruction, int index) {
  for (const Kernel& kernel : Catalog(DeviceKind::kCuda)) {
    if (mma::NameOf(*kernel.instruction).view() == instruction && index-- == 0) return kernel;
  }
  std::abort();
}

}  // namespace gemmd::bench
