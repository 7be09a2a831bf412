// SPDX-License-Identifier: Apache-2.0
//
// gemmd-lying-worker: a fake worker that gives one false answer. It works in a thread, and passes
// on records between that thread and the daemon. The file named by the environment variable
// GEMMD_WORKER_SCRIPT says how the next answer is false, and is then removed:
//   id                               it is the answer to another job
//   copy_in, compute, copy_out       that stage took a negative time
//   longer, longest                  the stages took longer than the whole
//   done                             it is OK, although nothing was done
#include <signal.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <limits>
#include <string>
#include <thread>
#include <utility>

#include "server/crossing/channel.h"
#include "server/crossing/protocol.h"
#include "server/worker/worker.h"
#include "tests/server/worker/fake_gpu_runtime.h"

namespace gemmd {
namespace {

// The pending false answer, if any.
std::string PeekLie(const std::string& path) {
  std::ifstream file(path);
  std::string lie;
  file >> lie;
  return lie;
}

std::string TakeLie(const std::string& path) {
  const std::string lie = PeekLie(path);
  if (!lie.empty()) unlink(path.c_str());
  return lie;
}

void Falsify(const std::string& lie, Result& result) {
  if (lie == "id") ++result.id;
  if (lie == "copy_in") result.copy_in_ns = -1;
  if (lie == "compute") result.compute_ns = -1;
  if (lie == "copy_out") result.copy_out_ns = -1;
  constexpr int64_t kDayNs = 86'400'000'000'000;
  if (lie == "longer") result.compute_ns = kDayNs;
  // The sum of the stages overflows.
  if (lie == "longest") {
    result.copy_in_ns = result.compute_ns = result.copy_out_ns =
        std::numeric_limits<int64_t>::max();
  }
}

absl::Status PassOn(const Packet& packet, Channel& to) {
  return to.Send(absl::MakeConstSpan(packet.bytes).first(packet.size));
}

// Passes on an answer from the worker to the daemon; OK until one of them is gone.
absl::Status PassOnAnswer(Channel& worker, Channel& front, const std::string& script) {
  Packet packet;
  absl::Status status = worker.TryReceive(packet);
  if (absl::IsNotFound(status)) return absl::OkStatus();
  if (!status.ok()) return status;
  absl::StatusOr<Result> result = ParseRecord<Result>(packet);
  if (!result.ok()) return PassOn(packet, front);
  // "done" applies to a request. It may be written between two reads of the file.
  const std::string lie = PeekLie(script);
  if (!lie.empty() && lie != "done") Falsify(TakeLie(script), *result);
  return SendRecord(front, *result);
}

absl::Status PassOnRequest(Channel& front, Channel& worker, const std::string& script) {
  Packet packet;
  absl::Status status = front.TryReceive(packet);
  if (absl::IsNotFound(status)) return absl::OkStatus();
  if (!status.ok()) return status;
  const absl::StatusOr<JobRequest> job = ParseRecord<JobRequest>(packet);
  if (!job.ok() || PeekLie(script) != "done") return PassOn(packet, worker);
  TakeLie(script);
  Result result;
  result.id = job->id;
  return SendRecord(front, result);
}

void PassOnAll(Channel& front, Channel& worker, const std::string& script) {
  constexpr timespec kInterval = {.tv_sec = 0, .tv_nsec = 200'000};
  absl::Status status;
  while (status.ok()) {
    if (!front.HasNews() && !worker.HasNews()) front.Sleep(&kInterval);
    if (!front.HasNews() && !worker.HasNews()) worker.Sleep(&kInterval);
    status = PassOnRequest(front, worker, script);
    if (status.ok()) status = PassOnAnswer(worker, front, script);
  }
}

}  // namespace
}  // namespace gemmd

int main() {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const char* script = getenv("GEMMD_WORKER_SCRIPT");  // NOLINT(concurrency-mt-unsafe): no threads.
  auto front =
      gemmd::Channel::Open(gemmd::FileDescriptor(gemmd::kWorkerSocket), gemmd::kWorkerRings);
  gemmd::FileDescriptor other;
  auto worker = gemmd::Channel::Create(other);
  if (!front.ok() || !worker.ok()) return 1;
  std::thread thread([&other, rings = worker->rings()] {
    auto channel = gemmd::Channel::Open(std::move(other), rings);
    gemmd::FakeGpuRuntime runtime;
    const gemmd::WorkerOptions options = {.measure = gemmd::MeasureNothing};
    if (!channel.ok()) return;
    gemmd::RunWorker(options, runtime, *channel, gemmd::kWorkerStaging).IgnoreError();
    channel->Close();
  });
  gemmd::PassOnAll(*front, *worker, script == nullptr ? "" : script);
  worker->Close();
  thread.join();
  return 0;
}
