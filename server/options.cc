// SPDX-License-Identifier: Apache-2.0
#include "server/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <sstream>
#include <string>
#include <system_error>
#include <vector>

#include "kernels/option/mismatch.h"
#include "kernels/option/number.h"
#include "kernels/output_check.h"
#include "server/config_place.h"
#include "server/device/devices.h"
#include "server/metrics/exposition.h"
#include "server/option_groups.h"
#include "server/system/version.h"

namespace gemmd {
namespace {

// With a quarter of it, gRPC refused a product of 512 x 512 matrices.
constexpr int64_t kLeastQuotaBytes = int64_t{4} << 20;

void AddListening(CLI::App& app, Options& options) {
  constexpr char kGroup[] = "Listening";
  AddList(app, "--listen", options.server.transport.listen,
          "Addresses to listen on: HOST:PORT on loopback or unix:PATH without encryption; "
          "tls:HOST:PORT with TLS 1.3; mtls:HOST:PORT for clients that show a certificate of "
          "--client-ca. Port 0 takes a free one")
      ->type_name("ADDRESS,...")
      ->group(kGroup);
  AddUnixSockets(app, options.server.transport.unix_sockets);
  AddCertificates(app, options.server.transport);
  AddSwitch(
      app, "--kserve", options.server.speaks_kserve,
      "With on, the same addresses serve KServe's v2 protocol (inference.GRPCInferenceService): "
      "clients of NVIDIA Triton multiply by the model gemm, inputs A and B, or by a resident "
      "tensor's name, input A",
      kGroup);
  AddSwitch(app, "--reflection", options.server.has_reflection,
            "With on, the same addresses tell tools such as grpcurl which methods there are",
            kGroup);
  app.add_option_function<std::string>(
         "--metrics-listen",
         [&options](const std::string& text) {
           options.server.metrics_listen = text == "off" ? "" : text;
         },
         "Address at which Prometheus finds /metrics and, under the names of NVIDIA Triton, "
         "/metrics/triton, and probes find /healthz and /readyz, by HTTP: an IP address and a "
         "port, 0 for a free one, on loopback (127.0.0.1:8471 is usual); after tls: or mtls: any, "
         "with the certificates and the TLS of --listen")
      ->check([](const std::string& text) {
        return text == "off" ? "" : std::string(CheckHttpAddress(text).message());
      })
      ->default_str("off")
      ->type_name("ADDRESS|off")
      ->group(kGroup);
  app.add_option(
         "--ready-file", options.ready_file,
         "Write the addresses, one a line, to this file once the daemon serves; it is removed "
         "when the daemon ends")
      ->type_name("FILE")
      ->group(kGroup);
}

void AddDevices(CLI::App& app, Options& options) {
  constexpr char kGroup[] = "Devices";
  AddList(app, "--devices", options.devices.names,
          "Devices to serve, in the order of preference: " + DeviceNamesHelp() +
              ". A product that names none runs on the first that has a kernel for it")
      ->check([](const std::string& name) { return std::string(CheckDeviceName(name).message()); })
      ->default_str("cuda where there is a GPU,cpu,sim:sm_90")
      ->type_name("DEVICE,...")
      ->group(kGroup);
  app.add_option(
         "--cpu-threads", options.devices.cpu_threads,
         "Threads that compute on each of cpu and sim; 0 takes every core the process may use")
      ->transform(option::NumberFrom(0, 4096))
      ->default_str("0")
      ->type_name("COUNT")
      ->group(kGroup);
  AddBytes(app, "--gpu-staging-bytes", options.devices.gpu_staging_bytes,
           "Memory of the host through which operands and results go to and from each GPU: two "
           "thirds for products under way, a third for results until they are sent; a product "
           "that needs more than the two thirds goes through it in parts",
           kGroup);
  AddBytes(app, "--gpu-memory-bytes", options.devices.gpu_memory_bytes,
           "Memory of each GPU that products and tensors may use; 0 takes nine tenths of what is "
           "free. A product that needs more is computed in parts, as long as 8 rows of A fit with "
           "8 columns of B",
           kGroup);
  AddBytes(
      app, "--gpu-tensor-bytes", options.devices.gpu_tensor_bytes,
      "How much of the memory of each GPU tensors may take that stay there; 0 takes four fifths "
      "of --gpu-memory-bytes. What they leave is for products",
      kGroup);
  AddDuration(app, "--worker-rest", options.devices.worker_rest,
              "After five restarts of its worker in a minute a GPU stays out of service for this "
              "time and is then tried again; gemmctl restart-device ends the rest",
              kGroup);
  AddDuration(app, "--canary-interval", options.devices.canary_interval,
              "Give each GPU a product with known bits after this time without one, between two "
              "products; a worker that gets it wrong is replaced",
              kGroup, absl::Milliseconds(1));
  AddDuration(app, "--watchdog-most", options.devices.watchdog_most,
              "Longest time that a product may take on a GPU. A worker that gives no answer in ten "
              "times the predicted time is replaced, at the earliest after 2 s and at the latest "
              "after this, and its product is ABORTED. Raise it where products take minutes",
              kGroup, absl::Milliseconds(1));
  AddSwitch(
      app, "--worker-sandbox", options.devices.is_worker_confined,
      "With on, the worker of a device gives up what it does not need: it can open no connection, "
      "start no program, trace no process, write no file outside of /dev where the kernel has "
      "landlock, and gain no privilege, nor can the daemon; it leaves no core dump, and gets "
      "the variables of CUDA, of libraries for the CPU and LD_LIBRARY_PATH alone. The devices of "
      "the driver in "
      "/dev must be there, because a setuid nvidia-modprobe cannot make them. Turn it off for "
      "debuggers and profilers",
      kGroup);
  AddSwitch(app, "--poison-freed-memory", options.devices.poisons_freed,
            "With on, memory of the host for matrices that is used again is overwritten as soon as "
            "nobody uses it: the staging memory of GPUs, and what devices keep for the next "
            "product. No answer needs that; it makes a fault in this program harmless, or visible, "
            "and costs the time to write those bytes once more",
            kGroup);
  app.add_option("--worker-binary", options.devices.worker_binary,
                 "Program that works for each GPU (default: gemmd-worker in the folder of gemmd)")
      ->type_name("FILE")
      ->group(kGroup);
}

void AddLimits(CLI::App& app, Options& options) {
  constexpr char kGroup[] = "Limits";
  TransportOptions& transport = options.server.transport;
  AddBytes(app, "--max-message-bytes", transport.max_message_bytes,
           "Longest message received or sent; a longer one is refused with RESOURCE_EXHAUSTED",
           kGroup);
  app.add_option(
         "--max-queued-requests", options.server.admission.max_requests,
         "Requests accepted and not yet answered; more are refused with RESOURCE_EXHAUSTED and "
         "told when to try again")
      ->transform(option::NumberFrom(int64_t{1}, int64_t{1} << 40))
      ->default_str(std::to_string(options.server.admission.max_requests))
      ->type_name("COUNT")
      ->group(kGroup);
  AddBytes(
      app, "--max-queued-bytes", options.server.admission.max_bytes,
      "Bytes of all messages that have arrived, and of results and scratch memory of their "
      "products "
      "until the answer has left; a request that finds no room is refused with RESOURCE_EXHAUSTED "
      "and told when to try again. 0 takes three eighths of --memory-limit-bytes, but at most 4 "
      "GiB",
      kGroup);
  app.add_option_function<double>(
         "--max-product-seconds",
         [&options](double seconds) {
           options.server.admission.max_product_ns = static_cast<int64_t>(seconds * 1e9);
         },
         "Longest product, by its predicted time; a longer one is refused with RESOURCE_EXHAUSTED")
      ->transform(option::NumberFrom(1e-3, 1e6))
      ->default_str("60")
      ->type_name("SECONDS")
      ->group(kGroup);
  app.add_option_function<int64_t>(
         "--batch-window-us",
         [&options](int64_t us) { options.server.joins.window_ns = us * 1000; },
         "How long a product that finds its device idle waits for others with which it can run as "
         "one. Products that wait anyway run as one without it, and no deadline is risked for it")
      ->transform(option::NumberFrom(0, 1'000'000))
      ->default_str("0")
      ->type_name("MICROSECONDS")
      ->group(kGroup);
  app.add_option("--batch-most", options.server.joins.limits.max_jobs,
                 "Most products that run as one; 1 lets each run alone")
      ->transform(option::NumberFrom(1, 4096))
      ->capture_default_str()
      ->type_name("COUNT")
      ->group(kGroup);
  AddDuration(app, "--max-backlog", options.max_backlog,
              "Longest wait of a product for others that wait for its device before it, by their "
              "predicted times; a product that would wait longer is refused with "
              "RESOURCE_EXHAUSTED and told when to try again. The default is that of --grace, so "
              "that a drain can finish what waits",
              kGroup);
  AddBytes(app, "--memory-quota-bytes", transport.memory_quota_bytes,
           "Memory for the buffers of gRPC; 0 takes a quarter of the memory limit of the process",
           kGroup, kLeastQuotaBytes);
  AddBytes(
      app, "--memory-limit-bytes", options.server.memory_limit_bytes,
      "Memory that the daemon may have resident; 0 takes the limit of its control group, or the "
      "machine's memory, and never more than the address space (ulimit -v) has room for. From 85 % "
      "large products are refused with RESOURCE_EXHAUSTED, from "
      "92 % all products and questions but those for health, devices and statistics, and from 95 % "
      "calls end whose client does not read",
      kGroup);
  app.add_option("--max-concurrent-streams", transport.max_concurrent_streams,
                 "Most calls at once on one connection")
      ->transform(option::NumberFrom(1, 1 << 20))
      ->default_str(std::to_string(transport.max_concurrent_streams))
      ->type_name("COUNT")
      ->group(kGroup);
}

void AddConnections(CLI::App& app, Options& options) {
  constexpr char kGroup[] = "Connections";
  TransportOptions& transport = options.server.transport;
  app.add_option(
         "--max-connections", transport.max_connections,
         "Most connections at once; one more is closed as soon as it is made. 0 takes half "
         "of the limit of open files, which the daemon raises as far as it may, and at most "
         "32768, or as many as may have --max-concurrent-streams idle calls of 24 KiB in an eighth "
         "of --memory-limit-bytes")
      ->transform(option::NumberFrom(int64_t{0}, int64_t{1} << 30))
      ->default_str("0")
      ->type_name("COUNT")
      ->group(kGroup);
  app.add_option("--max-connections-per-peer", transport.max_connections_per_peer,
                 "Most connections at once of one peer: an IPv4 address, a /64 network of IPv6, a "
                 "user of a unix socket. 0 takes half of --max-connections")
      ->transform(option::NumberFrom(int64_t{0}, int64_t{1} << 30))
      ->default_str("0")
      ->type_name("COUNT")
      ->group(kGroup);
  AddDuration(app, "--handshake-timeout", transport.handshake_timeout,
              "Close a connection that does not begin to speak HTTP/2 within this time", kGroup);
  AddDuration(app, "--max-connection-idle", transport.max_connection_idle,
              "Close a connection without calls after this time", kGroup);
  AddDuration(app, "--max-connection-age", transport.max_connection_age,
              "Ask a client to reconnect after this time, so that load spreads", kGroup);
  AddDuration(app, "--max-connection-age-grace", transport.max_connection_age_grace,
              "Time that calls have to finish on a connection that is too old", kGroup);
  AddDuration(
      app, "--send-timeout", options.server.sending.timeout,
      "End a call with CANCELLED whose client has taken nothing of an answer for this time, or has "
      "not read all of it after this time and the time that its bytes take at --send-least-rate",
      kGroup, absl::Milliseconds(1));
  AddBytes(
      app, "--send-least-rate", options.server.sending.least_bytes_per_second,
      "Bytes of an answer that a client must read in a second, beside --send-timeout: with the "
      "defaults, a client has 42 s for an answer of 256 MiB",
      kGroup);
  AddDuration(app, "--keepalive-time", transport.keepalive_time,
              "Ask a silent client for a sign of life after this time", kGroup);
  AddDuration(app, "--keepalive-timeout", transport.keepalive_timeout,
              "Close the connection of a client that gave no sign of life for this time", kGroup);
  AddDuration(app, "--min-ping-interval", transport.min_ping_interval,
              "Close the connection of a client that asks for signs of life more often", kGroup);
}

void AddShutdown(CLI::App& app, Options& options) {
  constexpr char kGroup[] = "Shutdown (on SIGTERM or SIGINT; a second signal skips the waiting)";
  AddDuration(
      app, "--lame-duck", options.lame_duck,
      "Keep working for this time after health turned NOT_SERVING, so that load balancers notice",
      kGroup);
  AddDuration(app, "--grace", options.grace,
              "Time that accepted requests have to finish after the lame-duck pause", kGroup);
}

void AddLogging(CLI::App& app, Options& options) {
  constexpr char kGroup[] = "Logging";
  app.add_option("--log-level", options.log_level,
                 "Least severe lines to log: debug has a line per request, info a line per event "
                 "of the daemon's life")
      ->check(CLI::IsMember({"debug", "info", "warning", "error", "off"}))
      ->default_str(options.log_level)
      ->type_name("LEVEL")
      ->group(kGroup);
  app.add_option_function<std::string>(
         "--log-format",
         [&options](const std::string& name) {
           options.log_format = name == "json" ? LogFormat::kJson : LogFormat::kText;
         },
         "Form of the log: text has key=value pairs, json an object on each line. Both have time, "
         "level, event and the event's fields")
      ->check(CLI::IsMember({"text", "json"}))
      ->default_str("text")
      ->type_name("FORMAT")
      ->group(kGroup);
  app.add_option("--log-file", options.log_file,
                 "Append log lines to this file (default: standard error)")
      ->type_name("FILE")
      ->group(kGroup);
  app.add_option("--traces", options.server.spans.file,
                 "Append a line of OTLP in JSON with the spans of each product and its stages to "
                 "this file, which the OpenTelemetry collector's receiver otlpjsonfile follows: "
                 "products whose caller sends a sampled traceparent, and --traces-share (default: "
                 "none)")
      ->type_name("FILE")
      ->group(kGroup);
  app.add_option("--traces-share", options.server.spans.share,
                 "Part of the products without a traceparent that have spans in --traces, 0 to 1")
      ->transform(option::NumberFrom(0.0, 1.0))
      ->capture_default_str()
      ->type_name("SHARE")
      ->group(kGroup);
  AddBytes(app, "--traces-bytes", options.server.spans.most_bytes,
           "Most bytes of the file of --traces, which is then renamed to FILE.1, in place of the "
           "one before",
           kGroup);
  app.add_option("--audit-log", options.audit_log,
                 "Append a line of JSON for each product, each other call that has ended and each "
                 "that was refused to this file, or to standard error: identity, peer, method, "
                 "problem, kernel, device, bytes and status, never operands nor tokens (default: "
                 "none)")
      ->type_name("FILE|stderr")
      ->group(kGroup);
  app.add_option(
         "--audit-lines-per-second", options.audit_lines_per_second,
         "Most lines of the audit log in a second of what was done, and as many of what was "
         "refused; it says how many were left out")
      ->transform(option::NumberFrom(int64_t{1}, int64_t{1} << 40))
      ->capture_default_str()
      ->type_name("COUNT")
      ->group(kGroup);
}

// An empty value is a shell's variable that is not set, or half a line. It must not stand for an
// option that is not given: without its rules, gemmd would serve everybody.
void RefuseEmptyValues(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    const std::vector<std::string>& values = option->results();
    if (option->count() == 0 ||
        std::none_of(values.begin(), values.end(),
                     [](const std::string& value) { return value.empty(); })) {
      continue;
    }
    throw CLI::ValidationError(option->get_name(), "got nothing, want " + option->get_type_name());
  }
}

// What is no regular file, such as /dev/stdout, takes the lines of several options.
std::string RegularFile(const std::string& path) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  return std::filesystem::exists(status) && !std::filesystem::is_regular_file(status) ? "" : path;
}

void RefuseSharedFiles(const CLI::App& app, const Options& options) {
  const std::string& traces = options.server.spans.file;
  const OptionFile outputs[] = {
      {"--ready-file", RegularFile(options.ready_file)},
      {"--log-file", RegularFile(options.log_file)},
      {"--audit-log", options.audit_log == "stderr" ? "" : RegularFile(options.audit_log)},
      {"--incidents", RegularFile(options.server.incidents.file)},
      {"--traces", RegularFile(traces)},
      {"--traces", traces.empty() ? "" : traces + ".1"}};
  const CLI::Option& config = *app.get_config_ptr();
  const TrustOptions& trust = options.server.trust;
  const CertificateFiles& certificates = options.server.transport.certificates;
  const OptionFile inputs[] = {{"--config", config.count() == 0 ? "" : config.as<std::string>()},
                               {"--rules", trust.rules_file},
                               {"--tokens", trust.tokens_file},
                               {"--jwt-keys", trust.jwt_keys_file},
                               {"--tls-cert", certificates.certificate},
                               {"--tls-key", certificates.key},
                               {"--client-ca", certificates.client_ca},
                               {"--client-crl", certificates.client_crl},
                               {"--worker-binary", options.devices.worker_binary}};
  const absl::Status status = CheckOutputs(outputs, inputs);
  if (!status.ok()) throw CLI::ValidationError(std::string(status.message()));
}

}  // namespace

ParsedOptions ParseOptions(int argc, const char* const* argv) {
  ParsedOptions parsed;
  CLI::App app(
      "gemmd, the GEMM daemon: multiplies matrices for clients over gRPC and answers with the "
      "timing of "
      "every stage.\n\nExample: gemmd --listen=127.0.0.1:8470,unix:/run/gemmd.sock --cpu-threads=8",
      "gemmd");
  app.set_version_flag("--version", VersionText("gemmd"));
  app.add_flag_callback(
      "--list-metrics", [] { throw CLI::CallForVersion(MetricsJson(), 0); },
      "Print a list of all metrics as JSON and exit");
  app.set_config("--config", "",
                 "Read options from this file, one name=value a line, names without --")
      ->type_name("FILE");
  app.allow_config_extras(CLI::config_extras_mode::error);
  AddListening(app, parsed.options);
  AddCallers(app, parsed.options);
  AddDevices(app, parsed.options);
  AddLimits(app, parsed.options);
  AddTensors(app, parsed.options);
  AddVerification(app, parsed.options);
  AddConnections(app, parsed.options);
  AddShutdown(app, parsed.options);
  AddLogging(app, parsed.options);
  app.get_formatter()->column_width(40);
  app.failure_message(option::FailureText);
  try {
    app.parse(argc, argv);
    RefuseEmptyValues(app);
    RefuseSharedFiles(app, parsed.options);
    parsed.options.server.admission.max_backlog_ns =
        absl::ToInt64Nanoseconds(parsed.options.max_backlog);
    parsed.should_run = true;
    parsed.places = ConfigPlaces(app, argc, argv);
  } catch (const CLI::ConfigError& error) {
    parsed.exit_code = 2;
    parsed.text = TextOf(app, error, ConfigPlaces(app, argc, argv));
  } catch (const CLI::ExtrasError& error) {
    parsed.exit_code = 2;
    parsed.text = TextOf(app, error);
  } catch (const CLI::ParseError& error) {
    std::ostringstream text;
    parsed.exit_code = app.exit(error, text, text) == 0 ? 0 : 2;
    parsed.text = TextOf(ConfigPlaces(app, argc, argv), text.str());
  }
  return parsed;
}

}  // namespace gemmd
