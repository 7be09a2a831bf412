// SPDX-License-Identifier: Apache-2.0
#include "server/wire/self_call.h"

#include <grpcpp/create_channel_posix.h>
#include <grpcpp/grpcpp.h>
#include <sys/socket.h>

#include <array>
#include <string>

#include "gemmd/v1/registry.grpc.pb.h"
#include "kernels/text.h"
#include "proto/deadline_after.h"
#include "server/store/digest.h"
#include "server/system/file_descriptor.h"

namespace gemmd {

namespace {

constexpr char kMarkKey[] = "gemmd-self";

// Empty where the system gives no random bits: then no call is the daemon's own.
const std::string& Mark() {
  static const std::string mark = [] {
    const absl::StatusOr<RandomId> random = RandomId::Make();
    return random.ok() ? random->ToHex() : "";
  }();
  return mark;
}

}  // namespace

bool IsOwnCall(const grpc::ServerContextBase& context) {
  const auto [first, last] = context.client_metadata().equal_range(kMarkKey);
  return first != last && !Mark().empty() && first->second == Mark();
}

absl::Status CallSelf(const std::function<void(int descriptor)>& take, absl::Duration timeout) {
  std::array<int, 2> pair = {-1, -1};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair.data()) != 0) {
    return absl::ResourceExhaustedError("no file descriptor is left");
  }
  take(pair[1]);
  const auto stub = v1::Registry::NewStub(grpc::CreateInsecureChannelFromFd("self", pair[0]));
  grpc::ClientContext context;
  context.set_deadline(DeadlineAfter(timeout));
  context.AddMetadata(kMarkKey, Mark());
  v1::ListDevicesResponse response;
  const grpc::Status status = stub->ListDevices(&context, v1::ListDevicesRequest(), &response);
  if (status.ok()) return absl::OkStatus();
  return {static_cast<absl::StatusCode>(status.error_code()),
          Concat("a call of the daemon to itself: ", status.error_message())};
}

}  // namespace gemmd
