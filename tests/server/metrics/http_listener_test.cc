// SPDX-License-Identifier: Apache-2.0
//
// Silent, slow, numerous or hostile peers only harm themselves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>
#include <vector>

#include "server/metrics/http.h"
#include "tests/server/metrics/http_peer.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/units.h"

namespace gemmd {
namespace {

using testing::EndsWith;
using testing::StartsWith;

class Peer {
 public:
  Peer(const std::string& address, const char* from) : socket_(address, from) {
    EXPECT_TRUE(socket_.is_connected());
  }

  bool Say(const std::string& text) const { return socket_.Say(text); }
  bool Ask(const std::string& path) const { return Say("GET " + path + " HTTP/1.1\r\n\r\n"); }

  // Reads until the other side closes the connection, at least `bytes`.
  std::string Read(size_t bytes = SIZE_MAX) const {
    std::string text;
    char part[65536];
    ssize_t size = 0;
    while (text.size() < bytes && (size = recv(socket_.get(), part, sizeof(part), 0)) > 0) {
      text.append(part, static_cast<size_t>(size));
    }
    EXPECT_FALSE(size < 0 && errno == EAGAIN) << "a minute without a word";
    return text;
  }

  bool IsOpen() const { return socket_.IsOpen(); }

 private:
  HttpPeerSocket socket_;
};

class HttpListenerTest : public testing::Test {
 protected:
  HttpListenerTest() {
    listener_ = HttpListener::Start(ListenForHttp("127.0.0.1:0").value(), PageAt, clock_,
                                    {.connections = 4})
                    .value();
  }

  Peer Connect(const char* from = "127.0.0.1") const { return {listener_->address(), from}; }

  // Also makes the listener check its clock and the peers that came before.
  void ExpectServed() const {
    const Peer peer = Connect();
    peer.Ask("/small");
    EXPECT_THAT(peer.Read(), EndsWith("\r\n\r\nbody\n"));
  }

  FakeClock clock_;
  std::unique_ptr<HttpListener> listener_;
};

TEST_F(HttpListenerTest, AConnectionHasTenSeconds) {
  const Peer silent = Connect();
  const Peer half = Connect();
  half.Say("GET /sma");
  ExpectServed();
  clock_.Advance(10'000 * kMs - 1);
  ExpectServed();
  EXPECT_TRUE(silent.IsOpen());
  EXPECT_TRUE(half.IsOpen());
  clock_.Advance(1);
  ExpectServed();
  EXPECT_EQ(silent.Read(), "");
  EXPECT_EQ(half.Read(), "");
}

TEST_F(HttpListenerTest, WhoAsksAndNeverReadsIsCutOff) {
  const Peer greedy = Connect();
  greedy.Ask("/large");
  EXPECT_THAT(greedy.Read(1), StartsWith("HTTP/1.1 200 OK\r\n"));
  ExpectServed();
  clock_.Advance(10'000 * kMs);
  ExpectServed();
  EXPECT_LT(greedy.Read().size(), kLargePageBytes);
}

TEST_F(HttpListenerTest, TheOldestGivesWay) {
  std::vector<Peer> silent;
  for (int i = 0; i < 4; ++i) silent.push_back(Connect());
  ExpectServed();
  EXPECT_EQ(silent[0].Read(), "");
  for (int i = 1; i < 4; ++i) EXPECT_TRUE(silent[static_cast<size_t>(i)].IsOpen()) << i;
}

// Even if it is being answered: otherwise peers that ask and do not read would keep all places.
TEST_F(HttpListenerTest, TheOldestGivesWayInTheMiddleOfItsAnswer) {
  std::vector<Peer> reading;
  for (int i = 0; i < 4; ++i) {
    reading.push_back(Connect());
    reading.back().Ask("/large");
    EXPECT_THAT(reading.back().Read(1), StartsWith("HTTP/1.1 200 OK\r\n"));
  }
  ExpectServed();
  EXPECT_LT(reading.front().Read().size(), kLargePageBytes);
  for (int i = 1; i < 4; ++i) {
    EXPECT_THAT(reading[static_cast<size_t>(i)].Read(), EndsWith(std::string(100, 'x')));
  }
}

constexpr char kOtherHost[] = "127.0.0.2";

TEST_F(HttpListenerTest, AHostThatDoesNotReadTakesNoPlaceOfOthers) {
  std::vector<Peer> greedy;
  for (int i = 0; i < 4; ++i) {
    greedy.push_back(Connect(kOtherHost));
    greedy.back().Ask("/large");
    EXPECT_THAT(greedy.back().Read(1), StartsWith("HTTP/1.1 200 OK\r\n"));
  }
  ExpectServed();
  const Peer large = Connect();
  large.Ask("/large");
  EXPECT_THAT(large.Read(1), StartsWith("HTTP/1.1 200 OK\r\n"));
  const Peer silent = Connect();
  for (int i = 0; i < 20; ++i) {
    greedy.push_back(Connect(kOtherHost));
    greedy.back().Ask("/large");
    EXPECT_THAT(greedy.back().Read(1), StartsWith("HTTP/1.1 200 OK\r\n"));
  }
  silent.Ask("/small");
  EXPECT_THAT(silent.Read(), EndsWith("\r\n\r\nbody\n"));
  EXPECT_THAT(large.Read(), EndsWith(std::string(100, 'x')));
}

// A host that connects again and again closes its own connections, however slow another one is.
TEST_F(HttpListenerTest, AHostThatConnectsWithoutEndClosesItsOwn) {
  const Peer slow = Connect();
  slow.Say("GET /sma");
  std::vector<Peer> hasty;
  for (int i = 0; i < 100; ++i) {
    hasty.push_back(Connect(kOtherHost));
    if (i >= 3) {
      EXPECT_EQ(hasty[static_cast<size_t>(i - 3)].Read(), "");
      ASSERT_FALSE(HasFailure()) << i;
    }
  }
  slow.Say("ll HTTP/1.1\r\n\r\n");
  EXPECT_THAT(slow.Read(), EndsWith("\r\n\r\nbody\n"));
}

TEST_F(HttpListenerTest, EndsInTheMiddleOfAnAnswer) {
  const Peer greedy = Connect();
  greedy.Ask("/large");
  EXPECT_THAT(greedy.Read(1), StartsWith("HTTP/1.1 200 OK\r\n"));
  const Peer silent = Connect();
  listener_.reset();
  EXPECT_LT(greedy.Read().size(), kLargePageBytes);
  EXPECT_EQ(silent.Read(), "");
}

// An answer that is sent before the request has been read must not be lost to a reset.
TEST_F(HttpListenerTest, ARefusalArrivesThoughMuchIsUnread) {
  const Peer posting = Connect();
  posting.Say("POST /small HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n");
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(posting.Say(std::string(100'000, 'p')));
  EXPECT_THAT(posting.Read(), EndsWith("405 Method Not Allowed\n"));
  const Peer long_winded = Connect();
  EXPECT_TRUE(long_winded.Say("GET /small HTTP/1.1\r\nX: " + std::string(8'192, 'x')));
  EXPECT_THAT(long_winded.Read(), EndsWith("431 Request Header Fields Too Large\n"));
  EXPECT_TRUE(long_winded.Say(std::string(1'000'000, 'x')));
}

TEST(HttpSocketTest, TellsWhyItCannotListen) {
  const HttpSocket first = ListenForHttp("127.0.0.1:0").value();
  EXPECT_THAT(
      ListenForHttp(first.address),
      StatusIs(absl::StatusCode::kUnavailable,
               "metrics-listen: cannot listen on " + first.address + ": Address already in use"));
}

}  // namespace
}  // namespace gemmd
