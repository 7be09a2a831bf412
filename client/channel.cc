// SPDX-License-Identifier: Apache-2.0
#include "client/channel.h"

#include <openssl/crypto.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "client/address.h"
#include "client/credentials.h"
#include "gemmd/v1/gemm.grpc.pb.h"
#include "gemmd/v1/resident.grpc.pb.h"
#include "grpc/compression.h"
#include "grpc/grpc.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"

namespace gemmd {
namespace {

// gRPC itself caps the attempts of a call at 5 (proposal A6).
constexpr int kMostAttempts = 5;
constexpr int64_t kMostMessageBytes = std::numeric_limits<int32_t>::max();

// The server refuses pings that come faster than every 10 s; 20 s leaves room for jitter.
constexpr absl::Duration kKeepaliveTime = absl::Seconds(20);
constexpr absl::Duration kKeepaliveTimeout = absl::Seconds(10);

// gRPC 1.51 ends with the last channel, and then waits for a thread that polls for up to 10 s after
// a long message. Whoever lets a client go would wait with it, so gRPC is kept until the process
// ends. Its threads may be in the middle of a handshake then, so OpenSSL is not taken down under
// them: it must be told so before anything uses it.
void KeepGrpc() {
  static const bool kIsKept = [] {
    OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, nullptr);
    grpc_init();
    return true;
  }();
  (void)kIsKept;
}

int Milliseconds(absl::Duration duration) {
  return static_cast<int>(absl::ToInt64Milliseconds(duration));
}

// gRPC reads pauses of a few decades at most.
constexpr absl::Duration kLongestBackoff = absl::Hours(365 * 24);

absl::Status CheckTimeout(absl::Duration timeout) {
  if (timeout > absl::ZeroDuration() && timeout < absl::InfiniteDuration()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "options.timeout: got ", absl::FormatDuration(timeout), ", want a positive finite time"));
}

absl::Status CheckBackoff(absl::string_view field, absl::Duration backoff) {
  if (backoff > absl::ZeroDuration() && backoff <= kLongestBackoff) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, ": got ", absl::FormatDuration(backoff),
                                                 ", want a positive time of at most ",
                                                 absl::FormatDuration(kLongestBackoff)));
}

absl::Status CheckRange(absl::string_view field, int64_t value, int64_t least, int64_t most) {
  if (least <= value && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": got ", value, ", want ", least, " to ", most));
}

absl::Status CheckOptions(const ClientOptions& options) {
  absl::Status status = CheckRange("options.channels", options.channels, 1, 1024);
  status.Update(CheckTimeout(options.timeout));
  status.Update(
      CheckRange("options.max_message_bytes", options.max_message_bytes, 1, kMostMessageBytes));
  status.Update(CheckRange("options.max_attempts", options.max_attempts, 1, kMostAttempts));
  status.Update(CheckBackoff("options.initial_backoff", options.initial_backoff));
  status.Update(CheckBackoff("options.max_backoff", options.max_backoff));
  return status;
}

}  // namespace

std::string ServiceConfigJson(absl::string_view address, const ClientOptions& options) {
  std::vector<std::string> members;
  if (MayNameSeveral(address)) {
    members.push_back(absl::StrFormat(
        R"("loadBalancingConfig":[{"round_robin":{}}],"healthCheckConfig":{"serviceName":"%s"})",
        v1::Gemm::service_full_name()));
  }
  if (options.max_attempts > 1) {
    const absl::Duration initial = std::min(options.initial_backoff, options.max_backoff);
    // A transfer that broke goes on where it was, which gRPC, who knows the first message alone,
    // cannot do: to gRPC each is one try.
    const std::string_view tensors = v1::Tensors::service_full_name();
    members.push_back(absl::StrFormat(
        R"("methodConfig":[{"name":[{}],"retryPolicy":{"maxAttempts":%d,"initialBackoff":"%.3fs",)"
        R"("maxBackoff":"%.3fs","backoffMultiplier":2,"retryableStatusCodes":["UNAVAILABLE"]}},)"
        R"({"name":[{"service":"%s","method":"Put"},{"service":"%s","method":"Get"}]}])",
        options.max_attempts, std::max(0.001, absl::ToDoubleSeconds(initial)),
        std::max(0.001, absl::ToDoubleSeconds(options.max_backoff)), tensors, tensors));
  }
  return absl::StrCat("{", absl::StrJoin(members, ","), "}");
}

grpc::ChannelArguments ChannelArgumentsFor(absl::string_view address,
                                           const ClientOptions& options) {
  grpc::ChannelArguments arguments = options.channel_arguments;
  const int message_bytes = static_cast<int>(options.max_message_bytes);
  arguments.SetMaxReceiveMessageSize(message_bytes);
  arguments.SetMaxSendMessageSize(message_bytes);
  arguments.SetServiceConfigJSON(ServiceConfigJson(address, options));

  // gRPC gives up retrying a call whose messages exceed this buffer (256 KiB by default, less than
  // one 512 x 512 f32 matrix). The bytes are shared with the message under way, not a copy.
  constexpr int64_t kHeadroomBytes = 1 << 16;
  arguments.SetInt(
      GRPC_ARG_PER_RPC_RETRY_BUFFER_SIZE,
      static_cast<int>(std::min(kMostMessageBytes, options.max_message_bytes + kHeadroomBytes)));
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, Milliseconds(absl::Milliseconds(100)));
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, Milliseconds(absl::Seconds(5)));

  // A vanished server is noticed within 30 s while a call waits for it; idle connections stay
  // silent. Without a limit of pings without data a call that computes for long would go unwatched.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, Milliseconds(kKeepaliveTime));
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, Milliseconds(kKeepaliveTimeout));
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 0);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);

  // Random matrices do not compress, and a server's compressed answer could be a bomb.
  arguments.SetCompressionAlgorithm(GRPC_COMPRESS_NONE);
  arguments.SetInt(GRPC_COMPRESSION_CHANNEL_ENABLED_ALGORITHMS_BITSET, 1 << GRPC_COMPRESS_NONE);

  // gRPC would go through the proxies of the environment, to loopback too.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, options.use_proxy ? 1 : 0);

  // Channels with equal arguments would otherwise share one connection.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return arguments;
}

absl::StatusOr<std::vector<std::shared_ptr<grpc::Channel>>> MakeChannels(
    absl::string_view address, const ClientOptions& options) {
  absl::Status status = CheckAddress(address);
  status.Update(CheckOptions(options));
  if (!status.ok()) return status;
  KeepGrpc();
  auto credentials = MakeCredentials(address, options);
  if (!credentials.ok()) return credentials.status();
  const absl::string_view target = WithoutTls(address);
  grpc::ChannelArguments arguments = ChannelArgumentsFor(target, options);
  if (!options.tls.server_name.empty()) {
    arguments.SetSslTargetNameOverride(options.tls.server_name);
  }
  std::vector<std::shared_ptr<grpc::Channel>> channels(static_cast<size_t>(options.channels));
  for (std::shared_ptr<grpc::Channel>& channel : channels) {
    channel = grpc::CreateCustomChannel(std::string(target), *credentials, arguments);
  }
  return channels;
}

}  // namespace gemmd
