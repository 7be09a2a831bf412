// SPDX-License-Identifier: Apache-2.0
#include "server/worker/worker.h"

#include <chrono>
#include <memory>

#include "kernels/catalog.h"
#include "kernels/mma/chip.h"
#include "kernels/status_macros.h"
#include "kernels/text.h"
#include "server/crossing/job_layout.h"
#include "server/worker/device_arena.h"
#include "server/worker/panels.h"

namespace gemmd {
namespace {

using Clock = std::chrono::steady_clock;

// A link of 12 GB/s, as that of PCIe 3, takes 11 ms for it.
constexpr size_t kCopiedAtOnce = size_t{128} << 20;

class Worker {
 public:
  Worker(const WorkerOptions& options, GpuRuntime& runtime, int socket)
      : options_(options), runtime_(runtime), socket_(socket) {}

  // Takes the GPU, and says Hello whether it could or not.
  absl::Status Start(int staging_file);
  // Answers requests. Errors: Unavailable where the front is gone.
  absl::Status Serve();

 private:
  absl::StatusOr<Hello> Open(int staging_file);
  absl::Status Receive(Packet& packet) const;
  absl::Status Measure();
  absl::Status RunJob(const JobRequest& request);
  absl::Status Compute(const JobRequest& request, Result& result);
  absl::Status Queue(const Kernel& kernel, const JobRequest& request, const JobLayout& layout,
                     std::byte* block, absl::Span<std::byte> workspace);
  absl::Status CopyIn(uint64_t id, const JobLayout& layout, std::byte* block);
  absl::Status Launch(uint64_t id, const Kernel& kernel, const GemmArgs& args,
                      const GpuPanels& panels);
  absl::Status CopyOut(uint64_t id, const JobLayout& layout, const std::byte* block);
  absl::Status CheckWanted(uint64_t id) const;
  absl::Status FillTimes(Result& result);

  const WorkerOptions& options_;
  GpuRuntime& runtime_;
  const int socket_;
  Staging staging_;
  GpuDescription gpu_;
  std::unique_ptr<DeviceArena> arena_;
};

absl::StatusOr<Hello> Worker::Open(int staging_file) {
  ASSIGN_OR_RETURN(staging_, Staging::Map(staging_file));
  ASSIGN_OR_RETURN(gpu_, runtime_.Open(options_.ordinal));
  RETURN_IF_ERROR(runtime_.RegisterStaging(staging_.matrices()));
  const int64_t limit = options_.memory_limit_bytes > 0 ? options_.memory_limit_bytes
                                                        : gpu_.free_memory_bytes / 10 * 9;
  arena_ = std::make_unique<DeviceArena>(runtime_, limit);
  Hello hello;
  hello.catalog = CatalogFingerprint();
  hello.description.Set(gpu_.name);
  hello.capability = mma::CapabilityOf(gpu_.target.chip);
  hello.multiprocessors = gpu_.target.multiprocessors;
  hello.memory_bytes = gpu_.memory_bytes;
  hello.memory_limit_bytes = limit;
  hello.clock_khz = gpu_.clock_khz;
  hello.memory_clock_khz = gpu_.memory_clock_khz;
  hello.driver_version = gpu_.driver_version;
  hello.runtime_version = gpu_.runtime_version;
  hello.pci_bus_id.Set(gpu_.pci_bus_id);
  return hello;
}

absl::Status Worker::Start(int staging_file) {
  const absl::StatusOr<Hello> opened = Open(staging_file);
  Hello hello = opened.ok() ? *opened : Hello();
  hello.status.Set(opened.status());
  const absl::Status sent = SendRecord(socket_, hello);
  return opened.ok() ? sent : opened.status();
}

absl::Status Worker::Serve() {
  Packet packet;
  while (true) {
    RETURN_IF_ERROR(Receive(packet));
    ASSIGN_OR_RETURN(const RecordKind kind, KindOf(packet));
    if (kind == RecordKind::kMeasure) {
      RETURN_IF_ERROR(ParseRecord<MeasureRequest>(packet).status());
      RETURN_IF_ERROR(Measure());
    } else {
      ASSIGN_OR_RETURN(const JobRequest request, ParseRecord<JobRequest>(packet));
      RETURN_IF_ERROR(RunJob(request));
    }
  }
}

// Looks for a while first: waking a thread takes longer than a small job.
absl::Status Worker::Receive(Packet& packet) const {
  const auto until = Clock::now() + std::chrono::nanoseconds(options_.spin_ns);
  while (Clock::now() < until) {
    const absl::Status status = ReceivePacket(socket_, /*should_wait=*/false, packet);
    if (!absl::IsNotFound(status)) return status;
  }
  return ReceivePacket(socket_, /*should_wait=*/true, packet);
}

absl::Status Worker::Measure() {
  GpuRates rates;
  RETURN_IF_ERROR(options_.measure(runtime_, gpu_, staging_.matrices(), rates));
  return SendRates(socket_, rates);
}

absl::Status Worker::RunJob(const JobRequest& request) {
  Result result;
  result.id = request.id;
  const absl::Status status = Compute(request, result);
  result.status.Set(status);
  if (!status.ok()) {
    // What is still under way must not touch the next job's memory.
    runtime_.Wait().IgnoreError();
    result.is_lost = runtime_.IsLost() ? 1 : 0;
  }
  RETURN_IF_ERROR(SendRecord(socket_, result));
  return result.is_lost != 0 ? status : absl::OkStatus();
}

absl::Status Worker::Compute(const JobRequest& request, Result& result) {
  RETURN_IF_ERROR(CheckJob(request));
  RETURN_IF_ERROR(CheckWanted(request.id));
  const Kernel& kernel = Catalog(DeviceKind::kCuda)[request.kernel];
  const Problem& problem = request.problem;
  ASSIGN_OR_RETURN(const JobLayout layout, LayOutJob(problem));
  if (layout.end > static_cast<int64_t>(staging_.matrices().size())) {
    return absl::InvalidArgumentError(GotWant("job", Concat(layout.end, " bytes of matrices"),
                                              Concat("at most ", staging_.matrices().size())));
  }
  ASSIGN_OR_RETURN(const int64_t workspace_bytes, kernel.workspace_bytes(problem));
  int64_t bytes = 0;
  if (__builtin_add_overflow(layout.end, workspace_bytes, &bytes)) {
    return absl::ResourceExhaustedError("workspace: more than 2^63 bytes");
  }
  ASSIGN_OR_RETURN(std::byte* const block, arena_->Reserve(bytes));
  staging_.control().started_id.store(request.id, std::memory_order_release);
  RETURN_IF_ERROR(Queue(kernel, request, layout, block,
                        absl::MakeSpan(block + layout.end, static_cast<size_t>(workspace_bytes))));
  RETURN_IF_ERROR(runtime_.Wait());
  return FillTimes(result);
}

// Errors: Cancelled once nobody wants the job any more.
absl::Status Worker::CheckWanted(uint64_t id) const {
  const bool is_aborted = staging_.control().aborted_id.load(std::memory_order_relaxed) == id;
  return is_aborted ? AbortedLaunch() : absl::OkStatus();
}

// Everything that the GPU does for one job. What takes long is done in steps.
absl::Status Worker::Queue(const Kernel& kernel, const JobRequest& request, const JobLayout& layout,
                           std::byte* block, absl::Span<std::byte> workspace) {
  const Problem& problem = request.problem;
  RETURN_IF_ERROR(runtime_.Mark(Moment::kStart));
  RETURN_IF_ERROR(CopyIn(request.id, layout, block));
  // All that the copy did not overwrite: nothing of an earlier job, which may have been another
  // caller's, is left to this one, and a kernel that does nothing gives no earlier result.
  const int64_t rest_bytes = layout.end - layout.d.offset + static_cast<int64_t>(workspace.size());
  if (rest_bytes > 0) {
    RETURN_IF_ERROR(runtime_.Clear(block + layout.d.offset, rest_bytes));
  }
  RETURN_IF_ERROR(runtime_.Mark(Moment::kCopiedIn));
  if (problem.has_output()) {
    RETURN_IF_ERROR(Launch(request.id, kernel,
                           ArgsAt(problem, gpu_.target, layout, block, workspace),
                           DivideLaunch(problem, request.predicted_ns)));
  }
  RETURN_IF_ERROR(runtime_.Mark(Moment::kComputed));
  RETURN_IF_ERROR(CopyOut(request.id, layout, block));
  return runtime_.Mark(Moment::kCopiedOut);
}

absl::Status Worker::CopyIn(uint64_t id, const JobLayout& layout, std::byte* block) {
  const absl::Span<std::byte> inputs =
      staging_.matrices().first(static_cast<size_t>(layout.input_bytes()));
  for (size_t at = 0; at < inputs.size(); at += kCopiedAtOnce) {
    RETURN_IF_ERROR(CheckWanted(id));
    RETURN_IF_ERROR(runtime_.CopyIn(block + at, inputs.subspan(at, kCopiedAtOnce)));
    if (inputs.size() > kCopiedAtOnce) RETURN_IF_ERROR(runtime_.EndStep());
  }
  return absl::OkStatus();
}

absl::Status Worker::Launch(uint64_t id, const Kernel& kernel, const GemmArgs& args,
                            const GpuPanels& panels) {
  const int64_t count = panels.count();
  if (count <= 1) return runtime_.Launch(kernel, args);
  for (int64_t index = 0; index < count; ++index) {
    RETURN_IF_ERROR(CheckWanted(id));
    const Problem panel = PanelProblem(args.problem, panels, index);
    RETURN_IF_ERROR(runtime_.Launch(kernel, PanelArgs(args, panels, index, panel)));
    RETURN_IF_ERROR(runtime_.EndStep());
  }
  return absl::OkStatus();
}

absl::Status Worker::CopyOut(uint64_t id, const JobLayout& layout, const std::byte* block) {
  const absl::Span<std::byte> d = staging_.matrices().subspan(static_cast<size_t>(layout.d.offset),
                                                              static_cast<size_t>(layout.d.bytes));
  for (size_t at = 0; at < d.size(); at += kCopiedAtOnce) {
    RETURN_IF_ERROR(CheckWanted(id));
    RETURN_IF_ERROR(runtime_.CopyOut(d.subspan(at, kCopiedAtOnce), block + layout.d.offset + at));
    if (d.size() > kCopiedAtOnce) RETURN_IF_ERROR(runtime_.EndStep());
  }
  return absl::OkStatus();
}

absl::Status Worker::FillTimes(Result& result) {
  ASSIGN_OR_RETURN(result.copy_in_ns,
                   runtime_.NanosecondsBetween(Moment::kStart, Moment::kCopiedIn));
  ASSIGN_OR_RETURN(result.compute_ns,
                   runtime_.NanosecondsBetween(Moment::kCopiedIn, Moment::kComputed));
  ASSIGN_OR_RETURN(result.copy_out_ns,
                   runtime_.NanosecondsBetween(Moment::kComputed, Moment::kCopiedOut));
  return absl::OkStatus();
}

}  // namespace

absl::Status RunWorker(const WorkerOptions& options, GpuRuntime& runtime, int socket,
                       int staging_file) {
  Worker worker(options, runtime, socket);
  RETURN_IF_ERROR(worker.Start(staging_file));
  const absl::Status status = worker.Serve();
  return absl::IsUnavailable(status) ? absl::OkStatus() : status;
}

}  // namespace gemmd
