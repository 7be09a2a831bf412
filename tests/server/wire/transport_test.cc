// SPDX-License-Identifier: Apache-2.0
//
// The settings of gRPC's server, seen by peers that misbehave. Timeouts are shortened; options_test
// checks that the defaults are those of the daemon.
#include "server/wire/transport.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <future>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "tests/server/device/shared_host.h"
#include "tests/server/wire/http2_peer.h"
#include "tests/server/wire/running_server.h"
#include "tests/testing/patience.h"

namespace gemmd {
namespace {

using ::testing::HasSubstr;

// A server whose transport options `change` has changed.
template <typename Change>
RunningServer ServerWith(Change change) {
  ServerOptions options = TestServerOptions();
  change(options.transport);
  return RunningServer(TestDevice::kCpu, options);
}

std::vector<std::unique_ptr<Device>> OneCpu() {
  std::vector<std::unique_ptr<Device>> devices;
  devices.push_back(std::make_unique<ScriptedDevice>(SharedHost()));
  return devices;
}

// Calls attempt(milliseconds) with ten times the time each time, until it returns true: on a slow
// machine, a peer takes longer to do something within a time.
template <typename Attempt>
bool SucceedsInTime(Attempt attempt) {
  for (const int ms : {200, 2'000, 20'000}) {
    if (attempt(absl::Milliseconds(ms))) return true;
  }
  return false;
}

// Connections with a short maximum age may be closed too early for a call.
void ExpectServes(RunningServer& running) {
  EXPECT_TRUE(Eventually([&] { return MultiplySmall(running.gemm()).ok(); }));
}

TEST(TransportTest, SilentConnectionsAreClosed) {
  RunningServer running = ServerWith(
      [](TransportOptions& options) { options.handshake_timeout = absl::Milliseconds(300); });
  Http2Peer silent(running.port());
  EXPECT_TRUE(silent.WaitUntilClosed(kPatience));
  ExpectServes(running);
}

TEST(TransportTest, ConnectionsOutliveTheHandshakeTimeoutOnceTheySpeak) {
  EXPECT_TRUE(SucceedsInTime([](absl::Duration timeout) {
    RunningServer running =
        ServerWith([&](TransportOptions& options) { options.handshake_timeout = timeout; });
    Http2Peer peer(running.port());
    peer.Greet();
    return !peer.WaitUntilClosed(2 * timeout);
  }));
}

TEST(TransportTest, IdleConnectionsAreClosed) {
  RunningServer running = ServerWith(
      [](TransportOptions& options) { options.max_connection_idle = absl::Milliseconds(300); });
  Http2Peer idle(running.port());
  idle.Greet();
  EXPECT_TRUE(idle.WaitUntilClosed(kPatience));
}

TEST(TransportTest, OldConnectionsAreClosed) {
  RunningServer running = ServerWith([](TransportOptions& options) {
    options.max_connection_age = absl::Milliseconds(300);
    options.max_connection_age_grace = absl::Milliseconds(100);
  });
  Http2Peer old(running.port());
  old.Greet();
  bool was_asked_to_go = false;
  while (const std::optional<Http2Peer::Frame> frame = old.ReadFrame(kPatience)) {
    was_asked_to_go |= frame->type == Http2Peer::kGoAway;
  }
  EXPECT_TRUE(was_asked_to_go);
  // A client simply reconnects.
  ExpectServes(running);
}

// The status of a call that the device holds for that time, or until the call has ended; nullopt if
// the device never gets it.
std::optional<grpc::StatusCode> EndOfLongCall(const TransportOptions& transport,
                                              absl::Duration held) {
  ServerOptions options = TestServerOptions();
  options.transport = transport;
  options.transport.listen = TestServerOptions().transport.listen;
  RunningServer running(TestDevice::kFake, options);
  running.fake().IgnoreAborts();  // If the connection is closed, the product is aborted.
  std::future<grpc::Status> status = std::async(std::launch::async, [&running] {
    grpc::ClientContext context;
    AllowTime(context, 2 * kPatience);
    v1::MultiplyResponse response;
    return running.gemm().Multiply(&context, IntegerRequest(2, 2, 2), &response);
  });
  const auto has_ended = [&] {
    return status.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  };
  EXPECT_TRUE(Eventually([&] { return running.fake().held() > 0 || has_ended(); }));
  const bool is_held = running.fake().held() > 0;
  status.wait_for(absl::ToChronoNanoseconds(held));
  if (is_held) running.fake().CompleteNext();
  const grpc::StatusCode code = status.get().error_code();
  return is_held ? std::optional(code) : std::nullopt;
}

TEST(TransportTest, AConnectionWithACallIsNotIdle) {
  EXPECT_TRUE(SucceedsInTime([](absl::Duration idle) {
    TransportOptions options;
    options.max_connection_idle = idle;
    options.max_connection_age_grace = absl::Milliseconds(100);
    return EndOfLongCall(options, 3 * idle) == grpc::StatusCode::OK;
  }));
}

TEST(TransportTest, AConnectionWithACallMayBeTooOld) {
  EXPECT_TRUE(SucceedsInTime([](absl::Duration age) {
    TransportOptions options;
    options.max_connection_age = age;
    options.max_connection_age_grace = absl::Milliseconds(100);
    return EndOfLongCall(options, kPatience) == grpc::StatusCode::UNAVAILABLE;
  }));
}

RunningServer ServerThatPings(absl::Duration timeout) {
  return ServerWith([&](TransportOptions& options) {
    options.keepalive_time = absl::Milliseconds(200);
    options.keepalive_timeout = timeout;
  });
}

TEST(TransportTest, VanishedPeersAreFound) {
  RunningServer running = ServerThatPings(absl::Milliseconds(200));
  Http2Peer vanished(running.port());
  vanished.Greet();  // And never answers a ping.
  EXPECT_TRUE(vanished.WaitUntilClosed(kPatience));
}

TEST(TransportTest, PeersThatAnswerPingsStay) {
  EXPECT_TRUE(SucceedsInTime([](absl::Duration timeout) {
    RunningServer running = ServerThatPings(timeout);
    Http2Peer alive(running.port());
    alive.Greet();
    for (int pings = 0; pings < 5;) {
      const std::optional<Http2Peer::Frame> frame = alive.ReadFrame(kPatience);
      if (!frame.has_value()) return false;
      if (frame->type != Http2Peer::kPing || frame->flags == Http2Peer::kAck) continue;
      alive.SendFrame(Http2Peer::kPing, Http2Peer::kAck, frame->payload);
      ++pings;
    }
    return true;
  }));
}

TEST(TransportTest, PingFloodsAreAnsweredWithGoAway) {
  RunningServer running = ServerWith([](TransportOptions&) {});
  Http2Peer flood(running.port());
  flood.Greet();
  for (int i = 0; i < 20; ++i) flood.SendFrame(Http2Peer::kPing, 0, "12345678");
  std::string reason;
  while (const std::optional<Http2Peer::Frame> frame = flood.ReadFrame(kPatience)) {
    if (frame->type == Http2Peer::kGoAway) reason = frame->payload;
  }
  EXPECT_THAT(reason, HasSubstr("too_many_pings"));
  EXPECT_TRUE(MultiplySmall(running.gemm()).ok());
}

TEST(TransportTest, TellsClientsHowManyStreamsTheyMayOpen) {
  RunningServer running =
      ServerWith([](TransportOptions& options) { options.max_concurrent_streams = 77; });
  Http2Peer peer(running.port());
  peer.Greet();
  const std::optional<Http2Peer::Frame> settings = peer.ReadFrame(kPatience);
  ASSERT_TRUE(settings.has_value());
  ASSERT_EQ(settings->type, Http2Peer::kSettings);
  // Pairs of a 16-bit name and a 32-bit value; MAX_CONCURRENT_STREAMS is 3.
  EXPECT_THAT(settings->payload, HasSubstr(std::string("\x00\x03\x00\x00\x00\x4d", 6)));
}

TEST(TransportTest, GarbageOnThePortIsShutOut) {
  RunningServer running = ServerWith([](TransportOptions&) {});
  std::minstd_rand random(7);
  for (int i = 0; i < 50; ++i) {
    Http2Peer garbage(running.port());
    std::string bytes;
    if (i % 2 == 1) bytes = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    for (int j = 0; j < 1000; ++j) bytes.push_back(static_cast<char>(random()));
    garbage.Send(bytes);
    if (i % 2 == 0) {
      EXPECT_TRUE(garbage.WaitUntilClosed(kPatience));
    }
  }
  EXPECT_TRUE(MultiplySmall(running.gemm()).ok());
}

TEST(TransportTest, MessagesOverTheLimitAreRefused) {
  RunningServer running =
      ServerWith([](TransportOptions& options) { options.max_message_bytes = 1 << 20; });
  grpc::ClientContext context;
  AllowTime(context);
  v1::MultiplyResponse response;
  const grpc::Status status =
      running.gemm().Multiply(&context, IntegerRequest(512, 1, 1024), &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("1048576"));
  EXPECT_TRUE(MultiplySmall(running.gemm()).ok());
}

TEST(TransportTest, MessagesOfMoreThanGrpcsOwnDefaultPass) {
  RunningServer running = ServerWith([](TransportOptions&) {});
  grpc::ClientContext context;
  AllowTime(context);
  // 16 MiB; gRPC's default is 4.
  const v1::MultiplyRequest request = IntegerRequest(2048, 3, 2048);
  v1::MultiplyResponse response;
  const grpc::Status status = running.gemm().Multiply(&context, request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_TRUE(IsRightProduct(request, response));
}

TEST(TransportTest, CompressedMessagesAreRefused) {
  RunningServer running = ServerWith([](TransportOptions&) {});
  for (const grpc_compression_algorithm algorithm : {GRPC_COMPRESS_GZIP, GRPC_COMPRESS_DEFLATE}) {
    grpc::ClientContext context;
    AllowTime(context);
    context.set_compression_algorithm(algorithm);
    v1::MultiplyResponse response;
    EXPECT_EQ(running.gemm().Multiply(&context, IntegerRequest(64, 64, 64), &response).error_code(),
              grpc::StatusCode::UNIMPLEMENTED);
  }
  EXPECT_TRUE(MultiplySmall(running.gemm()).ok());
}

TEST(TransportTest, APortInUseIsAnError) {
  RunningServer running = ServerWith([](TransportOptions&) {});
  ServerOptions options = TestServerOptions();
  const std::string used = running.tcp_address();
  const std::string unused = options.transport.listen[0];
  const std::vector<std::string> lists[] = {{used}, {unused, used}, {used, unused}};
  for (const std::vector<std::string>& listen : lists) {
    options.transport.listen = listen;
    const absl::Status status = Server::Start(options, OneCpu()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(status.message()), HasSubstr(used));
  }
}

TEST(TransportTest, AUnixSocketInUseIsAnErrorAndAStaleOneIsReplaced) {
  RunningServer running = ServerWith([](TransportOptions&) {});
  ServerOptions options = TestServerOptions();
  options.transport.listen = {"127.0.0.1:0", running.unix_address()};
  const absl::Status status = Server::Start(options, OneCpu()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr(running.unix_address()));
  EXPECT_TRUE(MultiplySmall(*v1::Gemm::NewStub(NewChannel(running.unix_address()))).ok());

  options = TestServerOptions();
  sockaddr_un name = {};
  name.sun_family = AF_UNIX;
  options.transport.listen[1].substr(5).copy(name.sun_path, sizeof(name.sun_path) - 1);
  const int stale = socket(AF_UNIX, SOCK_STREAM, 0);
  ASSERT_EQ(bind(stale, reinterpret_cast<const sockaddr*>(&name), sizeof(name)), 0);
  close(stale);  // The file stays, nobody listens.
  RunningServer replaced(TestDevice::kCpu, options);
  EXPECT_TRUE(MultiplySmall(*v1::Gemm::NewStub(NewChannel(replaced.unix_address()))).ok());
}

TEST(TransportTest, BadValuesAreNamed) {
  const struct {
    void (*change)(TransportOptions&);
    const char* option;
  } cases[] = {
      {[](TransportOptions& o) { o.max_message_bytes = 0; }, "max-message-bytes"},
      {[](TransportOptions& o) { o.max_message_bytes = int64_t{1} << 31; }, "max-message-bytes"},
      {[](TransportOptions& o) { o.handshake_timeout = absl::ZeroDuration(); },
       "handshake-timeout"},
      {[](TransportOptions& o) { o.keepalive_time = absl::InfiniteDuration(); }, "keepalive-time"},
      {[](TransportOptions& o) { o.listen = {"unix:"}; }, "listen"},
      {[](TransportOptions& o) { o.listen = {"unix:/" + std::string(200, 'x')}; }, "listen"},
      {[](TransportOptions& o) { o.listen = {"not an address"}; }, "not an address"},
  };
  for (const auto& bad : cases) {
    ServerOptions options = TestServerOptions();
    bad.change(options.transport);
    const absl::Status status = Server::Start(options, OneCpu()).status();
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()), HasSubstr(bad.option));
  }
}

TEST(TransportTest, PortsAreFilledIn) {
  EXPECT_EQ(WithPort("127.0.0.1:0", 4711), "127.0.0.1:4711");
  EXPECT_EQ(WithPort("[::1]:0", 4711), "[::1]:4711");
  EXPECT_EQ(WithPort("unix:/a:0", 1), "unix:/a:0");
}

TEST(TransportTest, KnowsItsMemoryAndRaisesItsOpenFiles) {
  EXPECT_GT(MemoryLimitBytes(), 0);
  EXPECT_LE(MemoryLimitBytes(), int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE));
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit lowered = before;
  lowered.rlim_cur = 256;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &lowered), 0);
  const absl::StatusOr<int64_t> raised = RaiseOpenFileLimit();
  ASSERT_TRUE(raised.ok()) << raised.status();
  EXPECT_EQ(*raised, static_cast<int64_t>(before.rlim_max));
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
}

TEST(TransportTest, ConnectionsAreAsManyAsFilesAndMemoryAllow) {
  constexpr int64_t kGiB = int64_t{1} << 30;
  TransportOptions options;
  const auto limits = [&](int64_t open_files, int64_t memory_bytes) {
    return ConnectionLimitsOf(options, open_files, memory_bytes).value();
  };
  // 100 idle calls of 24 KiB on each connection.
  EXPECT_EQ(limits(1 << 20, 8 * kGiB).all, 436);
  EXPECT_EQ(limits(1 << 20, 8 * kGiB).of_peer, 218);
  EXPECT_EQ(limits(600, 8 * kGiB).all, 300);
  EXPECT_EQ(limits(1 << 20, 10'000 * kGiB).all, 32768);
  EXPECT_EQ(limits(1 << 20, 1).all, 1);
  options.max_concurrent_streams = 10;
  EXPECT_EQ(limits(1 << 20, 8 * kGiB).all, 4369);
  options.max_connections = 1000;
  EXPECT_EQ(limits(1 << 20, kGiB).all, 1000);
  EXPECT_FALSE(ConnectionLimitsOf(options, 1000, kGiB).ok());
}

}  // namespace
}  // namespace gemmd
