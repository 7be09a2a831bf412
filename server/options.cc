// SPDX-License-Identifier: Apache-2.0
#include "server/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "kernels/matrix/nearest_names.h"
#include "kernels/option/option.h"
#include "kernels/option/resources.h"
#include "server/device/devices.h"
#include "server/metrics/exposition.h"
#include "server/system/files.h"
#include "server/system/version.h"

namespace gemmd {

namespace {

// What CLI11 reports in place of a name where a section begins or ends.
constexpr char kSection[] = ".++";

// The name of the option that a message is about: "grace" for "--grace: ...", for "grace: ..." and
// for CLI11's own "INI was not able to parse grace" and "Could not convert: --grace = 1". Empty if
// there is none.
std::string OptionOf(absl::string_view message) {
  if (absl::ConsumePrefix(&message, "INI was not able to parse ")) {
    return std::string(absl::StripSuffix(message, kSection));
  }
  absl::ConsumePrefix(&message, "Could not convert: ");
  absl::ConsumePrefix(&message, "--");
  return std::string(message.substr(0, message.find_first_of(": ")));
}

constexpr char kMore[] = "\nRun with --help for more information.\n";

// ": did you mean --grace?", where `prefix` is what precedes names at the place of the error; empty
// if no option has a similar name.
std::string DidYouMean(const CLI::App& app, std::string_view name, const std::string& prefix) {
  std::vector<std::string_view> names;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;  // It is hidden.
    for (const std::string& known : option->get_lnames()) names.push_back(known);
  }
  const std::optional<std::string> similar = NameIndex(names).Similar(name);
  if (!similar) return "";
  return ": did you mean " + prefix + *similar + "?";
}

// Options of earlier versions and their replacements: operators upgrade with their old command
// lines and files.
struct GoneOption {
  std::string_view name;
  std::string_view instead;
};

constexpr GoneOption kGoneOptions[] = {
    {"audit-lines-per-second", "the audit log has at most 1000 lines per second"},
    {"batch-most", "--batch=COUNT says how many products may run as one"},
    {"batch-window-us", "--batch=COUNT:DURATION has the time to wait for others"},
    {"canary-interval", "a GPU gets a canary after a minute without one"},
    {"gpu-tensor-bytes", "tensors may take four fifths of --gpu-memory-bytes"},
    {"incidents",
     "the log has event=wrong_answer, ten a second at most, gemmctl incidents the last"},
    {"jwt-clock-skew", "clocks may differ by 60 s"},
    {"keepalive-timeout", "a ping is to be answered within 10 s"},
    {"kserve", "--services=reflection leaves out KServe's protocol"},
    {"log-file", "the log goes to standard error, which the shell or service manager redirects"},
    {"max-connection-age-grace", "calls on an old connection have 30 s to finish"},
    {"max-connection-idle", "a connection without calls is closed after 10 minutes"},
    {"max-connections-per-peer", "one peer may have half of --max-connections"},
    {"min-ping-interval", "a client may ping every 10 s"},
    {"pinned-linger", "pinned tensors stay for a day after their session's last connection"},
    {"reflection", "--services=kserve leaves out reflection"},
    {"send-least-rate", "--send-timeout=DURATION:BYTES has the least rate"},
    {"session-gpu-tensor-bytes", "device_tensor_bytes of --rules limits what a caller may take"},
    {"session-tensor-bytes", "--tensor-bytes=BYTES:BYTES has the limit of a session"},
    {"tensor-lease",
     "a tensor stays 10 minutes after its last use unless its owner asks otherwise"},
    {"traces-bytes", "the file of --traces is renamed at 64 MiB"},
    {"traces-share", "--traces=FILE:SHARE has the share"},
    {"verify-retry", "--verify=CHECK,retry computes wrong answers again"},
    {"watchdog-most", "a GPU's worker has at most five times --max-product-seconds"},
    {"worker-rest", "a GPU rests for 5 minutes, which gemmctl restart-device ends"},
};

// ", which is gone: ..." for the name of an option of an earlier version; otherwise empty.
std::string WhyGone(std::string_view name) {
  for (const GoneOption& option : kGoneOptions) {
    if (option.name == name) return ", which is gone: " + std::string(option.instead);
  }
  return "";
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
    const bool names_value =
        !line.value.empty() && message.find("got " + line.value) != std::string_view::npos;
    if (found == nullptr || names_value) found = &line;
    if (names_value) break;
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

// The text of an error about an unknown option in a file: where it is, and which options have
// similar names.
std::string TextOf(const CLI::App& app, const CLI::ConfigError& mistake,
                   const ConfigPlaces& places) {
  const std::string name = OptionOf(mistake.what());
  const std::string gone = WhyGone(name);
  if (!gone.empty()) return places.Of(mistake.what()) + "got " + name + gone + kMore;
  return places.Of(mistake.what()) + "got " + (name.empty() ? mistake.what() : name) +
         ", want the name of an option without --, = and the option's value" +
         DidYouMean(app, name, "") + kMore;
}

// The same for an unknown option on the command line. If what is left over is not an option,
// CLI11's own text.
std::string TextOf(const CLI::App& app, const CLI::ExtrasError& mistake) {
  for (const std::string& left : app.remaining()) {
    if (!left.starts_with("--")) continue;
    const std::string name = left.substr(0, left.find('='));
    const std::string gone = WhyGone(std::string_view(name).substr(2));
    if (!gone.empty()) return "option: got " + name + gone + kMore;
    return "option: got " + name + ", want an option of gemmd" +
           DidYouMean(app, std::string_view(name).substr(2), "--") + kMore;
  }
  return mistake.what() + std::string(kMore);
}

// Options by the type of their values.

// Ten years, which can be added to any clock's time in nanoseconds.
constexpr absl::Duration kLongest = absl::Hours(10 * 365 * 24);

std::string RangeText(absl::Duration min, absl::Duration max) {
  return "a duration from " + absl::FormatDuration(min) + " to " + absl::FormatDuration(max) +
         ": 250ms, 5s, 1m30s";
}

// Parses a duration such as 250ms, 5s or 1m30s. Returns false if it is out of range.
bool ParseDurationFrom(const std::string& text, absl::Duration min, absl::Duration max,
                       absl::Duration& value) {
  absl::Duration parsed;
  if (!absl::ParseDuration(text, &parsed) || parsed < min || parsed > max) return false;
  value = parsed;
  return true;
}

// Adds an option whose value is a duration from `min` to ten years.
void AddDuration(CLI::App& app, const std::string& name, absl::Duration& value,
                 const std::string& description, absl::Duration min = absl::ZeroDuration()) {
  const auto parse = [&value, name, min](const std::string& text) {
    if (ParseDurationFrom(text, min, kLongest, value)) return;
    throw CLI::ValidationError(name, "got " + text + ", want " + RangeText(min, kLongest));
  };
  app.add_option_function<std::string>(name, parse, description)
      ->default_str(absl::FormatDuration(value))
      ->type_name("DURATION");
}

constexpr char kWantBytes[] = ", want a number of bytes: 4096, 512MiB, 4GiB";

// A number of bytes in digits with or without a unit, or nullopt.
std::optional<int64_t> ParseBytes(const std::string& given) {
  // CLI11 would accept octal and hexadecimal digits.
  constexpr char kDigits[] = "0123456789";
  const size_t unit = std::min(given.find_first_not_of(kDigits), given.size());
  const std::optional<int64_t> number = ParseDecimal<int64_t>(given.substr(0, unit));
  if (!number || given.find_first_of(kDigits, unit) != given.npos) return std::nullopt;
  std::string text = std::to_string(*number) + given.substr(unit);
  try {
    CLI::AsSizeValue(false)(text);
  } catch (const CLI::ValidationError&) {
    return std::nullopt;
  }
  int64_t bytes = 0;
  if (!absl::SimpleAtoi(text, &bytes) || bytes < 0) return std::nullopt;
  return bytes;
}

// A number of bytes as an operator would write it: 512MiB rather than 536870912.
std::string BytesText(int64_t bytes) {
  constexpr std::string_view kUnits[] = {"", "KiB", "MiB", "GiB"};
  size_t unit = 0;
  for (; bytes > 0 && bytes % 1024 == 0 && unit + 1 < std::size(kUnits); ++unit) bytes /= 1024;
  return std::to_string(bytes) + std::string(kUnits[unit]);
}

// Adds an option whose value is a number of bytes such as 4096, 512MiB or 4GiB: 0, or at least
// `min`.
void AddBytes(CLI::App& app, const std::string& name, int64_t& value,
              const std::string& description, int64_t min = 0) {
  const auto transform = [min](std::string& text) -> std::string {
    const std::optional<int64_t> bytes = ParseBytes(text);
    if (!bytes) return "got " + text + kWantBytes;
    if (*bytes > 0 && *bytes < min) {
      return "got " + text + ", want 0 or at least " + std::to_string(min) + " bytes";
    }
    text = std::to_string(*bytes);
    return "";
  };
  app.add_option(name, value, description)
      ->transform(CLI::Validator(transform, ""))
      ->default_str(BytesText(value))
      ->type_name("BYTES");
}

// The parts of "FIRST:SECOND". The second is nullopt if there is no colon.
std::pair<std::string, std::optional<std::string>> SplitAtColon(const std::string& text) {
  const size_t colon = text.rfind(':');
  if (colon == text.npos) return {text, std::nullopt};
  return {text.substr(0, colon), text.substr(colon + 1)};
}

// Adds an option whose value `parse` accepts, either as a whole or as a first and a second part
// separated by a colon. If `parse` does not accept a value, it returns the text of what it wants.
template <typename Parse>
void AddPair(CLI::App& app, const std::string& name, const Parse& parse,
             const std::string& description, const std::string& type,
             const std::string& default_text) {
  const auto read = [parse, name](const std::string& text) {
    const auto [first, second] = SplitAtColon(text);
    const std::string want = parse(first, second);
    if (!want.empty()) throw CLI::ValidationError(name, "got " + text + ", want " + want);
  };
  app.add_option_function<std::string>(name, read, description)
      ->default_str(default_text)
      ->type_name(type);
}

// Adds an option whose value is a whole number.
template <typename Number>
void AddCount(CLI::App& app, const std::string& name, Number& value, const std::string& description,
              std::type_identity_t<Number> min, std::type_identity_t<Number> max) {
  app.add_option(name, value, description)
      ->transform(option::NumberFrom(min, max).description(""))
      ->default_str(std::to_string(value))
      ->type_name("COUNT");
}

// Adds an option whose value is a text, such as the name of a file.
void AddText(CLI::App& app, const std::string& name, std::string& value,
             const std::string& description, const std::string& type = "FILE") {
  app.add_option(name, value, description)->type_name(type);
}

// Adds an option that is on or off.
void AddSwitch(CLI::App& app, const std::string& name, bool& value,
               const std::string& description) {
  app.add_option_function<std::string>(
         name, [&value](const std::string& text) { value = text == "on"; }, description)
      ->check(CLI::IsMember({"on", "off"}).description(""))
      ->default_str(value ? "on" : "off")
      ->type_name("on|off");
}

// Adds an option whose value is a comma-separated list. Lists of a repeated option are joined.
CLI::Option* AddList(CLI::App& app, const std::string& name, std::vector<std::string>& values,
                     const std::string& description) {
  // No extra arguments: otherwise a word after the list would silently become a part of it.
  return app.add_option(name, values, description)
      ->delimiter(',')
      ->allow_extra_args(false)
      ->default_str(absl::StrJoin(values, ","));
}

// Looks a group up by name or number.
std::optional<uint32_t> GroupOf(const std::string& name) {
  const std::optional<uint32_t> named = FindGroup(name);
  if (named) return named;
  const std::optional<uint32_t> number = ParseDecimal<uint32_t>(name);
  return number && *number != std::numeric_limits<uint32_t>::max() ? number : std::nullopt;
}

void AddUnixSockets(CLI::App& app, SocketAccess& access) {
  app.add_option_function<std::string>(
         "--operators-group", [&access](const std::string& name) { access.group = GroupOf(name); },
         "Group, by name or number, that owns the unix sockets. Its members may run gemmctl "
         "sessions, drop-session, incidents, replay and restart-device over them, as root and the "
         "daemon's user may. With --rules, the rules decide instead")
      ->check([](const std::string& name) {
        return GroupOf(name) ? "" : "got " + name + ", want the name or number of a group";
      })
      ->type_name("GROUP");
  app.add_option_function<std::string>(
         "--socket-mode",
         [&access](const std::string& digits) { access.mode = std::stoul(digits, nullptr, 8); },
         "File mode of unix sockets, in octal. With 0666, all users of the machine may multiply")
      ->check([](const std::string& digits) {
        const bool is_mode = digits.size() >= 3 && digits.size() <= 4 &&
                             digits.find_first_not_of("01234567") == digits.npos &&
                             (digits.size() == 3 || digits.front() == '0');
        return is_mode ? "" : "got " + digits + ", want octal digits from 0000 to 0777";
      })
      ->default_str("0600, with --operators-group 0660")
      ->type_name("MODE");
}

void AddCertificates(CLI::App& app, TransportOptions& transport) {
  AddText(app, "--tls-cert", transport.certificates.certificate,
          "Certificate of the daemon for tls: and mtls: addresses, followed by its intermediate "
          "certificates, in PEM. The daemon checks this file, --tls-key, --client-ca and "
          "--client-crl for changes each second; new connections use the new contents if they "
          "are valid, and open connections continue");
  AddText(app, "--tls-key", transport.certificates.key,
          "Private key of --tls-cert, in PEM, without a passphrase");
  AddText(app, "--client-ca", transport.certificates.client_ca,
          "Certificate authorities that may sign client certificates for mtls: addresses, in PEM");
  AddText(app, "--client-crl", transport.certificates.client_crl,
          "Revocation lists of client certificates, in PEM, each signed by an authority in "
          "--client-ca");
  app.add_flag("--insecure-allow-remote", transport.insecure_allow_remote,
               "Allow addresses without encryption in --listen and --metrics-listen that other "
               "machines can reach. Use it behind a proxy that encrypts, or in a private network "
               "such as a container's");
}

// The value of an option with MultiOptionPolicy::Join. CLI11 splits values in configuration files
// at commas and joins the parts with line feeds.
std::string WithCommas(const std::string& value) {
  return absl::StrReplaceAll(value, {{"\n", ","}});
}

// Adds --services, with the names of the services that may be left out.
void AddServices(CLI::App& app, ServerOptions& options) {
  const auto parse = [&options](const std::string& value) {
    const std::string text = WithCommas(value);
    const std::vector<std::string> names = absl::StrSplit(text, ',');
    options.speaks_kserve = absl::c_linear_search(names, "kserve");
    options.has_reflection = absl::c_linear_search(names, "reflection");
    const size_t known = options.speaks_kserve + options.has_reflection;
    if (text == "none" || (known > 0 && known == names.size())) return;
    throw CLI::ValidationError(
        "--services", "got " + text + ", want kserve, reflection, kserve,reflection or none");
  };
  app.add_option_function<std::string>(
         "--services", parse,
         "Services on the same addresses beside gemmd's own: kserve is KServe's v2 protocol, by "
         "which clients of NVIDIA Triton multiply (model gemm with inputs A and B, or the name of "
         "a resident tensor with input A); reflection lists the methods for tools such as "
         "grpcurl; none leaves out both")
      ->default_str("kserve,reflection")
      ->multi_option_policy(CLI::MultiOptionPolicy::Join)
      ->type_name("NAME,...");
}

void AddCallers(CLI::App& app, Options& options) {
  app.option_defaults()->group("Callers (files are read again on SIGHUP)");
  TrustOptions& trust = options.server.trust;
  AddText(app, "--rules", trust.rules_file,
          "Identify callers, and allow only what this file says, in JSON, or in YAML if its name "
          "ends in .yaml or .yml (server/trust/README.md describes it). All other calls are "
          "refused with UNAUTHENTICATED or PERMISSION_DENIED. Without rules, everyone who can "
          "connect may multiply, keep tensors and read all lists");
  AddText(app, "--tokens", trust.tokens_file,
          "Accept the bearer tokens in this file: one IDENTITY: SHA256 per line, the digest of "
          "the token in hexadecimal");
  AddText(app, "--jwt-keys", trust.jwt_keys_file,
          "Accept JSON web tokens signed by a key in this set (JWKS; RS256, ES256 or EdDSA). "
          "The subject of the token is the caller's identity. Clocks may differ by 60 s");
  AddText(app, "--jwt-audience", trust.jwt.audience,
          "Audience that JSON web tokens must have; needed with --jwt-keys", "TEXT");
  AddText(app, "--jwt-issuer", trust.jwt.issuer,
          "Issuer that JSON web tokens must have (default: any issuer with a key in --jwt-keys)",
          "TEXT");
}

void AddVerification(CLI::App& app, Options& options) {
  app.option_defaults()->group("Checks of answers");
  const auto parse = [&verify = options.server.verify](const std::string& value) {
    const std::string text = WithCommas(value);
    constexpr std::string_view kRetry = ",retry";
    std::string_view rule = text;
    verify.retry = rule.ends_with(kRetry);
    if (verify.retry) rule.remove_suffix(kRetry.size());
    const absl::StatusOr<VerifyRule> parsed = ParseVerifyRule("--verify", rule);
    if (!parsed.ok()) {
      throw CLI::ValidationError(
          "--verify", std::string(parsed.status().message()) + "; ,retry may follow each of them");
    }
    verify.rule = *parsed;
  };
  app.add_option_function<std::string>(
         "--verify", parse,
         "Check each answer before it is sent, unless its request asks for another check: none; "
         "sampled:RATE computes that share of the elements again (1/16384 if RATE is left out); "
         "checksum checks all elements by sums; duplicate computes the product twice. A wrong "
         "answer fails with DATA_LOSS and its kernel is no longer used on that device; a second "
         "one takes the device out of service. With ,retry after it, a wrong answer is computed "
         "again by another kernel or device instead of failing: sampled,retry")
      ->default_str("none")
      ->multi_option_policy(CLI::MultiOptionPolicy::Join)
      ->type_name("CHECK[:RATE][,retry]");
}

void AddTensors(CLI::App& app, Options& options) {
  app.option_defaults()->group("Resident tensors");
  StoreOptions& tensors = options.server.tensors;
  const auto parse_bytes = [&tensors](const std::string& all,
                                      const std::optional<std::string>& session) -> std::string {
    const std::optional<int64_t> of_all = ParseBytes(all);
    const std::optional<int64_t> of_session = session ? ParseBytes(*session) : 0;
    if (!of_all || !of_session) {
      return "a number of bytes, or two with a colon: 4096, 512MiB, 4GiB:1GiB";
    }
    tensors.max_bytes = *of_all;
    tensors.max_session_bytes = *of_session;
    return "";
  };
  AddPair(
      app, "--tensor-bytes", parse_bytes,
      "Host memory for the tensors of all sessions, uploads included. After a colon, host "
      "memory for those of one session, or of a caller without tensor_bytes in --rules: "
      "4GiB:1GiB. Unless --rules sets device_tensor_bytes, a session may take the same share of "
      "the tensor memory of all GPUs. A tensor that does not fit is refused with "
      "RESOURCE_EXHAUSTED. 0 takes an eighth of --memory-limit-bytes, and for one session half "
      "of all. To keep more weights, raise this and lower --max-queued-bytes",
      "BYTES[:BYTES]", BytesText(tensors.max_bytes));
  AddCount(app, "--max-sessions", tensors.max_sessions,
           "Sessions open at once; one more is refused with RESOURCE_EXHAUSTED. One host or user "
           "may have at most seven sessions for each session that is still free, so that others "
           "can open one",
           1, int64_t{1} << 20);
  AddDuration(app, "--session-linger", tensors.linger,
              "Delete a session's tensors this long after its last connection and call have "
              "ended; until then its client can return. Pinned tensors stay for a day. Tensors of "
              "callers known by --rules stay until their leases end");
  const auto set_copies = [&tensors](const std::string& which) {
    tensors.host_copies = which == "all"    ? HostCopies::kAll
                          : which == "none" ? HostCopies::kNone
                                            : HostCopies::kPinned;
  };
  app.add_option_function<std::string>(
         "--host-copies", set_copies,
         "Results in GPU memory that are also copied to host memory, in the background: those of "
         "pinned tensors, all, or none. With none, tensors of 1 MiB and more that are on a GPU "
         "also give back their host memory, which then does not count in --tensor-bytes. Uploads "
         "to a GPU whose tensors get no host copy may exceed the host's memory for tensors. A "
         "tensor that only a GPU has is lost if the GPU's worker ends. "
         "With all, a tensor that products overwrite repeatedly is copied each time, which takes "
         "longer than computing it")
      ->check(CLI::IsMember({"pinned", "all", "none"}).description(""))
      ->default_str("pinned")
      ->type_name("pinned|all|none");
}

// With a quarter of this, gRPC refused a product of 512 x 512 matrices.
constexpr int64_t kMinQuotaBytes = int64_t{4} << 20;

void AddListening(CLI::App& app, Options& options) {
  app.option_defaults()->group("Listening");
  AddList(app, "--listen", options.server.transport.listen,
          "Addresses to listen on. HOST:PORT, on loopback, and unix:PATH are not encrypted; "
          "tls:HOST:PORT has TLS 1.3; mtls:HOST:PORT also demands a client certificate signed by "
          "an authority in --client-ca. Port 0 takes a free port")
      ->type_name("ADDRESS,...");
  AddUnixSockets(app, options.server.transport.unix_sockets);
  AddCertificates(app, options.server.transport);
  AddServices(app, options.server);
  app.add_option_function<std::string>(
         "--metrics-listen",
         [&options](const std::string& text) {
           options.server.metrics_listen = text == "off" ? "" : text;
         },
         "HTTP address for Prometheus (/metrics, and /metrics/triton with the names of NVIDIA "
         "Triton) and for probes (/healthz, /readyz): IP:PORT on loopback, usually "
         "127.0.0.1:8471, or tls:IP:PORT or mtls:IP:PORT with the certificates of --listen. "
         "Port 0 takes a free port")
      ->check([](const std::string& text) {
        return text == "off" ? "" : std::string(CheckHttpAddress(text).message());
      })
      ->default_str("off")
      ->type_name("ADDRESS|off");
  AddText(app, "--ready-file", options.ready_file,
          "Write the addresses to this file, one per line, once the daemon serves. The file is "
          "removed when the daemon ends");
}

void AddDevices(CLI::App& app, Options& options) {
  app.option_defaults()->group("Devices");
  AddList(app, "--devices", options.devices.names,
          "Devices to serve, in order of preference: " + DeviceNamesHelp() +
              ". A product that names no device runs on the first one that has a kernel for it")
      ->check([](const std::string& name) { return std::string(CheckDeviceName(name).message()); })
      ->default_str("cuda where there is a GPU,cpu,sim:sm_90")
      ->type_name("DEVICE,...");
  AddCount(app, "--cpu-threads", options.devices.cpu_threads,
           "Threads that compute on cpu, and as many on each sim device; 0 takes one per core "
           "that the process may use",
           0, 4096);
  AddBytes(app, "--gpu-staging-bytes", options.devices.gpu_staging_bytes,
           "Host memory for transfers to and from each GPU: two thirds for products in progress, "
           "one third for results until they are sent. A product that needs more than two thirds "
           "is transferred in parts");
  AddBytes(app, "--gpu-memory-bytes", options.devices.gpu_memory_bytes,
           "Memory of each GPU for products and tensors, of which tensors take at most four "
           "fifths; 0 takes nine tenths of the free memory. A product that needs more is computed "
           "in parts, as long as 8 rows of A fit with 8 columns of B");
  AddSwitch(
      app, "--worker-sandbox", options.devices.is_worker_confined,
      "With on, the worker process of a device cannot open connections, start programs, trace "
      "processes or, on kernels with landlock, write files outside /dev; it leaves no core dump "
      "and gets only the environment variables of CUDA and CPU libraries and LD_LIBRARY_PATH. "
      "Neither it nor the daemon can gain privileges, so the driver's files in /dev must exist "
      "beforehand: a setuid nvidia-modprobe cannot make them. Use off for debuggers and profilers");
  AddSwitch(app, "--poison-freed-memory", options.devices.poisons_freed,
            "With on, host memory that held matrices is overwritten when it is freed: the staging "
            "memory of GPUs and the memory that devices keep for the next product. No answer "
            "depends on it; it limits the effect of a fault in gemmd, and costs the time to write "
            "those bytes once more");
  AddText(app, "--worker-binary", options.devices.worker_binary,
          "Worker program for GPUs (default: gemmd-worker in the folder of gemmd)");
}

// How long a GPU's worker may take for a product, as a multiple of the longest predicted time
// allowed: more than predictions are wrong by, but short enough that a hanging GPU is soon
// replaced.
constexpr int kWatchdogFactor = 5;

void AddLimits(CLI::App& app, Options& options) {
  app.option_defaults()->group("Limits");
  TransportOptions& transport = options.server.transport;
  AddBytes(app, "--max-message-bytes", transport.max_message_bytes,
           "Longest message received or sent; a longer one is refused with RESOURCE_EXHAUSTED");
  AddCount(app, "--max-queued-requests", options.server.admission.max_requests,
           "Products accepted and not yet answered; one more is refused with RESOURCE_EXHAUSTED "
           "and the time after which to try again",
           1, int64_t{1} << 40);
  AddBytes(app, "--max-queued-bytes", options.server.admission.max_bytes,
           "Memory for received messages, and for results and scratch memory of products until "
           "their answers are sent. A request that does not fit is refused with "
           "RESOURCE_EXHAUSTED and the time after which to try again. 0 takes three eighths of "
           "--memory-limit-bytes, at most 4 GiB");
  app.add_option_function<double>(
         "--max-product-seconds",
         [&options](double seconds) {
           options.server.admission.max_product_ns = static_cast<int64_t>(seconds * 1e9);
         },
         "Longest predicted time of a product, the check of its answer included; a longer one is "
         "refused with RESOURCE_EXHAUSTED. "
         "A GPU's worker that has not answered after ten times the predicted time, at least 2 s "
         "and at most five times this limit, is replaced, and its product ends with ABORTED")
      ->transform(option::NumberFrom(1e-3, 1e6).description(""))
      ->default_str(std::to_string(options.server.admission.max_product_ns / 1'000'000'000))
      ->type_name("SECONDS");
  const auto parse_batch = [&joins = options.server.joins](
                               const std::string& count,
                               const std::optional<std::string>& window) -> std::string {
    const std::optional<int64_t> jobs = ParseDecimal<int64_t>(count);
    absl::Duration wait;
    if (!jobs || *jobs < 1 || *jobs > 4096 ||
        (window && !ParseDurationFrom(*window, absl::ZeroDuration(), absl::Seconds(1), wait))) {
      return "a whole number from 1 to 4096, and after a colon a duration from 0 to 1s: 64:2ms";
    }
    joins.limits.max_jobs = *jobs;
    joins.window_ns = absl::ToInt64Nanoseconds(wait);
    return "";
  };
  AddPair(app, "--batch", parse_batch,
          "Products that may run as one; 1 runs each alone. After a colon, how long a product "
          "whose device is idle waits for others to join it, from 0, the default, to 1s: 64:2ms. "
          "No deadline is missed for it. Products that wait for a busy device join anyway",
          "COUNT[:DURATION]", std::to_string(options.server.joins.limits.max_jobs));
  AddDuration(app, "--max-backlog", options.max_backlog,
              "Longest predicted wait of a product for the products before it on its device; a "
              "product that would wait longer is refused with RESOURCE_EXHAUSTED and the time "
              "after which to try again. At most --grace lets a drain finish all that waits");
  AddBytes(app, "--memory-quota-bytes", transport.memory_quota_bytes,
           "Memory for the buffers of gRPC; 0 takes a quarter of --memory-limit-bytes",
           kMinQuotaBytes);
  AddBytes(app, "--memory-limit-bytes", options.server.memory_limit_bytes,
           "Resident memory of the daemon; 0 takes the limit of its control group or the memory "
           "of the machine, at most its address space (ulimit -v). From 85 % large products are "
           "refused with RESOURCE_EXHAUSTED, from 92 % all calls except for health, devices and "
           "statistics, and from 95 % calls whose clients do not read are ended");
  AddCount(app, "--max-concurrent-streams", transport.max_concurrent_streams,
           "Calls at once on one connection; further calls wait in the client", 1, 1 << 20);
}

void AddConnections(CLI::App& app, Options& options) {
  app.option_defaults()->group("Connections");
  TransportOptions& transport = options.server.transport;
  AddCount(app, "--max-connections", transport.max_connections,
           "Connections at once, of which one peer (an IPv4 address, a /64 network of IPv6, or a "
           "user of a unix socket) may have half; one more is closed at once. 0 takes half of the "
           "limit of open files, which the daemon raises as far as it may, at most 32768, and at "
           "most as many as keep their idle calls (24 KiB each, --max-concurrent-streams per "
           "connection) within an eighth of --memory-limit-bytes",
           0, int64_t{1} << 30);
  AddDuration(app, "--handshake-timeout", transport.handshake_timeout,
              "Close a connection that has not begun to speak HTTP/2 after this time");
  AddDuration(app, "--max-connection-age", transport.max_connection_age,
              "Ask a client to reconnect after this time, so that load spreads over replicas. Its "
              "calls have another 30 s to finish");
  const auto parse_sending = [&sending = options.server.sending](
                                 const std::string& time,
                                 const std::optional<std::string>& rate) -> std::string {
    const std::optional<int64_t> bytes = rate ? ParseBytes(*rate) : sending.min_bytes_per_second;
    if (!bytes || *bytes < 1 ||
        !ParseDurationFrom(time, absl::Milliseconds(1), kLongest, sending.timeout)) {
      return RangeText(absl::Milliseconds(1), kLongest) +
             ", and after a colon a number of bytes: 10s:8MiB";
    }
    sending.min_bytes_per_second = *bytes;
    return "";
  };
  AddPair(app, "--send-timeout", parse_sending,
          "End a call with CANCELLED if its client takes no byte of an answer for this time. After "
          "a colon, the bytes per second at which a client must read: a call also ends if its "
          "answer is not read after this time and the time for its bytes at that rate. With "
          "10s:8MiB, an answer of 256 MiB has 42 s. A connection is closed, with all its calls, if "
          "bytes wait for it beyond the same limits, or if it holds back the rest of an upload for "
          "three times this time, or for this time while memory is nearly used up",
          "DURATION[:BYTES]",
          absl::FormatDuration(options.server.sending.timeout) + ":" +
              BytesText(options.server.sending.min_bytes_per_second));
  AddDuration(app, "--keepalive-time", transport.keepalive_time,
              "Ping a silent client after this time, and close its connection if it does not "
              "answer within 10 s");
}

void AddShutdown(CLI::App& app, Options& options) {
  app.option_defaults()->group(
      "Shutdown (on SIGTERM or SIGINT; a second signal skips the waiting)");
  AddDuration(app, "--lame-duck", options.lame_duck,
              "Serve for this time after health has turned NOT_SERVING, so that load balancers "
              "notice");
  AddDuration(app, "--grace", options.grace,
              "Time for accepted products to finish after --lame-duck; those left are aborted and "
              "end with UNAVAILABLE");
}

void AddLogging(CLI::App& app, Options& options) {
  app.option_defaults()->group("Logging (to standard error)");
  app.add_option("--log-level", options.log_level,
                 "Least severe lines to log: info has a line per event of the daemon, such as a "
                 "start or a lost device; debug also has a line per request")
      ->check(CLI::IsMember({"debug", "info", "warning", "error", "off"}).description(""))
      ->default_str(options.log_level)
      ->type_name("debug|info|warning|error|off");
  app.add_option_function<std::string>(
         "--log-format",
         [&options](const std::string& name) {
           options.log_format = name == "json" ? LogFormat::kJson : LogFormat::kText;
         },
         "Format of log lines: text has key=value pairs, json an object per line. Both have the "
         "time, the level, the event and the event's fields")
      ->check(CLI::IsMember({"text", "json"}).description(""))
      ->default_str("text")
      ->type_name("text|json");
  const auto parse_traces = [&spans = options.server.spans](
                                const std::string& file,
                                const std::optional<std::string>& share) -> std::string {
    const std::optional<double> number = share ? ParseDecimal<double>(*share) : std::nullopt;
    // A part that does not look like a number belongs to the file's name.
    const bool is_share = share && (share->empty() || (share->find('/') == std::string::npos &&
                                                       share->find_first_of("0123456789.-") == 0));
    const bool is_wrong = number ? !(*number >= 0 && *number <= 1) : is_share;
    if (file.empty() || is_wrong) return "a file, and after a colon a share from 0 to 1";
    spans.file = share && !number ? file + ":" + *share : file;
    spans.share = number.value_or(0);
    return "";
  };
  AddPair(app, "--traces", parse_traces,
          "Append the spans of products to this file, a line of OTLP in JSON for each, which the "
          "OpenTelemetry collector's receiver otlpjsonfile follows. Products have spans if their "
          "callers send a sampled traceparent; after a colon, a share from 0 to 1 of the products "
          "without a traceparent has spans, too: FILE:0.01. At 64 MiB the file is renamed to "
          "FILE.1; on SIGHUP it is opened again",
          "FILE[:SHARE]", "");
  app.add_option("--audit-log", options.audit_log,
                 "Append a line of JSON to this file, or to standard error, for each product, for "
                 "each other call that has ended and for each refused call: identity, peer, "
                 "method, problem, kernel, device, bytes and status, never operands or tokens. At "
                 "most 1000 lines are written in a second for what was done, at most half of them "
                 "for one caller, and as many for what was refused; other lines have the sums of "
                 "the rest. On SIGHUP the file is opened again, so that it can be renamed before")
      ->type_name("FILE|stderr");
}

// Leaves out of --help and of the manual page what only tests of gemmd set: a worker without a GPU,
// and times of silent connections, which tests shorten or prolong.
void HideOptionsOfTests(CLI::App& app) {
  for (const char* name : {"--handshake-timeout", "--keepalive-time", "--worker-binary"}) {
    app.get_option(name)->group("");
  }
}

// An empty value usually comes from an unset shell variable or an unfinished line. It must not be
// treated as an absent option: without its rules, gemmd would serve everybody.
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

// Anything but a regular file, such as /dev/stdout, may receive the lines of several options.
std::string RegularFile(const std::string& path) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  return std::filesystem::exists(status) && !std::filesystem::is_regular_file(status) ? "" : path;
}

void RefuseSharedFiles(const CLI::App& app, const Options& options) {
  const std::string& traces = options.server.spans.file;
  const OptionFile outputs[] = {
      {"--ready-file", RegularFile(options.ready_file)},
      {"--audit-log", options.audit_log == "stderr" ? "" : RegularFile(options.audit_log)},
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
      "timing of every stage.\n\nExample: gemmd --listen=127.0.0.1:8470,unix:/run/gemmd.sock "
      "--cpu-threads=8",
      "gemmd");
  app.set_version_flag("--version", VersionText("gemmd"));
  app.add_flag_callback(
      "--list-metrics", [] { throw CLI::CallForVersion(MetricsJson(), 0); },
      "Print all metrics, with their labels and what they mean, as JSON and exit");
  app.set_config("--config", "",
                 "Read options from this file, one NAME=VALUE per line, names without --. Options "
                 "on the command line win")
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
  HideOptionsOfTests(app);
  app.get_formatter()->column_width(40);
  app.failure_message(option::FailureText);
  try {
    app.parse(argc, argv);
    RefuseEmptyValues(app);
    RefuseSharedFiles(app, parsed.options);
    Admission::Limits& admission = parsed.options.server.admission;
    admission.max_backlog_ns = absl::ToInt64Nanoseconds(parsed.options.max_backlog);
    parsed.options.devices.watchdog_max =
        kWatchdogFactor * absl::Nanoseconds(admission.max_product_ns);
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
