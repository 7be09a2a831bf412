// SPDX-License-Identifier: Apache-2.0
//
// With TLS, too, silent, slow, numerous or hostile peers only harm themselves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sys/socket.h>

#include <cerrno>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/metrics/http.h"
#include "server/trust/openssl_objects.h"
#include "tests/server/metrics/http_peer.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/units.h"

namespace gemmd {
namespace {

using testing::EndsWith;
using testing::HasSubstr;

using openssl::Bio;

constexpr int64_t kSecondNs = 1000 * kMs;

std::string TextOf(const Bio& bio) {
  char* text = nullptr;
  const long length = BIO_get_mem_data(bio.get(), &text);
  return {text, static_cast<size_t>(length)};
}

// A key and a self-signed certificate.
struct KeyAndCertificate {
  openssl::Key key;
  openssl::Certificate certificate;

  std::string KeyPem() const {
    const Bio bio(BIO_new(BIO_s_mem()));
    PEM_write_bio_PrivateKey(bio.get(), key.get(), nullptr, nullptr, 0, nullptr, nullptr);
    return TextOf(bio);
  }
  std::string Pem() const {
    const Bio bio(BIO_new(BIO_s_mem()));
    PEM_write_bio_X509(bio.get(), certificate.get());
    return TextOf(bio);
  }
};

KeyAndCertificate MakeKeyAndCertificate(EVP_PKEY* key) {
  KeyAndCertificate made;
  made.key.reset(key);
  made.certificate.reset(X509_new());
  X509* const certificate = made.certificate.get();
  constexpr long kDay = 86400;
  X509_set_version(certificate, X509_VERSION_3);
  X509_gmtime_adj(X509_getm_notBefore(certificate), -kDay);
  X509_gmtime_adj(X509_getm_notAfter(certificate), kDay);
  X509_set_pubkey(certificate, key);
  X509_NAME* const name = X509_get_subject_name(certificate);
  const auto* const text = reinterpret_cast<const unsigned char*>("somebody");
  X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, text, -1, -1, 0);
  X509_set_issuer_name(certificate, name);
  EXPECT_GT(X509_sign(certificate, key, EVP_sha256()), 0);
  return made;
}

// Speaks TLS after it is told to.
class TlsPeer {
 public:
  explicit TlsPeer(const std::string& address) : socket_(address) {
    EXPECT_TRUE(socket_.is_connected());
  }

  bool SayPlainly(const std::string& text) const { return socket_.Say(text); }

  // Whether the other side closes the connection within a minute. An alert may come first.
  bool IsEnded() const {
    char part[4096];
    ssize_t bytes = 0;
    while ((bytes = recv(socket_.get(), part, sizeof(part), 0)) > 0) continue;
    return bytes == 0 || errno == ECONNRESET;
  }
  bool IsOpen() const { return socket_.IsOpen(); }

  // Whether the handshake is complete, as the peer sees it.
  bool Shake() {
    context_.reset(SSL_CTX_new(TLS_client_method()));
    tls_.reset(SSL_new(context_.get()));
    SSL_set_fd(tls_.get(), socket_.get());
    const bool is_done = SSL_connect(tls_.get()) == 1;
    ERR_clear_error();
    return is_done;
  }

  bool Say(const std::string& text) {
    size_t sent = 0;
    const bool is_sent = SSL_write_ex(tls_.get(), text.data(), text.size(), &sent) == 1;
    ERR_clear_error();
    return is_sent && sent == text.size();
  }
  bool Ask(const std::string& path) { return Say("GET " + path + " HTTP/1.1\r\n\r\n"); }

  // Reads until the other side announces the end, at least `bytes`.
  std::string Read(size_t bytes = SIZE_MAX) {
    std::string text;
    char part[16384];
    size_t size = 0;
    while (text.size() < bytes && SSL_read_ex(tls_.get(), part, sizeof(part), &size) == 1) {
      text.append(part, size);
    }
    is_ended_ = SSL_get_shutdown(tls_.get()) == SSL_RECEIVED_SHUTDOWN;
    ERR_clear_error();
    return text;
  }
  // Whether the end was announced, and the connection not cut, as an attacker could do.
  bool was_told_the_end() const { return is_ended_; }

  SSL* tls() const { return tls_.get(); }

 private:
  HttpPeerSocket socket_;
  openssl::Context context_;
  openssl::Connection tls_;
  bool is_ended_ = false;
};

class HttpTlsTest : public testing::Test {
 protected:
  HttpTlsTest() {
    const KeyAndCertificate own = MakeKeyAndCertificate(EVP_EC_gen("P-256"));
    const auto context =
        TlsContext::Make({.key_and_chain = own.KeyPem() + own.Pem(), .client_ca = {}}).value();
    listener_ = HttpListener::Start(
                    ListenForHttp("tls:127.0.0.1:0").value(), PageAt, clock_, {.connections = 4},
                    [context](int socket) { return MakeTlsStream(context, socket); })
                    .value();
  }

  TlsPeer Connect() const { return TlsPeer(listener_->address()); }

  // Also makes the listener check its clock and the peers that came before.
  void ExpectServed() const {
    TlsPeer peer = Connect();
    ASSERT_TRUE(peer.Shake());
    EXPECT_TRUE(peer.Ask("/small"));
    EXPECT_THAT(peer.Read(), EndsWith("\r\n\r\nbody\n"));
    EXPECT_TRUE(peer.was_told_the_end());
  }

  FakeClock clock_;
  std::unique_ptr<HttpListener> listener_;
};

TEST_F(HttpTlsTest, TellsItsAddressWithThePrefix) {
  EXPECT_THAT(listener_->address(), testing::MatchesRegex("tls:127\\.0\\.0\\.1:[1-9][0-9]*"));
}

TEST_F(HttpTlsTest, ALargeAnswerArrivesWhole) {
  TlsPeer peer = Connect();
  ASSERT_TRUE(peer.Shake());
  peer.Ask("/large");
  const std::string answer = peer.Read();
  EXPECT_EQ(answer.size() - answer.find("\r\n\r\n") - 4, kLargePageBytes);
  EXPECT_TRUE(peer.was_told_the_end());
}

// The part of a record beyond the first read wakes no poll.
TEST_F(HttpTlsTest, AHeadInOneLongRecordIsReadWhole) {
  TlsPeer peer = Connect();
  ASSERT_TRUE(peer.Shake());
  peer.Say("GET /small HTTP/1.1\r\nX: " + std::string(7'000, 'x') + "\r\n\r\n");
  EXPECT_THAT(peer.Read(), EndsWith("\r\n\r\nbody\n"));
}

TEST_F(HttpTlsTest, AHeadOfOneByteInEachRecordIsReadWhole) {
  TlsPeer peer = Connect();
  ASSERT_TRUE(peer.Shake());
  for (const char c : std::string_view("GET /small HTTP/1.1\r\n\r\n")) peer.Say(std::string(1, c));
  EXPECT_THAT(peer.Read(), EndsWith("\r\n\r\nbody\n"));
}

TEST_F(HttpTlsTest, GivesNoTicketToComeBackWith) {
  TlsPeer peer = Connect();
  ASSERT_TRUE(peer.Shake());
  peer.Ask("/small");
  peer.Read();
  EXPECT_EQ(SSL_SESSION_is_resumable(SSL_get0_session(peer.tls())), 0);
}

TEST_F(HttpTlsTest, GarbageIsEndedAndHoldsUpNobody) {
  std::vector<TlsPeer> peers;
  for (const char* garbage : {"GET /small HTTP/1.1\r\n\r\n", "\x16\x03\x01\x02\xff garbage",
                              "\x15\x03\x03\x00\x02\x01\x00 alerts, no hello"}) {
    peers.push_back(Connect());
    EXPECT_TRUE(peers.back().SayPlainly(std::string(garbage) + std::string(1'000, '\xff')));
  }
  ExpectServed();
  clock_.Advance(10 * kSecondNs);
  ExpectServed();
  for (const TlsPeer& peer : peers) EXPECT_TRUE(peer.IsEnded());
}

TEST_F(HttpTlsTest, AHandshakeHasTheTimeOfItsConnection) {
  const TlsPeer silent = Connect();
  const TlsPeer half = Connect();
  half.SayPlainly(std::string("\x16\x03\x01\x02\x00\x01\x00", 7));  // It should have 512 bytes.
  ExpectServed();
  clock_.Advance(10 * kSecondNs - 1);
  ExpectServed();
  EXPECT_TRUE(silent.IsOpen());
  EXPECT_TRUE(half.IsOpen());
  clock_.Advance(1);
  ExpectServed();
  EXPECT_TRUE(silent.IsEnded());
  EXPECT_TRUE(half.IsEnded());
}

TEST_F(HttpTlsTest, TheOldestHandshakeGivesWay) {
  std::vector<TlsPeer> half;
  for (int i = 0; i < 4; ++i) {
    half.push_back(Connect());
    half.back().SayPlainly("\x16\x03\x01");
  }
  ExpectServed();
  EXPECT_TRUE(half.front().IsEnded());
}

// Writing to a peer that has gone would end the process by a signal.
TEST_F(HttpTlsTest, WhoLeavesInTheMiddleOfAnAnswerHarmsNobody) {
  for (int i = 0; i < 8; ++i) {
    TlsPeer leaver = Connect();
    ASSERT_TRUE(leaver.Shake());
    leaver.Ask("/large");
    EXPECT_GT(leaver.Read(1).size(), 0u);
  }
  ExpectServed();
}

TEST_F(HttpTlsTest, WhoNeverReadsIsCutOffAndKnowsIt) {
  TlsPeer greedy = Connect();
  ASSERT_TRUE(greedy.Shake());
  greedy.Ask("/large");
  greedy.Read(1);
  ExpectServed();
  clock_.Advance(10 * kSecondNs);
  ExpectServed();
  EXPECT_LT(greedy.Read().size(), kLargePageBytes);
  EXPECT_FALSE(greedy.was_told_the_end());
}

TEST(TlsContextTest, TellsWhatOpenSslDoesNotTake) {
  const KeyAndCertificate weak = MakeKeyAndCertificate(EVP_RSA_gen(512));
  EXPECT_THAT(TlsContext::Make({.key_and_chain = weak.KeyPem() + weak.Pem(), .client_ca = {}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("tls-cert: ")));
  EXPECT_THAT(TlsContext::Make({.key_and_chain = "", .client_ca = {}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("tls-cert: ")));
}

TEST(HttpSocketReachTest, PlainAddressesBeyondLoopbackMustBeAllowed) {
  for (const char* address : {"0.0.0.0:0", "[::]:0", "[::ffff:0.0.0.0]:0"}) {
    EXPECT_THAT(ListenForHttp(address), StatusIs(absl::StatusCode::kFailedPrecondition,
                                                 HasSubstr("--insecure-allow-remote")))
        << address;
  }
  for (const char* address : {"tls:0.0.0.0:0", "mtls:0.0.0.0:0", "127.0.0.2:0"}) {
    EXPECT_THAT(ListenForHttp(address), IsOk()) << address;
  }
  EXPECT_THAT(ListenForHttp("0.0.0.0:0", PlainHttpReach::kAnywhere), IsOk());
}

}  // namespace
}  // namespace gemmd
