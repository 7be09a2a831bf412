// SPDX-License-Identifier: Apache-2.0
#include "server/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"

namespace gemmd {
namespace {

using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::StartsWith;

ParsedOptions Parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "gemmd");
  return ParseOptions(static_cast<int>(arguments.size()), arguments.data());
}

TEST(OptionsTest, DefaultsAreThoseOfTheWireContract) {
  const ParsedOptions parsed = Parse({});
  ASSERT_TRUE(parsed.should_run) << parsed.text;
  const TransportOptions& transport = parsed.options.server.transport;
  EXPECT_THAT(transport.listen, ElementsAre("127.0.0.1:8470"));
  EXPECT_EQ(transport.max_message_bytes, int64_t{512} << 20);
  EXPECT_EQ(transport.max_concurrent_streams, 100);
  EXPECT_EQ(transport.handshake_timeout, absl::Seconds(5));
  EXPECT_EQ(transport.max_connection_idle, absl::Minutes(10));
  EXPECT_EQ(transport.max_connection_age, absl::Minutes(30));
  EXPECT_EQ(transport.max_connection_age_grace, absl::Seconds(30));
  EXPECT_EQ(transport.keepalive_time, absl::Seconds(20));
  EXPECT_EQ(transport.keepalive_timeout, absl::Seconds(10));
  EXPECT_EQ(transport.min_ping_interval, absl::Seconds(10));
  EXPECT_THAT(parsed.options.devices.names, IsEmpty());
  EXPECT_EQ(parsed.options.server.admission.max_product_ns, 60'000'000'000);
  EXPECT_EQ(parsed.options.devices.watchdog_max, absl::Minutes(5));
  EXPECT_FALSE(parsed.options.devices.poisons_freed);
  // A drain can finish what waits.
  EXPECT_EQ(absl::Nanoseconds(parsed.options.server.admission.max_backlog_ns),
            parsed.options.grace);
}

TEST(OptionsTest, SaysWhoMayOpenUnixSockets) {
  const auto sockets = [](std::vector<const char*> arguments) {
    const ParsedOptions parsed = Parse(std::move(arguments));
    EXPECT_TRUE(parsed.should_run) << parsed.text;
    return parsed.options.server.transport.unix_sockets;
  };
  EXPECT_EQ(sockets({}).mode_of_file(), 0600u);
  EXPECT_EQ(sockets({}).group, std::nullopt);
  EXPECT_EQ(sockets({"--operators-group=root"}).group, 0u);
  EXPECT_EQ(sockets({"--operators-group=4242"}).group, 4242u);
  EXPECT_EQ(sockets({"--operators-group=0"}).mode_of_file(), 0660u);
  EXPECT_EQ(sockets({"--operators-group=0", "--socket-mode=666"}).mode_of_file(), 0666u);
  EXPECT_EQ(sockets({"--socket-mode=0600"}).mode_of_file(), 0600u);
  for (const char* bad : {"--operators-group=nobody-has-it", "--operators-group=4294967295",
                          "--operators-group=-1", "--socket-mode=1777", "--socket-mode=0x1ff",
                          "--socket-mode=680", "--socket-mode=66", "--socket-mode="}) {
    EXPECT_FALSE(Parse({bad}).should_run) << bad;
  }
}

TEST(OptionsTest, ReadsEveryKindOfValue) {
  const ParsedOptions parsed = Parse({"--listen=127.0.0.1:0,unix:/tmp/x.sock", "--cpu-threads", "3",
                                      "--max-message-bytes=64MiB", "--max-queued-bytes", "1gb",
                                      "--grace=1m30s", "--lame-duck=0s", "--log-level=debug"});
  ASSERT_TRUE(parsed.should_run) << parsed.text;
  EXPECT_THAT(parsed.options.server.transport.listen,
              ElementsAre("127.0.0.1:0", "unix:/tmp/x.sock"));
  EXPECT_EQ(parsed.options.devices.cpu_threads, 3);
  EXPECT_EQ(parsed.options.server.transport.max_message_bytes, int64_t{64} << 20);
  EXPECT_EQ(parsed.options.server.admission.max_bytes, int64_t{1} << 30);
  EXPECT_EQ(parsed.options.grace, absl::Seconds(90));
  EXPECT_EQ(parsed.options.lame_duck, absl::ZeroDuration());
  EXPECT_EQ(parsed.options.log_level, "debug");
}

TEST(OptionsTest, ReadsTheFilesOfTls) {
  const ParsedOptions parsed = Parse({"--listen=mtls:[::]:1", "--tls-cert=/c", "--tls-key=/k",
                                      "--client-ca=/a", "--insecure-allow-remote"});
  ASSERT_TRUE(parsed.should_run) << parsed.text;
  const TransportOptions& transport = parsed.options.server.transport;
  EXPECT_EQ(transport.certificates.certificate, "/c");
  EXPECT_EQ(transport.certificates.key, "/k");
  EXPECT_EQ(transport.certificates.client_ca, "/a");
  EXPECT_TRUE(transport.insecure_allow_remote);
  EXPECT_FALSE(Parse({}).options.server.transport.insecure_allow_remote);
}

// All values differ, so that none can be mistaken for another.
TEST(OptionsTest, EachLimitAndTimeoutIsSetByItsOwnOption) {
  const ParsedOptions parsed = Parse({"--max-message-bytes=1001",
                                      "--max-queued-requests=1002",
                                      "--max-queued-bytes=1003",
                                      "--memory-quota-bytes=5MiB",
                                      "--max-concurrent-streams=1005",
                                      "--gpu-staging-bytes=1006",
                                      "--gpu-memory-bytes=1007",
                                      "--tensor-bytes=1010:1011",
                                      "--handshake-timeout=1s",
                                      "--max-connection-age=3s",
                                      "--keepalive-time=5s",
                                      "--session-linger=7s",
                                      "--lame-duck=8s",
                                      "--grace=9s",
                                      "--poison-freed-memory=on",
                                      "--max-product-seconds=0.01",
                                      "--max-backlog=11s",
                                      "--send-timeout=12s:1008",
                                      "--batch=1013:14ms",
                                      "--max-sessions=1014",
                                      "--max-connections=1015",
                                      "--memory-limit-bytes=1009"});
  ASSERT_TRUE(parsed.should_run) << parsed.text;
  const Options& options = parsed.options;
  const TransportOptions& transport = options.server.transport;
  EXPECT_EQ(transport.max_message_bytes, 1001);
  EXPECT_EQ(options.server.admission.max_requests, 1002);
  EXPECT_EQ(options.server.admission.max_bytes, 1003);
  EXPECT_EQ(transport.memory_quota_bytes, 5 << 20);
  EXPECT_EQ(transport.max_concurrent_streams, 1005);
  EXPECT_EQ(options.devices.gpu_staging_bytes, 1006);
  EXPECT_EQ(options.devices.gpu_memory_bytes, 1007);
  EXPECT_EQ(options.server.tensors.max_bytes, 1010);
  EXPECT_EQ(options.server.tensors.max_session_bytes, 1011);
  EXPECT_EQ(transport.handshake_timeout, absl::Seconds(1));
  EXPECT_EQ(transport.max_connection_age, absl::Seconds(3));
  EXPECT_EQ(transport.keepalive_time, absl::Seconds(5));
  EXPECT_EQ(options.server.tensors.linger, absl::Seconds(7));
  EXPECT_EQ(options.server.sending.timeout, absl::Seconds(12));
  EXPECT_EQ(options.server.sending.min_bytes_per_second, 1008);
  EXPECT_EQ(options.server.memory_limit_bytes, 1009);
  EXPECT_EQ(options.lame_duck, absl::Seconds(8));
  EXPECT_EQ(options.grace, absl::Seconds(9));
  EXPECT_EQ(options.devices.watchdog_max, absl::Milliseconds(50)) << "five times the product's";
  EXPECT_EQ(options.server.joins.limits.max_jobs, 1013);
  EXPECT_EQ(options.server.joins.window_ns, 14'000'000);
  EXPECT_EQ(options.server.tensors.max_sessions, 1014);
  EXPECT_EQ(transport.max_connections, 1015);
  EXPECT_TRUE(options.devices.poisons_freed);
  EXPECT_EQ(options.server.admission.max_product_ns, 10'000'000);
  EXPECT_EQ(options.server.admission.max_backlog_ns, 11'000'000'000);
}

// Without the check, CLI11 reads octal and hexadecimal digits, and replaces a number that is too
// large by the nearest limit.
TEST(OptionsTest, NumbersAreDecimal) {
  const ParsedOptions parsed =
      Parse({"--batch=010:007ms", "--max-queued-bytes=010", "--tensor-bytes=00010KiB:003",
             "--max-connections=0", "--max-sessions=012"});
  ASSERT_TRUE(parsed.should_run) << parsed.text;
  EXPECT_EQ(parsed.options.server.joins.limits.max_jobs, 10);
  EXPECT_EQ(parsed.options.server.admission.max_bytes, 10);
  EXPECT_EQ(parsed.options.server.tensors.max_bytes, 10 << 10);
  EXPECT_EQ(parsed.options.server.joins.window_ns, 7'000'000);
  EXPECT_EQ(parsed.options.server.tensors.max_session_bytes, 3);
  EXPECT_EQ(parsed.options.server.tensors.max_sessions, 12);
  for (const std::string text : {"0x10", "+5", " 5", "5 ", "1e3", "2.0", "4097", "4294967297",
                                 "18446744073709551617", "-1", "nan", "b"}) {
    EXPECT_THAT(Parse({("--cpu-threads=" + text).c_str()}).text,
                HasSubstr("--cpu-threads: got " + text + ", want a whole number from 0 to 4096"))
        << text;
    EXPECT_THAT(Parse({("--batch=" + text).c_str()}).text,
                HasSubstr("--batch: got " + text + ", want a whole number from 1 to 4096"))
        << text;
  }
  for (const std::string text : {"0x10", "0x1KiB", "+5", "18446744073709551617", "1.5KiB", "KiB"}) {
    EXPECT_THAT(Parse({("--tensor-bytes=" + text).c_str()}).text,
                HasSubstr("--tensor-bytes: got " + text + ", want a number of bytes"))
        << text;
  }
}

TEST(OptionsTest, AColonDividesTheTwoPartsOfAValue) {
  const Options options =
      Parse({"--batch=8", "--send-timeout=3s", "--tensor-bytes=1GiB", "--traces=/a:b:0.25"})
          .options;
  EXPECT_EQ(options.server.joins.limits.max_jobs, 8);
  EXPECT_EQ(options.server.joins.window_ns, 0);
  EXPECT_EQ(options.server.sending.timeout, absl::Seconds(3));
  EXPECT_EQ(options.server.sending.min_bytes_per_second, 8 << 20);
  EXPECT_EQ(options.server.tensors.max_session_bytes, 0) << "half of all";
  EXPECT_EQ(options.server.spans.file, "/a:b");
  EXPECT_EQ(options.server.spans.share, 0.25);
  EXPECT_EQ(Parse({"--traces=/a:b"}).options.server.spans.file, "/a:b");
  EXPECT_EQ(Parse({"--traces=/a:b"}).options.server.spans.share, 0);
  for (const std::string bad :
       {"--batch=0", "--batch=4097:1ms", "--batch=8:", "--batch=:1ms", "--batch=8:2s",
        "--batch=8:-1ms", "--batch=8:1ms:1ms", "--send-timeout=0", "--send-timeout=1s:",
        "--send-timeout=1s:-5", "--send-timeout=:8MiB", "--send-timeout=inf:8MiB",
        "--tensor-bytes=1GiB:", "--tensor-bytes=:1GiB", "--tensor-bytes=1GiB:1GiB:1GiB",
        "--traces=/a:1.5", "--traces=/a:-0.1", "--traces=/a:nan", "--traces=/a:-nan"}) {
    const size_t equals = bad.find('=');
    EXPECT_THAT(Parse({bad.c_str()}).text, StartsWith(bad.substr(0, equals) + ": got " +
                                                      bad.substr(equals + 1) + ", want a "));
  }
}

TEST(OptionsTest, SaysWhichServicesThereAre) {
  const auto services = [](std::vector<const char*> arguments) {
    const ServerOptions server = Parse(std::move(arguments)).options.server;
    return std::pair(server.speaks_kserve, server.has_reflection);
  };
  EXPECT_EQ(services({}), std::pair(true, true));
  EXPECT_EQ(services({"--services=kserve"}), std::pair(true, false));
  EXPECT_EQ(services({"--services=reflection"}), std::pair(false, true));
  EXPECT_EQ(services({"--services=reflection,kserve"}), std::pair(true, true));
  EXPECT_EQ(services({"--services=none"}), std::pair(false, false));
  for (const std::string bad : {"off", "kserve,none", "kserve,kserve", "kserve,", "all"}) {
    EXPECT_THAT(Parse({("--services=" + bad).c_str()}).text,
                HasSubstr("--services: got " + bad + ", want kserve, reflection"));
  }
}

TEST(OptionsTest, ARetryFollowsTheCheck) {
  const auto verify = [](const char* argument) { return Parse({argument}).options.server.verify; };
  EXPECT_FALSE(verify("--verify=checksum").retry);
  EXPECT_TRUE(verify("--verify=checksum,retry").retry);
  EXPECT_EQ(verify("--verify=checksum,retry").rule.mode, VerifyMode::kChecksum);
  EXPECT_TRUE(verify("--verify=none,retry").retry);
  EXPECT_EQ(verify("--verify=sampled:0.5,retry").rule.rate, 0.5);
  for (const char* bad : {"--verify=retry", "--verify=,retry", "--verify=checksum,again",
                          "--verify=sampled,retry:0.5"}) {
    EXPECT_FALSE(Parse({bad}).should_run) << bad;
  }
}

// An operator who upgrades reads what replaces the option, rather than that it is unknown.
TEST(OptionsTest, OptionsOfEarlierVersionsSayWhatHoldsInstead) {
  const std::string path = ::testing::TempDir() + "/gemmd_options_gone.conf";
  const std::string help = Parse({"--help"}).text;
  const std::pair<std::string, std::string> gone[] = {
      {"audit-lines-per-second", "1000"},
      {"batch-most", "--batch"},
      {"batch-window-us", "--batch"},
      {"canary-interval", "minute"},
      {"gpu-tensor-bytes", "--gpu-memory-bytes"},
      {"incidents", "wrong_answer"},
      {"jwt-clock-skew", "60 s"},
      {"keepalive-timeout", "10 s"},
      {"kserve", "--services=reflection"},
      {"log-file", "standard error"},
      {"max-connection-age-grace", "30 s"},
      {"max-connection-idle", "10 minutes"},
      {"max-connections-per-peer", "half of --max-connections"},
      {"min-ping-interval", "10 s"},
      {"pinned-linger", "a day"},
      {"reflection", "--services=kserve"},
      {"send-least-rate", "--send-timeout"},
      {"session-gpu-tensor-bytes", "device_tensor_bytes"},
      {"session-tensor-bytes", "--tensor-bytes"},
      {"tensor-lease", "10 minutes"},
      {"traces-bytes", "64 MiB"},
      {"traces-share", "--traces"},
      {"verify-retry", "retry"},
      {"watchdog-most", "--max-product-seconds"},
      {"worker-rest", "5 minutes"}};
  for (const auto& [name, instead] : gone) {
    const std::string flag = "--" + name;
    const std::string with_value = flag + "=1s";
    for (const std::vector<const char*>& arguments :
         {std::vector{with_value.c_str()}, std::vector{flag.c_str(), "1s"}}) {
      const ParsedOptions parsed = Parse(arguments);
      EXPECT_EQ(parsed.exit_code, 2) << name;
      EXPECT_THAT(parsed.text, StartsWith("option: got --" + name + ", which is gone: "));
      EXPECT_THAT(parsed.text, HasSubstr(instead));
    }
    std::ofstream(path) << "grace=1s\n" << name << "=1s\n";
    const ParsedOptions parsed = Parse({"--config", path.c_str()});
    EXPECT_EQ(parsed.exit_code, 2) << name;
    EXPECT_THAT(parsed.text, StartsWith(path + ":2: got " + name + ", which is gone: "));
    EXPECT_THAT(help, Not(ContainsRegex("--" + name + "[ =\n]"))) << "it is there";
  }
}

TEST(OptionsTest, ConfigFileHasTheSameNamesAndTheCommandLineWins) {
  const std::string path = ::testing::TempDir() + "/gemmd_options_test.conf";
  std::ofstream(path) << "# comment\nlisten=127.0.0.1:1,127.0.0.1:2\ncpu-threads=5\ngrace=7s\n"
                      << "verify=sampled,retry\nservices=kserve,reflection\n";
  const ParsedOptions parsed = Parse({"--config", path.c_str(), "--cpu-threads=6"});
  ASSERT_TRUE(parsed.should_run) << parsed.text;
  EXPECT_THAT(parsed.options.server.transport.listen, ElementsAre("127.0.0.1:1", "127.0.0.1:2"));
  EXPECT_EQ(parsed.options.devices.cpu_threads, 6);
  EXPECT_EQ(parsed.options.grace, absl::Seconds(7));
  EXPECT_EQ(parsed.options.server.verify.rule.mode, VerifyMode::kSampled);
  EXPECT_TRUE(parsed.options.server.verify.retry);
  EXPECT_TRUE(parsed.options.server.speaks_kserve && parsed.options.server.has_reflection);
}

TEST(OptionsTest, ListsHaveCommasAndAppendWhenGivenAgain) {
  const ParsedOptions parsed = Parse({"--listen", "127.0.0.1:1,127.0.0.1:2", "--devices=cpu",
                                      "--listen=127.0.0.1:3", "--devices", "cpu"});
  ASSERT_TRUE(parsed.should_run) << parsed.text;
  EXPECT_THAT(parsed.options.server.transport.listen,
              ElementsAre("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"));
  EXPECT_THAT(parsed.options.devices.names, ElementsAre("cpu", "cpu"));
}

TEST(OptionsTest, MistakesAreNamedAndEndWithTwo) {
  const std::string path = ::testing::TempDir() + "/gemmd_options_bad.conf";
  std::ofstream(path) << "cpu-thread=5\n";
  const struct {
    std::vector<const char*> arguments;
    std::string message;
  } cases[] = {
      {{"--no-such-option"}, "no-such-option"},
      {{"--grace=soon"}, "got soon, want a duration"},
      {{"--cpu-threads=-1"}, "cpu-threads"},
      {{"--devices=cuda:00"}, "cuda:00"},
      {{"--devices=cuda:"}, "cuda:"},
      {{"--devices=cuda:-1"}, "cuda:-1"},
      {{"--devices=gpu"}, "gpu"},
      {{"--log-level=loud"}, "loud"},
      {{"--max-message-bytes=many"}, "got many, want a number of bytes"},
      {{"--tensor-bytes=-5"}, "got -5, want a number of bytes"},
      {{"--tensor-bytes=9EiB"}, "got 9EiB, want a number of bytes"},
      {{"--max-queued-bytes=9EiB"}, "got 9EiB, want a number of bytes"},
      {{"--session-linger=-5s"}, "got -5s, want a duration from 0 to 87600h"},
      {{"--lame-duck=inf"}, "--lame-duck: got inf, want a duration from 0 to 87600h"},
      {{"--send-timeout=0"}, "--send-timeout: got 0, want a duration from 1ms to 87600h"},
      {{"--memory-quota-bytes=1"}, "--memory-quota-bytes: got 1, want 0 or at least 4194304 bytes"},
      {{"--listen=127.0.0.1:1", "stray"}, "stray"},
      {{"--listen", "127.0.0.1:1", "stray"}, "stray"},
      {{"--devices", "cpu", "stray"}, "stray"},
      {{"--max-product-seconds=nan"}, "--max-product-seconds: got nan, want a number"},
      {{"--rules", ""}, "--rules: got nothing, want FILE"},
      {{"--devices=cpu", "--tokens", ""}, "--tokens: got nothing, want FILE"},
      {{"--cpu-threads="}, "--cpu-threads: got nothing, want COUNT\nRun with"},
      {{"--batch="}, "--batch: got nothing, want COUNT"},
      {{"--max-queued-bytes="}, "--max-queued-bytes: got nothing, want BYTES\nRun with"},
      {{"--tensor-bytes="}, "--tensor-bytes: got nothing, want BYTES"},
      {{"--config", "/no/such/file"}, "/no/such/file"},
      {{"--config", path.c_str()}, "cpu-thread"},
  };
  for (const auto& bad : cases) {
    const ParsedOptions parsed = Parse(bad.arguments);
    EXPECT_FALSE(parsed.should_run) << bad.arguments[0];
    EXPECT_EQ(parsed.exit_code, 2) << bad.arguments[0];
    EXPECT_THAT(parsed.text, HasSubstr(bad.message));
  }
}

TEST(OptionsTest, MistakesInAFileAreNamedWithTheirLine) {
  const std::string path = ::testing::TempDir() + "/gemmd_options_lines.conf";
  const struct {
    std::string text;
    std::string message;
  } cases[] = {
      {"# comment\n\n grace = soon\n", ":3: --grace: got soon, want a duration"},
      {"cpu-threads=5\nlisten=127.0.0.1:1\ncpu-thread=5\n",
       ":3: got cpu-thread, want the name of an option without --, = and the option's value"
       ": did you mean cpu-threads?\n"},
      {"colour=red\n",
       ":1: got colour, want the name of an option without --, = and the option's value\n"},
      {"devices=cpu\ndevices=gpu\n", ":2: --devices: "},
      {"log-level=info\nlog-level\n", ":1: --log-level: "},
      // Named once, although the value's own check names the option too.
      {"\ndevices=gpu\n", ":2: --devices: got gpu, want "},
      {"verify=smapled\n", ":1: --verify: got smapled, want "},
      // Written as on the command line, a flag, and a section.
      {"listen=127.0.0.1:1\n--grace=soon\n", ":2: --grace: got soon, want a duration"},
      {"\ninsecure-allow-remote=perhaps\n",
       ":2: Could not convert: --insecure-allow-remote = perhaps"},
      {"\n[limits]\ncpu-threads=1\n", ":2: got limits, want the name of an option"},
      // An empty value is not the same as an absent option.
      {"devices=cpu\nrules=\n", ":2: --rules: got nothing, want FILE"},
      {"jwt-keys=\"\"\n", ":1: --jwt-keys: got nothing, want FILE"},
      {"max-queued-bytes=12Q\n",
       ":1: --max-queued-bytes: got 12Q, want a number of bytes: 4096, 512MiB, 4GiB"},
  };
  for (const auto& bad : cases) {
    std::ofstream(path) << bad.text;
    const ParsedOptions parsed = Parse({"--config", path.c_str()});
    EXPECT_EQ(parsed.exit_code, 2) << bad.text;
    EXPECT_THAT(parsed.text, StartsWith(path + bad.message)) << bad.text;
  }
  // The error is that of the command line, not of the file.
  std::ofstream(path) << "grace=1s\n";
  EXPECT_THAT(Parse({"--config", path.c_str(), "--grace=soon"}).text, StartsWith("--grace: "));
  EXPECT_THAT(Parse({"--config", path.c_str(), "--grace", "soon"}).text, StartsWith("--grace: "));
}

TEST(OptionsTest, WhatOnlyTheServerFindsWrongHasItsLineToo) {
  const std::string path = ::testing::TempDir() + "/gemmd_options_places.conf";
  std::ofstream(path) << "# comment\nlisten=127.0.0.1:1\nlisten=127.0.0.1:2\ntls-cert=/x\n";
  const ParsedOptions parsed = Parse({"--config", path.c_str()});
  ASSERT_TRUE(parsed.should_run) << parsed.text;
  EXPECT_EQ(TextOf(parsed.places, "tls-cert: got /x, want none"),
            path + ":4: tls-cert: got /x, want none");
  EXPECT_EQ(parsed.places.Of("listen: got 127.0.0.1:2, want another"), path + ":3: ");
  EXPECT_EQ(parsed.places.Of("listen: in use"), path + ":2: ");
  EXPECT_EQ(parsed.places.Of("device: cuda:0 does not start"), "");
  // The error is that of the command line.
  EXPECT_EQ(Parse({"--config", path.c_str(), "--tls-cert=/y"}).places.Of("tls-cert: got /y"), "");
  EXPECT_EQ(Parse({"--tls-cert=/y"}).places.Of("tls-cert: got /y"), "");
}

TEST(OptionsTest, UnknownOptionsAreNamedWithTheNearest) {
  for (const std::vector<const char*>& arguments :
       {std::vector{"--devcies=cpu"}, std::vector{"--devcies", "cpu"},
        std::vector{"--grace=1s", "stray", "--devcies"}}) {
    const ParsedOptions parsed = Parse(arguments);
    EXPECT_EQ(parsed.exit_code, 2);
    EXPECT_THAT(parsed.text, StartsWith("option: got --devcies, want an option of gemmd: did you "
                                        "mean --devices?\n"));
    EXPECT_THAT(parsed.text, HasSubstr("--help"));
  }
  EXPECT_THAT(Parse({"--listne", "127.0.0.1:1"}).text, HasSubstr(": did you mean --listen?\n"));
  EXPECT_THAT(Parse({"--colour=red"}).text, HasSubstr("want an option of gemmd\n"));
  EXPECT_THAT(Parse({"stray"}).text, HasSubstr("stray\n"));
}

TEST(OptionsTest, HelpHasGroupsAndTeaches) {
  const ParsedOptions parsed = Parse({"--help"});
  EXPECT_FALSE(parsed.should_run);
  EXPECT_EQ(parsed.exit_code, 0);
  for (const char* group :
       {"Listening:", "Devices:", "Limits:", "Connections:", "Shutdown", "Logging"}) {
    EXPECT_THAT(parsed.text, HasSubstr(group));
  }
  EXPECT_THAT(parsed.text, HasSubstr("Example: gemmd"));
  // Defaults are those of the options, in an operator's units.
  for (const char* text :
       {"--max-message-bytes BYTES=512MiB ", "--send-timeout DURATION[:BYTES]=10s:8MiB",
        "--batch COUNT[:DURATION]=256 ", "--worker-sandbox on|off=on ",
        "--log-level debug|info|warning|error|off=info"}) {
    EXPECT_THAT(parsed.text, HasSubstr(text));
  }
  // Each line of an option begins with two spaces and its name. Those of tests are not shown.
  size_t options = 0;
  for (const absl::string_view line : absl::StrSplit(parsed.text, '\n')) {
    options += absl::StartsWith(line, "  --") ? 1 : 0;
  }
  EXPECT_EQ(options, 48u);
  for (const char* hidden : {"--handshake-timeout", "--keepalive-time", "--worker-binary"}) {
    EXPECT_THAT(parsed.text, Not(HasSubstr(hidden)));
  }
  EXPECT_THAT(Parse({"--worker-binari=w"}).text, Not(HasSubstr("--worker-binary")));
  EXPECT_THAT(Parse({"--version"}).text,
              MatchesRegex("gemmd [0-9.]+\ncommit [-0-9a-z]+\ngRPC [0-9.]+\nprotobuf [0-9.]+\n"));
}

}  // namespace
}  // namespace gemmd
