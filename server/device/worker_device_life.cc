// SPDX-License-Identifier: Apache-2.0
//
// The life of workers, one after the other.
#include <pthread.h>

#include <algorithm>
#include <utility>

#include "kernels/catalog.h"
#include "kernels/mma/chip.h"
#include "kernels/status_macros.h"
#include "kernels/text.h"
#include "server/device/canary.h"
#include "server/device/worker_device.h"

namespace gemmd {
namespace {

// A worker that was killed is gone at once, or after the driver has cleaned up.
constexpr int64_t kTimeToDieNs = 10'000'000'000;
constexpr int64_t kTimeToEndNs = 5'000'000'000;
constexpr int64_t kReapIntervalNs = 1'000'000;

// A third of what is for jobs at most is under way in chunks.
int64_t ChunkBytes(int64_t staging_bytes) {
  constexpr int64_t kMostBytes = int64_t{4} << 20;
  constexpr int64_t kChunks = 24;
  const int64_t bytes = StagingArea::BytesForJobs(staging_bytes) / kChunks;
  return std::clamp(bytes / kJobAlignment * kJobAlignment, kJobAlignment, kMostBytes);
}

std::string VersionText(int32_t version) {
  return Concat(version / 1000, ".", version % 1000 / 10);
}

}  // namespace

// The device as the canary sees it before anybody else does: on the device's own thread.
class WorkerDevice::Checked final : public Device {
 public:
  explicit Checked(WorkerDevice& device) : device_(device) {}
  const DeviceInfo& info() const override { return device_.info_; }
  const DeviceProfile& profile() const override { return device_.profile_; }

  void Submit(const Job& job, Done done) override {
    std::unique_ptr<Errand> errand = device_.MakeJobErrand(job, std::move(done));
    errand->submitted_ns = device_.clock_.NowNs();
    if (errand->verdict) {
      const absl::Status verdict = *errand->verdict;
      device_.End(std::move(errand), verdict);
      return;
    }
    {
      MutexLock lock(&device_.mutex_);
      if (device_.TakeRoom(*errand) == ErrandQueue::Room::kTaken) {
        errand->begun_ns = errand->submitted_ns;
        device_.BeginSmall(std::move(errand));
      }
    }
    // Nothing else is under way, so there is room.
    if (errand != nullptr) device_.End(std::move(errand), absl::InternalError("canary: no room"));
    while (!device_.IsIdle()) {
      const absl::Status status = device_.Step();
      if (!status.ok()) device_.EndLost(std::string(status.message()));
    }
  }

 private:
  WorkerDevice& device_;
};

WorkerDevice::WorkerDevice(WorkerDeviceOptions options)
    : options_(std::move(options)),
      memory_([this](Errands errands) { Give(std::move(errands)); },
              ChunkBytes(options_.staging_bytes)),
      restarts_(options_.restarts),
      copy_threads_(std::make_unique<CopyThreads>(options_.copy_threads)) {
  info_.name = Concat("cuda:", options_.command.ordinal);
  info_.kind = DeviceKind::kCuda;
  thread_ = std::thread([this] { Run(); });
}

WorkerDevice::~WorkerDevice() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  waker_->Wake();
  thread_.join();
}

absl::Status WorkerDevice::WaitUntilStarted() {
  MutexLock lock(&mutex_);
  mutex_.Await([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return started_.has_value(); });
  return *started_;
}

bool WorkerDevice::stopping() const {
  MutexLock lock(&mutex_);
  return stopping_;
}

pid_t WorkerDevice::worker_pid() const {
  MutexLock lock(&mutex_);
  return process_.pid();
}

void WorkerDevice::Run() {
  constexpr size_t kLongestName = 15;
  pthread_setname_np(pthread_self(), Concat("gemmd-", info_.name).substr(0, kLongestName).c_str());
  const absl::Status started = StartWorker();
  SetReadiness(started.ok()
                   ? started
                   : absl::UnavailableError(Concat("device: ", info_.name, " did not start: ",
                                                   std::string(started.message()))));
  {
    MutexLock lock(&mutex_);
    started_ = started;
  }
  bool is_alive = started.ok();
  while (is_alive) {
    const absl::Status end = Serve();
    if (end.ok()) break;
    is_alive = Restart(end);
  }
  EndWorker(is_alive ? kTimeToEndNs : 0);
  while (!stopping()) {
    WaitForEvent(kNoDeadlineNs);
    RefuseWaiting();
  }
  RefuseWaiting();
}

// Errors: the reason for which the worker is of no more use. OK where all is done and the device
// stops.
absl::Status WorkerDevice::Serve() {
  while (true) {
    if (TakeRestartRequest()) return absl::CancelledError("an operator wants another worker");
    RETURN_IF_ERROR(CheckCanaryIfDue());
    BeginNext();
    if (stopping() && IsFinished()) return absl::OkStatus();
    RETURN_IF_ERROR(Step());
  }
}

// Waits for one event and handles it.
absl::Status WorkerDevice::Step() {
  switch (WaitForEvent(kNoDeadlineNs)) {
    case Event::kRecord: RETURN_IF_ERROR(TakeResults()); break;
    case Event::kWoken:
      if (!readiness().ok()) RefuseWaiting();
      break;
    case Event::kTime:
      if (clock_.NowNs() - last_answer_ns_ > absl::ToInt64Nanoseconds(WarmMemory::kKeptFor)) {
        results_.Cool();
      }
      break;
  }
  return CheckTime();
}

// Ends the worker, answers its errands and those that wait, and starts another one when that is
// allowed. False where the device stops before.
bool WorkerDevice::Restart(absl::Status reason) {
  while (true) {
    process_.Kill();
    spin_until_ns_ = 0;
    const bool is_gone = AwaitEnd(absl::ToInt64Nanoseconds(options_.time_to_tell));
    const std::string why =
        Concat(std::string(reason.message()), is_gone ? Concat(" (", end_, ")") : "");
    if (absl::IsCancelled(reason)) restarts_.Forget();
    const RestartPolicy::Pause pause = restarts_.Next(clock_.NowNs());
    const std::string rest = absl::FormatDuration(absl::Nanoseconds(pause.ns));
    {
      MutexLock lock(&mutex_);
      is_checking_ = false;
    }
    SetReadiness(absl::UnavailableError(
        Concat("device: ", info_.name,
               pause.is_rest ? Concat(" is out of service after too many starts, for ", rest, ": ")
                             : " is starting again: ",
               why)));
    memory_.ledger().Lose();
    EndLost(why);
    RefuseWaiting();
    // One that hangs in the driver may never die, and holds the GPU until then.
    while (!is_gone && !AwaitEnd(kTimeToDieNs)) {
      SetReadiness(absl::UnavailableError(
          Concat("device: ", info_.name, " is out of service: its worker does not die: ", why)));
      if (!Pause(restarts_.rest_ns())) return false;
    }
    if (!Pause(pause.ns)) return false;
    {
      MutexLock lock(&mutex_);
      ++condition_.worker_restarts;
    }
    TakeRestartRequest();  // This is the one.
    reason = StartWorker();
    if (reason.ok()) {
      SetReadiness(absl::OkStatus());
      return true;
    }
  }
}

// Starts a worker. OK once it has its GPU and gave the right products.
absl::Status WorkerDevice::StartWorker() {
  if (!waker_->is_open()) return absl::ResourceExhaustedError("no file descriptor is left");
  if (staging_ == nullptr) {
    ASSIGN_OR_RETURN(std::shared_ptr<StagingArea> staging,
                     StagingArea::Create(options_.staging_bytes, waker_, options_.poisons_freed));
    MutexLock lock(&mutex_);
    staging_ = std::move(staging);
    condition_.staging_bytes = staging_->bytes();
  }
  ASSIGN_OR_RETURN(WorkerProcess process,
                   WorkerProcess::Start(options_.command, staging_->descriptor()));
  {
    MutexLock lock(&mutex_);
    process_ = std::move(process);
  }
  RETURN_IF_ERROR(Greet());
  if (!is_measured_) RETURN_IF_ERROR(Measure());
  is_measured_ = true;
  return CheckCanary();
}

absl::Status WorkerDevice::CheckCanary() {
  Checked checked(*this);
  absl::Status canary = RunCanary(checked, options_.canary_timeout);
  next_canary_ns_ = clock_.NowNs() + absl::ToInt64Nanoseconds(options_.canary_interval);
  MutexLock lock(&mutex_);
  ++(canary.ok() ? condition_.canaries_passed : condition_.canaries_failed);
  return canary;
}

// Lets nothing begin once it is due, and gives it once nothing is under way.
// Errors: as RunCanary. The worker is then of no more use.
absl::Status WorkerDevice::CheckCanaryIfDue() {
  if (clock_.NowNs() < next_canary_ns_) return absl::OkStatus();
  {
    MutexLock lock(&mutex_);
    is_checking_ = !stopping_;
    if (stopping_) return absl::OkStatus();
  }
  if (!IsIdle()) return absl::OkStatus();
  absl::Status canary = CheckCanary();
  MutexLock lock(&mutex_);
  is_checking_ = false;
  return canary;
}

bool WorkerDevice::TakeRestartRequest() {
  MutexLock lock(&mutex_);
  return std::exchange(is_restart_asked_, false);
}

absl::Status WorkerDevice::RestartWorker() {
  {
    MutexLock lock(&mutex_);
    if (!started_.has_value() || !started_->ok()) {
      return absl::FailedPreconditionError(
          Concat("device: ", info_.name, " did not start with the server"));
    }
    is_restart_asked_ = true;
  }
  waker_->Wake();
  return absl::OkStatus();
}

absl::Status WorkerDevice::Greet() {
  ASSIGN_OR_RETURN(const Packet packet, AwaitPacket(options_.start_timeout));
  ASSIGN_OR_RETURN(const Hello hello, ParseRecord<Hello>(packet));
  RETURN_IF_ERROR(hello.status.get());
  if (hello.catalog != CatalogFingerprint()) {
    return absl::FailedPreconditionError(
        GotWant("worker-binary", Concat(options_.command.binary, " with other kernels"),
                "one of the same build as gemmd"));
  }
  if (is_measured_) return absl::OkStatus();
  return Describe(hello);
}

absl::Status WorkerDevice::Describe(const Hello& hello) {
  bool is_known = false;
  for (const mma::Chip chip : mma::kAllChips) {
    if (mma::CapabilityOf(chip) != hello.capability) continue;
    profile_.target = {
        .kind = DeviceKind::kCuda, .chip = chip, .multiprocessors = hello.multiprocessors};
    is_known = true;
  }
  if (!is_known) {
    return absl::UnimplementedError(
        GotWant("compute capability", Concat(hello.capability), "a chip with tensor cores"));
  }
  info_.description = hello.description.view();
  info_.chip = mma::NameOf(profile_.target.chip);
  info_.multiprocessors = hello.multiprocessors;
  info_.memory_bytes = hello.memory_bytes;
  info_.memory_limit_bytes = hello.memory_limit_bytes;
  memory_.ledger().SetCapacity(hello.tensor_limit_bytes);
  info_.clock_khz = hello.clock_khz;
  info_.memory_clock_khz = hello.memory_clock_khz;
  info_.driver = VersionText(hello.driver_version);
  info_.runtime = VersionText(hello.runtime_version);
  info_.pci_bus_id = hello.pci_bus_id.view();
  info_.is_confined = hello.is_confined != 0;
  info_.confinement = hello.confinement.view();
  info_.unconfined = hello.unconfined.view();
  return absl::OkStatus();
}

absl::Status WorkerDevice::Measure() {
  RETURN_IF_ERROR(SendRecord(process_.socket(), MeasureRequest()));
  const absl::Span<const Kernel> kernels = Catalog(DeviceKind::kCuda);
  GpuRates rates;
  while (rates.kernel_rates.size() < kernels.size()) {
    ASSIGN_OR_RETURN(const Packet packet, AwaitPacket(options_.start_timeout));
    ASSIGN_OR_RETURN(const RatesPart part, ParseRecord<RatesPart>(packet));
    RETURN_IF_ERROR(AppendRates(part, kernels.size(), rates));
  }
  profile_.kernel_rates = std::move(rates.kernel_rates);
  profile_.memory_bytes_per_second = rates.memory_bytes_per_second;
  profile_.copied_bytes_per_second = rates.copied_bytes_per_second;
  // An engine is as fast as its fastest kernel; the kernels of an engine lie together.
  for (const Kernel& kernel : kernels) {
    const double rate = profile_.kernel_rates[kernel.position];
    if (!(rate > 0)) continue;
    if (profile_.rates.empty() || profile_.rates.back().engine != kernel.engine) {
      profile_.rates.push_back({std::string(kernel.engine), rate});
    }
    EngineRate& engine = profile_.rates.back();
    engine.operations_per_second = std::max(engine.operations_per_second, rate);
  }
  return absl::OkStatus();
}

// Lets the worker end by itself, for so long.
void WorkerDevice::EndWorker(int64_t patience_ns) {
  if (AwaitEnd(patience_ns)) return;
  process_.Kill();
  AwaitEnd(kTimeToDieNs);
}

// Waits until the process has ended; false where it does not within the time.
bool WorkerDevice::AwaitEnd(int64_t patience_ns) {
  const int64_t until_ns = clock_.NowNs() + patience_ns;
  {
    MutexLock lock(&mutex_);
    process_.CloseSocket();
  }
  while (true) {
    {
      MutexLock lock(&mutex_);
      const std::optional<std::string> end = process_.TryReap();
      if (end) end_ = *end;
      if (end) return true;
    }
    const int64_t now_ns = clock_.NowNs();
    if (now_ns >= until_ns) return false;
    WaitForEvent(now_ns + kReapIntervalNs);
    if (!readiness().ok()) RefuseWaiting();
  }
}

// Errors: DeadlineExceeded where the worker sends nothing in time; Unavailable where it is gone or
// the device stops.
absl::StatusOr<Packet> WorkerDevice::AwaitPacket(absl::Duration timeout) {
  const int64_t until_ns = clock_.NowNs() + absl::ToInt64Nanoseconds(timeout);
  while (clock_.NowNs() < until_ns) {
    const Event event = WaitForEvent(until_ns);
    if (event == Event::kWoken) RefuseWaiting();
    if (stopping()) return absl::UnavailableError("stopping");
    if (event != Event::kRecord) continue;
    Packet packet;
    RETURN_IF_ERROR(ReceivePacket(process_.socket(), /*should_wait=*/false, packet));
    return packet;
  }
  return absl::DeadlineExceededError(
      Concat("the worker said nothing for ", absl::FormatDuration(timeout)));
}

// False where the device stops meanwhile. An operator's wish for a worker ends it.
bool WorkerDevice::Pause(int64_t pause_ns) {
  const int64_t until_ns = clock_.NowNs() + pause_ns;
  while (!stopping()) {
    bool is_over = clock_.NowNs() >= until_ns;
    if (TakeRestartRequest()) {
      restarts_.Forget();
      is_over = true;
    }
    if (is_over) return true;
    WaitForEvent(until_ns);
    RefuseWaiting();
  }
  return false;
}

}  // namespace gemmd
