// SPDX-License-Identifier: Apache-2.0
#include "server/product/admission.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "tests/testing/patience.h"

namespace gemmd {
namespace {

using ::testing::HasSubstr;

// Admits a request whose message has not been held yet.
absl::StatusOr<Admission::Ticket> Admit(Admission& admission, int64_t bytes) {
  Admission::Ticket ticket;
  Asked asked = {.left_ns = kNoDeadlineNs};
  const Verdict verdict = admission.Admit(ticket, bytes, asked, [] { return FairQueue::Inside(); });
  if (verdict != Verdict::kIn) return RefusalOf(verdict, asked, admission.limits()).status;
  return ticket;
}

TEST(AdmissionTest, CountsRequestsAndBytesUntilTicketsAreBack) {
  Admission admission({.max_requests = 3, .max_bytes = 100});
  {
    absl::StatusOr<Admission::Ticket> first = Admit(admission, 30);
    absl::StatusOr<Admission::Ticket> second = Admit(admission, 40);
    ASSERT_TRUE(first.ok());
    ASSERT_TRUE(second.ok());
    EXPECT_EQ(admission.load().requests, 2);
    EXPECT_EQ(admission.load().bytes, 70);
  }
  EXPECT_EQ(admission.load().requests, 0);
  EXPECT_EQ(admission.load().bytes, 0);
}

TEST(AdmissionTest, RefusesPastEachLimit) {
  Admission admission({.max_requests = 2, .max_bytes = 100});
  absl::StatusOr<Admission::Ticket> first = Admit(admission, 60);
  const absl::Status too_many_bytes = Admit(admission, 41).status();
  EXPECT_EQ(too_many_bytes.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(too_many_bytes.message()),
              HasSubstr("needs 41 bytes, 40 of 100 are free"));
  absl::StatusOr<Admission::Ticket> second = Admit(admission, 40);
  ASSERT_TRUE(second.ok());
  const absl::Status too_many = Admit(admission, 0).status();
  EXPECT_EQ(too_many.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(too_many.message()), HasSubstr("2 requests"));
  admission.Close();
  EXPECT_EQ(Admit(admission, 0).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(admission.load().admitted, 2);
  EXPECT_EQ(admission.load().refused_for_bytes, 1);
  EXPECT_EQ(admission.load().refused_for_requests, 1);
  EXPECT_EQ(admission.load().refused_when_closed, 1);
}

TEST(AdmissionTest, TakesTheLargestNumbersWithoutOverflow) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  Admission admission({.max_requests = 2, .max_bytes = kMax});
  absl::StatusOr<Admission::Ticket> first = Admit(admission, kMax - 1);
  ASSERT_TRUE(first.ok());
  EXPECT_FALSE(Admit(admission, kMax).ok());
  EXPECT_TRUE(Admit(admission, 1).ok());
}

TEST(AdmissionTest, MovedTicketsAreGivenBackOnce) {
  Admission admission({.max_requests = 2, .max_bytes = 100});
  Admission::Ticket kept;
  {
    absl::StatusOr<Admission::Ticket> ticket = Admit(admission, 10);
    ASSERT_TRUE(ticket.ok());
    kept = *std::move(ticket);
  }
  EXPECT_EQ(admission.load().requests, 1);
  Admission::Ticket moved = std::move(kept);
  EXPECT_EQ(admission.load().requests, 1);
  moved = Admission::Ticket();
  EXPECT_EQ(admission.load().requests, 0);
}

TEST(AdmissionTest, AnAnswerFreesThePlaceAndTheTicketTheBytes) {
  Admission admission({.max_requests = 1, .max_bytes = 100});
  {
    absl::StatusOr<Admission::Ticket> first = Admit(admission, 60);
    ASSERT_TRUE(first.ok());
    first->MarkAnswered(90);
    EXPECT_EQ(admission.load().bytes, 60);
    first->MarkAnswered(50);
    first->MarkAnswered(50);
    EXPECT_EQ(admission.load().requests, 0);
    EXPECT_EQ(admission.load().bytes, 50);
    EXPECT_FALSE(Admit(admission, 51).ok());
    EXPECT_TRUE(Admit(admission, 50).ok());
    EXPECT_FALSE(admission.WaitUntilIdle(absl::Milliseconds(1)));
  }
  EXPECT_TRUE(admission.WaitUntilIdle(absl::ZeroDuration()));
  EXPECT_EQ(admission.load().requests, 0);
  EXPECT_EQ(admission.load().bytes, 0);
}

TEST(AdmissionTest, ClosedRefusesAndIdleWaitsForTheLastTicket) {
  Admission admission({.max_requests = 2, .max_bytes = 100});
  auto ticket = std::make_unique<absl::StatusOr<Admission::Ticket>>(Admit(admission, 1));
  admission.Close();
  EXPECT_EQ(Admit(admission, 1).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(admission.WaitUntilIdle(absl::Milliseconds(1)));
  std::thread releaser([&] { ticket.reset(); });
  EXPECT_TRUE(admission.WaitUntilIdle(kPatience));
  releaser.join();
}

TEST(AdmissionTest, WaitingCanBeStopped) {
  Admission admission({.max_requests = 2, .max_bytes = 100});
  auto ticket = std::make_unique<absl::StatusOr<Admission::Ticket>>(Admit(admission, 1));
  std::thread stopper([&] { admission.StopWaiting(); });
  EXPECT_FALSE(admission.WaitUntilIdle(absl::Hours(1)));
  stopper.join();
  EXPECT_FALSE(admission.WaitUntilIdle(absl::Hours(1)));
  ticket.reset();
  EXPECT_TRUE(admission.WaitUntilIdle(absl::ZeroDuration()));
}

TEST(AdmissionTest, QuestionsAreRefusedFromSeverePressureOn) {
  Admission admission({.max_requests = 5, .max_bytes = 50});
  EXPECT_THAT(admission.CheckQuestion(), IsOk());
  admission.SetPressure(Pressure::kHigh);
  EXPECT_THAT(admission.CheckQuestion(), IsOk());
  for (const Pressure pressure : {Pressure::kSevere, Pressure::kCritical}) {
    admission.SetPressure(pressure);
    EXPECT_THAT(admission.CheckQuestion(), StatusIs(absl::StatusCode::kResourceExhausted));
  }
  EXPECT_EQ(admission.load().refused_for_memory, 2);
}

TEST(AdmissionTest, RetryAfterTravelsWithTheStatus) {
  const absl::Status plain = absl::ResourceExhaustedError("full");
  EXPECT_EQ(RetryAfterMs(plain), std::nullopt);
  EXPECT_EQ(RetryAfterMs(WithRetryAfterMs(plain, 1234)), 1234);
  EXPECT_EQ(WithRetryAfterMs(plain, 1234).message(), "full");
}

TEST(AdmissionTest, NeverPassesItsLimitsUnderContention) {
  Admission admission({.max_requests = 5, .max_bytes = 50});
  std::atomic<int64_t> inside{0};
  std::atomic<int64_t> most{0};
  std::atomic<int64_t> admitted{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 2000; ++i) {
        absl::StatusOr<Admission::Ticket> ticket = Admit(admission, 12);
        if (!ticket.ok()) continue;
        admitted.fetch_add(1);
        const int64_t now = inside.fetch_add(1) + 1;
        int64_t seen = most.load();
        while (now > seen && !most.compare_exchange_weak(seen, now)) {
        }
        inside.fetch_sub(1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(most.load(), 4);  // 4 * 12 <= 50 < 5 * 12.
  EXPECT_GT(admitted.load(), 0);
  EXPECT_EQ(admission.load().requests, 0);
  EXPECT_EQ(admission.load().bytes, 0);
}

// The answers of one caller and of its connections.
class AnswerShareTest : public testing::Test {
 protected:
  // Admits a request that takes the bytes of its answer, or refuses it. Each is on a connection of
  // its own.
  absl::StatusOr<Admission::Ticket> Ask(std::string_view caller, int64_t answer_bytes,
                                        int64_t other_bytes = 0) {
    return AskOn({.caller = caller, .connection = ++last_connection_}, answer_bytes, other_bytes);
  }
  absl::StatusOr<Admission::Ticket> AskOn(const FlowId& flow, int64_t answer_bytes,
                                          int64_t other_bytes = 0) {
    absl::StatusOr<Admission::Ticket> ticket = admission_.Hold(other_bytes, flow);
    if (!ticket.ok()) return ticket.status();
    if (const absl::Status status = Admit(*ticket, answer_bytes, other_bytes); !status.ok()) {
      return status;
    }
    return ticket;
  }
  absl::Status Admit(Admission::Ticket& ticket, int64_t answer_bytes, int64_t other_bytes = 0) {
    Asked asked = {.left_ns = kNoDeadlineNs, .answer_bytes = answer_bytes};
    const Verdict verdict = admission_.Admit(ticket, answer_bytes + other_bytes, asked,
                                             [] { return FairQueue::Inside(); });
    return RefusalOf(verdict, asked, admission_.limits()).status;
  }

  // Asks for answers of `bytes` bytes on the connection until one is refused, and returns their
  // sum.
  int64_t Fill(const FlowId& flow, int64_t bytes, absl::Status& refused) {
    std::vector<Admission::Ticket>& tickets = filled_[{flow.caller, flow.connection}];
    while (true) {
      absl::StatusOr<Admission::Ticket> ticket = AskOn(flow, bytes);
      refused = ticket.status();
      if (!ticket.ok()) return static_cast<int64_t>(tickets.size()) * bytes;
      tickets.push_back(*std::move(ticket));
    }
  }

  Admission admission_{{.max_requests = 1000, .max_bytes = 100}};
  uint64_t last_connection_ = 1000;
  std::map<std::pair<std::string_view, uint64_t>, std::vector<Admission::Ticket>> filled_;
};

TEST_F(AnswerShareTest, OneCallerHoldsHalfAndLeavesTheRestToOthers) {
  std::vector<absl::StatusOr<Admission::Ticket>> own;
  for (int i = 0; i < 5; ++i) {
    own.push_back(Ask("a", 10));
    ASSERT_TRUE(own.back().ok()) << own.back().status();
  }
  const absl::StatusOr<Admission::Ticket> refused = Ask("a", 1);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.status().message()),
              HasSubstr("answers that the caller waits for or has not read yet hold 50 bytes, and "
                        "this one needs 1: those of one caller may hold 50"));
  EXPECT_TRUE(RetryAfterMs(refused.status()).has_value());
  EXPECT_EQ(admission_.load().bytes, 50);
  EXPECT_TRUE(Ask("a", 0, 40).ok()) << "a message whose D is a tensor's";
  const absl::StatusOr<Admission::Ticket> other = Ask("b", 50);
  ASSERT_TRUE(other.ok()) << other.status();
  // An answer is held until it is read, not only until it is computed.
  own[0]->MarkAnswered(10);
  EXPECT_FALSE(Ask("b", 1).ok());
  EXPECT_FALSE(Ask("a", 1).ok());
  own.pop_back();
  EXPECT_TRUE(Ask("a", 10).ok());
}

TEST_F(AnswerShareTest, ALoneAnswerMayHoldMore) {
  absl::StatusOr<Admission::Ticket> whole = Ask("a", 100);
  ASSERT_TRUE(whole.ok()) << whole.status();
  whole = absl::CancelledError();
  EXPECT_EQ(admission_.load().bytes, 0);
  const absl::StatusOr<Admission::Ticket> most = Ask("a", 80);
  ASSERT_TRUE(most.ok()) << most.status();
  EXPECT_FALSE(Ask("a", 1).ok());
  EXPECT_TRUE(Ask("b", 20).ok());
}

TEST_F(AnswerShareTest, AProductThatWaitsAgainCountsOnce) {
  absl::StatusOr<Admission::Ticket> ticket = Ask("a", 40);
  ASSERT_TRUE(ticket.ok()) << ticket.status();
  EXPECT_TRUE(Admit(*ticket, 40).ok());
  EXPECT_TRUE(Ask("a", 10).ok());
  EXPECT_FALSE(Ask("a", 11).ok());
}

TEST_F(AnswerShareTest, CallersWithoutAnswersAreForgottenAndOthersAreNot) {
  const absl::StatusOr<Admission::Ticket> held = Ask("a", 45);
  ASSERT_TRUE(held.ok());
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(Ask(std::to_string(i), 50).ok()) << i;
  }
  EXPECT_TRUE(Ask("a", 5).ok());
  EXPECT_FALSE(Ask("a", 6).ok());
}

// As of places, a connection gets seven eighths of what the others of its caller have left.
TEST_F(AnswerShareTest, OneConnectionLeavesRoomForOthersOfItsCaller) {
  absl::Status refused;
  EXPECT_EQ(Fill({"a", 1}, 1, refused), 43);  // Of 50.
  EXPECT_THAT(refused,
              StatusIs(absl::StatusCode::kResourceExhausted,
                       "queue: answers that the connection waits for or has not read yet hold 43 "
                       "bytes, and this one needs 1: 7 of the 7 bytes left to its caller are kept "
                       "for others of its connections"));
  EXPECT_TRUE(RetryAfterMs(refused).has_value());
  EXPECT_EQ(Fill({"a", 2}, 1, refused), 6);
  EXPECT_EQ(Fill({"a", 3}, 1, refused), 1);
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("the caller")));
  EXPECT_EQ(Fill({"b", 1}, 1, refused), 43) << "another caller's connection of the same number";
  filled_.erase({"a", 1});                    // It has read its answers.
  EXPECT_EQ(Fill({"a", 2}, 1, refused), 42);  // Of 49.
}

// The first answer of a connection may take all that its caller has left.
TEST_F(AnswerShareTest, ALargeAnswerIsAdmittedBesideThoseOfOtherConnections) {
  const absl::StatusOr<Admission::Ticket> small = AskOn({"a", 1}, 5);
  ASSERT_TRUE(small.ok());
  EXPECT_TRUE(AskOn({"a", 2}, 45).ok());
  EXPECT_FALSE(AskOn({"a", 2}, 46).ok());
  EXPECT_FALSE(AskOn({"a", 1}, 39).ok());
  EXPECT_TRUE(AskOn({"a", 1}, 38).ok());
}

TEST_F(AnswerShareTest, ConnectionsWithoutAnswersAreForgottenAndOthersAreNot) {
  const absl::StatusOr<Admission::Ticket> held = AskOn({"a", 1}, 30);
  ASSERT_TRUE(held.ok());
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(Ask("a", 20).ok()) << i;
  }
  EXPECT_TRUE(AskOn({"a", 1}, 13).ok());
  EXPECT_FALSE(AskOn({"a", 1}, 14).ok());
}

}  // namespace
}  // namespace gemmd
