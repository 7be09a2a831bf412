// SPDX-License-Identifier: Apache-2.0
//
// Compressions that take turns: what they hold, how many there are, and how they are aborted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <string>
#include <utility>
#include <vector>

#include "server/store/compression.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/patience.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/units.h"

namespace gemmd {
namespace {

using testing::HasSubstr;
using SessionUse = TensorStore::SessionUse;
using Result = absl::StatusOr<TensorState>;

TensorSpec Spec(ElementType type, int64_t rows, int64_t columns) {
  return MakeTensorSpec(TightLayout("spec", type, Order::kRowMajor, rows, columns).value(), 1, {})
      .value();
}

class CompressorTest : public testing::Test {
 protected:
  SessionUse Open() { return store_.OpenSession("", "peer").value(); }
  SessionUse Again(const SessionUse& session) {
    return store_.Use(session.token().ToHex()).value();
  }

  // A tensor whose bytes are all the same.
  void Put(const SessionUse& session, const TensorSpec& spec, const std::string& name,
           int byte = 0x33) {
    TensorDraft draft = store_.MakeDraft(session, spec, {.name = name}).value();
    std::fill_n(draft.bytes->host(), spec.bytes, static_cast<std::byte>(byte));
    ASSERT_THAT(store_.Publish(session, std::move(draft)), IsOk());
  }

  struct Begun {
    std::weak_ptr<Compressor::Task> task;
    std::future<Result> result;
  };
  absl::StatusOr<Begun> Begin(const SessionUse& session, const Compressor::Request& request) {
    std::promise<Result> promise;
    Begun begun;
    begun.result = promise.get_future();
    absl::StatusOr<std::weak_ptr<Compressor::Task>> task = compressor_->Begin(
        Again(session), request, [promise = std::move(promise)](Result result) mutable {
          promise.set_value(std::move(result));
        });
    if (!task.ok()) return task.status();
    begun.task = *task;
    return begun;
  }
  Result Compress(const SessionUse& session, const Compressor::Request& request) {
    absl::StatusOr<Begun> begun = Begin(session, request);
    if (!begun.ok()) return begun.status();
    return Awaited(std::move(begun->result), "a compression");
  }

  // Holds the compressor's thread until released.
  class Hold {
   public:
    explicit Hold(CompressorTest& test) {
      const SessionUse session = test.Open();
      test.Put(session, Spec(ElementType::kU8, 0, 0), "empty");
      std::promise<void> held;
      std::future<void> is_held = held.get_future();
      // The thread owns the state that it waits for, which it may still read after this object is
      // destroyed.
      EXPECT_THAT(test.compressor_->Begin(test.Again(session), {.tensor = "empty"},
                                          [held = std::move(held),
                                           let_go = let_go_.get_future()](const Result&) mutable {
                                            held.set_value();
                                            let_go.wait();
                                          }),
                  IsOk());
      Awaited(std::move(is_held), "the compressor's thread");
    }
    ~Hold() { let_go_.set_value(); }

   private:
    std::promise<void> let_go_;
  };

  FakeClock clock_;
  TensorStore store_{{.max_bytes = 64 * kMebi, .max_session_bytes = 32 * kMebi}, clock_};
  std::unique_ptr<Compressor> compressor_ = std::make_unique<Compressor>(store_);
};

TEST_F(CompressorTest, MakesATensorOfItsOwn) {
  const SessionUse session = Open();
  Put(session, Spec(ElementType::kU8, 3, 8), "w", 0x33);
  const Result made = Compress(
      session, {.tensor = "w", .keep = {.name = "w24", .lease_ns = 7'000'000'000, .pinned = true}});
  ASSERT_THAT(made, IsOk());
  EXPECT_TRUE(made->tensor->spec.layout.is_sparse());
  EXPECT_EQ(made->tensor->name, "w24");
  EXPECT_EQ(made->lease_ns, 7'000'000'000);
  EXPECT_TRUE(made->pinned);
  const std::string bytes(reinterpret_cast<const char*>(made->tensor->bytes->host()),
                          static_cast<size_t>(made->tensor->spec.bytes));
  // If all are equal, the first two of each group stay: indices 0 and 1.
  EXPECT_EQ(bytes, std::string(12, '\x33') + std::string(3, '\x44'));
  EXPECT_THAT(store_.Describe(session, "w24"), IsOk());
  EXPECT_EQ(store_.Describe(session, "w")->tensor->spec.bytes, 24);
}

TEST_F(CompressorTest, NobodyElseFindsTheTensor) {
  const SessionUse owner = Open();
  const SessionUse other = Open();
  Put(owner, Spec(ElementType::kU8, 3, 8), "w");
  Put(owner, Spec(ElementType::kB1, 3, 8), "mask", 0);
  Put(other, Spec(ElementType::kU8, 3, 8), "mine");
  const absl::Status nothing = Compress(other, {.tensor = "nothing"}).status();
  EXPECT_THAT(nothing, StatusIs(absl::StatusCode::kNotFound));
  EXPECT_EQ(Compress(other, {.tensor = "w"}).status(), nothing);
  EXPECT_EQ(Compress(other, {.tensor = "mine", .mask = "mask"}).status(), nothing);
  EXPECT_THAT(Compress(owner, {.tensor = "w", .mask = "mask"}), IsOk());
}

TEST_F(CompressorTest, WhatFailsLeavesNothing) {
  const SessionUse session = Open();
  Put(session, Spec(ElementType::kU8, 1024, 1024), "w");
  Put(session, Spec(ElementType::kB1, 1024, 1024), "all", 0xff);
  Put(session, Spec(ElementType::kF64, 2, 2), "f64");
  Put(session, Spec(ElementType::kU8, 30, kMebi), "most");
  const int64_t used = session.account().used();
  EXPECT_THAT(Compress(session, {.tensor = "w", .mask = "all"}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "mask: row 0, group 0: got 4 elements to be kept, want at most 2"));
  EXPECT_THAT(Compress(session, {.tensor = "f64"}), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(Compress(session, {.tensor = "w", .keep = {.name = "", .lease_ns = -1}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("lease_ns: got -1")));
  EXPECT_THAT(
      Compress(session, {.tensor = "most"}),
      StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("--tensor-bytes of a session")));
  EXPECT_EQ(session.account().used(), used);
  EXPECT_EQ(store_.List(session).size(), 4u);
}

TEST_F(CompressorTest, TheNewTensorHasItsRoomFromTheStart) {
  const SessionUse session = Open();
  Put(session, Spec(ElementType::kU8, 1024, 1024), "w");
  const int64_t used = session.account().used();
  const Hold hold(*this);
  absl::StatusOr<Begun> begun = Begin(session, {.tensor = "w"});
  ASSERT_THAT(begun, IsOk());
  EXPECT_EQ(session.account().used() - used, kMebi / 2 + kMebi / 8 + TensorStore::kTensorBytes);
}

TEST_F(CompressorTest, ADeletedTensorIsCompressedAllTheSame) {
  const SessionUse session = Open();
  Put(session, Spec(ElementType::kU8, 1024, 1024), "w");
  absl::StatusOr<Begun> begun;
  {
    const Hold hold(*this);
    begun = Begin(session, {.tensor = "w", .keep = {.name = "w24"}});
    ASSERT_THAT(begun, IsOk());
    ASSERT_THAT(store_.Delete(session, "w"), IsOk());
    EXPECT_GT(session.account().used(), kMebi);
  }
  ASSERT_THAT(Awaited(std::move(begun->result), "a compression"), IsOk());
  EXPECT_LT(session.account().used(), kMebi);
}

TEST_F(CompressorTest, AbortEndsAtOnce) {
  const SessionUse session = Open();
  Put(session, Spec(ElementType::kU8, 1024, 1024), "w");
  const int64_t used = session.account().used();
  {
    const Hold hold(*this);
    absl::StatusOr<Begun> begun = Begin(session, {.tensor = "w", .keep = {.name = "w24"}});
    ASSERT_THAT(begun, IsOk());
    const std::shared_ptr<Compressor::Task> task = begun->task.lock();
    ASSERT_NE(task, nullptr);
    task->Abort();
    task->Abort();
    EXPECT_THAT(Awaited(std::move(begun->result), "a compression that was aborted"),
                StatusIs(absl::StatusCode::kCancelled));
  }
  EXPECT_TRUE(Eventually([&] { return session.account().used() == used; }));
  EXPECT_THAT(store_.Describe(session, "w24"), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(Compress(session, {.tensor = "w"}), IsOk());
}

TEST_F(CompressorTest, SoManyAreAtWorkAtOnce) {
  std::vector<SessionUse> sessions;
  std::vector<Begun> begun;
  {
    const Hold hold(*this);
    for (int i = 0; i < Compressor::kMax / Compressor::kMaxOfSession; ++i) {
      const SessionUse& session = sessions.emplace_back(Open());
      Put(session, Spec(ElementType::kU8, 16, 16), "w");
      for (int j = 0; j < Compressor::kMaxOfSession; ++j) {
        absl::StatusOr<Begun> one = Begin(session, {.tensor = "w"});
        ASSERT_THAT(one, IsOk());
        begun.push_back(*std::move(one));
      }
      EXPECT_THAT(Begin(session, {.tensor = "w"}),
                  StatusIs(absl::StatusCode::kResourceExhausted,
                           HasSubstr("compress: got 8 tensors at once of the session")));
    }
    const SessionUse& last = sessions.emplace_back(Open());
    Put(last, Spec(ElementType::kU8, 16, 16), "w");
    EXPECT_THAT(Begin(last, {.tensor = "w"}),
                StatusIs(absl::StatusCode::kResourceExhausted,
                         HasSubstr("compress: got 64 tensors at once, want at most 64")));
  }
  for (Begun& one : begun) EXPECT_THAT(Awaited(std::move(one.result), "one of many"), IsOk());
  EXPECT_THAT(Compress(sessions.back(), {.tensor = "w"}), IsOk());
}

TEST_F(CompressorTest, ADrainEndsIt) {
  const SessionUse session = Open();
  Put(session, Spec(ElementType::kU8, 1024, 1024), "w");
  absl::StatusOr<Begun> begun;
  {
    const Hold hold(*this);
    begun = Begin(session, {.tensor = "w"});
    ASSERT_THAT(begun, IsOk());
    store_.Close();
  }
  EXPECT_THAT(Awaited(std::move(begun->result), "a compression"),
              StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(Begin(session, {.tensor = "w"}), StatusIs(absl::StatusCode::kUnavailable));
}

TEST_F(CompressorTest, NothingIsLeftUntold) {
  const SessionUse session = Open();
  Put(session, Spec(ElementType::kU8, 4, kMebi), "w");
  std::vector<Begun> begun;
  for (int i = 0; i < 4; ++i) begun.push_back(Begin(session, {.tensor = "w"}).value());
  compressor_ = nullptr;
  for (Begun& one : begun) {
    const Result result = Awaited(std::move(one.result), "a compression");
    if (!result.ok()) {
      EXPECT_THAT(result, StatusIs(absl::StatusCode::kUnavailable));
    }
  }
}

}  // namespace
}  // namespace gemmd
