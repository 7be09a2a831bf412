// SPDX-License-Identifier: Apache-2.0
#include "client/channel.h"

#include <openssl/bio.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <iterator>
#include <limits>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "absl/base/const_init.h"
#include "absl/strings/ascii.h"
#include "absl/strings/cord.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"
#include "gemmd/v1/gemm.grpc.pb.h"
#include "gemmd/v1/resident.grpc.pb.h"
#include "grpc/compression.h"
#include "grpc/grpc.h"
#include "grpcpp/create_channel.h"
#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"

namespace gemmd {
namespace {

constexpr size_t kLongestPath = 107;  // sockaddr_un has 108 bytes, including the final zero.
constexpr absl::string_view kAnyAddress =
    "host:port (port 1 to 65535), tls:host:port or unix:/path";

std::string Quoted(absl::string_view text) { return absl::StrCat("\"", text, "\""); }

// Each Expected function returns what the address should look like, or "" if it is valid.

std::string ExpectedHostAndPort(absl::string_view address) {
  const size_t colon = address.rfind(':');
  if (colon == absl::string_view::npos || colon == 0) return std::string(kAnyAddress);
  const absl::string_view digits = address.substr(colon + 1);
  if (ParseDecimal<uint16_t>({digits.data(), digits.size()}).value_or(0) == 0) {
    return std::string(kAnyAddress);
  }
  absl::string_view host = address.substr(0, colon);
  const bool is_closed =
      absl::ConsumePrefix(&host, "[") == absl::ConsumeSuffix(&host, "]") && !host.empty();
  if (!is_closed || host.find_first_of("/[]@\"\\") != host.npos) return std::string(kAnyAddress);
  if (absl::StrContains(host, ':') && address.front() != '[') {
    return "[host]:port for an address of IPv6, as in \"[::1]:8470\"";
  }
  return "";
}

std::string ExpectedPath(absl::string_view path) {
  if (path.empty()) return "something after the scheme";
  if (path.size() <= kLongestPath) return "";
  return absl::StrCat("a path of at most ", kLongestPath, " bytes, not ", path.size());
}

std::string ExpectedUnix(absl::string_view path) {
  if (absl::ConsumePrefix(&path, "//") && !absl::StartsWith(path, "/")) {
    return path.empty() ? std::string(kAnyAddress) : Quoted(absl::StrCat("unix:/", path));
  }
  return ExpectedPath(path);
}

std::string ExpectedDns(absl::string_view name) {
  if (absl::ConsumePrefix(&name, "//")) {  // An optional name server follows.
    const size_t slash = name.find('/');
    if (slash == name.npos) return Quoted(absl::StrCat("dns:///", name));
    name.remove_prefix(slash + 1);
  }
  return name.empty() ? "something after the scheme" : "";
}

std::string ExpectedList(absl::string_view list) {
  for (const absl::string_view one : absl::StrSplit(list, ',')) {
    if (!ExpectedHostAndPort(one).empty()) {
      return "addresses with ports, as in \"ipv4:10.0.0.1:8470,10.0.0.2:8470\"";
    }
  }
  return "";
}

std::string Expected(absl::string_view address) {
  absl::string_view rest = address;
  if (absl::ConsumePrefix(&rest, "unix:")) return ExpectedUnix(rest);
  if (absl::ConsumePrefix(&rest, "unix-abstract:")) return ExpectedPath(rest);
  if (absl::ConsumePrefix(&rest, "dns:")) return ExpectedDns(rest);
  if (absl::ConsumePrefix(&rest, "ipv4:") || absl::ConsumePrefix(&rest, "ipv6:")) {
    return ExpectedList(rest);
  }
  const size_t scheme_end = address.find("://");
  if (scheme_end == address.npos) return ExpectedHostAndPort(address);
  // Accepts an address copied from a browser.
  rest.remove_prefix(scheme_end + 3);
  rest = rest.substr(0, rest.find('/'));
  if (!ExpectedHostAndPort(rest).empty()) return std::string(kAnyAddress);
  const bool has_tls = absl::EndsWith(address.substr(0, scheme_end), "s");
  return Quoted(absl::StrCat(has_tls ? "tls:" : "", rest));
}

}  // namespace

absl::string_view WithoutTls(absl::string_view address) {
  if (!absl::ConsumePrefix(&address, "tls:")) absl::ConsumePrefix(&address, "mtls:");
  return address;
}

bool IsUnix(absl::string_view address) {
  return absl::StartsWith(address, "unix:") || absl::StartsWith(address, "unix-abstract:");
}

bool IsLoopback(absl::string_view address) {
  for (absl::string_view scheme : {"dns:", "ipv4:", "ipv6:"}) {
    if (absl::ConsumePrefix(&address, scheme)) break;
  }
  absl::ConsumePrefix(&address, "///");
  if (absl::StrContains(address, ',')) return false;
  const absl::string_view host = address.substr(0, address.rfind(':'));
  return host == "localhost" || host == "[::1]" ||
         (absl::StartsWith(host, "127.") &&
          host.find_first_not_of("0123456789.") == absl::string_view::npos);
}

namespace {

// Whether an address (without tls:) may name several servers. A DNS name does so only with the
// scheme dns:, so that a plain host:port keeps using one server even while that server drains.
bool MayNameSeveral(absl::string_view address) {
  return absl::StartsWith(address, "dns:") || absl::StartsWith(address, "ipv4:") ||
         absl::StartsWith(address, "ipv6:");
}

// Catches errors that gRPC would report only with the first call, possibly minutes later and less
// clearly. Errors: InvalidArgument, with the correct form if it can be guessed.
absl::Status CheckAddress(absl::string_view address) {
  const bool is_graphic = std::all_of(address.begin(), address.end(), [](char c) {
    return absl::ascii_isgraph(static_cast<unsigned char>(c));
  });
  const absl::string_view target = WithoutTls(address);
  const bool has_tls_twice = WithoutTls(target) != target;
  const std::string want =
      address.empty() || !is_graphic || has_tls_twice ? std::string(kAnyAddress) : Expected(target);
  if (want.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("address: got \"", absl::CEscape(address), "\", want ", want));
}

// Owning pointers to OpenSSL objects.
struct FreeOpenSsl {
  void operator()(BIO* bio) const { BIO_free_all(bio); }
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  void operator()(X509* certificate) const { X509_free(certificate); }
};
using Bio = std::unique_ptr<BIO, FreeOpenSsl>;
using Key = std::unique_ptr<EVP_PKEY, FreeOpenSsl>;
using Context = std::unique_ptr<SSL_CTX, FreeOpenSsl>;
using Certificate = std::unique_ptr<X509, FreeOpenSsl>;

// A reader of `bytes`, which must outlive it.
Bio Reader(absl::string_view bytes) {
  return Bio(BIO_new_mem_buf(bytes.data(), static_cast<int>(bytes.size())));
}

constexpr size_t kMaxTokenBytes = 8192;

absl::Status Bad(absl::string_view option, absl::string_view got, absl::string_view want) {
  ERR_clear_error();  // gRPC would take leftover OpenSSL errors for its own.
  return absl::InvalidArgumentError(
      absl::StrCat(option, ": got \"", absl::CEscape(got), "\", want ", want));
}

absl::StatusOr<std::string> ReadFile(absl::string_view option, const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (!file.good() && !file.eof()) return Bad(option, path, "a file that can be read");
  return bytes;
}

// Keeps OpenSSL from asking for a passphrase at the terminal.
int NoPassphrase(char* /*buffer*/, int /*size*/, int /*is_write*/, void* /*data*/) { return -1; }

// Also accepts TRUSTED CERTIFICATE blocks, as gRPC does.
Certificate FirstCertificate(absl::string_view pem) {
  return Certificate(PEM_read_bio_X509_AUX(Reader(pem).get(), nullptr, nullptr, nullptr));
}

Key FirstKey(const std::string& pem) {
  return Key(PEM_read_bio_PrivateKey(Reader(pem).get(), nullptr, NoPassphrase, nullptr));
}

struct CertificateBlocks {
  std::string whole;
  std::vector<int> broken;  // Positions of malformed certificates, from 1.
};

// Reads each block separately: a block without an end would swallow the next one.
CertificateBlocks BlocksOf(const std::string& pem) {
  constexpr absl::string_view kBegin = "-----BEGIN ";
  CertificateBlocks blocks;
  int number = 0;
  const std::vector<absl::string_view> texts = absl::StrSplit(pem, kBegin);
  for (size_t i = 1; i < texts.size(); ++i) {
    const absl::string_view label = texts[i].substr(0, texts[i].find("-----"));
    if (label != "CERTIFICATE" && !absl::EndsWith(label, " CERTIFICATE")) continue;
    ++number;
    const std::string block = absl::StrCat(kBegin, texts[i]);
    if (FirstCertificate(block) == nullptr) {
      blocks.broken.push_back(number);
    } else {
      absl::StrAppend(&blocks.whole, block);
    }
  }
  ERR_clear_error();
  return blocks;
}

// Warns once per process: clients are created far more often than files change.
void WarnOnce(const std::string& line) {
  ABSL_CONST_INIT static absl::Mutex mutex(absl::kConstInit);
  static auto& told = *new std::set<std::string>;
  absl::MutexLock lock(&mutex);
  if (told.insert(line).second) std::fprintf(stderr, "gemmd: %s\n", line.c_str());
}

absl::Status ReadOwn(const TlsOptions& tls, grpc::SslCredentialsOptions& made) {
  if (tls.certificate_file.empty()) {
    return Bad("options.tls.certificate_file", "", "that of the key in options.tls.key_file");
  }
  if (tls.key_file.empty()) {
    return Bad("options.tls.key_file", "", "that of the certificate");
  }
  ASSIGN_OR_RETURN(auto chain, ReadFile("options.tls.certificate_file", tls.certificate_file));
  ASSIGN_OR_RETURN(auto key_pem, ReadFile("options.tls.key_file", tls.key_file));
  const Certificate own = FirstCertificate(chain);
  if (own == nullptr || !BlocksOf(chain).broken.empty()) {
    return Bad("options.tls.certificate_file", tls.certificate_file,
               "complete certificates in PEM");
  }
  const Key key = FirstKey(key_pem);
  if (key == nullptr) {
    return Bad("options.tls.key_file", tls.key_file, "a private key in PEM without a passphrase");
  }
  if (X509_check_private_key(own.get(), key.get()) != 1) {
    return Bad("options.tls.key_file", tls.key_file,
               absl::StrCat("the key of the certificate in ", tls.certificate_file));
  }
  made.pem_cert_chain = std::move(chain);
  made.pem_private_key = std::move(key_pem);
  return absl::OkStatus();
}

bool IsSet(const TlsOptions& tls) {
  return !(tls.ca_file.empty() && tls.certificate_file.empty() && tls.key_file.empty() &&
           tls.server_name.empty());
}

absl::Status CheckToken(absl::string_view address, bool is_encrypted,
                        const ClientOptions& options) {
  const std::string& token = options.token;
  const bool is_good =
      token.size() <= kMaxTokenBytes &&
      std::all_of(token.begin(), token.end(), [](char c) { return c > ' ' && c <= '~'; });
  if (!is_good) {
    return absl::InvalidArgumentError(
        absl::StrCat("options.token: got ", token.size(),
                     " characters, want at most 8192 printable ones without spaces"));
  }
  if (token.empty() || is_encrypted || IsUnix(address)) return absl::OkStatus();
  if (options.use_proxy) {
    return Bad("address", address, "tls: before it, so that the proxy does not read options.token");
  }
  if (IsLoopback(address)) return absl::OkStatus();
  return Bad("address", address,
             "tls: before it, or one of loopback, so that nobody else reads options.token");
}

}  // namespace

bool HasTls(absl::string_view address, const TlsOptions& tls) {
  return WithoutTls(address).size() != address.size() || IsSet(tls);
}

namespace {

// The valid certificates of a PEM file. Skips malformed certificates with one warning on stderr:
// gRPC would silently stop reading at the first. Errors: InvalidArgument if no certificate is
// valid.
absl::StatusOr<std::string> ReadAuthorities(const std::string& path) {
  ASSIGN_OR_RETURN(const auto pem, ReadFile("options.tls.ca_file", path));
  CertificateBlocks blocks = BlocksOf(pem);
  if (blocks.whole.empty()) return Bad("options.tls.ca_file", path, "certificates in PEM");
  if (!blocks.broken.empty()) {
    WarnOnce(absl::StrCat("options.tls.ca_file: got \"", absl::CEscape(path),
                          "\", whose certificate ", absl::StrJoin(blocks.broken, ", "),
                          " is broken and left out, want complete certificates in PEM"));
  }
  return std::move(blocks.whole);
}

// Reads the files. Errors: InvalidArgument for options that contradict each other or the address,
// and for files that cannot be read or have the wrong content. The text names the option and
// contains neither key nor token.
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeCredentials(
    absl::string_view address, const ClientOptions& options) {
  const TlsOptions& tls = options.tls;
  const absl::string_view target = WithoutTls(address);
  const bool has_tls = HasTls(address, tls);
  if (has_tls && IsUnix(target)) {
    return Bad("address", address, "host:port, since TLS is not spoken over unix sockets");
  }
  if (has_tls && options.credentials != nullptr) {
    return Bad("options.credentials", "those of gRPC", "none beside TLS by tls: or options.tls");
  }
  absl::Status status = CheckToken(address, has_tls || options.credentials != nullptr, options);
  if (!status.ok()) return status;
  if (options.credentials != nullptr) return options.credentials;
  if (!has_tls) return grpc::InsecureChannelCredentials();
  grpc::SslCredentialsOptions made;
  if (!tls.ca_file.empty()) {
    ASSIGN_OR_RETURN(made.pem_root_certs, ReadAuthorities(tls.ca_file));
  }
  const bool must_show = absl::StartsWith(address, "mtls:");
  if (must_show || !tls.certificate_file.empty() || !tls.key_file.empty()) {
    status = ReadOwn(tls, made);
    if (!status.ok()) return status;
  }
  return grpc::SslCredentials(made);
}

// Blocks SIGPIPE on this thread. A server that closes the connection during a handshake must not
// kill this process: OpenSSL, unlike gRPC, writes without MSG_NOSIGNAL.
class SigpipeHeldBack {
 public:
  SigpipeHeldBack() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~SigpipeHeldBack() {
    const timespec now = {};
    while (sigtimedwait(&pipe_, nullptr, &now) == SIGPIPE) {
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  SigpipeHeldBack(const SigpipeHeldBack&) = delete;
  SigpipeHeldBack& operator=(const SigpipeHeldBack&) = delete;

 private:
  sigset_t pipe_ = {};
  sigset_t before_ = {};
};

// Returns OpenSSL's last error and clears its error queue, which gRPC would take for its own.
std::string LastError() {
  const char* const reason = ERR_reason_error_string(ERR_peek_last_error());
  const std::string text = reason == nullptr ? "no answer" : reason;
  ERR_clear_error();
  return text;
}

absl::Status TrustAuthorities(SSL_CTX& context, const std::string& ca_file) {
  if (ca_file.empty()) {
    SSL_CTX_set_default_verify_paths(&context);
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const auto authorities, ReadAuthorities(ca_file));
  const Bio reader = Reader(authorities);
  while (const Certificate next{PEM_read_bio_X509_AUX(reader.get(), nullptr, nullptr, nullptr)}) {
    X509_STORE_add_cert(SSL_CTX_get_cert_store(&context), next.get());
  }
  ERR_clear_error();
  return absl::OkStatus();
}

absl::StatusOr<Context> ContextFor(const TlsOptions& tls) {
  Context context(SSL_CTX_new(TLS_client_method()));
  if (context == nullptr) return absl::ResourceExhaustedError(LastError());
  // The certificate is verified after the handshake, so that a bad one can be described.
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_NONE, nullptr);
  RETURN_IF_ERROR(TrustAuthorities(*context, tls.ca_file));
  if (tls.certificate_file.empty()) return context;
  if (SSL_CTX_use_certificate_chain_file(context.get(), tls.certificate_file.c_str()) != 1 ||
      SSL_CTX_use_PrivateKey_file(context.get(), tls.key_file.c_str(), SSL_FILETYPE_PEM) != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("--tls-cert, --tls-key: got ", tls.certificate_file, " and ", tls.key_file,
                     ", ", LastError(), ", want a certificate and its key in PEM"));
  }
  return context;
}

// Sets the name that the certificate must contain, and the protocols offered to the server.
void Prepare(SSL& ssl, const std::string& name) {
  constexpr unsigned char kProtocols[] = {2, 'h', '2'};
  SSL_set_alpn_protos(&ssl, kProtocols, sizeof(kProtocols));
  if (X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(&ssl), name.c_str()) == 1) return;
  SSL_set1_host(&ssl, name.c_str());
  SSL_set_tlsext_host_name(&ssl, name.c_str());
}

std::string HostOf(const std::string& host_and_port) {
  std::string host = host_and_port.substr(0, host_and_port.rfind(':'));
  if (host.size() > 1 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  return host;
}

absl::Time EndOf(const X509& certificate) {
  std::tm end = {};
  if (ASN1_TIME_to_tm(X509_get0_notAfter(&certificate), &end) != 1) return absl::InfinitePast();
  return absl::FromTM(end, absl::UTCTimeZone());
}

}  // namespace

absl::StatusOr<TlsPeer> LookAtTlsPeer(const std::string& host_and_port, const TlsOptions& tls,
                                      absl::Time deadline) {
  ASSIGN_OR_RETURN(const Context context, ContextFor(tls));
  const SigpipeHeldBack held_back;
  const Bio connection(BIO_new_ssl_connect(context.get()));
  SSL* ssl = nullptr;
  if (connection == nullptr || BIO_get_ssl(connection.get(), &ssl) != 1 || ssl == nullptr) {
    return absl::ResourceExhaustedError(LastError());
  }
  Prepare(*ssl, tls.server_name.empty() ? HostOf(host_and_port) : tls.server_name);
  BIO_set_conn_hostname(connection.get(), host_and_port.c_str());
  BIO_set_nbio(connection.get(), 1);
  // OpenSSL counts whole seconds; 0 means no limit.
  const int64_t seconds = std::max<int64_t>(1, absl::ToInt64Seconds(deadline - absl::Now()));
  constexpr int kPauseMs = 10;
  const int limit = static_cast<int>(std::min<int64_t>(seconds, 3600));
  if (BIO_do_connect_retry(connection.get(), limit, kPauseMs) != 1) {
    const std::string reason = LastError();
    return absl::UnavailableError(absl::StrCat("no handshake of TLS: ", reason));
  }
  const Certificate certificate(SSL_get1_peer_certificate(ssl));
  if (certificate == nullptr) return absl::UnavailableError("the server shows no certificate");
  const long verdict = SSL_get_verify_result(ssl);  // NOLINT(google-runtime-int): OpenSSL's type.
  return TlsPeer{.version = SSL_get_version(ssl),
                 .not_after = EndOf(*certificate),
                 .fault = verdict == X509_V_OK ? "" : X509_verify_cert_error_string(verdict)};
}

namespace {

// gRPC itself caps the attempts of a call at 5 (proposal A6).
constexpr int kMaxAttempts = 5;
constexpr int64_t kMaxMessageBytes = std::numeric_limits<int32_t>::max();

// The server refuses pings that come faster than every 10 s; 20 s leaves room for jitter.
constexpr absl::Duration kKeepaliveTime = absl::Seconds(20);
constexpr absl::Duration kKeepaliveTimeout = absl::Seconds(10);

// gRPC 1.51 shuts down with the last channel, and then waits for a thread that polls for up to 10 s
// after a long message. The destructor of a client would wait too, so gRPC is kept until the
// process ends. gRPC threads may then be in the middle of a handshake, so OpenSSL must not clean up
// at exit, which has to be set before its first use.
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

// gRPC 1.75 does not make an attempt at all that is due within the same millisecond, and varies
// each backoff by a fifth.
constexpr double kMinBackoffSeconds = 0.002;
// gRPC accepts backoffs of a few decades at most.
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

absl::Status CheckRange(absl::string_view field, int64_t value, int64_t min, int64_t max) {
  if (min <= value && value <= max) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": got ", value, ", want ", min, " to ", max));
}

absl::Status CheckOptions(const ClientOptions& options) {
  absl::Status status = CheckRange("options.channels", options.channels, 1, 1024);
  status.Update(CheckTimeout(options.timeout));
  status.Update(
      CheckRange("options.max_message_bytes", options.max_message_bytes, 1, kMaxMessageBytes));
  status.Update(CheckRange("options.max_attempts", options.max_attempts, 1, kMaxAttempts));
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
  const std::string_view waits = options.wait_for_ready ? R"(,"waitForReady":true)" : "";
  std::string retries;
  if (options.max_attempts > 1) {
    const absl::Duration initial = std::min(options.initial_backoff, options.max_backoff);
    retries = absl::StrFormat(
        R"(,"retryPolicy":{"maxAttempts":%d,"initialBackoff":"%.3fs","maxBackoff":"%.3fs",)"
        R"("backoffMultiplier":2,"retryableStatusCodes":["UNAVAILABLE"%s]})",
        options.max_attempts, std::max(kMinBackoffSeconds, absl::ToDoubleSeconds(initial)),
        std::max(kMinBackoffSeconds, absl::ToDoubleSeconds(options.max_backoff)),
        // gRPC's server answers CANCELLED to calls that arrive while it stops. gRPC does not retry
        // a call that the caller itself cancels.
        options.wait_for_ready ? R"(,"CANCELLED")" : "");
  }
  if (!waits.empty() || !retries.empty()) {
    // gRPC does not retry transfers: it could only repeat the first message. The client itself
    // resumes a broken transfer where it stopped.
    const std::string_view tensors = v1::Tensors::service_full_name();
    members.push_back(absl::StrFormat(
        R"("methodConfig":[{"name":[{}]%s%s},)"
        R"({"name":[{"service":"%s","method":"Put"},{"service":"%s","method":"Get"}]%s}])",
        waits, retries, tensors, tensors, waits));
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

  // gRPC does not retry a call whose messages exceed this buffer (256 KiB by default, less than one
  // 512 x 512 f32 matrix). The buffer shares the message's bytes; it does not copy them.
  constexpr int64_t kHeadroomBytes = 1 << 16;
  arguments.SetInt(
      GRPC_ARG_PER_RPC_RETRY_BUFFER_SIZE,
      static_cast<int>(std::min(kMaxMessageBytes, options.max_message_bytes + kHeadroomBytes)));
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, Milliseconds(absl::Milliseconds(100)));
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, Milliseconds(absl::Seconds(5)));

  // Detects a dead server within 30 s while a call waits for it; idle connections send no pings.
  // The number of pings without data is unlimited, or a long computation would go unwatched.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, Milliseconds(kKeepaliveTime));
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, Milliseconds(kKeepaliveTimeout));
  // gRPC 1.75 heeds this one instead. It is not in gRPC's headers.
  arguments.SetInt("grpc.http2.ping_timeout_ms", Milliseconds(kKeepaliveTimeout));
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 0);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);

  // Random matrices do not compress, and a server's compressed answer could be a bomb.
  arguments.SetCompressionAlgorithm(GRPC_COMPRESS_NONE);
  arguments.SetInt(GRPC_COMPRESSION_CHANNEL_ENABLED_ALGORITHMS_BITSET, 1 << GRPC_COMPRESS_NONE);

  // By default gRPC uses the proxies of the environment, even for loopback.
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
  ASSIGN_OR_RETURN(auto credentials, MakeCredentials(address, options));
  const absl::string_view target = WithoutTls(address);
  grpc::ChannelArguments arguments = ChannelArgumentsFor(target, options);
  if (!options.tls.server_name.empty()) {
    arguments.SetSslTargetNameOverride(options.tls.server_name);
  }
  std::vector<std::shared_ptr<grpc::Channel>> channels(static_cast<size_t>(options.channels));
  for (std::shared_ptr<grpc::Channel>& channel : channels) {
    channel = grpc::CreateCustomChannel(std::string(target), credentials, arguments);
  }
  return channels;
}

namespace {

constexpr char kPushbackTrailer[] = "grpc-retry-pushback-ms";
constexpr char kPushbackPayload[] = "gemmd/retry-pushback-ms";

absl::StatusCode ToAbslCode(int code) {
  const bool is_known = code > 0 && code <= static_cast<int>(absl::StatusCode::kUnauthenticated);
  return is_known ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown;
}

// gRPC's own texts for these errors say neither what happened nor what to do.
std::string TextOf(const grpc::Status& status) {
  const std::string& text = status.error_message();
  if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED &&
      (text.empty() || text == "Method not found!")) {
    return "the server does not know this call: it is no gemmd, or one of another version";
  }
  if (status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED &&
      absl::StrContains(text, "message larger than max")) {
    return absl::StrCat(
        text,
        ": put large operands on the server first and keep large results there, for which there "
        "is no such limit, or raise it (max_message_bytes, and --max-message-bytes of gemmd)");
  }
  return text;
}

}  // namespace

absl::Status ToAbslStatus(const grpc::Status& status, const grpc::ClientContext& context) {
  if (status.ok()) return absl::OkStatus();
  absl::Status converted(ToAbslCode(status.error_code()), TextOf(status));
  const auto& trailers = context.GetServerTrailingMetadata();
  const auto pushback = trailers.find(kPushbackTrailer);
  if (pushback != trailers.end()) {
    converted.SetPayload(kPushbackPayload, absl::Cord(absl::string_view(pushback->second.data(),
                                                                        pushback->second.size())));
  }
  return converted;
}

absl::Status ToAbslStatus(const v1::Error& error) {
  return {ToAbslCode(error.code()), error.message()};
}

std::optional<absl::Duration> RetryPushback(const absl::Status& status) {
  const auto payload = status.GetPayload(kPushbackPayload);
  int64_t milliseconds = 0;
  if (!payload.has_value() || !absl::SimpleAtoi(std::string(*payload), &milliseconds) ||
      milliseconds < 0) {
    return std::nullopt;
  }
  return absl::Milliseconds(milliseconds);
}

}  // namespace gemmd
