// SPDX-License-Identifier: Apache-2.0
//
// Products whose matrices are sent from the caller's memory and received into it.
#include "client/product_call.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "gemmd/client.h"
#include "gemmd/v1/gemm.pb.h"
#include "tests/client/fake_service.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string BytesOf(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(buffer.Dump(&slices).ok());
  std::string bytes;
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return bytes;
}

// Short matrices are copied and long ones lent; in both cases the message is that of protobuf.
TEST(LentRequestTest, IsTheSameMessageAsACopiedOne) {
  for (const int64_t k : {3, 5000}) {
    std::vector<float> a(static_cast<size_t>(4 * k));
    std::iota(a.begin(), a.end(), 1.0f);
    const std::vector<float> c = {1, 2, 3, 4, 5, 6, 7, 8};
    const std::vector<float> scale = {1, 2, 3, 4};
    ProductOptions options;
    options.request_id = "lent";
    for (const bool is_full : {false, true}) {
      if (is_full) {
        options.beta = 2;
        options.c = View(c, 4, 2);
        options.bias = BiasView{.data = std::as_bytes(std::span(c).first(2))};
      }
      MatrixView a_view = View(a, 4, k);
      a_view.scale = scale;
      MatrixView b_view = View(a, k, 4);
      b_view.data = b_view.data.first(static_cast<size_t>(8 * k));
      b_view.columns = 2;
      LentBytes lender;
      const auto lent = BuildLentRequest(a_view, b_view, options);
      ASSERT_THAT(lent, IsOk());
      v1::MultiplyRequest got;
      ASSERT_TRUE(got.ParseFromString(BytesOf(ToByteBuffer(*lent, lender))));
      EXPECT_EQ(got.SerializeAsString(),
                BuildRequest(a_view, b_view, options).value().SerializeAsString());
    }
  }
}

TEST(LentRequestTest, FindsTheSameMistakes) {
  const std::vector<float> a(6);
  EXPECT_EQ(BuildLentRequest(View(a, 2, 4), View(a, 4, 2), {}).status(),
            BuildRequest(View(a, 2, 4), View(a, 4, 2), {}).status());
  // Not read if alpha is 0, and so not required.
  const auto unread = BuildLentRequest(PackedView(v1::ELEMENT_TYPE_F32, {}, 2, 4),
                                       PackedView(v1::ELEMENT_TYPE_F32, {}, 4, 2), {.alpha = 0});
  ASSERT_THAT(unread, IsOk());
  EXPECT_FALSE(unread->a.has_value());
}

TEST(ProductCallTest, ReceivesIntoTheCallersMemory) {
  const FakeServer server(ComputingScript());
  auto client = Client::Create(server.address());
  ASSERT_THAT(client, IsOk());
  const std::vector<float> a = {1, 2, 3, 4, 5, 6};
  const std::vector<float> b = {1, 0, 0, 1, 1, 1};
  std::vector<float> d(4);
  const auto into = std::as_writable_bytes(std::span(d));
  const auto product = client->Multiply(View(a, 2, 3), View(b, 3, 2), {.into = into});
  ASSERT_THAT(product, IsOk());
  EXPECT_THAT(d, ElementsAre(4, 5, 10, 11));
  EXPECT_EQ(product->data().data(), into.data());
  EXPECT_EQ(product->elements<float>()->data(), d.data());
  for (const size_t wrong : {8, 12}) {
    EXPECT_THAT(
        client->Multiply(View(a, 2, 3), View(b, 3, 2), {.into = into.first(wrong)}),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("bytes, want 16, as D has")));
  }
}

TEST(ProductCallTest, RunsWhileItsCallerDoesSomethingElse) {
  const FakeServer server(ComputingScript());
  auto client = Client::Create(server.address());
  ASSERT_THAT(client, IsOk());
  const std::vector<float> a = {1, 2, 3, 4, 5, 6};
  const std::vector<float> b = {1, 0, 0, 1, 1, 1};
  std::vector<PendingProduct> pending;
  for (int i = 0; i < 8; ++i) {
    pending.push_back(client->MultiplyAsync(View(a, 2, 3), View(b, 3, 2)));
  }
  for (PendingProduct& one : pending) {
    const auto product = one.Wait();
    ASSERT_THAT(product, IsOk());
    EXPECT_THAT(*product->elements<float>(), ElementsAre(4, 5, 10, 11));
    EXPECT_THAT(one.Wait(), StatusIs(absl::StatusCode::kFailedPrecondition));
  }
  EXPECT_THAT(client->MultiplyAsync(View(a, 2, 4), View(b, 3, 2)).Wait(),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

FakeScript SilentScript() {
  FakeScript script;
  script.multiply = [](grpc::CallbackServerContext&, const v1::MultiplyRequest&,
                       v1::MultiplyResponse&) { return std::nullopt; };
  return script;
}

// Lent memory is released when the call has ended, however it ended: the memory may be freed at
// once.
TEST(ProductCallTest, LetsGoOfTheMatricesWhereTheCallEndsEarly) {
  const FakeServer server(SilentScript());
  auto client = Client::Create(server.address());
  ASSERT_THAT(client, IsOk());
  auto a = std::make_unique<std::vector<float>>(1 << 20, 1.0f);
  EXPECT_THAT(client->Multiply(View(*a, 1, 1 << 20), View(*a, 1 << 20, 1), {},
                               {.timeout = absl::Milliseconds(200)}),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  PendingProduct cancelled = client->MultiplyAsync(View(*a, 1, 1 << 20), View(*a, 1 << 20, 1));
  cancelled.Cancel();
  EXPECT_THAT(cancelled.Wait(), StatusIs(absl::StatusCode::kCancelled));
  { const auto dropped = client->MultiplyAsync(View(*a, 1, 1 << 20), View(*a, 1 << 20, 1)); }
  a = nullptr;
}

TEST(ProductCallTest, MayOutliveTheClient) {
  const FakeServer server(ComputingScript());
  const std::vector<float> a = {1, 2, 3, 4};
  auto pending = Client::Create(server.address())->MultiplyAsync(View(a, 2, 2), View(a, 2, 2));
  EXPECT_THAT(pending.Wait(), IsOk());
}

grpc::ByteBuffer InSlices(const std::string& bytes, size_t most) {
  std::vector<grpc::Slice> slices;
  for (size_t at = 0; at < bytes.size(); at += most) {
    slices.emplace_back(bytes.data() + at, std::min(most, bytes.size() - at));
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

TEST(ProductAnswerTest, ReadsWhatProtobufReads) {
  v1::MultiplyResponse response;
  response.set_request_id("an id");
  response.mutable_timing()->set_compute_ns(7);
  v1::Matrix& d = *response.mutable_d();
  d.set_type(v1::ELEMENT_TYPE_S8);
  d.set_rows(20);
  d.set_columns(50);
  d.set_batch(1);
  d.set_leading_dimension(50);
  d.set_data(std::string(1000, 'd'));
  const std::string sent = response.SerializeAsString();
  for (const size_t most : {1, 7, 100, 5000}) {
    grpc::ByteBuffer buffer = InSlices(sent, most);
    const auto result = ReadProductAnswer(buffer, {});
    ASSERT_THAT(result, IsOk());
    v1::MultiplyResponse got = result->response();
    EXPECT_EQ(got.d().data(), "");
    got.mutable_d()->set_data(result->data().data(), result->data().size());
    EXPECT_EQ(got.SerializeAsString(), sent);
  }
  for (size_t size = 0; size < sent.size(); ++size) {
    grpc::ByteBuffer buffer = InSlices(sent.substr(0, size), 100);
    v1::MultiplyResponse want;
    const bool is_answer =
        want.ParseFromString(sent.substr(0, size)) && MultiplyResult::FromResponse(want).ok();
    EXPECT_EQ(ReadProductAnswer(buffer, {}).ok(), is_answer) << size;
  }
}

}  // namespace
}  // namespace gemmd
