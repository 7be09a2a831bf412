// SPDX-License-Identifier: Apache-2.0
//
// Owners that are known by name: all their sessions are one, and limits apply to the owner.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "server/store/tensor_store.h"
#include "tests/server/device/fake_device_memory.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/units.h"

namespace gemmd {
namespace {

using testing::HasSubstr;
using SessionUse = TensorStore::SessionUse;

constexpr SessionOwner kKnown = {.is_known = true, .has_one_session = true};

class OwnerTest : public testing::Test {
 protected:
  SessionUse Open(const std::string& name, const SessionOwner& owner = kKnown,
                  const std::string& token = "") {
    absl::StatusOr<SessionUse> session = store_.OpenSession(token, name, owner);
    EXPECT_THAT(session, IsOk());
    return *std::move(session);
  }

  // Reserves a tensor of `bytes`, and makes the tensor if it has a name.
  absl::Status Make(const SessionUse& session, int64_t bytes, Keeping keep) {
    absl::StatusOr<TensorSpec> spec = MakeTensorSpec(
        TightLayout("spec", ElementType::kU8, Order::kRowMajor, 1, bytes).value(), 1, {});
    absl::StatusOr<TensorDraft> draft =
        store_.MakeDraft(session, *std::move(spec), std::move(keep));
    if (!draft.ok()) return draft.status();
    return store_.Publish(session, *std::move(draft)).status();
  }

  bool Exists(const SessionUse& session, const std::string& name) {
    return store_.Describe(session, name).ok();
  }

  FakeClock clock_;
  TensorStore store_{{.max_sessions = 8, .max_bytes = 16 * kMebi, .max_session_bytes = 8 * kMebi},
                     clock_};
};

TEST_F(OwnerTest, NeedsNoToken) {
  EXPECT_THAT(store_.Use("", "alice"), StatusIs(absl::StatusCode::kUnauthenticated));
  {
    const SessionUse opened = Open("alice");
    ASSERT_THAT(Make(opened, 10, {.name = "w", .lease_ns = 1000 * kMs}), IsOk());
    const absl::StatusOr<SessionUse> use = store_.Use("", "alice");
    ASSERT_THAT(use, IsOk());
    EXPECT_EQ(use->token(), opened.token());
    EXPECT_TRUE(Exists(*use, "w"));
    EXPECT_THAT(store_.Use("", "bob"), StatusIs(absl::StatusCode::kUnauthenticated));
    EXPECT_THAT(store_.Use("", ""), StatusIs(absl::StatusCode::kUnauthenticated));
  }
  // The session ends with the last of its tensors, and is not found again.
  clock_.Advance(3'600'000 * kMs);
  store_.Expire();
  EXPECT_EQ(store_.load().sessions, 0);
  EXPECT_THAT(store_.Use("", "alice"), StatusIs(absl::StatusCode::kUnauthenticated));
  {
    const SessionUse again = Open("alice");
    const absl::StatusOr<SessionUse> use = store_.Use("", "alice");
    ASSERT_THAT(use, IsOk());
    EXPECT_EQ(use->token(), again.token());
  }
  // A caller that is not known by name needs its token.
  const SessionUse guest = Open("host", {.is_known = true});
  EXPECT_THAT(store_.Use("", "host"), StatusIs(absl::StatusCode::kUnauthenticated));
}

TEST_F(OwnerTest, AllSessionsOfAnOwnerAreOne) {
  const SessionUse first = Open("alice");
  ASSERT_THAT(Make(first, 10, {.name = "w"}), IsOk());
  const SessionUse second = Open("alice");
  EXPECT_EQ(second.token(), first.token());
  EXPECT_TRUE(Exists(second, "w"));
  EXPECT_EQ(store_.load().sessions, 1);
  ASSERT_THAT(Make(second, 20, {.name = "w"}), IsOk());
  EXPECT_EQ(store_.List(first).size(), 1) << "the name is one of the owner's";
  const SessionUse other = Open("bob");
  EXPECT_NE(other.token(), first.token());
  EXPECT_EQ(store_.Describe(other, "w").status(), store_.Describe(other, "none").status());
  EXPECT_THAT(store_.Use(first.token().ToHex(), "bob"),
              StatusIs(absl::StatusCode::kUnauthenticated));
}

TEST_F(OwnerTest, AnOwnerWhoseSessionWasDroppedOpensAnother) {
  const SessionUse first = Open("alice");
  ASSERT_THAT(Make(first, 8 * kMebi - 4096, {.name = "w", .pinned = true}), IsOk());
  const TensorStore::SessionList list = store_.ListSessions(10);
  ASSERT_EQ(list.sessions.size(), 1);
  EXPECT_EQ(list.sessions[0].caller, "alice");
  ASSERT_THAT(store_.DropSession(list.sessions[0].id), IsOk());
  EXPECT_THAT(store_.Use("", "alice"), StatusIs(absl::StatusCode::kUnauthenticated));
  const SessionUse second = Open("alice");
  EXPECT_NE(second.token(), first.token());
  EXPECT_FALSE(Exists(second, "w"));
  EXPECT_THAT(Make(second, 8 * kMebi - 4096, {.name = "w"}), IsOk()) << "the quota is free";
  EXPECT_THAT(Make(first, 10, {.name = "v"}), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_TRUE(Exists(second, "w"));
}

TEST_F(OwnerTest, WhoIsNotKnownByNameSharesNothing) {
  for (const SessionOwner& owner : {SessionOwner{}, SessionOwner{.is_known = true}}) {
    const SessionUse first = Open("host", owner);
    ASSERT_THAT(Make(first, 10, {.name = "w"}), IsOk());
    const SessionUse second = Open("host", owner);
    EXPECT_NE(second.token(), first.token());
    EXPECT_FALSE(Exists(second, "w"));
    const SessionUse known = Open("host");
    EXPECT_NE(known.token(), first.token()) << "a host may be called as somebody is";
    EXPECT_FALSE(Exists(known, "w"));
  }
}

TEST_F(OwnerTest, TensorsOfAnOwnerStayForTheirLease) {
  SessionUse session = Open("alice");
  const std::string token = session.token().ToHex();
  ASSERT_THAT(Make(session, 10, {.name = "w", .lease_ns = 100'000 * kMs}), IsOk());
  ASSERT_THAT(Make(session, 10, {.name = "pinned", .pinned = true}), IsOk());
  session = SessionUse();
  clock_.Advance(99'000 * kMs);
  store_.Expire();
  session = Open("alice");
  EXPECT_EQ(session.token().ToHex(), token);
  EXPECT_TRUE(Exists(session, "w")) << "the session lingers for 30 s, and its tensors for longer";
  session = SessionUse();
  clock_.Advance(1'000 * kMs);
  store_.Expire();
  session = Open("alice");
  EXPECT_FALSE(Exists(session, "w"));
  ASSERT_THAT(store_.Delete(session, "pinned"), IsOk());
  session = SessionUse();
  clock_.Advance(30'000 * kMs);
  EXPECT_THAT(store_.Use(token, "alice"), StatusIs(absl::StatusCode::kUnauthenticated))
      << "without tensors it ends as any other";
  EXPECT_NE(Open("alice").token().ToHex(), token);
}

TEST_F(OwnerTest, UploadsOfAnOwnerStayForTheirLease) {
  SessionUse session = Open("alice");
  absl::StatusOr<TensorSpec> spec =
      MakeTensorSpec(TightLayout("spec", ElementType::kU8, Order::kRowMajor, 1, 8).value(), 1, {});
  const absl::StatusOr<TensorStore::Beginning> begun =
      store_.Begin(session, *std::move(spec), {.name = "u", .lease_ns = 100'000 * kMs}, {});
  ASSERT_THAT(begun, IsOk());
  const std::string id = begun->upload->id().ToBytes();
  session = SessionUse();
  clock_.Advance(99'000 * kMs);
  store_.Expire();
  EXPECT_THAT(store_.Join(Open("alice"), id), IsOk());
  clock_.Advance(1'000 * kMs);
  store_.Expire();
  EXPECT_THAT(store_.Join(Open("alice"), id), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(OwnerTest, AnOwnerHasOneQuota) {
  const SessionUse first = Open("alice");
  const SessionUse second = Open("alice");
  ASSERT_THAT(Make(first, 6 * kMebi, {.name = "x"}), IsOk());
  EXPECT_THAT(Make(second, 6 * kMebi, {.name = "y"}),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("free of the caller: 6293504 of 8388608 are used "
                                 "(--tensor-bytes of a session)")));
}

// Device memory for a tensor of a new session of the owner.
absl::Status TakeOfDevices(TensorStore& store, const SessionOwner& owner, int64_t bytes) {
  const SessionUse session = store.OpenSession("", "alice", owner).value();
  const TensorSpec spec =
      MakeTensorSpec(TightLayout("spec", ElementType::kU8, Order::kRowMajor, 1, 1).value(), 1, {})
          .value();
  const TensorDraft draft = store.MakeDraft(session, spec, {}).value();
  Account* const account = draft.bytes->device_account();
  return account == nullptr ? absl::OkStatus() : account->Take(bytes).status();
}

TEST_F(OwnerTest, EverybodyHasHisPartOfDevices) {
  constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;
  for (SessionOwner owner : {SessionOwner{}, SessionOwner{.is_known = true}, kKnown}) {
    EXPECT_THAT(TakeOfDevices(store_, owner, kMebi * kMebi), IsOk());
    if (!owner.is_known) continue;
    TensorStore limited({}, clock_);
    owner.max_device_bytes = 5 * kMebi;
    EXPECT_THAT(TakeOfDevices(limited, owner, 5 * kMebi), IsOk());
    EXPECT_THAT(TakeOfDevices(limited, owner, 5 * kMebi + 1),
                StatusIs(kExhausted, HasSubstr("of device memory, want at most the 5242880 that "
                                               "are free of ")));
    EXPECT_THAT(TakeOfDevices(limited, owner, 5 * kMebi + 1),
                StatusIs(kExhausted, HasSubstr("0 of 5242880 are used "
                                               "(device_tensor_bytes of --rules)")));
  }
}

TEST_F(OwnerTest, WhoHasNoPartByRulesHasAShareOfDevices) {
  FakeDeviceMemory memory(8 * kMebi);
  TensorStore limited({.session_device_share = 0.25}, clock_);
  const auto copies = std::make_shared<DeviceCopies>(memory, "fake:0");
  limited.AddDevice("fake:0", copies);
  limited.AddDevice("cpu", nullptr);
  for (SessionOwner owner : {SessionOwner{}, SessionOwner{.is_known = true}, kKnown}) {
    EXPECT_THAT(TakeOfDevices(limited, owner, 2 * kMebi), IsOk());
    EXPECT_THAT(TakeOfDevices(limited, owner, 2 * kMebi + 1),
                StatusIs(absl::StatusCode::kResourceExhausted,
                         HasSubstr("0 of 2097152 are used (--tensor-bytes of a session)")));
    if (!owner.is_known) continue;
    owner.max_device_bytes = 5 * kMebi;
    EXPECT_THAT(TakeOfDevices(limited, owner, 5 * kMebi), IsOk());
  }
  copies->Close();
}

TEST_F(OwnerTest, RulesSayWhatAnOwnerMayTake) {
  SessionOwner owner = kKnown;
  owner.max_bytes = 12 * kMebi;
  owner.max_device_bytes = 5 * kMebi;
  const SessionUse session = Open("alice", owner);
  ASSERT_THAT(Make(session, 10 * kMebi, {.name = "x"}), IsOk())
      << "which is more than a session without rules may take";
  EXPECT_EQ(store_.Find(session, "x").value()->bytes->device_account()->limit(), 5 * kMebi);
  const absl::Status more = Make(session, 3 * kMebi, {.name = "y"});
  EXPECT_THAT(more, StatusIs(absl::StatusCode::kResourceExhausted,
                             HasSubstr("are used (tensor_bytes of --rules)")));
  // Changed rules apply from the next session on, even if the present one does not end.
  owner.max_bytes = 4 * kMebi;
  owner.max_device_bytes = std::numeric_limits<int64_t>::max();
  const SessionUse again = Open("alice", owner, session.token().ToHex());
  EXPECT_THAT(Make(session, 1, {.name = "z"}),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("want at most the 0 that are free")));
  EXPECT_EQ(store_.FreeBytes(session), 0);
  EXPECT_EQ(store_.Find(session, "x").value()->bytes->device_account()->limit(),
            owner.max_device_bytes);
  ASSERT_THAT(store_.Delete(session, "x"), IsOk());
  EXPECT_THAT(Make(session, 3 * kMebi, {.name = "y"}), IsOk());
}

}  // namespace
}  // namespace gemmd
