// SPDX-License-Identifier: Apache-2.0
//
// gemmd-lying-worker: a fake worker of which one answer is not true. It does its work in a thread,
// between which and the front it passes records on. The file that the environment variable
// GEMMD_WORKER_SCRIPT names says how the next answer lies, and is removed then:
//   id                               it is the answer to another job
//   copy_in, compute, copy_out       that stage took less than no time
//   longer, longest                  the stages took longer than the whole
//   done                             it is OK, and nothing was done
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <string>
#include <thread>

#include "server/crossing/protocol.h"
#include "server/worker/worker.h"
#include "tests/server/worker/fake_gpu_runtime.h"

namespace gemmd {
namespace {

// The lie that is due, if there is one.
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
  // Their sum is more than a number holds.
  if (lie == "longest") {
    result.copy_in_ns = result.compute_ns = result.copy_out_ns =
        std::numeric_limits<int64_t>::max();
  }
}

absl::Status PassOn(const Packet& packet, int to) {
  return SendBytes(to, absl::MakeConstSpan(packet.bytes).first(packet.size));
}

// From the worker to the front; OK until one of them is gone.
absl::Status PassOnAnswer(int worker, int front, const std::string& script) {
  Packet packet;
  absl::Status status = ReceivePacket(worker, /*should_wait=*/true, packet);
  if (!status.ok()) return status;
  absl::StatusOr<Result> result = ParseRecord<Result>(packet);
  if (!result.ok()) return PassOn(packet, front);
  if (PeekLie(script) != "done") Falsify(TakeLie(script), *result);
  return SendRecord(front, *result);
}

absl::Status PassOnRequest(int front, int worker, const std::string& script) {
  Packet packet;
  absl::Status status = ReceivePacket(front, /*should_wait=*/true, packet);
  if (!status.ok()) return status;
  const absl::StatusOr<JobRequest> job = ParseRecord<JobRequest>(packet);
  if (!job.ok() || PeekLie(script) != "done") return PassOn(packet, worker);
  TakeLie(script);
  Result result;
  result.id = job->id;
  return SendRecord(front, result);
}

void PassOnAll(int front, int worker, const std::string& script) {
  absl::Status status;
  while (status.ok()) {
    std::array<pollfd, 2> files = {pollfd{.fd = front, .events = POLLIN, .revents = 0},
                                   pollfd{.fd = worker, .events = POLLIN, .revents = 0}};
    if (poll(files.data(), files.size(), -1) < 0) continue;
    if (files[0].revents != 0) status = PassOnRequest(front, worker, script);
    if (status.ok() && files[1].revents != 0) status = PassOnAnswer(worker, front, script);
  }
}

}  // namespace
}  // namespace gemmd

int main() {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const char* script = getenv("GEMMD_WORKER_SCRIPT");  // NOLINT(concurrency-mt-unsafe): no threads.
  std::array<int, 2> pair = {};
  if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair.data()) != 0) return 1;
  std::thread worker([&pair] {
    gemmd::FakeGpuRuntime runtime;
    const gemmd::WorkerOptions options = {.measure = gemmd::MeasureNothing};
    gemmd::RunWorker(options, runtime, pair[1], gemmd::kWorkerStaging).IgnoreError();
    shutdown(pair[1], SHUT_RDWR);
  });
  gemmd::PassOnAll(gemmd::kWorkerSocket, pair[0], script == nullptr ? "" : script);
  shutdown(pair[0], SHUT_RDWR);
  worker.join();
  return 0;
}
