// SPDX-License-Identifier: Apache-2.0
//
// Where the operands of a load are: what is uploaded, and what then travels with each call.
#include "client/load/operand_place.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "gemmd/v1/gemm.pb.h"
#include "tests/client/fake_tensors.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

constexpr LoadProduct kProduct = {
    .name = {}, .m = 3, .n = 5, .k = 7, .kernel = {}, .device = {}, .operands = {}};

class OperandPlaceTest : public testing::Test {
 protected:
  OperandPlaceTest() {
    client_ = std::make_unique<Client>(Client::Create(server_.address()).value());
    reader_ = std::make_shared<Client>(Client::Create(server_.address()).value());
  }

  Payload Place(absl::string_view name) {
    Payload payload = MakePayload(kProduct, OperandValues::kIntegers, 1).value();
    EXPECT_THAT(PlaceOperands(*FindOperandPlace(name), kProduct, *client_, reader_, payload),
                IsOk());
    return payload;
  }

  FakeTensors server_;
  std::unique_ptr<Client> client_;
  std::shared_ptr<Client> reader_;
};

TEST_F(OperandPlaceTest, InlineSendsAllWithEachCall) {
  const Payload payload = Place("inline");
  EXPECT_EQ(payload.RequestFor(0), payload.request);
  EXPECT_EQ(payload.wire_bytes(), payload.sent_bytes + 3 * 5 * 4);
  EXPECT_EQ(server_.tensors(), 0u);
  EXPECT_EQ(FindOperandPlace("elsewhere"), nullptr);
}

TEST_F(OperandPlaceTest, ResidentKeepsTheWeights) {
  const Payload payload = Place("resident");
  const v1::MultiplyRequest& sent = *payload.RequestFor(0);
  EXPECT_EQ(sent.a().data(), payload.request->a().data());
  ASSERT_EQ(server_.tensors(), 1u);
  EXPECT_EQ(server_.bytes_of(sent.b().tensor().tensor().handle()), payload.request->b().data());
  EXPECT_FALSE(sent.d().has_tensor());
  EXPECT_EQ(payload.sent_bytes, static_cast<int64_t>(sent.ByteSizeLong()));
}

TEST_F(OperandPlaceTest, ResidentAllKeepsEverything) {
  const Payload payload = Place("resident-all");
  const v1::MultiplyRequest& sent = *payload.RequestFor(0);
  EXPECT_EQ(server_.bytes_of(sent.a().tensor().tensor().handle()), payload.request->a().data());
  const std::string result = sent.d().tensor().tensor().handle();
  EXPECT_EQ(server_.bytes_of(result).size(), 3u * 5 * 4);
  EXPECT_EQ(payload.wire_bytes(), static_cast<int64_t>(sent.ByteSizeLong()));
  EXPECT_LT(payload.wire_bytes(), 100);
  // The next call leaves its own somewhere else.
  EXPECT_NE(payload.RequestFor(0)->d().tensor().tensor().handle(), result);
}

TEST_F(OperandPlaceTest, OneCallAtATimeHasTheResultThatIsChecked) {
  const Payload payload = Place("resident-all");
  ResultSlot* const slot = payload.TakeSlot(0);
  ASSERT_NE(slot, nullptr);
  EXPECT_EQ(payload.TakeSlot(0), nullptr);
  const std::string result = slot->request->d().tensor().tensor().handle();
  EXPECT_NE(result, payload.RequestFor(0)->d().tensor().tensor().handle());
  v1::MultiplyResponse response;
  response.mutable_d()->set_type(v1::ELEMENT_TYPE_F32);
  response.mutable_d()->set_rows(3);
  response.mutable_d()->set_columns(5);
  response.mutable_d()->set_batch(1);
  response.mutable_tensor()->set_handle(result);
  // The server has computed nothing: what is there is zeros, which is wrong.
  EXPECT_THAT(CheckAnswer(payload, response), StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_EQ(payload.TakeSlot(0), slot);
  payload.LetGo(response);
  EXPECT_EQ(payload.TakeSlot(0), slot);
  response.mutable_tensor()->set_handle("another");
  EXPECT_THAT(CheckAnswer(payload, response), StatusIs(absl::StatusCode::kDataLoss));
}

}  // namespace
}  // namespace gemmd
