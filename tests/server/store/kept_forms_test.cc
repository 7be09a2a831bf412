// SPDX-License-Identifier: Apache-2.0
//
// Derived forms of tensors: when they are made, how they are charged, and when they are evicted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "server/store/tensor.h"
#include "server/store/tensor_store.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/patience.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/units.h"

namespace gemmd {
namespace {

using SessionUse = TensorStore::SessionUse;
using FormUse = KeptForms::Use;

class KeptFormsTest : public testing::Test {
 protected:
  SessionUse Open() { return store_.OpenSession("", "peer").value(); }

  void Put(const SessionUse& session, int64_t bytes, const std::string& name) {
    const TensorSpec spec =
        MakeTensorSpec(TightLayout("spec", ElementType::kU8, Order::kRowMajor, 1, bytes).value(), 1,
                       {})
            .value();
    TensorDraft draft = store_.MakeDraft(session, spec, {.name = name}).value();
    ASSERT_THAT(store_.Publish(session, std::move(draft)), IsOk());
  }
  FormUse Take(const SessionUse& session, const std::string& name, const FormKey& key) {
    return store_.TakeForm(store_.Find(session, name).value(), key);
  }
  // Requests the form until it exists.
  void Make(const SessionUse& session, const std::string& name, const FormKey& key) {
    EXPECT_EQ(Take(session, name, key).form, nullptr) << "used once";
    const FormUse making = Take(session, name, key);
    ASSERT_NE(making.form, nullptr);
    EXPECT_FALSE(making.is_made);
    store_.forms().End(making.form, true);
  }
  bool Has(const SessionUse& session, const std::string& name, const FormKey& key) {
    return Take(session, name, key).is_made;
  }
  int64_t KeptBytes(const SessionUse& session, const std::string& name) {
    return store_.Describe(session, name)->kept_bytes;
  }

  static void Write(TensorBytes& bytes) {
    bytes.TakeWriting(nullptr, [] {});
    bytes.BeginWriting(nullptr);
    bytes.EndWriting(nullptr, /*has_begun=*/true, /*is_ok=*/true);
  }

  static FormKey Key(uint32_t form, int64_t bytes, int64_t offset = 0) {
    FormKey key;
    key.form = form;
    key.bytes = bytes;
    key.offset = offset;
    return key;
  }

  FakeClock clock_;
  TensorStore store_{{.max_bytes = 16 * kMebi, .max_session_bytes = 8 * kMebi}, clock_};
};

TEST_F(KeptFormsTest, AreMadeAtTheSecondUseAndCount) {
  const SessionUse session = Open();
  Put(session, 1000, "w");
  const int64_t kept = KeptBytes(session, "w");
  const int64_t free = store_.FreeBytes(session);
  const FormKey key = Key(1, 4000);
  Make(session, "w", key);
  EXPECT_TRUE(Has(session, "w", key));
  EXPECT_FALSE(Has(session, "w", Key(2, 4000)));
  EXPECT_FALSE(Has(session, "w", Key(1, 4000, 64)));
  EXPECT_EQ(KeptBytes(session, "w"), kept + 4000);
  EXPECT_EQ(session.account().used(), kept + 4000);
  EXPECT_EQ(store_.FreeBytes(session), free) << "a tensor may take their room";
  ASSERT_THAT(store_.Delete(session, "w"), IsOk());
  EXPECT_EQ(session.account().used(), 0);
}

TEST_F(KeptFormsTest, OneUserMakesAForm) {
  const SessionUse session = Open();
  Put(session, 1000, "w");
  const FormKey key = Key(1, 4000);
  EXPECT_EQ(Take(session, "w", key).form, nullptr);
  const FormUse making = Take(session, "w", key);
  ASSERT_NE(making.form, nullptr);
  EXPECT_EQ(Take(session, "w", key).form, nullptr) << "somebody makes it";
  store_.forms().End(making.form, false);
  const FormUse again = Take(session, "w", key);
  ASSERT_NE(again.form, nullptr) << "that failed";
  EXPECT_FALSE(again.is_made);
}

TEST_F(KeptFormsTest, GoWhereTheBytesChange) {
  const SessionUse session = Open();
  Put(session, 1000, "w");
  const FormKey key = Key(1, 4000);
  Make(session, "w", key);
  const absl::StatusOr<TensorStore::TensorUse> use = store_.Find(session, "w");
  Write(*(*use)->bytes);
  EXPECT_EQ(KeptBytes(session, "w"), session.account().used());
  const FormUse making = Take(session, "w", key);
  ASSERT_NE(making.form, nullptr);
  EXPECT_FALSE(making.is_made);
  // A form of bytes that changed while they were read is not kept.
  Write(*(*use)->bytes);
  store_.forms().End(making.form, true);
  EXPECT_FALSE(Has(session, "w", key));
}

TEST_F(KeptFormsTest, MakeRoomForTensors) {
  const SessionUse session = Open();
  Put(session, 1000, "w");
  Make(session, "w", Key(1, 2 * kMebi));
  Make(session, "w", Key(2, 2 * kMebi));
  Make(session, "w", Key(3, 2 * kMebi));
  EXPECT_TRUE(Has(session, "w", Key(1, 2 * kMebi)));
  Put(session, 3 * kMebi, "x");
  EXPECT_TRUE(Has(session, "w", Key(1, 2 * kMebi)));
  EXPECT_TRUE(Has(session, "w", Key(3, 2 * kMebi)));
  EXPECT_EQ(Take(session, "w", Key(2, 2 * kMebi)).form, nullptr) << "there is no room now";
  Put(session, 4 * kMebi, "y");
  EXPECT_LT(KeptBytes(session, "w"), kMebi);
}

TEST_F(KeptFormsTest, MakeRoomForTensorsOfOthers) {
  const SessionUse first = Open();
  const SessionUse second = Open();
  const SessionUse third = Open();
  Put(first, 1000, "w");
  Make(first, "w", Key(1, 6 * kMebi));
  Put(second, 7 * kMebi, "x");
  Put(third, 4 * kMebi, "y");
  EXPECT_LT(KeptBytes(first, "w"), kMebi);
}

TEST_F(KeptFormsTest, GoWhereMemoryIsShort) {
  const SessionUse session = Open();
  Put(session, 1000, "w");
  Make(session, "w", Key(1, 4000));
  store_.SetMaxNewBytes(1000);
  EXPECT_FALSE(Has(session, "w", Key(1, 4000)));
  EXPECT_LT(session.account().used(), 4000);
  EXPECT_EQ(Take(session, "w", Key(1, 4000)).form, nullptr);
}

TEST_F(KeptFormsTest, ATensorHasAFew) {
  const SessionUse session = Open();
  Put(session, 1000, "w");
  for (uint32_t i = 0; i < KeptForms::kMaxOfTensor; ++i) Make(session, "w", Key(i, 64));
  EXPECT_EQ(Take(session, "w", Key(100, 64)).form, nullptr);
  EXPECT_EQ(Take(session, "w", Key(100, 64)).form, nullptr);
}

TEST_F(KeptFormsTest, WhoUsesAFormKeepsIt) {
  const SessionUse session = Open();
  Put(session, 1000, "w");
  Make(session, "w", Key(1, 4000));
  FormUse use = Take(session, "w", Key(1, 4000));
  use.form->data()[3999] = std::byte{7};
  ASSERT_THAT(store_.Delete(session, "w"), IsOk());
  EXPECT_EQ(use.form->data()[3999], std::byte{7});
  EXPECT_EQ(session.account().used(), 4000);
  use = FormUse();
  EXPECT_EQ(session.account().used(), 0);
}

}  // namespace
}  // namespace gemmd
