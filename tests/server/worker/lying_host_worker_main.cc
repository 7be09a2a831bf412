// SPDX-License-Identifier: Apache-2.0
//
// gemmd-lying-host-worker: gemmd-host-worker, unless the file named by the environment variable
// GEMMD_WORKER_SCRIPT exists when it starts. It then removes the file and answers OK to every
// launch without touching a matrix. If the file says "started", it also reports each launch as
// started.
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>

#include "kernels/kernel.h"
#include "kernels/matrix/status.h"
#include "server/crossing/channel.h"
#include "server/crossing/protocol.h"
#include "server/worker/worker.h"

namespace gemmd {
namespace {

absl::Status Lie(DeviceKind kind, bool says_started) {
  ASSIGN_OR_RETURN(Channel front, Channel::Open(FileDescriptor(kWorkerSocket), kWorkerRings));
  Hello hello;
  hello.catalog = CatalogFingerprint(kind);
  RETURN_IF_ERROR(front.SendThroughSocket(BytesOfRecord(hello)));
  Packet packet;
  while (true) {
    RETURN_IF_ERROR(front.Receive(packet));
    ASSIGN_OR_RETURN(const LaunchRequest request, ParseRecord<LaunchRequest>(packet));
    if (says_started) front.control().started_ids[request.slot] = request.id;
    Result result;
    result.id = request.id;
    RETURN_IF_ERROR(SendRecord(front, result));
  }
}

}  // namespace
}  // namespace gemmd

int main(int argc, char** argv) {
  const char* script = getenv("GEMMD_WORKER_SCRIPT");  // NOLINT(concurrency-mt-unsafe): no threads.
  std::string lie;
  if (script != nullptr) std::ifstream(script) >> lie;
  if (lie.empty()) {
    execv(GEMMD_HOST_WORKER, argv);
    return 1;
  }
  unlink(script);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const bool is_cpu = argc > 1 && std::string_view(argv[1]) == "cpu";
  const gemmd::DeviceKind kind = is_cpu ? gemmd::DeviceKind::kCpu : gemmd::DeviceKind::kSim;
  return gemmd::Lie(kind, lie == "started").ok() ? 0 : 1;
}
