// SPDX-License-Identifier: Apache-2.0
//
// gemmd-host-worker: the worker of `cpu` or of a simulator, started by gemmd (see protocol.h). It
// runs launches for the front, one at a time, in shared memory, until the front is gone. A crash
// ends only the running product.
#include <signal.h>
#include <time.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/strings/numbers.h"
#include "kernels/cpu/host.h"
#include "kernels/host_rates.h"
#include "kernels/kernel.h"
#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"
#include "kernels/mma/chip.h"
#include "kernels/mma/instructions.h"
#include "server/crossing/channel.h"
#include "server/crossing/launcher.h"
#include "server/crossing/protocol.h"
#include "server/crossing/shared_memory.h"
#include "server/system/files.h"
#include "server/system/version.h"
#include "server/worker/confinement.h"
#include "server/worker/worker.h"

namespace gemmd {
namespace {

using Clock = std::chrono::steady_clock;

// After this time without a launch, memory kept for the next one is freed.
constexpr timespec kKeptFor = {.tv_sec = 1, .tv_nsec = 0};

struct HostWorkerOptions {
  Target target;
  int threads = 0;
  bool poisons_freed = false;
  int64_t spin_ns = 0;  // Time to spin for the next record before sleeping.
  bool is_confined = false;
};

class HostWorker {
 public:
  HostWorker(const HostWorkerOptions& options, Channel& channel)
      : options_(options),
        channel_(channel),
        kernels_(Catalog(options.target.kind)),
        launcher_(options.poisons_freed) {}

  // Sends Hello, whether it can work or not.
  absl::Status Start();
  // Errors: Unavailable if the front is gone.
  absl::Status Serve();

 private:
  absl::StatusOr<Hello> Open();
  absl::Status Launch(const LaunchRequest& request, Result& result);

  // The address of a matrix in this process; null if there is none.
  absl::Span<std::byte> At(const ByteRange& range) const {
    if (range.bytes == 0) return {};
    return memory_.matrices().subspan(static_cast<size_t>(range.offset),
                                      static_cast<size_t>(range.bytes));
  }

  const HostWorkerOptions& options_;
  Channel& channel_;
  const absl::Span<const Kernel> kernels_;
  Staging memory_;
  Confinement confinement_;
  Launcher launcher_;
};

absl::StatusOr<Hello> HostWorker::Open() {
  if (options_.is_confined) confinement_.LimitFiles({"/proc/self"});
  ASSIGN_OR_RETURN(memory_, Staging::Map(kWorkerStaging));
  SetThreads(options_.threads);
  if (options_.is_confined) confinement_.LimitCalls();
  Hello hello;
  hello.catalog = CatalogFingerprint(options_.target.kind);
  hello.is_confined = options_.is_confined ? 1 : 0;
  hello.confinement.Set(confinement_.means());
  hello.unconfined.Set(confinement_.missing());
  return hello;
}

absl::Status HostWorker::Start() {
  const absl::StatusOr<Hello> opened = Open();
  Hello hello = opened.ok() ? *opened : Hello();
  hello.status.Set(opened.status());
  const absl::Status sent = channel_.SendThroughSocket(BytesOfRecord(hello));
  return opened.ok() ? sent : opened.status();
}

absl::Status HostWorker::Serve() {
  Packet packet;
  while (true) {
    absl::Status received = channel_.Receive(packet, options_.spin_ns, &kKeptFor);
    if (absl::IsNotFound(received)) {
      launcher_.Cool();
      received = channel_.Receive(packet);
    }
    RETURN_IF_ERROR(received);
    ASSIGN_OR_RETURN(const RecordKind kind, KindOf(packet));
    if (kind == RecordKind::kMeasure) {
      RETURN_IF_ERROR(ParseRecord<MeasureRequest>(packet).status());
      const std::vector<double> numbers = NumbersOf(MeasureRates(options_.target));
      RETURN_IF_ERROR(SendRates(channel_, {.kernel_rates = numbers}));
      continue;
    }
    ASSIGN_OR_RETURN(const LaunchRequest request, ParseRecord<LaunchRequest>(packet));
    Result result;
    result.id = request.id;
    result.status.Set(Launch(request, result));
    RETURN_IF_ERROR(SendRecord(channel_, result));
  }
}

absl::Status HostWorker::Launch(const LaunchRequest& request, Result& result) {
  RETURN_IF_ERROR(
      CheckLaunch(request, kernels_.size(), static_cast<int64_t>(memory_.matrices().size())));
  LaunchControl& control = channel_.control();
  control.started_ids[request.slot] = request.id;
  // The front may have given the matrices up already.
  if (control.are_aborted[request.slot]) return AbortedLaunch();
  PerOperand<absl::Span<const std::byte>> operands;
  for (const OperandRole role : kOperandRoles) operands[role] = At(request.operands[role]);
  GemmArgs args =
      ArgsAt(request.problem, options_.target, operands, At(request.d).data(), /*workspace=*/{});
  args.abort = &control.are_aborted[request.slot];
  args.a_form = {.bytes = At(request.a_form).data(), .is_made = request.is_a_form_made != 0};
  args.b_form = {.bytes = At(request.b_form).data(), .is_made = request.is_b_form_made != 0};
  const auto start = Clock::now();
  const absl::Status status =
      launcher_.Launch(kernels_[request.kernel], args, request.workspace_bytes);
  result.compute_ns = std::chrono::nanoseconds(Clock::now() - start).count();
  return status;
}

std::optional<Target> TargetOf(std::string_view device) {
  constexpr std::string_view kSimulator = "sim:";
  if (device == "cpu") return HostTarget();
  if (!device.starts_with(kSimulator)) return std::nullopt;
  const std::optional<mma::Chip> chip = mma::ChipFromName(device.substr(kSimulator.size()));
  if (!chip) return std::nullopt;
  return Target{.kind = DeviceKind::kSim, .chip = *chip};
}

// usage: WORKER DEVICE PARENT_PID THREADS POISONS SPIN_NS CONFINED, started by the front with
// kWorkerSocket, kWorkerRings and, at kWorkerStaging, SharedMemory open. DEVICE is "cpu" or
// "sim:sm_90" and the like. POISONS is 1 if scratch memory must be overwritten after each launch.
// CONFINED is 1 for a confined worker (confinement.h), which may write only to its own files in
// /proc. The process ends with its parent, and ignores the signals that a terminal or an init
// system sends to all processes of a service.
//
// With --version it only prints its version. Returns the exit code: 0 if the front asked it to end,
// 1 otherwise, 2 for bad arguments.
int EnterHostWorker(int argc, const char* const* argv) {
  if (argc == 2 && std::string_view(argv[1]) == "--version") {
    std::puts(VersionText("gemmd-host-worker").c_str());
    return 0;
  }
  HostWorkerOptions options;
  int64_t parent = 0;
  const std::optional<Target> target = argc == 7 ? TargetOf(argv[1]) : std::nullopt;
  if (!target || !absl::SimpleAtoi(argv[2], &parent) ||
      !absl::SimpleAtoi(argv[3], &options.threads) ||
      !absl::SimpleAtob(argv[4], &options.poisons_freed) ||
      !absl::SimpleAtoi(argv[5], &options.spin_ns) ||
      !absl::SimpleAtob(argv[6], &options.is_confined)) {
    std::fputs("This is a part of gemmd, which starts it for each device of the host.\n", stderr);
    return 2;
  }
  options.target = *target;
  signal(SIGINT, SIG_IGN);
  signal(SIGTERM, SIG_IGN);
  signal(SIGHUP, SIG_IGN);
  if (!DieWithParent(parent)) return 1;
  absl::StatusOr<Channel> channel = Channel::Open(FileDescriptor(kWorkerSocket), kWorkerRings);
  if (!channel.ok()) return 1;
  HostWorker worker(options, *channel);
  if (!worker.Start().ok()) return 1;
  return absl::IsUnavailable(worker.Serve()) ? 0 : 1;
}

}  // namespace
}  // namespace gemmd

int main(int argc, char** argv) { return gemmd::EnterHostWorker(argc, argv); }
