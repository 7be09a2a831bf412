// SPDX-License-Identifier: Apache-2.0
//
// Sessions, leases, names and quotas, on a clock that only moves when the test moves it.
#include "server/store/tensor_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/units.h"

namespace gemmd {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using SessionUse = TensorStore::SessionUse;

constexpr int64_t kSecond = 1'000'000'000;

TensorSpec Row(int64_t bytes) {
  return MakeTensorSpec(TightLayout("spec", ElementType::kU8, Order::kRowMajor, 1, bytes).value(),
                        1, {})
      .value();
}

class TensorStoreTest : public testing::Test {
 protected:
  SessionUse Open(const std::string& token = "", const std::string& peer = "a") {
    absl::StatusOr<SessionUse> session = store_.OpenSession(token, peer);
    EXPECT_THAT(session, IsOk());
    return *std::move(session);
  }

  std::optional<Sha256Digest> HashOf(const std::string& text) {
    return Sha256::Of({reinterpret_cast<const std::byte*>(text.data()), text.size()});
  }

  absl::Status Write(const SessionUse& session, const std::shared_ptr<Upload>& upload,
                     const std::string& text, int64_t offset = 0) {
    const absl::Span<const std::byte> bytes(reinterpret_cast<const std::byte*>(text.data()),
                                            text.size());
    return store_.Write(session, upload, offset, {bytes}).status();
  }

  absl::StatusOr<TensorState> Put(const SessionUse& session, const std::string& text,
                                  Keeping keep = {},
                                  const std::optional<Sha256Digest>& digest = {}) {
    absl::StatusOr<TensorStore::Beginning> begun =
        store_.Begin(session, Row(static_cast<int64_t>(text.size())), std::move(keep), digest);
    if (!begun.ok()) return begun.status();
    if (begun->tensor) return *begun->tensor;
    absl::StatusOr<TensorState> result = absl::UnknownError("not told");
    begun->upload->Listen(store_.Attach(begun->upload).value(),
                          [&result](const absl::StatusOr<TensorState>& told) { result = told; });
    EXPECT_THAT(Write(session, begun->upload, text), IsOk());
    return result;
  }

  std::string TextOf(const SessionUse& session, const TensorName& name) {
    const absl::StatusOr<TensorStore::TensorUse> use = store_.Find(session, name);
    if (!use.ok()) return std::string(use.status().message());
    const TensorBytes& bytes = *(*use)->bytes;
    return std::string(reinterpret_cast<const char*>(bytes.host()),
                       static_cast<size_t>(bytes.bytes()));
  }

  bool Exists(const SessionUse& session, const std::string& name) {
    return store_.Describe(session, name).ok();
  }

  std::vector<std::string> Names(const SessionUse& session) {
    std::vector<std::string> names;
    for (const TensorState& state : store_.List(session)) names.push_back(state.tensor->name);
    return names;
  }

  // The id at this index of the listing.
  std::string IdOfSession(size_t place) {
    const TensorStore::SessionList list = store_.ListSessions(100);
    EXPECT_LT(place, list.sessions.size());
    return place < list.sessions.size() ? list.sessions[place].id : "";
  }

  FakeClock clock_;
  TensorStore store_{{.max_sessions = 8, .max_bytes = 16 * kMebi, .max_session_bytes = 8 * kMebi},
                     clock_};
};

TEST_F(TensorStoreTest, OnlyTheOwnerFindsATensor) {
  const SessionUse owner = Open();
  const SessionUse other = Open();
  const absl::StatusOr<TensorState> put = Put(owner, "abc", {.name = "w"});
  ASSERT_THAT(put, IsOk());
  EXPECT_EQ(TextOf(owner, "w"), "abc");
  EXPECT_EQ(TextOf(owner, put->tensor->handle), "abc");
  const std::string words = TextOf(other, RandomId());
  EXPECT_THAT(words, HasSubstr("tensor: "));
  EXPECT_EQ(TextOf(other, "w"), words);
  EXPECT_EQ(TextOf(other, put->tensor->handle), words);
}

TEST_F(TensorStoreTest, CountsTheBytesOfTheOwnersOfARule) {
  const SessionUse unknown = Open();
  ASSERT_THAT(Put(unknown, "abc"), IsOk());
  EXPECT_TRUE(store_.load().bytes_of_rules.empty());
  SessionOwner owner;
  owner.is_known = true;
  owner.rule = "team/*";
  std::vector<SessionUse> sessions;
  for (const char* name : {"team/a", "team/b"}) {
    absl::StatusOr<SessionUse> session = store_.OpenSession("", name, owner);
    ASSERT_THAT(session, IsOk());
    ASSERT_THAT(Put(*session, "abc"), IsOk());
    sessions.push_back(*std::move(session));
  }
  const TensorStore::Load load = store_.load();
  ASSERT_EQ(load.bytes_of_rules.size(), 1U);
  // A tensor is charged what its account says; all three are alike.
  EXPECT_EQ(load.bytes_of_rules.at("team/*"), load.bytes / 3 * 2);
  EXPECT_GT(load.bytes, 0);
}

TEST_F(TensorStoreTest, LeasesEndAfterTheLastUse) {
  const SessionUse session = Open();
  ASSERT_THAT(Put(session, "a", {.name = "short", .lease_ns = 5 * kSecond}), IsOk());
  ASSERT_THAT(Put(session, "b", {.name = "default"}), IsOk());
  ASSERT_THAT(Put(session, "c", {.name = "pinned", .lease_ns = kSecond, .pinned = true}), IsOk());
  clock_.Advance(4 * kSecond);
  EXPECT_EQ(TextOf(session, "short"), "a") << "which is a use";
  clock_.Advance(5 * kSecond - 1);
  EXPECT_EQ(store_.Describe(session, "short")->expires_in_ns, 1) << "which is none";
  clock_.Advance(1);
  EXPECT_THAT(Names(session), ElementsAre("default", "pinned"));
  EXPECT_FALSE(Exists(session, "short"));
  clock_.Advance(600 * kSecond);
  store_.Expire();
  EXPECT_THAT(Names(session), ElementsAre("pinned"));
  EXPECT_EQ(store_.load().tensors_expired, 2);
}

TEST_F(TensorStoreTest, WhatIsUsedStays) {
  const SessionUse session = Open();
  ASSERT_THAT(Put(session, "a", {.name = "x", .lease_ns = kSecond}), IsOk());
  {
    const absl::StatusOr<TensorStore::TensorUse> use = store_.Find(session, "x");
    clock_.Advance(10 * kSecond);
    store_.Expire();
    EXPECT_TRUE(Exists(session, "x"));
    EXPECT_EQ(store_.Describe(session, "x")->expires_in_ns, kSecond);
  }
  EXPECT_TRUE(Exists(session, "x"));
  clock_.Advance(kSecond);
  EXPECT_FALSE(Exists(session, "x"));
}

TEST_F(TensorStoreTest, WhoHoldsATensorKeepsItsBytes) {
  const SessionUse session = Open();
  ASSERT_THAT(Put(session, "old", {.name = "x"}), IsOk());
  absl::StatusOr<TensorStore::TensorUse> use = store_.Find(session, "x");
  ASSERT_THAT(use, IsOk());
  ASSERT_THAT(Put(session, "new", {.name = "x"}), IsOk());
  EXPECT_EQ(TextOf(session, "x"), "new");
  EXPECT_EQ(std::string(reinterpret_cast<const char*>((*use)->bytes->host()), 3), "old");
  ASSERT_THAT(store_.Delete(session, "x"), IsOk());
  EXPECT_GT(store_.load().bytes, 0);
  use = TensorStore::TensorUse();
  EXPECT_EQ(store_.load().bytes, 0);
}

TEST_F(TensorStoreTest, KeepAliveRenewsAndChanges) {
  const SessionUse session = Open();
  ASSERT_THAT(Put(session, "a", {.name = "x", .lease_ns = 5 * kSecond}), IsOk());
  clock_.Advance(4 * kSecond);
  EXPECT_EQ(store_.KeepAlive(session, "x", {}, {})->expires_in_ns, 5 * kSecond);
  clock_.Advance(4 * kSecond);
  EXPECT_TRUE(store_.KeepAlive(session, "x", {}, true)->pinned);
  clock_.Advance(100 * kSecond);
  EXPECT_EQ(store_.KeepAlive(session, "x", 0, false)->expires_in_ns, 600 * kSecond);
  EXPECT_THAT(store_.KeepAlive(session, "x", -1, {}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("lease_ns: got -1")));
  EXPECT_THAT(store_.KeepAlive(session, "y", {}, {}), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(TensorStoreTest, ASessionLingersAfterItsLastUse) {
  SessionUse session = Open();
  const std::string token = session.token().ToHex();
  ASSERT_THAT(Put(session, "a", {.name = "x"}), IsOk());
  clock_.Advance(100 * kSecond);
  store_.Expire();
  session = SessionUse();
  clock_.Advance(29 * kSecond);
  store_.Expire();
  ASSERT_THAT(store_.Use(token), IsOk()) << "which is a use";
  clock_.Advance(29 * kSecond);
  session = Open(token);
  EXPECT_TRUE(Exists(session, "x"));
  ASSERT_THAT(Put(session, "b", {.name = "kept", .pinned = true}), IsOk());
  session = SessionUse();
  clock_.Advance(30 * kSecond);
  session = Open(token);
  EXPECT_THAT(Names(session), ElementsAre("kept")) << "before anybody looked for what has expired";
  ASSERT_THAT(store_.Delete(session, "kept"), IsOk());
  session = SessionUse();
  clock_.Advance(30 * kSecond);
  EXPECT_THAT(store_.Use(token), StatusIs(absl::StatusCode::kUnauthenticated));
  EXPECT_EQ(store_.load().sessions, 0);
  EXPECT_EQ(store_.load().bytes, 0);
}

// Each call and each product uses the session, which may have very many tensors.
TEST_F(TensorStoreTest, AUseEndsWhatIsDueAndLooksAtNothingElse) {
  constexpr int64_t kMillisecond = kSecond / 1000;
  const SessionUse session = Open();
  const std::string token = session.token().ToHex();
  for (int i = 0; i < 1000; ++i) ASSERT_THAT(Put(session, "a"), IsOk());
  ASSERT_THAT(Put(session, "a", {.name = "x", .lease_ns = kMillisecond}), IsOk());
  ASSERT_THAT(Put(session, "b", {.name = "y", .lease_ns = kMillisecond}), IsOk());
  ASSERT_THAT(store_.Use(token), IsOk());
  clock_.Advance(kMillisecond - 1);
  for (int i = 0; i < 100; ++i) ASSERT_THAT(store_.Use(token), IsOk());
  EXPECT_EQ(store_.looks(), 0);
  clock_.Advance(1);
  ASSERT_THAT(store_.Use(token), IsOk());
  EXPECT_EQ(store_.load().tensors, 1000);
  EXPECT_EQ(store_.load().tensors_expired, 2);
  EXPECT_EQ(store_.looks(), 2);
}

// However many sessions, tensors and uploads there are.
TEST_F(TensorStoreTest, WhatIsNotDueIsNotLookedAt) {
  std::vector<SessionUse> sessions;
  for (int i = 0; i < 4; ++i) {
    sessions.push_back(Open());
    for (int k = 0; k < 500; ++k) {
      ASSERT_THAT(Put(sessions.back(), "a", {.name = absl::StrCat(k), .pinned = k % 2 == 1}),
                  IsOk());
    }
    ASSERT_THAT(store_.Begin(sessions.back(), Row(2), {}, {}), IsOk());
  }
  for (int i = 0; i < 599; ++i) {
    clock_.Advance(kSecond);
    store_.Expire();
  }
  EXPECT_EQ(store_.looks(), 0);
  clock_.Advance(kSecond);
  store_.Expire();
  EXPECT_EQ(store_.looks(), 4 * (250 + 1)) << "those of 600 s, once";
  EXPECT_EQ(store_.load().tensors, 4 * 250);
  EXPECT_EQ(store_.load().uploads, 0);
  for (int i = 0; i < 1000; ++i) {
    clock_.Advance(1000 * kSecond);
    store_.Expire();
  }
  EXPECT_EQ(store_.looks(), 4 * (250 + 1)) << "pinned ones are never due";
  sessions.clear();
  clock_.Advance(29 * kSecond);
  store_.Expire();
  EXPECT_EQ(store_.looks(), 4 * (250 + 1));
  clock_.Advance(kSecond);
  for (int i = 0; i < 10; ++i) store_.Expire();
  EXPECT_EQ(store_.looks(), 4 * (250 + 1 + 1)) << "each session once";
}

// A tensor that is used repeatedly is visited once per lease; one whose lease is shortened, when
// the shorter lease ends.
TEST_F(TensorStoreTest, UsesMoveWhenALeaseIsLookedAt) {
  const SessionUse session = Open();
  ASSERT_THAT(Put(session, "a", {.name = "used", .lease_ns = 10 * kSecond}), IsOk());
  ASSERT_THAT(Put(session, "a", {.name = "short", .lease_ns = 1000 * kSecond}), IsOk());
  for (int i = 0; i < 100; ++i) {
    clock_.Advance(kSecond);
    EXPECT_EQ(TextOf(session, "used"), "a");
    store_.Expire();
  }
  EXPECT_LE(store_.looks(), 12);
  EXPECT_GE(store_.looks(), 10);
  for (int64_t lease_s = 900; lease_s > 5; --lease_s) {
    ASSERT_THAT(store_.KeepAlive(session, "short", lease_s * kSecond, {}), IsOk());
  }
  const absl::StatusOr<TensorStore::TensorUse> held = store_.Find(session, "used");
  const int64_t before = store_.looks();
  clock_.Advance(6 * kSecond);
  store_.Expire();
  EXPECT_EQ(store_.looks(), before + 1) << "once, not once for each lease that it had";
  EXPECT_EQ(store_.load().tensors_expired, 1) << "which is the one that has got a shorter lease";
  EXPECT_THAT(Names(session), ElementsAre("used"));
  ASSERT_THAT(Put(session, "b", {.name = "long", .lease_ns = kNever}), IsOk());
  clock_.Advance(600 * kSecond);
  store_.Expire();
  EXPECT_THAT(Names(session), ElementsAre("long", "used"));
}

TEST_F(TensorStoreTest, PinnedTensorsStayForADayAfterTheLastConnection) {
  constexpr int64_t kDay = 24 * 3600 * kSecond;
  SessionUse session = Open();
  const std::string token = session.token().ToHex();
  ASSERT_THAT(Put(session, "a", {.name = "kept", .pinned = true}), IsOk());
  ASSERT_THAT(store_.Begin(session, Row(2), {.name = "u", .pinned = true}, {}), IsOk());
  clock_.Advance(2 * kDay);
  store_.Expire();
  EXPECT_TRUE(Exists(session, "kept")) << "as long as there is one";
  session = SessionUse();
  clock_.Advance(kDay - 1);
  store_.Expire();
  session = Open(token);
  EXPECT_TRUE(Exists(session, "kept")) << "the day begins anew";
  session = SessionUse();
  clock_.Advance(kDay - 1);
  store_.Expire();
  EXPECT_EQ(store_.load().tensors, 1);
  clock_.Advance(1);
  store_.Expire();
  EXPECT_EQ(store_.load().sessions, 0);
  EXPECT_EQ(store_.load().bytes, 0);
  EXPECT_THAT(store_.Use(token), StatusIs(absl::StatusCode::kUnauthenticated));
}

// The lease of an upload has ended long before.
TEST_F(TensorStoreTest, ASessionEndsWithTheLastPinnedThingThatItHas) {
  {
    const SessionUse session = Open();
    ASSERT_THAT(
        store_.Begin(session, Row(2), {.name = "u", .lease_ns = 60 * kSecond, .pinned = true}, {}),
        IsOk());
  }
  clock_.Advance(59 * kSecond);
  store_.Expire();
  EXPECT_EQ(store_.load().sessions, 1);
  clock_.Advance(kSecond);
  store_.Expire();
  EXPECT_EQ(store_.load().uploads, 0);
  EXPECT_EQ(store_.load().sessions, 0);
}

// A place that a user occupies with a pinned tensor is charged to that user, and becomes free
// without a restart.
TEST_F(TensorStoreTest, WhatIsLeftBehindCountsAgainstItsOwnerForADay) {
  for (int i = 0; i < 7; ++i) {
    const SessionUse session = Open("", "uid:1");
    ASSERT_THAT(Put(session, "a", {.name = "p", .pinned = true}), IsOk());
  }
  clock_.Advance(30 * kSecond);
  store_.Expire();
  EXPECT_THAT(store_.OpenSession("", "uid:1"),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("got 7 sessions of the caller's host or user, 7 of them left")));
  Open("", "uid:2");
  clock_.Advance(24 * 3600 * kSecond);
  store_.Expire();
  EXPECT_EQ(store_.load().sessions, 0);
  Open("", "uid:1");
}

TEST_F(TensorStoreTest, AProductCountsOnceForEachTensor) {
  const SessionUse session = Open();
  for (const char* name : {"a", "c", "d"}) ASSERT_THAT(Put(session, name, {.name = name}), IsOk());
  const auto find = [&](const char* name) { return *store_.Find(session, name); };
  const TensorStore::TensorUse a = find("a");
  const TensorStore::TensorUse c = find("c");
  const TensorStore::TensorUse d = find("d");
  const TensorStore::TensorUse none;
  ASSERT_THAT(store_.BeginProduct({&a, &none, &c}, d), IsOk());
  ASSERT_THAT(store_.BeginProduct({&a, &none, &c}, c), IsOk()) << "which overwrites C";
  ASSERT_THAT(store_.BeginProduct({&a, &none, &none}, none), IsOk());
  EXPECT_EQ(store_.StateOf(a).products, 3);
  EXPECT_EQ(store_.StateOf(c).products, 2);
  EXPECT_EQ(store_.StateOf(d).products, 1);
}

TEST_F(TensorStoreTest, ListsSessionsForOperators) {
  SessionUse large = Open();
  for (const int64_t bytes : {100, 400, 300, 200}) {
    ASSERT_THAT(Put(large, std::string(static_cast<size_t>(bytes), 'x'),
                    {.name = absl::StrCat("w", bytes), .pinned = bytes == 300}),
                IsOk());
  }
  ASSERT_THAT(Put(large, "y", {.name = "short", .lease_ns = kSecond}), IsOk());
  ASSERT_THAT(store_.Begin(large, Row(10), {}, {}), IsOk());
  clock_.Advance(5 * kSecond);
  const SessionUse small = Open("", "b");
  const SessionUse again = Open(small.token().ToHex(), "b");
  TensorStore::SessionList list = store_.ListSessions(10);
  ASSERT_EQ(list.sessions.size(), 2);
  EXPECT_EQ(list.left_out, 0);
  const TensorStore::SessionState& first = list.sessions[0];
  EXPECT_EQ(first.caller, "a");
  EXPECT_EQ(first.id.size(), 16);
  EXPECT_NE(first.id, large.token().ToHex().substr(0, 16));
  EXPECT_EQ(first.age_ns, 5 * kSecond);
  EXPECT_EQ(first.streams, 1);
  EXPECT_TRUE(first.is_in_use);
  EXPECT_EQ(first.lingers_ns, 0);
  EXPECT_EQ(first.tensors, 4) << "one has expired";
  EXPECT_EQ(first.pinned, 1);
  EXPECT_EQ(first.uploads, 1);
  EXPECT_EQ(first.bytes, large.account().used());
  std::vector<std::string> largest;
  for (const auto& tensor : first.largest) {
    largest.push_back(absl::StrCat(tensor.name, tensor.pinned ? " pinned " : " ", tensor.bytes));
  }
  EXPECT_THAT(largest, ElementsAre("w400 400", "w300 pinned 300", "w200 200"));
  EXPECT_EQ(list.sessions[1].caller, "b");
  EXPECT_EQ(list.sessions[1].streams, 2);
  EXPECT_EQ(list.sessions[1].age_ns, 0);

  // A call is not a stream.
  const std::string token = large.token().ToHex();
  large = SessionUse();
  {
    const absl::StatusOr<SessionUse> call = store_.Use(token);
    list = store_.ListSessions(1);
    EXPECT_EQ(list.left_out, 1);
    EXPECT_EQ(list.sessions[0].streams, 0);
    EXPECT_TRUE(list.sessions[0].is_in_use);
  }
  clock_.Advance(10 * kSecond);
  list = store_.ListSessions(1);
  EXPECT_FALSE(list.sessions[0].is_in_use);
  EXPECT_EQ(list.sessions[0].lingers_ns, 20 * kSecond);
  clock_.Advance(21 * kSecond);
  store_.Expire();
  list = store_.ListSessions(1);
  EXPECT_EQ(list.sessions[0].lingers_ns, 0);
  EXPECT_EQ(list.sessions[0].tensors, 1) << "what is pinned is left";
}

TEST_F(TensorStoreTest, AnOperatorDropsWhatAnOwnerHasLeft) {
  SessionUse owner = Open();
  const std::string token = owner.token().ToHex();
  ASSERT_THAT(Put(owner, "a", {.name = "kept", .pinned = true}), IsOk());
  owner = SessionUse();
  clock_.Advance(100 * kSecond);
  store_.Expire();
  const std::string id = IdOfSession(0);
  const SessionUse other = Open();
  ASSERT_THAT(Put(other, "b", {.name = "x"}), IsOk());
  const int64_t before = store_.load().bytes;
  EXPECT_THAT(store_.DropSession("0123456789abcdef"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("id: got 0123456789abcdef")));
  EXPECT_THAT(store_.DropSession(token), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(store_.DropSession(""), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_EQ(store_.load().sessions, 2);
  EXPECT_EQ(store_.load().sessions_dropped, 0);
  const absl::StatusOr<TensorStore::Dropped> dropped = store_.DropSession(id);
  ASSERT_THAT(dropped, IsOk());
  EXPECT_EQ(dropped->caller, "a");
  EXPECT_EQ(dropped->tensors, 1);
  EXPECT_EQ(dropped->freed_bytes, before - store_.load().bytes);
  EXPECT_GT(dropped->freed_bytes, 0);
  EXPECT_EQ(dropped->held_bytes, 0);
  EXPECT_EQ(store_.load().sessions, 1);
  EXPECT_EQ(store_.load().sessions_dropped, 1);
  EXPECT_THAT(store_.Use(token), StatusIs(absl::StatusCode::kUnauthenticated));
  EXPECT_THAT(store_.DropSession(id), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_TRUE(Exists(other, "x"));
}

TEST_F(TensorStoreTest, WhoReadsATensorOfADroppedSessionKeepsItsBytes) {
  int told = 0;
  absl::StatusOr<SessionUse> session = store_.OpenSession("", "a", {}, [&told] { ++told; });
  ASSERT_THAT(session, IsOk());
  ASSERT_THAT(Put(*session, "old", {.name = "x"}), IsOk());
  ASSERT_THAT(Put(*session, "y", {.name = "y"}), IsOk());
  absl::StatusOr<TensorStore::TensorUse> use = store_.Find(*session, "x");
  ASSERT_THAT(use, IsOk());
  const absl::StatusOr<TensorStore::Dropped> dropped = store_.DropSession(IdOfSession(0));
  ASSERT_THAT(dropped, IsOk());
  EXPECT_EQ(told, 1);
  EXPECT_EQ(dropped->tensors, 2);
  EXPECT_GT(dropped->freed_bytes, 0);
  EXPECT_EQ(dropped->held_bytes, store_.load().bytes);
  EXPECT_GT(dropped->held_bytes, 0);
  EXPECT_THAT(store_.Find(*session, "x"), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_EQ(std::string(reinterpret_cast<const char*>((*use)->bytes->host()), 3), "old");
  EXPECT_THAT(store_.BeginProduct({&*use}, {}), IsOk());
  use = TensorStore::TensorUse();
  EXPECT_EQ(store_.load().bytes, 0);
  session = SessionUse();
  EXPECT_EQ(told, 1);
}

TEST_F(TensorStoreTest, NothingIsAddedToADroppedSession) {
  const SessionUse session = Open();
  const auto upload = store_.Begin(session, Row(4), {.name = "u", .pinned = true}, {})->upload;
  absl::StatusOr<TensorState> result = absl::UnknownError("not told");
  upload->Listen(store_.Attach(upload).value(),
                 [&result](const absl::StatusOr<TensorState>& told) { result = told; });
  absl::StatusOr<TensorDraft> draft = store_.MakeDraft(session, Row(4), {.name = "d"});
  ASSERT_THAT(draft, IsOk());
  ASSERT_THAT(store_.DropSession(IdOfSession(0)), IsOk());
  EXPECT_THAT(result, StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(Write(session, upload, "late"), IsOk());
  EXPECT_THAT(store_.Publish(session, *std::move(draft)),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("an operator has dropped it")));
  EXPECT_THAT(store_.MakeDraft(session, Row(4), {}), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(store_.Begin(session, Row(4), {}, {}), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(store_.Join(session, upload->id().ToBytes()), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(Names(session), IsEmpty());
  EXPECT_EQ(store_.load().uploads_complete, 0);
}

TEST_F(TensorStoreTest, OneHostLeavesPlacesForOthers) {
  std::vector<SessionUse> sessions;
  for (int i = 0; i < 7; ++i) sessions.push_back(Open("", "greedy"));
  EXPECT_THAT(store_.OpenSession("", "greedy"),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("got 7 sessions")));
  sessions.push_back(Open("", "other"));
  EXPECT_THAT(store_.OpenSession("", "third"),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("--max-sessions")));
}

TEST_F(TensorStoreTest, QuotasHoldForTheSessionAndForAll) {
  const SessionUse first = Open();
  const auto begin = [this](const SessionUse& session, int64_t bytes) {
    return store_.Begin(session, Row(bytes), {}, {});
  };
  EXPECT_THAT(begin(first, 8 * kMebi),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("quota: got 8388608 bytes of host memory, want at most the "
                                 "8387584 that are free of the session: 1024 of 8388608 are used "
                                 "(--tensor-bytes of a session)")));
  EXPECT_EQ(store_.load().bytes, 0) << "what was refused takes nothing";
  ASSERT_THAT(begin(first, 6 * kMebi), IsOk());
  EXPECT_THAT(begin(first, 2 * kMebi), StatusIs(absl::StatusCode::kResourceExhausted));
  const SessionUse second = Open();
  ASSERT_THAT(begin(second, 7 * kMebi), IsOk());
  const SessionUse third = Open();
  EXPECT_THAT(begin(third, 4 * kMebi),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("that are free of all sessions: 13765632 of 16777216 are used "
                                 "(--tensor-bytes)")));
  EXPECT_EQ(third.account().used(), 0);
  EXPECT_LT(third.account().free(), 3 * kMebi);
}

TEST_F(TensorStoreTest, ASessionHasABoundedNumberOfTensors) {
  TensorStore store({.max_bytes = int64_t{1} << 40, .max_session_bytes = int64_t{1} << 40}, clock_);
  const SessionUse session = store.OpenSession("", "a").value();
  for (size_t i = 0; i < TensorStore::kMaxTensors; ++i) {
    ASSERT_THAT(store.Begin(session, Row(0), {}, {}), IsOk());
  }
  EXPECT_THAT(
      store.Begin(session, Row(0), {}, {}),
      StatusIs(
          absl::StatusCode::kResourceExhausted,
          HasSubstr("quota: got 4096 tensors and uploads of the session, want fewer than 4096")));
}

// Results of products are drafts while the products run.
TEST_F(TensorStoreTest, ASessionHasABoundedNumberOfTensorsThatAreMadeAtOnce) {
  TensorStore store({.max_bytes = int64_t{1} << 40, .max_session_bytes = int64_t{1} << 40}, clock_);
  const SessionUse session = store.OpenSession("", "a").value();
  for (size_t i = 1; i < TensorStore::kMaxTensors; ++i) {
    ASSERT_THAT(store.Begin(session, Row(0), {}, {}), IsOk());
  }
  std::vector<TensorDraft> drafts;
  for (int i = 0; i < 3; ++i) {
    drafts.push_back(store.MakeDraft(session, Row(0), {.name = i == 1 ? "" : "last"}).value());
  }
  EXPECT_THAT(store.Publish(session, std::move(drafts[0])), IsOk());
  EXPECT_THAT(store.Publish(session, std::move(drafts[1])),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("want fewer than 4096")));
  EXPECT_THAT(store.Publish(session, std::move(drafts[2])), IsOk()) << "in place of the first";
  EXPECT_EQ(store.List(session).size(), TensorStore::kMaxTensors);
}

// Results that end meanwhile take no place from an upload that was accepted.
TEST_F(TensorStoreTest, AnUploadKeepsItsPlace) {
  TensorStore store({.max_bytes = int64_t{1} << 40, .max_session_bytes = int64_t{1} << 40}, clock_);
  const SessionUse session = store.OpenSession("", "a").value();
  for (size_t i = 2; i < TensorStore::kMaxTensors; ++i) {
    ASSERT_THAT(store.Begin(session, Row(0), {}, {}), IsOk());
  }
  TensorDraft first = store.MakeDraft(session, Row(0), {.name = "first"}).value();
  TensorDraft second = store.MakeDraft(session, Row(0), {.name = "second"}).value();
  const std::shared_ptr<Upload> upload =
      store.Begin(session, Row(4), {.name = "upload"}, {}).value().upload;
  EXPECT_THAT(store.Publish(session, std::move(first)), IsOk());
  EXPECT_THAT(store.Publish(session, std::move(second)),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("want fewer than 4096")));
  ASSERT_THAT(store.Write(session, upload, 0, {PieceOf("text")}), IsOk());
  EXPECT_THAT(store.Describe(session, "upload"), IsOk());
  EXPECT_EQ(store.List(session).size(), TensorStore::kMaxTensors);
}

TEST_F(TensorStoreTest, KnownBytesAreSharedWithinASession) {
  const SessionUse session = Open();
  const SessionUse other = Open();
  const std::string text(kMebi, 'x');
  ASSERT_THAT(Put(session, text, {.name = "a"}, HashOf(text)), IsOk());
  const int64_t used = store_.load().bytes;
  ASSERT_TRUE(store_.Begin(session, Row(kMebi), {.name = "b"}, HashOf(text))->tensor);
  EXPECT_EQ(store_.load().bytes, used + TensorStore::kTensorBytes);
  EXPECT_EQ(store_.load().uploads_known, 1);
  EXPECT_TRUE(store_.Begin(other, Row(kMebi), {}, HashOf(text))->upload != nullptr);
  ASSERT_THAT(store_.Delete(session, "a"), IsOk());
  EXPECT_EQ(TextOf(session, "b"), text);
  ASSERT_THAT(store_.Delete(session, "b"), IsOk());
  EXPECT_TRUE(store_.Begin(session, Row(kMebi), {}, HashOf(text))->upload != nullptr)
      << "nobody has the bytes any more";
}

// The indices of a sparse tensor are checked; a dense tensor with the same bytes can be written.
TEST_F(TensorStoreTest, SparseAndDenseShareNothing) {
  const SessionUse session = Open();
  const TensorSpec sparse =
      MakeTensorSpec(TightSparseLayout("spec", ElementType::kU8, 1, 8).value(), 1, {}).value();
  const std::string text(static_cast<size_t>(sparse.bytes), '\x44');
  ASSERT_THAT(Put(session, text, {}, HashOf(text)), IsOk());
  EXPECT_TRUE(store_.Begin(session, sparse, {}, HashOf(text))->upload != nullptr);
}

TEST_F(TensorStoreTest, AnotherHashLeavesNothing) {
  const SessionUse session = Open();
  EXPECT_THAT(Put(session, "abc", {.name = "x"}, HashOf("abd")),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("sha256")));
  EXPECT_THAT(Names(session), IsEmpty());
  EXPECT_EQ(store_.load().bytes, 0);
  EXPECT_EQ(store_.load().uploads, 0);
  EXPECT_EQ(store_.load().uploads_mismatched, 1);
}

TEST_F(TensorStoreTest, UploadsWaitForTheirLease) {
  const SessionUse session = Open();
  const Keeping long_lease = {.name = "x", .lease_ns = 10'000 * kSecond};
  const std::shared_ptr<Upload> upload = store_.Begin(session, Row(2), long_lease, {})->upload;
  const std::string id = upload->id().ToBytes();
  std::vector<absl::Status> told;
  upload->Listen(store_.Attach(upload).value(),
                 [&told](const auto& result) { told.push_back(result.status()); });
  clock_.Advance(599 * kSecond);
  ASSERT_THAT(Write(session, upload, "a"), IsOk());
  clock_.Advance(599 * kSecond);
  store_.Expire();
  EXPECT_THAT(store_.Join(session, id), IsOk());
  clock_.Advance(kSecond);
  store_.Expire();
  EXPECT_THAT(told, ElementsAre(StatusIs(absl::StatusCode::kNotFound)))
      << "a silent stream holds no room for longer, whatever lease the tensor is to have";
  EXPECT_THAT(store_.Join(session, id), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(TensorStoreTest, UploadsGoWithTheirSession) {
  SessionUse session = Open();
  const std::string token = session.token().ToHex();
  std::string id = store_.Begin(session, Row(2), {}, {})->upload->id().ToBytes();
  session = SessionUse();
  clock_.Advance(30 * kSecond);
  store_.Expire();
  EXPECT_EQ(store_.load().uploads, 0);
  EXPECT_EQ(store_.load().bytes, 0);
}

TEST_F(TensorStoreTest, OnlyTheOwnerJoinsAnUpload) {
  const SessionUse session = Open();
  const SessionUse other = Open();
  const std::string id = store_.Begin(session, Row(2), {}, {})->upload->id().ToBytes();
  EXPECT_THAT(store_.Join(other, id), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(store_.Join(session, "short"), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(store_.Join(session, id), IsOk());
  EXPECT_EQ(store_.load().uploads_resumed, 1);
}

TEST_F(TensorStoreTest, AClosedStoreTakesNothingNew) {
  const SessionUse session = Open();
  const std::shared_ptr<Upload> upload = store_.Begin(session, Row(2), {}, {})->upload;
  store_.Close();
  EXPECT_THAT(store_.OpenSession("", "a"), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(store_.Begin(session, Row(2), {}, {}), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(store_.Join(session, upload->id().ToBytes()),
              StatusIs(absl::StatusCode::kUnavailable));
}

TEST_F(TensorStoreTest, ShortMemoryRefusesLargeTensors) {
  const SessionUse session = Open();
  store_.SetMaxNewBytes(1000);
  EXPECT_THAT(store_.Begin(session, Row(1000), {}, {}), IsOk());
  EXPECT_THAT(store_.Begin(session, Row(1001), {}, {}),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("memory: ")));
}

TEST_F(TensorStoreTest, WithoutMemoryAnUploadWaits) {
  const SessionUse session = Open();
  const std::shared_ptr<Upload> upload = store_.Begin(session, Row(4), {}, {})->upload;
  const std::string id = upload->id().ToBytes();
  const auto is_refused = StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("memory: "));
  ASSERT_THAT(Write(session, upload, "ab"), IsOk());
  store_.SetMaxNewBytes(0);  // Uploads that have begun continue.
  ASSERT_THAT(Write(session, upload, "c", 2), IsOk());
  store_.SetMaxNewBytes(-1);
  EXPECT_THAT(Write(session, upload, "d", 3), is_refused);
  EXPECT_THAT(store_.Join(session, id), is_refused);
  store_.SetMaxNewBytes(std::numeric_limits<int64_t>::max());
  EXPECT_THAT(store_.Join(session, id), IsOk());
  EXPECT_THAT(Write(session, upload, "d", 3), IsOk());
  EXPECT_TRUE(upload->Missing().empty());
}

// If a gap closes late, a background thread hashes what the callers did not.
TEST_F(TensorStoreTest, CatchesUpWithAHashInTheBackground) {
  const SessionUse session = Open();
  const std::string text = std::string(6 * kMebi, 'x') + "end";
  const std::shared_ptr<Upload> upload =
      store_.Begin(session, Row(static_cast<int64_t>(text.size())), {}, HashOf(text))->upload;
  Mutex mutex;
  std::optional<absl::Status> told;
  upload->Listen(store_.Attach(upload).value(), [&](const auto& result) {
    MutexLock lock(&mutex);
    told = result.status();
  });
  ASSERT_THAT(Write(session, upload, text.substr(1), 1), IsOk());
  ASSERT_THAT(Write(session, upload, text.substr(0, 1)), IsOk());
  MutexLock lock(&mutex);
  mutex.Await([&] { return told.has_value(); });
  EXPECT_THAT(*told, IsOk());
}

}  // namespace
}  // namespace gemmd
