// SPDX-License-Identifier: Apache-2.0
#include "server/option_groups.h"

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "kernels/option/number.h"
#include "server/system/files.h"

namespace gemmd {
namespace {

// Ten years, which can be added to any time of a clock in nanoseconds.
constexpr absl::Duration kLongest = absl::Hours(10 * 365 * 24);

}  // namespace

void AddDuration(CLI::App& app, const std::string& name, absl::Duration& value,
                 const std::string& description, const std::string& group, absl::Duration least) {
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
  const std::optional<int64_t> number = option::ParseDecimal<int64_t>(text.substr(0, unit));
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

void AddBytes(CLI::App& app, const std::string& name, int64_t& value,
              const std::string& description, const std::string& group, int64_t least) {
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

void AddSwitch(CLI::App& app, const std::string& name, bool& value, const std::string& description,
               const std::string& group) {
  app.add_option_function<std::string>(
         name, [&value](const std::string& text) { value = text == "on"; }, description)
      ->check(CLI::IsMember({"on", "off"}))
      ->default_str(value ? "on" : "off")
      ->type_name("on|off")
      ->group(group);
}

CLI::Option* AddList(CLI::App& app, const std::string& name, std::vector<std::string>& values,
                     const std::string& description) {
  // No extra arguments: otherwise a word after the list would silently become a part of the list.
  return app.add_option(name, values, description)
      ->delimiter(',')
      ->allow_extra_args(false)
      ->default_str(absl::StrJoin(values, ","));
}

namespace {

// By its name or its number.
std::optional<uint32_t> GroupOf(const std::string& name) {
  const std::optional<uint32_t> named = FindGroup(name);
  if (named) return named;
  const std::optional<uint32_t> number = option::ParseDecimal<uint32_t>(name);
  return number && *number != std::numeric_limits<uint32_t>::max() ? number : std::nullopt;
}

}  // namespace

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
  app.add_option("--tls-cert", transport.certificates.certificate,
                 "Certificate of the daemon for tls: and mtls: addresses, in PEM, followed by "
                 "those between it and a root. This file and the next three are looked at "
                 "each second: what has changed and makes sense serves new connections, and the "
                 "others live on")
      ->type_name("FILE")
      ->group(kGroup);
  app.add_option("--tls-key", transport.certificates.key,
                 "Private key of that certificate, in PEM, without a passphrase")
      ->type_name("FILE")
      ->group(kGroup);
  app.add_option("--client-ca", transport.certificates.client_ca,
                 "Authorities, in PEM, that may sign certificates of clients, for mtls: addresses")
      ->type_name("FILE")
      ->group(kGroup);
  app.add_option("--client-crl", transport.certificates.client_crl,
                 "Lists of revoked certificates of clients, in PEM, each signed by an authority of "
                 "--client-ca; looked at as the other files are")
      ->type_name("FILE")
      ->group(kGroup);
  app.add_flag("--insecure-allow-remote", transport.insecure_allow_remote,
               "Allow plain addresses of --listen and --metrics-listen to be reached from other "
               "machines without encryption: "
               "behind a proxy that adds it, or in a network of its own, as a container's")
      ->group(kGroup);
}

void AddCallers(CLI::App& app, Options& options) {
  constexpr char kGroup[] = "Callers (files are read again on SIGHUP)";
  TrustOptions& trust = options.server.trust;
  const auto add_text = [&](const char* name, std::string& value, const char* type,
                            const char* description) {
    app.add_option(name, value, description)->type_name(type)->group(kGroup);
  };
  add_text("--rules", trust.rules_file, "FILE",
           "Know callers by name, and allow them what this file says, in JSON or, where its name "
           "ends with .yaml or .yml, in YAML (server/trust/README.md has its form); all else is "
           "refused with UNAUTHENTICATED or PERMISSION_DENIED. Without it, "
           "whoever reaches an address may multiply, hold tensors and read all lists");
  add_text("--tokens", trust.tokens_file, "FILE",
           "Take bearer tokens whose SHA-256 stands in this file: IDENTITY: HEXADECIMAL, one a "
           "line");
  add_text("--jwt-keys", trust.jwt_keys_file, "FILE",
           "Take bearer tokens that are signed by a key of this set (JWKS; RS256, ES256, EdDSA). "
           "The subject is the identity");
  add_text("--jwt-audience", trust.jwt.audience, "TEXT",
           "Whom signed tokens must be for; needed beside --jwt-keys");
  add_text("--jwt-issuer", trust.jwt.issuer, "TEXT",
           "Who must have issued signed tokens (default: anybody whose key is in --jwt-keys)");
  app.add_option("--jwt-clock-skew", trust.jwt.clock_skew_s,
                 "By how much the clock of whoever issues signed tokens may differ")
      ->transform(option::NumberFrom(int64_t{0}, kMostClockSkewS))
      ->capture_default_str()
      ->type_name("SECONDS")
      ->group(kGroup);
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
         "duplicate "
         "(computed twice). A wrong answer ends its product with DATA_LOSS, its kernel is not used "
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
  app.add_option("--incidents", options.server.incidents.file,
                 "Append a line of JSON to this file for each wrong answer, up to 16 MiB; gemmctl "
                 "incidents shows the last ones without it")
      ->type_name("FILE")
      ->group(kGroup);
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
  app.add_option(
         "--max-sessions", tensors.max_sessions,
         "Most sessions at once; one host may have seven times as many of them as are free, "
         "so that others find one. One more is refused with RESOURCE_EXHAUSTED")
      ->transform(option::NumberFrom(int64_t{1}, int64_t{1} << 20))
      ->default_str(std::to_string(tensors.max_sessions))
      ->type_name("COUNT")
      ->group(kGroup);
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

}  // namespace gemmd
