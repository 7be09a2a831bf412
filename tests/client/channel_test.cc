// SPDX-License-Identifier: Apache-2.0
//
// Addresses, options, and the settings that gRPC gets.
#include "client/channel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "grpc/grpc.h"
#include "nlohmann/json.hpp"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using testing::HasSubstr;

std::optional<int> IntArgument(const grpc::ChannelArguments& arguments, absl::string_view name) {
  std::optional<int> found;
  const grpc_channel_args raw = arguments.c_channel_args();
  for (size_t i = 0; raw.args != nullptr && i < raw.num_args; ++i) {
    if (raw.args[i].key == name && raw.args[i].type == GRPC_ARG_INTEGER)
      found = raw.args[i].value.integer;
  }
  return found;
}

TEST(ChannelTest, TakesTheAddressesThatGrpcTakes) {
  for (const char* address :
       {"127.0.0.1:8470", "gemmd:1", "[::1]:65535", "unix:/run/gemmd.sock", "unix:relative",
        "unix-abstract:gemmd", "dns:///gemmd.local:8470", "ipv4:10.0.0.1:1", "ipv6:[::1]:1",
        "tls:gemmd:1", "tls:dns:///gemmd.local:8470"}) {
    EXPECT_THAT(Client::Create(address), IsOk()) << address;
  }
}

TEST(ChannelTest, RefusesOtherAddresses) {
  for (const char* address :
       {"",        "localhost", ":8470",    "host:",     "host:0",      "host:65536",    "host:+1",
        "host: 1", "host:1 ",   "host:0x1", "host:port", "unix:",       "a b:1",         "host:1\n",
        "host:-1", "\xff:1",    "tls:",     "tls:host",  "tls:tls:h:1", "tls:unix:/path"}) {
    EXPECT_THAT(Client::Create(address),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("address: got")))
        << address;
  }
  for (const std::string prefix : {"unix:/", "unix-abstract:", "unix:///"}) {
    EXPECT_THAT(Client::Create(prefix + std::string(100, 'x')), IsOk());
    EXPECT_THAT(Client::Create(prefix + std::string(108, 'x')),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("at most 107 bytes")));
  }
  EXPECT_THAT(Client::Create("localhost"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "address: got \"localhost\", want host:port (port 1 to 65535), "
                       "tls:host:port or unix:/path"));
}

TEST(ChannelTest, SaysWhichAddressWouldBeRight) {
  const std::pair<const char*, const char*> cases[] = {
      {"http://127.0.0.1:8470", "\"127.0.0.1:8470\""},
      {"https://gemmd.example.org:8470/", "\"tls:gemmd.example.org:8470\""},
      {"grpc://h:1", "\"h:1\""},
      {"http://h", "host:port"},
      {"::1:8470", "[host]:port for an address of IPv6, as in \"[::1]:8470\""},
      {"unix://tmp/x", "\"unix:/tmp/x\""},
      {"dns://h:1", "\"dns:///h:1\""},
      {"ipv4:10.0.0.1", "addresses with ports"},
      {"ipv4:10.0.0.1:1,", "addresses with ports"},
      {"user@h:1", "host:port"},
      {"h/x:1", "host:port"},
      {"[::1:1", "host:port"},
  };
  for (const auto& [address, want] : cases) {
    EXPECT_THAT(
        Client::Create(address),
        StatusIs(absl::StatusCode::kInvalidArgument,
                 testing::StartsWith(absl::StrCat("address: got \"", address, "\", want ", want))));
  }
}

TEST(ChannelTest, GoesThroughAProxyWhereThatIsAskedFor) {
  ClientOptions options;
  // The user's own argument takes precedence.
  options.channel_arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 1);
  EXPECT_EQ(IntArgument(ChannelArgumentsFor("h:1", options), GRPC_ARG_ENABLE_HTTP_PROXY), 0);
  options.use_proxy = true;
  EXPECT_EQ(IntArgument(ChannelArgumentsFor("h:1", options), GRPC_ARG_ENABLE_HTTP_PROXY), 1);
  options.token = "a-secret";
  EXPECT_THAT(Client::Create("127.0.0.1:1", options),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("the proxy does not read")));
  EXPECT_THAT(Client::Create("tls:127.0.0.1:1", options), IsOk());
  EXPECT_THAT(Client::Create("unix:/path", options), IsOk());
}

TEST(ChannelTest, SendsNoTokenWhereOthersCouldReadIt) {
  ClientOptions options;
  options.token = "a-secret";
  for (const char* address : {"127.0.0.1:1", "localhost:1", "[::1]:1", "unix:/path", "tls:h:1",
                              "ipv4:127.0.0.1:1", "dns:///localhost:1"}) {
    EXPECT_THAT(Client::Create(address, options), IsOk()) << address;
  }
  for (const char* address : {"h:1", "10.0.0.1:1", "127.example.org:1", "dns:///h:1",
                              "ipv4:127.0.0.1:1,10.0.0.1:1", "localhost.example.org:1"}) {
    const absl::Status status = Client::Create(address, options).status();
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("tls: before it")));
    EXPECT_THAT(std::string(status.message()), testing::Not(HasSubstr("a-secret"))) << address;
  }
  options.tls.server_name = "h";  // Turns TLS on.
  EXPECT_THAT(Client::Create("h:1", options), IsOk());
  for (const std::string& token :
       {std::string("a b"), std::string("a\nb"), std::string(8193, 'a')}) {
    options.token = token;
    const absl::Status status = Client::Create("tls:h:1", options).status();
    EXPECT_THAT(status,
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("options.token: got")));
    EXPECT_THAT(std::string(status.message()), testing::Not(HasSubstr(token)));
  }
}

TEST(ChannelTest, SaysWhichFileOfTlsIsMissing) {
  const auto message_of = [](const char* address, TlsOptions tls) {
    ClientOptions options;
    options.tls = std::move(tls);
    return std::string(Client::Create(address, options).status().message());
  };
  EXPECT_EQ(message_of("tls:h:1", {.ca_file = "/missing"}),
            "options.tls.ca_file: got \"/missing\", want a file that can be read");
  EXPECT_EQ(message_of("tls:h:1", {.ca_file = "/dev/null"}),
            "options.tls.ca_file: got \"/dev/null\", want certificates in PEM");
  EXPECT_THAT(message_of("tls:h:1", {.certificate_file = "/dev/null"}),
              HasSubstr("options.tls.key_file: got \"\""));
  EXPECT_THAT(message_of("mtls:h:1", {}), HasSubstr("options.tls.certificate_file: got \"\""));
  EXPECT_THAT(message_of("unix:/path", {.server_name = "h"}), HasSubstr("not spoken over unix"));
}

TEST(ChannelTest, RefusesBadOptions) {
  const auto message_of = [](auto change) {
    ClientOptions options;
    change(options);
    return std::string(Client::Create("h:1", options).status().message());
  };
  EXPECT_EQ(message_of([](ClientOptions& o) { o.channels = 0; }),
            "options.channels: got 0, want 1 to 1024");
  EXPECT_EQ(message_of([](ClientOptions& o) { o.timeout = absl::InfiniteDuration(); }),
            "options.timeout: got inf, want a positive finite time");
  EXPECT_EQ(message_of([](ClientOptions& o) { o.timeout = absl::ZeroDuration(); }),
            "options.timeout: got 0, want a positive finite time");
  EXPECT_EQ(message_of([](ClientOptions& o) { o.max_message_bytes = int64_t{1} << 31; }),
            "options.max_message_bytes: got 2147483648, want 1 to 2147483647");
  EXPECT_EQ(message_of([](ClientOptions& o) { o.max_attempts = 6; }),
            "options.max_attempts: got 6, want 1 to 5");
  EXPECT_THAT(message_of([](ClientOptions& o) { o.initial_backoff = -absl::Seconds(1); }),
              HasSubstr("options.initial_backoff: got -1s"));
  EXPECT_THAT(message_of([](ClientOptions& o) { o.max_backoff = absl::ZeroDuration(); }),
              HasSubstr("options.max_backoff: got 0"));
  EXPECT_EQ(message_of([](ClientOptions& o) { o.max_backoff = absl::Hours(1'000'000); }),
            "options.max_backoff: got 1000000h, want a positive time of at most 8760h");
}

TEST(ChannelTest, RetriesUnavailableAndNothingElse) {
  ClientOptions options;
  options.initial_backoff = absl::Milliseconds(250);
  const auto config = nlohmann::json::parse(ServiceConfigJson("h:1", options));
  ASSERT_EQ(config["methodConfig"].size(), 2u);
  const auto& method = config["methodConfig"][0];
  EXPECT_EQ(method["name"].dump(), "[{}]");  // Every method.
  EXPECT_EQ(method["retryPolicy"]["retryableStatusCodes"].dump(), "[\"UNAVAILABLE\"]");
  EXPECT_EQ(method["retryPolicy"]["maxAttempts"], 5);
  EXPECT_EQ(method["retryPolicy"]["initialBackoff"], "0.250s");
  EXPECT_EQ(method["retryPolicy"]["maxBackoff"], "2.000s");
  // Except transfers, which resume by themselves.
  const auto& transfers = config["methodConfig"][1];
  EXPECT_FALSE(transfers.contains("retryPolicy"));
  EXPECT_EQ(transfers["name"].dump(), R"([{"method":"Put","service":"gemmd.v1.Tensors"},)"
                                      R"({"method":"Get","service":"gemmd.v1.Tensors"}])");
  options.max_attempts = 1;
  EXPECT_EQ(ServiceConfigJson("h:1", options), "{}");
}

TEST(ChannelTest, CallsRideOutARestartWhereAskedTo) {
  ClientOptions options;
  options.wait_for_ready = true;
  for (const int attempts : {5, 1}) {
    options.max_attempts = attempts;
    const auto config = nlohmann::json::parse(ServiceConfigJson("h:1", options));
    for (const auto& method : config["methodConfig"]) EXPECT_EQ(method["waitForReady"], true);
    const auto& all = config["methodConfig"][0];
    EXPECT_EQ(all.contains("retryPolicy"), attempts > 1);
    if (attempts == 1) continue;
    EXPECT_EQ(all["retryPolicy"]["retryableStatusCodes"].dump(), R"(["UNAVAILABLE","CANCELLED"])");
  }
}

TEST(ChannelTest, BalancesOverTheServersOfAnAddressThatMayNameSeveral) {
  ClientOptions options;
  for (const char* address : {"dns:///gemmd:8470", "ipv4:10.0.0.1:1,10.0.0.2:1", "ipv6:[::1]:1"}) {
    const auto config = nlohmann::json::parse(ServiceConfigJson(address, options));
    EXPECT_EQ(config["loadBalancingConfig"].dump(), R"([{"round_robin":{}}])") << address;
    EXPECT_EQ(config["healthCheckConfig"]["serviceName"], "gemmd.v1.Gemm") << address;
    EXPECT_EQ(config["methodConfig"].size(), 2u) << address;
  }
  for (const char* address : {"gemmd:8470", "unix:/run/gemmd.sock"}) {
    const auto config = nlohmann::json::parse(ServiceConfigJson(address, options));
    EXPECT_FALSE(config.contains("loadBalancingConfig")) << address;
    EXPECT_FALSE(config.contains("healthCheckConfig")) << address;
  }
}

TEST(ChannelTest, SetsWhatItPromises) {
  ClientOptions options;
  options.max_message_bytes = 1'000'000;
  options.channel_arguments.SetInt("grpc.something", 7);
  // The user's own argument takes precedence.
  options.channel_arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 1);
  const grpc::ChannelArguments arguments = ChannelArgumentsFor("h:1", options);
  EXPECT_EQ(IntArgument(arguments, GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH), 1'000'000);
  EXPECT_EQ(IntArgument(arguments, GRPC_ARG_MAX_SEND_MESSAGE_LENGTH), 1'000'000);
  EXPECT_GE(IntArgument(arguments, GRPC_ARG_PER_RPC_RETRY_BUFFER_SIZE), 1'000'000);
  // The server's limit is one ping in 10 s.
  EXPECT_GE(IntArgument(arguments, GRPC_ARG_KEEPALIVE_TIME_MS), 15'000);
  EXPECT_EQ(IntArgument(arguments, GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS), 0);
  EXPECT_EQ(IntArgument(arguments, GRPC_COMPRESSION_CHANNEL_DEFAULT_ALGORITHM), GRPC_COMPRESS_NONE);
  EXPECT_EQ(IntArgument(arguments, GRPC_COMPRESSION_CHANNEL_ENABLED_ALGORITHMS_BITSET), 1);
  EXPECT_EQ(IntArgument(arguments, GRPC_ARG_ENABLE_RETRIES),
            std::nullopt);  // On by default; not switched off.
  EXPECT_EQ(IntArgument(arguments, "grpc.something"), 7);
}

TEST(ChannelTest, LargestMessagesStayRetryable) {
  ClientOptions options;
  options.max_message_bytes = std::numeric_limits<int32_t>::max();
  EXPECT_EQ(IntArgument(ChannelArgumentsFor("h:1", options), GRPC_ARG_PER_RPC_RETRY_BUFFER_SIZE),
            std::numeric_limits<int32_t>::max());
}

}  // namespace
}  // namespace gemmd
