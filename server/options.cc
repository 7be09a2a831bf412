// SPDX-License-Identifier: Apache-2.0
#include "server/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "kernels/nearest_names.h"
#include "kernels/option/option.h"
#include "kernels/option/resources.h"
#include "server/device/devices.h"
#include "server/metrics/exposition.h"
#include "server/system/files.h"
#include "server/system/version.h"

namespace gemmd {

namespace {

// What stands for a section in CLI11's names of what it read.
constexpr char kSection[] = ".++";

// The name of the option that a message is about: "grace" for "--grace: ..." and "grace: ..." and
// for CLI11's own "INI was not able to parse grace" and "Could not convert: --grace = 1"; empty:
// none.
std::string OptionOf(absl::string_view message) {
  if (absl::ConsumePrefix(&message, "INI was not able to parse ")) {
    return std::string(absl::StripSuffix(message, kSection));
  }
  absl::ConsumePrefix(&message, "Could not convert: ");
  absl::ConsumePrefix(&message, "--");
  return std::string(message.substr(0, message.find_first_of(": ")));
}

constexpr char kMore[] = "\nRun with --help for more information.\n";

// ": did you mean --grace?", with what precedes names where they are written; empty where no option
// is named like this.
std::string DidYouMean(const CLI::App& app, std::string_view name, const std::string& prefix) {
  std::vector<std::string_view> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& known : option->get_lnames()) names.push_back(known);
  }
  const std::optional<size_t> similar = NameIndex(names).Similar(name);
  if (!similar) return "";
  return ": did you mean " + prefix + std::string(names[*similar]) + "?";
}

}  // namespace

ConfigPlaces::ConfigPlaces(const CLI::App& app, int argc, const char* const* argv) {
  const CLI::Option* const config = app.get_config_ptr();
  if (config->count() == 0) return;
  path_ = config->as<std::string>();
  std::ifstream file(path_);
  std::string text;
  for (int number = 1; std::getline(file, text); ++number) {
    const size_t equals = text.find('=');
    std::string name = text.substr(0, equals);
    absl::StripAsciiWhitespace(&name);
    if (name.starts_with('[') && name.ends_with(']')) name = name.substr(1, name.size() - 2);
    const std::string option(absl::StripPrefix(name, "--"));
    const std::string flag = "--" + option;
    const bool is_on_command_line = std::any_of(argv, argv + argc, [&](std::string_view argument) {
      return argument == flag || argument.starts_with(flag + "=");
    });
    if (option.empty() || is_on_command_line) continue;
    std::string value = equals == std::string::npos ? "" : text.substr(equals + 1);
    absl::StripAsciiWhitespace(&value);
    lines_.push_back({number, option, value});
  }
}

std::string ConfigPlaces::Of(std::string_view message) const {
  const std::string option = OptionOf({message.data(), message.size()});
  const Line* found = nullptr;
  for (const Line& line : lines_) {
    if (line.option != option) continue;
    const bool is_told =
        !line.value.empty() && message.find("got " + line.value) != std::string_view::npos;
    if (found == nullptr || is_told) found = &line;
    if (is_told) break;
  }
  return found == nullptr ? "" : path_ + ":" + std::to_string(found->number) + ": ";
}

std::string TextOf(const ConfigPlaces& places, const std::string& text) {
  const std::string place = places.Of(text);
  const std::string name = OptionOf(text);
  const std::string flag = "--" + name + ": ";
  absl::string_view rest = text;
  if (!name.empty() && absl::ConsumePrefix(&rest, flag) &&
      (absl::ConsumePrefix(&rest, flag) || absl::ConsumePrefix(&rest, name + ": "))) {
    return place + flag + std::string(rest);
  }
  return place + text;
}

namespace {

// What is wrong with a file that names an option that there is not, where, and which names are like
// it.
std::string TextOf(const CLI::App& app, const CLI::ConfigError& mistake,
                   const ConfigPlaces& places) {
  const std::string name = OptionOf(mistake.what());
  return places.Of(mistake.what()) + "got " + (name.empty() ? mistake.what() : name) +
         ", want the name of an option without --, = and the option's value" +
         DidYouMean(app, name, "") + kMore;
}

// The same for a command line that has an option that there is not; CLI11's own text where what is
// left over is no option.
std::string TextOf(const CLI::App& app, const CLI::ExtrasError& mistake) {
  for (const std::string& left : app.remaining()) {
    if (!left.starts_with("--")) continue;
    const std::string name = left.substr(0, left.find('='));
    return "option: got " + name + ", want an option of gemmd" +
           DidYouMean(app, std::string_view(name).substr(2), "--") + kMore;
  }
  return mistake.what() + std::string(kMore);
}

// Options by what their values are.

// Ten years, which can be added to any time of a clock in nanoseconds.
constexpr absl::Duration kLongest = absl::Hours(10 * 365 * 24);

// Adds an option whose value is a duration such as 250ms, 5s or 1m30s, from `least` to ten years.
void AddDuration(CLI::App& app, const std::string& name, absl::Duration& value,
                 const std::string& description, const std::string& group,
                 absl::Duration least = absl::ZeroDuration()) {
  const auto parse = [&value, name, least](const std::string& text) {
    if (absl::ParseDuration(text, &value) && value >= least && value <= kLongest) return;
    throw CLI::ValidationError(name, "got " + text + ", want a duration from " +
                                         absl::FormatDuration(least) + " to " +
                                         absl::FormatDuration(kLongest) + ": 250ms, 5s, 1m30s");
  };
  app.add_option_function<std::string>(name, parse, description)
      ->default_str(absl::FormatDuration(value))
      ->type_name("DURATION")
      ->group(group);
}

// A count of bytes in digits for one with a unit.
std::string TransformBytes(std::string& text) {
  constexpr char kWant[] = ", want a number of bytes: 4096, 512MiB, 4GiB";
  const std::string given = text;
  int64_t bytes = 0;
  // CLI11 would read octal and hexadecimal digits.
  constexpr char kDigits[] = "0123456789";
  const size_t unit = std::min(text.find_first_not_of(kDigits), text.size());
  const std::optional<int64_t> number = ParseDecimal<int64_t>(text.substr(0, unit));
  if (!number || text.find_first_of(kDigits, unit) != text.npos) return "got " + given + kWant;
  text = std::to_string(*number) + text.substr(unit);
  try {
    CLI::AsSizeValue(false)(text);
  } catch (const CLI::ValidationError&) {
    return "got " + given + kWant;
  }
  const bool is_count = absl::SimpleAtoi(text, &bytes) && bytes >= 0;
  return is_count ? "" : "got " + given + kWant;
}

// Adds an option whose value is a count of bytes such as 4096, 512MiB or 4GiB: 0, or from `least`.
void AddBytes(CLI::App& app, const std::string& name, int64_t& value,
              const std::string& description, const std::string& group, int64_t least = 0) {
  const auto transform = [least](std::string& text) {
    const std::string given = text;
    std::string fault = TransformBytes(text);
    int64_t bytes = 0;
    if (fault.empty() && absl::SimpleAtoi(text, &bytes) && bytes > 0 && bytes < least) {
      fault = "got " + given + ", want 0 or at least " + std::to_string(least) + " bytes";
    }
    return fault;
  };
  app.add_option(name, value, description)
      ->transform(CLI::Validator(transform, "SIZE [b, kb(=1024b), ...]"))
      ->default_str(std::to_string(value))
      ->type_name("BYTES")
      ->group(group);
}

// Adds an option whose value is a whole number.
template <typename Number>
void AddCount(CLI::App& app, const std::string& name, Number& value, const std::string& description,
              const std::string& group, std::type_identity_t<Number> least,
              std::type_identity_t<Number> most, const std::string& type = "COUNT") {
  app.add_option(name, value, description)
      ->transform(option::NumberFrom(least, most))
      ->default_str(std::to_string(value))
      ->type_name(type)
      ->group(group);
}

// Adds an option whose value is the name of a file, or another text.
void AddText(CLI::App& app, const std::string& name, std::string& value,
             const std::string& description, const std::string& group,
             const std::string& type = "FILE") {
  app.add_option(name, value, description)->type_name(type)->group(group);
}

// Adds an option that is on or off.
void AddSwitch(CLI::App& app, const std::string& name, bool& value, const std::string& description,
               const std::string& group) {
  app.add_option_function<std::string>(
         name, [&value](const std::string& text) { value = text == "on"; }, description)
      ->check(CLI::IsMember({"on", "off"}))
      ->default_str(value ? "on" : "off")
      ->type_name("on|off")
      ->group(group);
}

// Adds an option whose value is a list with commas; where the option is repeated, the lists are
// joined.
CLI::Option* AddList(CLI::App& app, const std::string& name, std::vector<std::string>& values,
                     const std::string& description) {
  // No extra arguments: otherwise a word after the list would silently become a part of the list.
  return app.add_option(name, values, description)
      ->delimiter(',')
      ->allow_extra_args(false)
      ->default_str(absl::StrJoin(values, ","));
}

// By its name or its number.
std::optional<uint32_t> GroupOf(const std::string& name) {
  const std::optional<uint32_t> named = FindGroup(name);
  if (named) return named;
  const std::optional<uint32_t> number = ParseDecimal<uint32_t>(name);
  return number && *number != std::numeric_limits<uint32_t>::max() ? number : std::nullopt;
}

void AddUnixSockets(CLI::App& app, SocketAccess& access) {
  constexpr char kGroup[] = "Listening";
  app.add_option_function<std::string>(
         "--operators-group", [&access](const std::string& name) { access.group = GroupOf(name); },
         "Group, by name or number, whose members may operate the daemon over unix sockets "
         "(gemmctl sessions, drop-session, incidents, replay, restart-device) as root and the "
         "daemon's own user may; --rules say it instead. The sockets' files get the group")
      ->check([](const std::string& name) {
        return GroupOf(name) ? "" : "got " + name + ", want the name or number of a group";
      })
      ->type_name("GROUP")
      ->group(kGroup);
  app.add_option_function<std::string>(
         "--socket-mode",
         [&access](const std::string& digits) { access.mode = std::stoul(digits, nullptr, 8); },
         "Mode of the file of each unix socket, in octal digits: 0666 for products of all users of "
         "the machine")
      ->check([](const std::string& digits) {
        const bool is_mode = digits.size() >= 3 && digits.size() <= 4 &&
                             digits.find_first_not_of("01234567") == digits.npos &&
                             (digits.size() == 3 || digits.front() == '0');
        return is_mode ? "" : "got " + digits + ", want octal digits from 0000 to 0777";
      })
      ->default_str("0600, with --operators-group 0660")
      ->type_name("MODE")
      ->group(kGroup);
}

void AddCertificates(CLI::App& app, TransportOptions& transport) {
  constexpr char kGroup[] = "Listening";
  AddText(app, "--tls-cert", transport.certificates.certificate,
          "Certificate of the daemon for tls: and mtls: addresses, in PEM, followed by "
          "those between it and a root. This file and the next three are looked at "
          "each second: what has changed and makes sense serves new connections, and the "
          "others live on",
          kGroup);
  AddText(app, "--tls-key", transport.certificates.key,
          "Private key of that certificate, in PEM, without a passphrase", kGroup);
  AddText(app, "--client-ca", transport.certificates.client_ca,
          "Authorities, in PEM, that may sign certificates of clients, for mtls: addresses",
          kGroup);
  AddText(app, "--client-crl", transport.certificates.client_crl,
          "Lists of revoked certificates of clients, in PEM, each signed by an authority of "
          "--client-ca; looked at as the other files are",
          kGroup);
  app.add_flag("--insecure-allow-remote", transport.insecure_allow_remote,
               "Allow plain addresses of --listen and --metrics-listen to be reached from other "
               "machines without encryption: behind a proxy that adds it, or in a network of its "
               "own, as a container's")
      ->group(kGroup);
}

void AddCallers(CLI::App& app, Options& options) {
  constexpr char kGroup[] = "Callers (files are read again on SIGHUP)";
  TrustOptions& trust = options.server.trust;
  AddText(app, "--rules", trust.rules_file,
          "Know callers by name, and allow them what this file says, in JSON or, where its name "
          "ends with .yaml or .yml, in YAML (server/trust/README.md has its form); all else is "
          "refused with UNAUTHENTICATED or PERMISSION_DENIED. Without it, "
          "whoever reaches an address may multiply, hold tensors and read all lists",
          kGroup);
  AddText(app, "--tokens", trust.tokens_file,
          "Take bearer tokens whose SHA-256 stands in this file: IDENTITY: HEXADECIMAL, one a "
          "line",
          kGroup);
  AddText(app, "--jwt-keys", trust.jwt_keys_file,
          "Take bearer tokens that are signed by a key of this set (JWKS; RS256, ES256, EdDSA). "
          "The subject is the identity",
          kGroup);
  AddText(app, "--jwt-audience", trust.jwt.audience,
          "Whom signed tokens must be for; needed beside --jwt-keys", kGroup, "TEXT");
  AddText(app, "--jwt-issuer", trust.jwt.issuer,
          "Who must have issued signed tokens (default: anybody whose key is in --jwt-keys)",
          kGroup, "TEXT");
  AddCount(app, "--jwt-clock-skew", trust.jwt.clock_skew_s,
           "By how much the clock of whoever issues signed tokens may differ", kGroup, 0,
           kMaxClockSkewS, "SECONDS");
}

void AddVerification(CLI::App& app, Options& options) {
  constexpr char kGroup[] = "Checks of answers";
  VerifyOptions& verify = options.server.verify;
  app.add_option_function<std::string>(
         "--verify",
         [&verify](const std::string& text) {
           verify.rule = ParseVerifyRule("--verify", text).value_or(VerifyRule());
         },
         "Check each answer before it is given, unless its product asks for another check: none, "
         "sampled[:RATE] (a part of its elements, drawn at random, is computed again; the default "
         "rate is 1/16384, one element of each 128 x 128), checksum (all of it, by sums), "
         "duplicate (computed twice). A wrong answer ends its product with DATA_LOSS, its kernel "
         "is not used "
         "on that device any more, and a second one takes the device out of service")
      ->check([](const std::string& text) {
        return std::string(ParseVerifyRule("--verify", text).status().message());
      })
      ->default_str("none")
      ->type_name("HOW")
      ->group(kGroup);
  app.add_flag("--verify-retry", verify.retry,
               "Compute a product whose answer was wrong again, with another kernel or on another "
               "device, instead of ending it with DATA_LOSS")
      ->group(kGroup);
  AddText(app, "--incidents", options.server.incidents.file,
          "Append a line of JSON to this file for each wrong answer, up to 16 MiB; gemmctl "
          "incidents shows the last ones without it",
          kGroup);
}

void AddTensors(CLI::App& app, Options& options) {
  constexpr char kGroup[] = "Resident tensors";
  StoreOptions& tensors = options.server.tensors;
  AddBytes(
      app, "--tensor-bytes", tensors.max_bytes,
      "Memory of the host for the tensors of all sessions, uploads included; a tensor that "
      "finds no room is refused with RESOURCE_EXHAUSTED. 0 takes an eighth of the memory limit "
      "of the process, so that it holds beside the defaults of the other limits: where weights "
      "are to stay, raise this and lower --max-queued-bytes",
      kGroup);
  AddBytes(app, "--session-tensor-bytes", tensors.max_session_bytes,
           "Memory of the host for the tensors of one session, or of a caller whom --rules know "
           "and give no tensor_bytes; 0 takes half of --tensor-bytes",
           kGroup);
  AddBytes(app, "--session-gpu-tensor-bytes", tensors.max_session_device_bytes,
           "Memory of all GPUs together for the tensors of one session, or of a caller whom "
           "--rules know and give no device_tensor_bytes: beyond it, its tensors that were used "
           "least recently leave the GPU, and what then finds no room is read from the host. 0 "
           "is no limit",
           kGroup);
  AddCount(app, "--max-sessions", tensors.max_sessions,
           "Most sessions at once; one host may have seven times as many of them as are free, "
           "so that others find one. One more is refused with RESOURCE_EXHAUSTED",
           kGroup, 1, int64_t{1} << 20);
  AddDuration(app, "--session-linger", tensors.linger,
              "Delete the tensors of a session, but for pinned ones, this long after its last "
              "connection has gone and its last call has ended; until then a client can come back. "
              "Those of a caller whom --rules know stay for their leases",
              kGroup);
  AddDuration(
      app, "--pinned-linger", tensors.pinned_linger,
      "Delete the pinned tensors of a session, too, this long after its last connection has "
      "gone and its last call has ended. Those of a caller whom --rules know stay",
      kGroup);
  AddDuration(app, "--tensor-lease", tensors.lease,
              "Delete a tensor this long after its last use, where its owner asked for no other "
              "time and has not pinned it, and an upload this long after its last byte",
              kGroup, absl::Milliseconds(1));
  const auto set_copies = [&tensors](const std::string& which) {
    tensors.host_copies = which == "all"    ? HostCopies::kAll
                          : which == "none" ? HostCopies::kNone
                                            : HostCopies::kPinned;
  };
  app.add_option_function<std::string>(
         "--host-copies", set_copies,
         "Results in memory of a GPU that are copied to memory of the host as well, in the "
         "background: pinned tensors, all, or none but those that are read there; with none, "
         "tensors of 1 MiB and more that are on a GPU, uploads and results, also give back their "
         "memory of the host, which then no longer counts in --tensor-bytes. What a "
         "GPU alone has is lost with its worker. With all, a tensor that products overwrite "
         "again and again is copied each time, which takes longer than to compute it")
      ->check(CLI::IsMember({"pinned", "all", "none"}))
      ->default_str("pinned")
      ->type_name("WHICH")
      ->group(kGroup);
}

// With a quarter of it, gRPC refused a product of 512 x 512 matrices.
constexpr int64_t kMinQuotaBytes = int64_t{4} << 20;

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
  AddText(app, "--ready-file", options.ready_file,
          "Write the addresses, one a line, to this file once the daemon serves; it is removed "
          "when the daemon ends",
          kGroup);
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
  AddCount(app, "--cpu-threads", options.devices.cpu_threads,
           "Threads that compute on each of cpu and sim; 0 takes every core the process may use",
           kGroup, 0, 4096);
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
  AddDuration(app, "--watchdog-most", options.devices.watchdog_max,
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
      "the driver in /dev must be there, because a setuid nvidia-modprobe cannot make them. Turn "
      "it off for "
      "debuggers and profilers",
      kGroup);
  AddSwitch(app, "--poison-freed-memory", options.devices.poisons_freed,
            "With on, memory of the host for matrices that is used again is overwritten as soon as "
            "nobody uses it: the staging memory of GPUs, and what devices keep for the next "
            "product. No answer needs that; it makes a fault in this program harmless, or visible, "
            "and costs the time to write those bytes once more",
            kGroup);
  AddText(app, "--worker-binary", options.devices.worker_binary,
          "Program that works for each GPU (default: gemmd-worker in the folder of gemmd)", kGroup);
}

void AddLimits(CLI::App& app, Options& options) {
  constexpr char kGroup[] = "Limits";
  TransportOptions& transport = options.server.transport;
  AddBytes(app, "--max-message-bytes", transport.max_message_bytes,
           "Longest message received or sent; a longer one is refused with RESOURCE_EXHAUSTED",
           kGroup);
  AddCount(app, "--max-queued-requests", options.server.admission.max_requests,
           "Requests accepted and not yet answered; more are refused with RESOURCE_EXHAUSTED and "
           "told when to try again",
           kGroup, 1, int64_t{1} << 40);
  AddBytes(
      app, "--max-queued-bytes", options.server.admission.max_bytes,
      "Bytes of all messages that have arrived, and of results and scratch memory of their "
      "products until "
      "the answer has left; a request that finds no room is refused with RESOURCE_EXHAUSTED "
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
  AddCount(app, "--batch-most", options.server.joins.limits.max_jobs,
           "Most products that run as one; 1 lets each run alone", kGroup, 1, 4096);
  AddDuration(app, "--max-backlog", options.max_backlog,
              "Longest wait of a product for others that wait for its device before it, by their "
              "predicted times; a product that would wait longer is refused with "
              "RESOURCE_EXHAUSTED and told when to try again. The default is that of --grace, so "
              "that a drain can finish what waits",
              kGroup);
  AddBytes(app, "--memory-quota-bytes", transport.memory_quota_bytes,
           "Memory for the buffers of gRPC; 0 takes a quarter of the memory limit of the process",
           kGroup, kMinQuotaBytes);
  AddBytes(
      app, "--memory-limit-bytes", options.server.memory_limit_bytes,
      "Memory that the daemon may have resident; 0 takes the limit of its control group, or the "
      "machine's memory, and never more than the address space (ulimit -v) has room for. From 85 % "
      "large products are refused with RESOURCE_EXHAUSTED, from "
      "92 % all products and questions but those for health, devices and statistics, and from 95 % "
      "calls end whose client does not read",
      kGroup);
  AddCount(app, "--max-concurrent-streams", transport.max_concurrent_streams,
           "Most calls at once on one connection", kGroup, 1, 1 << 20);
}

void AddConnections(CLI::App& app, Options& options) {
  constexpr char kGroup[] = "Connections";
  TransportOptions& transport = options.server.transport;
  AddCount(
      app, "--max-connections", transport.max_connections,
      "Most connections at once; one more is closed as soon as it is made. 0 takes half "
      "of the limit of open files, which the daemon raises as far as it may, and at most "
      "32768, or as many as may have --max-concurrent-streams idle calls of 24 KiB in an eighth "
      "of --memory-limit-bytes",
      kGroup, 0, int64_t{1} << 30);
  AddCount(app, "--max-connections-per-peer", transport.max_connections_per_peer,
           "Most connections at once of one peer: an IPv4 address, a /64 network of IPv6, a "
           "user of a unix socket. 0 takes half of --max-connections",
           kGroup, 0, int64_t{1} << 30);
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
      app, "--send-least-rate", options.server.sending.min_bytes_per_second,
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
  AddText(app, "--log-file", options.log_file,
          "Append log lines to this file (default: standard error)", kGroup);
  AddText(app, "--traces", options.server.spans.file,
          "Append a line of OTLP in JSON with the spans of each product and its stages to "
          "this file, which the OpenTelemetry collector's receiver otlpjsonfile follows: "
          "products whose caller sends a sampled traceparent, and --traces-share (default: "
          "none)",
          kGroup);
  app.add_option("--traces-share", options.server.spans.share,
                 "Part of the products without a traceparent that have spans in --traces, 0 to 1")
      ->transform(option::NumberFrom(0.0, 1.0))
      ->capture_default_str()
      ->type_name("SHARE")
      ->group(kGroup);
  AddBytes(app, "--traces-bytes", options.server.spans.max_bytes,
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
  AddCount(app, "--audit-lines-per-second", options.audit_lines_per_second,
           "Most lines of the audit log in a second of what was done, and as many of what was "
           "refused; it says how many were left out",
           kGroup, 1, int64_t{1} << 40);
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
