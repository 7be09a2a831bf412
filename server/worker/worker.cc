// SPDX-License-Identifier: Apache-2.0
#include "server/worker/worker.h"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <limits>
#include <memory>
#include <random>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "kernels/kernel.h"
#include "kernels/matrix/status.h"
#include "kernels/mma/chip.h"
#include "server/crossing/job_layout.h"
#include "server/system/files.h"
#include "server/system/version.h"
#include "server/worker/confinement.h"
#include "server/worker/gpu_memory.h"
#include "server/worker/gpu_runtime.h"
#include "server/worker/run.h"

namespace gemmd {
namespace {

using Clock = std::chrono::steady_clock;

// While the GPU works, the worker polls continuously for this time if there are spare processors,
// and then at intervals.
constexpr std::chrono::milliseconds kTimeToLook(5);
constexpr timespec kLookInterval = {.tv_sec = 0, .tv_nsec = 50'000};

class Worker {
 public:
  Worker(const WorkerOptions& options, GpuRuntime& runtime, Channel& channel)
      : options_(options), runtime_(runtime), channel_(channel) {}

  // Opens the GPU, and sends Hello with the result.
  absl::Status Start(int staging_file);
  // Answers requests. Errors: Unavailable if the front is gone.
  absl::Status Serve();

 private:
  absl::StatusOr<Hello> Open(int staging_file);
  absl::Status Take(const Packet& packet);
  absl::Status TakeMore();
  template <typename RunOfRequest, typename Request>
  absl::Status Begin(const Packet& packet,
                     absl::Status (*check)(const Request& request, int64_t staging_bytes));
  absl::Status Measure();
  void AdvanceAll();
  void Fail(Run& run, const absl::Status& status);
  void LookAtLanes();
  absl::Status AnswerDone();
  void Rest();

  const WorkerOptions& options_;
  GpuRuntime& runtime_;
  Channel& channel_;
  Staging staging_;
  GpuDescription gpu_;
  Confinement confinement_;
  // Set once the GPU is open. Requests are destroyed before the objects they use.
  std::unique_ptr<Lanes> lanes_;
  std::unique_ptr<BlockTable> blocks_;
  std::unique_ptr<DeviceArena> arena_;
  std::unique_ptr<RunContext> context_;
  std::vector<std::unique_ptr<Run>> runs_;  // In order of arrival.
  Clock::time_point last_progress_;
  SpinTime spin_{options_.spin_ns};
};

absl::StatusOr<Hello> Worker::Open(int staging_file) {
  if (options_.is_confined) confinement_.LimitFiles(options_.writable);
  ASSIGN_OR_RETURN(staging_, Staging::Map(staging_file));
  ASSIGN_OR_RETURN(gpu_, runtime_.Open(options_.ordinal));
  ASSIGN_OR_RETURN(std::byte* const seen_staging, runtime_.RegisterStaging(staging_.whole()));
  const int64_t limit = options_.memory_limit_bytes > 0 ? options_.memory_limit_bytes
                                                        : gpu_.free_memory_bytes / 10 * 9;
  const int64_t tensor_limit = options_.tensor_limit_bytes > 0
                                   ? std::min(options_.tensor_limit_bytes, limit)
                                   : limit / 5 * 4;
  lanes_ = std::make_unique<Lanes>(runtime_);
  blocks_ = std::make_unique<BlockTable>(runtime_);
  arena_ = std::make_unique<DeviceArena>(runtime_, limit);
  context_ = std::unique_ptr<RunContext>(new RunContext{.runtime = runtime_,
                                                        .lanes = *lanes_,
                                                        .blocks = *blocks_,
                                                        .arena = *arena_,
                                                        .staging = staging_,
                                                        .seen_staging = seen_staging,
                                                        .target = gpu_.target,
                                                        .memory_limit_bytes = limit});
  if (options_.is_confined) confinement_.LimitCalls();
  Hello hello;
  hello.catalog = CatalogFingerprint();
  hello.description.Set(gpu_.name);
  hello.capability = mma::CapabilityOf(gpu_.target.chip);
  hello.multiprocessors = gpu_.target.multiprocessors;
  hello.memory_bytes = gpu_.memory_bytes;
  hello.memory_limit_bytes = limit;
  hello.tensor_limit_bytes = tensor_limit;
  hello.clock_khz = gpu_.clock_khz;
  hello.memory_clock_khz = gpu_.memory_clock_khz;
  hello.driver_version = gpu_.driver_version;
  hello.runtime_version = gpu_.runtime_version;
  hello.pci_bus_id.Set(gpu_.pci_bus_id);
  hello.is_confined = options_.is_confined ? 1 : 0;
  hello.confinement.Set(confinement_.means());
  hello.unconfined.Set(confinement_.missing());
  return hello;
}

absl::Status Worker::Start(int staging_file) {
  const absl::StatusOr<Hello> opened = Open(staging_file);
  Hello hello = opened.ok() ? *opened : Hello();
  hello.status.Set(opened.status());
  const absl::Status sent = channel_.SendThroughSocket(BytesOfRecord(hello));
  return opened.ok() ? sent : opened.status();
}

absl::Status Worker::Serve() {
  Packet packet;
  while (true) {
    const Clock::time_point idle_since = Clock::now();
    RETURN_IF_ERROR(channel_.Receive(packet, spin_.ns()));
    spin_.Saw((Clock::now() - idle_since) / std::chrono::nanoseconds(1));
    RETURN_IF_ERROR(Take(packet));
    while (!runs_.empty()) {
      AdvanceAll();
      LookAtLanes();
      RETURN_IF_ERROR(AnswerDone());
      if (!runs_.empty()) RETURN_IF_ERROR(TakeMore());
    }
  }
}

absl::Status Worker::Take(const Packet& packet) {
  last_progress_ = Clock::now();
  ASSIGN_OR_RETURN(const RecordKind kind, KindOf(packet));
  if (kind == RecordKind::kMeasure) {
    RETURN_IF_ERROR(ParseRecord<MeasureRequest>(packet).status());
    return Measure();
  }
  if (kind == RecordKind::kMemory) return Begin<MemoryRun>(packet, CheckMemoryRequest);
  if (kind == RecordKind::kCompress) return Begin<CompressRun>(packet, CheckCompressRequest);
  if (kind == RecordKind::kRecompute) return Begin<RecomputeRun>(packet, CheckRecomputeRequest);
  return Begin<JobRun>(packet, CheckJob);
}

// Begins what a record asks for, or refuses it.
template <typename RunOfRequest, typename Request>
absl::Status Worker::Begin(const Packet& packet, absl::Status (*check)(const Request&, int64_t)) {
  ASSIGN_OR_RETURN(const Request request, ParseRecord<Request>(packet));
  const absl::Status checked = check(request, static_cast<int64_t>(staging_.matrices().size()));
  if (checked.ok()) {
    runs_.push_back(std::make_unique<RunOfRequest>(*context_, request));
    return absl::OkStatus();
  }
  Result result;
  result.id = request.id;
  result.status.Set(checked);
  return SendRecord(channel_, result);
}

// Takes new requests while the GPU works; sleeps at intervals.
absl::Status Worker::TakeMore() {
  Packet packet;
  while (runs_.size() < kMaxInFlight) {
    const absl::Status status = channel_.TryReceive(packet);
    if (absl::IsNotFound(status)) break;
    RETURN_IF_ERROR(status);
    RETURN_IF_ERROR(Take(packet));
  }
  Rest();
  return absl::OkStatus();
}

void Worker::Rest() {
  const bool has_time_to_look = options_.spin_ns > 0;
  if (has_time_to_look && Clock::now() - last_progress_ < kTimeToLook) return;
  if (runs_.size() < kMaxInFlight) return channel_.Sleep(&kLookInterval);
  ppoll(nullptr, 0, &kLookInterval, nullptr);
}

absl::Status Worker::Measure() {
  if (!runs_.empty()) return absl::InvalidArgumentError("record: got kind 2 during a job");
  GpuRates rates;
  RETURN_IF_ERROR(options_.measure(runtime_, gpu_, staging_.matrices(), rates));
  return SendRates(channel_, rates);
}

void Worker::AdvanceAll() {
  context_->is_memory_short = false;
  context_->is_first = true;
  for (const std::unique_ptr<Run>& run : runs_) {
    const absl::Status status = run->Advance();
    if (!status.ok()) Fail(*run, status);
    context_->is_first = false;
  }
}

// Its enqueued work may still run, and must not touch memory of the next request: if its end cannot
// be marked, waits for everything.
void Worker::Fail(Run& run, const absl::Status& status) {
  const bool is_marked = absl::IsCancelled(status) && run.is_started() && run.AwaitAll().ok();
  if (run.is_started() && !is_marked) {
    runtime_.Wait().IgnoreError();
    lanes_->ReachAll();
  }
  run.End(status);
}

// A failure may show in any running request; it is attributed to the first one.
void Worker::LookAtLanes() {
  const absl::Status status = lanes_->Update();
  if (status.ok()) return;
  for (const std::unique_ptr<Run>& run : runs_) {
    if (run->is_started() && !run->IsDone()) return Fail(*run, status);
  }
}

// Errors if the GPU or the front is lost.
absl::Status Worker::AnswerDone() {
  for (auto run = runs_.begin(); run != runs_.end();) {
    if (!(*run)->IsDone()) {
      ++run;
      continue;
    }
    Result result = (*run)->MakeResult();
    const absl::Status status = result.status.get();
    const bool has_failed = !status.ok() && !absl::IsCancelled(status);
    if (has_failed) result.is_lost = runtime_.IsLost() ? 1 : 0;
    run = runs_.erase(run);
    RETURN_IF_ERROR(SendRecord(channel_, result));
    if (result.is_lost != 0) return status;
    last_progress_ = Clock::now();
  }
  return absl::OkStatus();
}

constexpr int kRuns = 3;
constexpr std::chrono::seconds kTimeForKernels(3);
constexpr int64_t kMaxCopiedBytes = int64_t{64} << 20;
constexpr int64_t kArenaBytes = int64_t{256} << 20;  // Larger than any cache, and than a sample.

constexpr Lane kLane = Lane::kCompute;
constexpr Moment kStart = 0;
constexpr Moment kEnd = 1;

// The shortest time of several runs of the work that `start` enqueues.
template <typename Start>
absl::StatusOr<double> ShortestSeconds(GpuRuntime& runtime, const Start& start) {
  int64_t shortest_ns = std::numeric_limits<int64_t>::max();
  for (int run = 0; run <= kRuns; ++run) {
    RETURN_IF_ERROR(runtime.Mark(kLane, kStart));
    RETURN_IF_ERROR(start());
    RETURN_IF_ERROR(runtime.Mark(kLane, kEnd));
    RETURN_IF_ERROR(runtime.Wait());
    ASSIGN_OR_RETURN(const int64_t ns, runtime.NanosecondsBetween(kStart, kEnd));
    // The first run loads code.
    if (run > 0) shortest_ns = std::min(shortest_ns, ns);
  }
  return static_cast<double>(std::max(shortest_ns, int64_t{1})) * 1e-9;
}

// Fills the first bytes of the block, or all kArenaBytes, with copies of the numbers.
absl::Status CopyNumbers(GpuRuntime& runtime, std::byte* block, absl::Span<const std::byte> numbers,
                         int64_t bytes = kArenaBytes) {
  const auto step = static_cast<int64_t>(numbers.size());
  for (int64_t offset = 0; offset < bytes && offset + step <= kArenaBytes; offset += step) {
    RETURN_IF_ERROR(runtime.CopyIn(kLane, block + offset, numbers));
  }
  return runtime.Wait();
}

// Operands are whatever the range contains (numbers or results of other kernels), except for f32,
// for which results of other types would be arbitrary (FillWithNumbers).
absl::StatusOr<double> KernelRate(const Kernel& kernel, const GpuDescription& gpu,
                                  GpuRuntime& runtime, const DeviceArena::Range& range,
                                  absl::Span<const std::byte> numbers) {
  ASSIGN_OR_RETURN(const Problem problem, kernel.sample(gpu.target));
  RETURN_IF_ERROR(kernel.supports(problem));
  ASSIGN_OR_RETURN(const JobLayout layout, LayOutJob(problem));
  ASSIGN_OR_RETURN(const int64_t workspace_bytes, kernel.workspace_bytes(problem));
  if (workspace_bytes > range.bytes - layout.end) {
    return absl::ResourceExhaustedError("the sample does not fit");
  }
  if (kernel.recipe.splits_f32) {
    RETURN_IF_ERROR(CopyNumbers(runtime, range.memory, numbers, layout.end));
  }
  const GemmArgs args =
      ArgsAt(problem, gpu.target, layout, range.memory,
             absl::MakeSpan(range.memory + layout.end, static_cast<size_t>(workspace_bytes)));
  ASSIGN_OR_RETURN(const double seconds,
                   ShortestSeconds(runtime, [&] { return runtime.Launch(kLane, kernel, args); }));
  return static_cast<double>(Operations(problem)) / seconds;
}

// Fills with f32 numbers of magnitude 0.5 to 2. For other types they are nearly random bits, which
// is representative; random bits as f32 would have all magnitudes, and sometimes be infinite, which
// slows down split-f32 kernels many times (split_float.h).
void FillWithNumbers(absl::Span<std::byte> memory) {
  constexpr size_t kBytes = sizeof(float);
  constexpr std::byte kSign{0x80};
  constexpr std::byte kExponent{
      0x3f};  // Upper bits of the exponent; its lowest bit is in the next byte.
  std::mt19937_64 random(1);
  for (size_t i = 0; i < memory.size(); ++i) {
    memory[i] = static_cast<std::byte>(random());
    if (i % kBytes == kBytes - 1) memory[i] = (memory[i] & kSign) | kExponent;
  }
}

absl::Status MeasureMemory(GpuRuntime& runtime, std::byte* block,
                           absl::Span<const std::byte> numbers, GpuRates& rates) {
  const double bytes = static_cast<double>(numbers.size());
  ASSIGN_OR_RETURN(const double clearing, ShortestSeconds(runtime, [&] {
                     return runtime.Clear(kLane, block, kArenaBytes);
                   }));
  rates.memory_bytes_per_second = static_cast<double>(kArenaBytes) / clearing;
  ASSIGN_OR_RETURN(const double copying,
                   ShortestSeconds(runtime, [&] { return runtime.CopyIn(kLane, block, numbers); }));
  rates.copied_bytes_per_second = bytes / copying;
  return CopyNumbers(runtime, block, numbers);  // Operands for the samples.
}

}  // namespace

absl::Status RunWorker(const WorkerOptions& options, GpuRuntime& runtime, Channel& channel,
                       int staging_file) {
  Worker worker(options, runtime, channel);
  RETURN_IF_ERROR(worker.Start(staging_file));
  const absl::Status status = worker.Serve();
  return absl::IsUnavailable(status) ? absl::OkStatus() : status;
}

absl::Status MeasureGpuRates(GpuRuntime& runtime, const GpuDescription& gpu,
                             absl::Span<std::byte> staging, GpuRates& rates) {
  DeviceArena arena(runtime, gpu.free_memory_bytes);
  ASSIGN_OR_RETURN(const DeviceArena::Range range, arena.Reserve(kArenaBytes));
  const auto numbers = staging.first(std::min(staging.size(), size_t{kMaxCopiedBytes}));
  FillWithNumbers(numbers);
  RETURN_IF_ERROR(MeasureMemory(runtime, range.memory, numbers, rates));
  const absl::Span<const Kernel> kernels = Catalog(DeviceKind::kCuda);
  rates.kernel_rates.assign(kernels.size(), 0);
  const auto start = std::chrono::steady_clock::now();
  for (size_t i = 0; i < kernels.size(); ++i) {
    if (!kernels[i].available(gpu.target).ok()) continue;
    if (std::chrono::steady_clock::now() - start > kTimeForKernels) break;
    const absl::StatusOr<double> rate = KernelRate(kernels[i], gpu, runtime, range, numbers);
    if (!rate.ok() && runtime.IsLost()) return rate.status();
    rates.kernel_rates[i] = rate.ok() ? *rate : 0;
  }
  return absl::OkStatus();
}

bool DieWithParent(int64_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  return getppid() == parent;
}

int EnterWorker(int argc, const char* const* argv, GpuRuntime& runtime, MeasureGpu measure,
                std::vector<std::string> writable) {
  if (argc == 2 && std::string_view(argv[1]) == "--version") {
    std::puts(VersionText("gemmd-worker").c_str());
    return 0;
  }
  WorkerOptions options;
  int64_t parent = 0;
  if (argc != 7 || !absl::SimpleAtoi(argv[1], &options.ordinal) ||
      !absl::SimpleAtoi(argv[2], &parent) ||
      !absl::SimpleAtoi(argv[3], &options.memory_limit_bytes) ||
      !absl::SimpleAtoi(argv[4], &options.tensor_limit_bytes) ||
      !absl::SimpleAtoi(argv[5], &options.spin_ns) ||
      !absl::SimpleAtob(argv[6], &options.is_confined)) {
    std::fputs("This is a part of gemmd, which starts it for each GPU.\n", stderr);
    return 2;
  }
  signal(SIGINT, SIG_IGN);
  signal(SIGTERM, SIG_IGN);
  signal(SIGHUP, SIG_IGN);
  if (!DieWithParent(parent)) return 1;
  options.measure = std::move(measure);
  // The driver opens its devices, shares memory in /dev/shm and names its threads.
  options.writable = {"/dev", "/proc/self"};
  for (std::string& folder : writable) options.writable.push_back(std::move(folder));
  absl::StatusOr<Channel> channel = Channel::Open(FileDescriptor(kWorkerSocket), kWorkerRings);
  if (!channel.ok()) return 1;
  return RunWorker(options, runtime, *channel, kWorkerStaging).ok() ? 0 : 1;
}

}  // namespace gemmd
