// SPDX-License-Identifier: Apache-2.0
#include "client/terminal/security_flags.h"

#include <fstream>
#include <iterator>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "client/terminal/option.h"

namespace gemmd {
namespace {

constexpr char kGroup[] = "Encryption and identity";

void AddFile(CLI::App& app, const std::string& name, std::string& value, const std::string& help) {
  AddOption(app, name, value, help).TypeName("FILE").Group(kGroup);
}

}  // namespace

SecurityFlags SecurityFlagsOfEnvironment(const std::function<std::string(const char*)>& value_of) {
  return {.tls = {.ca_file = value_of("GEMMD_TLS_CA"),
                  .certificate_file = value_of("GEMMD_TLS_CERT"),
                  .key_file = value_of("GEMMD_TLS_KEY"),
                  .server_name = value_of("GEMMD_TLS_SERVER_NAME")},
          .token_file = value_of("GEMMD_TOKEN_FILE")};
}

void AddSecurityFlags(CLI::App& app, SecurityFlags& flags) {
  AddFile(app, "--tls-ca", flags.tls.ca_file,
          "Authorities, in PEM, that may have signed the certificate of the server; also "
          "$GEMMD_TLS_CA (default, with tls: before the address: what the system trusts)");
  AddFile(app, "--tls-cert", flags.tls.certificate_file,
          "Own certificate, in PEM, for a server at an mtls: address; also $GEMMD_TLS_CERT");
  AddFile(app, "--tls-key", flags.tls.key_file,
          "Private key of that certificate, in PEM, without a passphrase; also $GEMMD_TLS_KEY");
  AddOption(app, "--tls-server-name", flags.tls.server_name,
            "Name that the server's certificate must bear; also $GEMMD_TLS_SERVER_NAME (default: "
            "the host of the address)")
      .TypeName("NAME")
      .Group(kGroup);
  AddFlag(app, "--proxy", flags.use_proxy,
          "Connect through the proxy that $grpc_proxy, $https_proxy or $http_proxy names; a token "
          "needs "
          "TLS then (default: no proxy is used)")
      .Group(kGroup);
  AddFile(app, "--token-file", flags.token_file,
          "File with a token that says who calls; it is sent over TLS, loopback and unix sockets "
          "only; also $GEMMD_TOKEN_FILE");
}

std::vector<NamedFile> FilesOf(const SecurityFlags& flags) {
  return {{"--tls-ca", flags.tls.ca_file},
          {"--tls-cert", flags.tls.certificate_file},
          {"--tls-key", flags.tls.key_file},
          {"--token-file", flags.token_file}};
}

absl::Status ApplySecurityFlags(const SecurityFlags& flags, ClientOptions& options) {
  options.tls = flags.tls;
  options.use_proxy = flags.use_proxy;
  if (flags.token_file.empty()) return absl::OkStatus();
  std::ifstream file(flags.token_file, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  options.token = std::string(absl::StripAsciiWhitespace(text));
  if (!options.token.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--token-file: got \"", flags.token_file, "\", want a file with a token"));
}

}  // namespace gemmd
