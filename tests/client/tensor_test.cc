// SPDX-License-Identifier: Apache-2.0
//
// Tensors on the server: sessions, handles, and products that name them.
#include "gemmd/tensor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "client/product_call.h"
#include "gemmd/client.h"
#include "gemmd/v1/tensors.pb.h"
#include "tests/client/fake_tensors.h"
#include "tests/testing/patience.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::string TextOf(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

TEST(TensorTest, IsUploadedAndDeletedWithItsHandle) {
  const FakeTensors server;
  auto client = Client::Create(server.address());
  ASSERT_THAT(client, IsOk());
  const std::vector<float> values = {1, 2, 3, 4, 5, 6};
  std::string handle;
  {
    const auto tensor = client->Put(View(values, 2, 3), {.name = "w"});
    ASSERT_THAT(tensor, IsOk());
    EXPECT_EQ(tensor->rows(), 2);
    EXPECT_EQ(tensor->columns(), 3);
    EXPECT_EQ(tensor->type(), v1::ELEMENT_TYPE_F32);
    EXPECT_EQ(tensor->info().name(), "w");
    handle = tensor->handle();
    EXPECT_EQ(server.bytes_of(handle), TextOf(values));
    EXPECT_THAT(server.deleted(), IsEmpty());
  }
  // The next upload waits for the deletion.
  const auto other = client->Put(View(values, 3, 2));
  ASSERT_THAT(other, IsOk());
  EXPECT_THAT(server.deleted(), ElementsAre(handle));
  EXPECT_EQ(server.sessions_opened(), 1);
}

TEST(TensorTest, StaysWhereItIsPinnedOrReleased) {
  const FakeTensors server;
  {
    auto client = Client::Create(server.address());
    ASSERT_THAT(client, IsOk());
    const std::vector<float> values(4);
    auto pinned = client->Put(View(values, 2, 2), {.pinned = true});
    auto released = client->Put(View(values, 2, 2));
    auto moved = client->Put(View(values, 2, 2));
    auto pinned_later = client->Put(View(values, 2, 2));
    ASSERT_THAT(pinned, IsOk());
    ASSERT_THAT(released, IsOk());
    ASSERT_THAT(moved, IsOk());
    ASSERT_THAT(pinned_later, IsOk());
    EXPECT_THAT(std::move(*released).Release(), testing::SizeIs(16));
    const std::optional<ResidentTensor> mover = std::move(*moved);
    ASSERT_THAT(client->KeepAlive(*pinned_later, {.pinned = true}), IsOk());
    EXPECT_TRUE(pinned_later->info().pinned());
  }
  // The client waits for the deletions that were requested: that of the tensor that was moved.
  EXPECT_EQ(server.deleted().size(), 1u);
  EXPECT_EQ(server.tensors(), 3u);
}

TEST(TensorTest, MayOutliveItsClient) {
  const FakeTensors server;
  std::optional<ResidentTensor> tensor;
  {
    auto client = Client::Create(server.address());
    ASSERT_THAT(client, IsOk());
    auto made = client->Put(View(std::vector<float>(4), 2, 2));
    ASSERT_THAT(made, IsOk());
    tensor = *std::move(made);
  }
  tensor.reset();
  EXPECT_THAT(server.deleted(), IsEmpty());
}

TEST(TensorTest, TheSessionIsTakenUpAgain) {
  FakeTensors server;
  auto client = Client::Create(server.address());
  ASSERT_THAT(client, IsOk());
  const auto session = client->OpenSession();
  ASSERT_THAT(session, IsOk());
  EXPECT_EQ(session->token, "token1");
  EXPECT_EQ(session->linger, absl::Seconds(30));
  EXPECT_EQ(session->lease, absl::Minutes(10));
  const std::vector<float> values(4);
  const auto tensor = client->Put(View(values, 2, 2));
  ASSERT_THAT(tensor, IsOk());
  server.BreakSessions(false);
  EXPECT_TRUE(Eventually([&] {
    EXPECT_THAT(client->Describe(tensor->ref()), IsOk());
    return server.sessions_opened() >= 2;
  }));
  EXPECT_EQ(server.sessions_opened(), 2);
  EXPECT_THAT(client->OpenSession("token1"), IsOk());
  EXPECT_THAT(client->OpenSession("token9"), StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST(TensorTest, ALostSessionIsFollowedByANewOne) {
  FakeTensors server;
  auto client = Client::Create(server.address());
  ASSERT_THAT(client, IsOk());
  const std::vector<float> values(4);
  const auto tensor = client->Put(View(values, 2, 2));
  ASSERT_THAT(tensor, IsOk());
  server.BreakSessions(true);
  EXPECT_THAT(client->Describe(tensor->ref()), StatusIs(absl::StatusCode::kUnauthenticated));
  EXPECT_THAT(client->Put(View(values, 2, 2)), IsOk());
  EXPECT_THAT(client->Describe(tensor->ref()),
              IsOk());  // The fake's tensors outlive their session.
}

TEST(TensorTest, ASessionIsJoinedByItsToken) {
  const FakeTensors server;
  auto first = Client::Create(server.address());
  auto second = Client::Create(server.address());
  ASSERT_THAT(first, IsOk());
  ASSERT_THAT(second, IsOk());
  const auto session = first->OpenSession();
  ASSERT_THAT(session, IsOk());
  const std::vector<float> values(4);
  const auto tensor = first->Put(View(values, 2, 2), {.name = "w"});
  ASSERT_THAT(tensor, IsOk());
  ASSERT_THAT(second->OpenSession(session->token), IsOk());
  EXPECT_THAT(second->Describe(NamedTensor("w")), IsOk());
  auto third = Client::Create(server.address());
  ASSERT_THAT(third, IsOk());
  EXPECT_THAT(third->OpenSession("token9"),
              StatusIs(absl::StatusCode::kUnauthenticated, HasSubstr("unknown token")));
  // It was requested, so no other replaces it.
  EXPECT_THAT(third->ListTensors(), StatusIs(absl::StatusCode::kUnauthenticated));
  EXPECT_THAT(third->OpenSession("two\nlines"), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(TensorTest, AServerThatWasNotThereIsAskedAgainForTheSessionOfAToken) {
  const FakeTensors server({.broken_sessions = {2}});
  auto first = Client::Create(server.address());
  auto second = Client::Create(server.address(), {.max_attempts = 1});
  ASSERT_THAT(first, IsOk());
  ASSERT_THAT(second, IsOk());
  const auto session = first->OpenSession();
  ASSERT_THAT(session, IsOk());
  const std::vector<float> values(4);
  const auto tensor = first->Put(View(values, 2, 2), {.name = "w"});
  ASSERT_THAT(tensor, IsOk());
  EXPECT_THAT(second->OpenSession(session->token), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(second->ListTensors(), IsOk());
  EXPECT_THAT(second->Describe(NamedTensor("w")), IsOk());
}

TEST(TensorTest, SessionsOfAServerThatIsNotThereFail) {
  auto client = Client::Create("127.0.0.1:1", {.timeout = kPatience, .max_attempts = 1});
  ASSERT_THAT(client, IsOk());
  EXPECT_THAT(client->Put(View(std::vector<float>(4), 2, 2)),
              StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(client->ListTensors(), StatusIs(absl::StatusCode::kUnavailable));
}

TEST(TensorTest, ProductsNameTensors) {
  const FakeTensors server;
  auto client = Client::Create(server.address());
  ASSERT_THAT(client, IsOk());
  const std::vector<float> a(2 * 3);
  const auto b = client->Put(View(std::vector<float>(3 * 4), 3, 4));
  ASSERT_THAT(b, IsOk());
  ASSERT_THAT(client->Multiply(View(a, 2, 3), *b), IsOk());
  const auto products = server.products();
  ASSERT_EQ(products.size(), 1u);
  EXPECT_EQ(products[0].m(), 2);
  EXPECT_EQ(products[0].n(), 4);
  EXPECT_EQ(products[0].k(), 3);
  EXPECT_EQ(products[0].a().data().size(), a.size() * sizeof(float));
  EXPECT_EQ(products[0].b().tensor().tensor().handle(), b->handle());
  EXPECT_FALSE(products[0].b().tensor().has_rows());
  EXPECT_EQ(products[0].b().type(), v1::ELEMENT_TYPE_UNSPECIFIED);
}

TEST(TensorTest, ChainsLeaveTheirResultsOnTheServer) {
  const FakeTensors server;
  auto client = Client::Create(server.address());
  ASSERT_THAT(client, IsOk());
  const auto a = client->Put(View(std::vector<float>(2 * 3), 2, 3));
  const auto b = client->Put(View(std::vector<float>(3 * 4), 3, 4));
  ASSERT_THAT(a, IsOk());
  ASSERT_THAT(b, IsOk());
  auto d = client->Chain(*a, *b, {.keep = {.name = "d", .lease = absl::Seconds(5)}});
  ASSERT_THAT(d, IsOk());
  ASSERT_TRUE(d->tensor.has_value());
  EXPECT_EQ(d->tensor->rows(), 2);
  EXPECT_EQ(d->tensor->columns(), 4);
  EXPECT_EQ(d->tensor->info().name(), "d");
  // In place: D is C.
  const auto again = client->Chain(
      *a, *b, {.product = {.beta = 1}, .c = d->tensor->view(), .into = d->tensor->view()});
  ASSERT_THAT(again, IsOk());
  EXPECT_FALSE(again->tensor.has_value());
  const auto products = server.products();
  ASSERT_EQ(products.size(), 2u);
  EXPECT_EQ(products[0].d().new_tensor().lease_ns(), 5'000'000'000);
  EXPECT_EQ(products[1].d().tensor().tensor().handle(), d->tensor->handle());
  EXPECT_EQ(products[1].c().tensor().tensor().handle(), d->tensor->handle());
  EXPECT_EQ(products[1].beta(), 1);
}

TEST(TensorTest, ProductsRunWhileTheirCallerDoesSomethingElse) {
  const FakeTensors server;
  auto client = Client::Create(server.address());
  ASSERT_THAT(client, IsOk());
  const std::vector<float> values = {1, 2, 3, 4, 5, 6};
  const auto w = client->Put(View(std::vector<float>(3 * 4), 3, 4));
  ASSERT_THAT(w, IsOk());
  std::vector<PendingProduct> products;
  std::vector<PendingChain> chains;
  for (int i = 0; i < 4; ++i) {
    products.push_back(client->MultiplyAsync(View(values, 2, 3), *w));
    chains.push_back(client->ChainAsync(View(values, 2, 3), *w));
  }
  for (PendingProduct& one : products) EXPECT_THAT(one.Wait(), IsOk());
  for (PendingChain& one : chains) {
    const auto d = one.Wait();
    ASSERT_THAT(d, IsOk());
    ASSERT_TRUE(d->tensor.has_value());
    EXPECT_EQ(d->tensor->columns(), 4);
    EXPECT_THAT(one.Wait(), StatusIs(absl::StatusCode::kFailedPrecondition));
  }
  const std::vector<v1::MultiplyRequest> requests = server.products();
  ASSERT_EQ(requests.size(), 8u);
  for (const v1::MultiplyRequest& request : requests) {
    EXPECT_EQ(request.a().data(), TextOf(values));
    EXPECT_EQ(request.b().tensor().tensor().handle(), w->handle());
  }
  EXPECT_THAT(client->ChainAsync(View(values, 3, 2), *w).Wait(),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(TensorTest, NothingIsLeftOfAChainThatNobodyWaitsFor) {
  const FakeTensors server;
  auto client = Client::Create(server.address());
  ASSERT_THAT(client, IsOk());
  const std::vector<float> values(4);
  const MatrixView view = View(values, 2, 2);
  const auto start = [&] {
    const size_t before = server.products().size();
    PendingChain chain = client->ChainAsync(view, view);
    while (server.products().size() == before) std::this_thread::yield();
    // Another round trip: by now the answer is here, or nearly.
    EXPECT_FALSE(client->Describe(NamedTensor("none")).ok());
    return chain;
  };
  constexpr size_t kDropped = 20;
  PendingChain chain = start();
  for (size_t i = 0; i < kDropped; ++i) chain = start();
  PendingChain last = std::move(chain);
  EXPECT_THAT(last.Wait(), IsOk());
  // The next call that makes a tensor waits for the deletions.
  const auto tensor = client->Put(view);
  ASSERT_THAT(tensor, IsOk());
  // Those whose answers came all the same were cancelled, and the server ends them.
  EXPECT_GE(server.deleted().size(), kDropped / 2);
  EXPECT_EQ(server.tensors(), kDropped + 1 - server.deleted().size() + 1);
}

// The time for which a call waits before it can be sent is not added to its deadline.
TEST(TensorTest, DeadlinesCountFromTheEntry) {
  constexpr absl::Duration kDelay = absl::Milliseconds(500);
  constexpr absl::Duration kTimeout = kPatience;
  const FakeTensors server({.session_delay = kDelay});
  const std::vector<float> values(4, 1.0f);
  const auto view = View(values, 2, 2);
  std::vector<std::byte> bytes(16);
  const std::function<void(Client&)> calls[] = {
      [&](Client& client) { EXPECT_THAT(client.Put(view, {.timeout = kTimeout}), IsOk()); },
      [&](Client& client) {
        EXPECT_FALSE(client.Get(NamedTensor("none"), bytes, {.timeout = kTimeout}).ok());
      },
      [&](Client& client) {
        const auto sink = [](int64_t, std::span<const std::byte>) { return absl::OkStatus(); };
        EXPECT_FALSE(client.Get(NamedTensor("none"), TensorSink(sink), {.timeout = kTimeout}).ok());
      },
      [&](Client& client) {
        EXPECT_FALSE(client.Describe(NamedTensor("none"), {.timeout = kTimeout}).ok());
      },
      [&](Client& client) {
        EXPECT_FALSE(client.Compress(NamedTensor("none"), {}, {.timeout = kTimeout}).ok());
      },
      [&](Client& client) {
        EXPECT_THAT(client.Chain(view, view, {}, {.timeout = kTimeout}), IsOk());
      },
  };
  for (const auto& call : calls) {
    const size_t before = server.times_left().size();
    auto client = Client::Create(server.address());
    ASSERT_THAT(client, IsOk());
    call(*client);
    const std::vector<absl::Duration> left = server.times_left();
    ASSERT_GT(left.size(), before);
    EXPECT_LE(left[before], kTimeout - kDelay / 2);
  }
}

TEST(TensorTest, PartsAreCountedFromThePartTheyAreOf) {
  TensorView whole;
  whole.rows = 100;
  whole.columns = 50;
  EXPECT_FALSE(whole.part().has_rows());
  const v1::TensorPart part = whole.Rows(10, 20).Columns(5, 6).Rows(1, 2).part();
  EXPECT_EQ(part.first_row(), 11);
  EXPECT_EQ(part.rows(), 2);
  EXPECT_EQ(part.first_column(), 5);
  EXPECT_EQ(part.columns(), 6);
  EXPECT_EQ(part.matrices(), 1);
}

// The server must refuse such a range, but it does not know of which part it is a part.
TEST(TensorTest, PartsOfAPartLieWithinIt) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  TensorView whole;
  whole.rows = 4;
  whole.columns = 4;
  whole.matrices = 4;
  const struct {
    int64_t first, count, first_of_part, count_of_part;
  } bad[] = {{0, 2, 0, 4}, {2, 2, -2, 4}, {1, 1, 1, 1}, {1, 1, 0, -1}, {kMax, 4, kMax, 4}};
  for (const auto& range : bad) {
    const auto [first, count, first_of_part, count_of_part] = range;
    const TensorView rows = whole.Rows(first, count).Rows(first_of_part, count_of_part);
    const TensorView columns = whole.Columns(first, count).Columns(first_of_part, count_of_part);
    const TensorView matrices = whole.Matrices(first, count).Matrices(first_of_part, count_of_part);
    EXPECT_EQ(rows.part().first_row(), -1);
    EXPECT_EQ(columns.part().first_column(), -1);
    EXPECT_EQ(matrices.part().first_matrix(), -1);
    // Nor can a part of it reach back into the tensor.
    EXPECT_EQ(rows.Rows(1, 1).part().first_row(), -1);
    EXPECT_EQ(columns.Columns(2, 1).part().first_column(), -1);
    EXPECT_EQ(matrices.Matrices(1, 0).part().first_matrix(), -1);
  }
  EXPECT_EQ(whole.Rows(1, 3).Rows(3, 0).part().first_row(), 4);
  // The server checks parts of the whole.
  EXPECT_EQ(whole.Rows(2, 9).part().rows(), 9);
}

TensorView TensorOf(int64_t rows, int64_t columns) {
  TensorView view;
  view.tensor = NamedTensor("t");
  view.type = v1::ELEMENT_TYPE_F32;
  view.rows = rows;
  view.columns = columns;
  return view;
}

TEST(TensorTest, MatricesBesideTensorsAreSentFromWhereTheyLie) {
  const std::vector<float> a(64 * 300, 1.5f);
  const std::vector<float> c(64 * 5, 2.5f);
  for (const v1::ElementType type : {v1::ELEMENT_TYPE_F32, v1::ELEMENT_TYPE_UNSPECIFIED}) {
    ProductOptions options = {.beta = 1, .c = View(c, 64, 5)};
    options.c->type = type;
    const auto lent = BuildLentRequest(View(a, 64, 300), TensorOf(300, 5), options);
    ASSERT_THAT(lent, IsOk());
    EXPECT_EQ(lent->a->data(), std::as_bytes(std::span(a)).data());
    EXPECT_EQ(lent->c->data(), std::as_bytes(std::span(c)).data());
    EXPECT_FALSE(lent->b.has_value());
    EXPECT_THAT(lent->message.a().data(), IsEmpty());
    LentBytes lender;
    grpc::ByteBuffer sent = ToByteBuffer(*lent, lender);
    v1::MultiplyRequest got;
    ASSERT_TRUE(grpc::SerializationTraits<v1::MultiplyRequest>::Deserialize(&sent, &got).ok());
    EXPECT_EQ(got.a().data(), TextOf(a));
    EXPECT_EQ(got.c().data(), TextOf(c));
    EXPECT_EQ(got.SerializeAsString(),
              BuildRequest(View(a, 64, 300), TensorOf(300, 5), options)->SerializeAsString());
  }
  // Not read if alpha is 0, and so not required.
  const auto unread = BuildLentRequest(PackedView(v1::ELEMENT_TYPE_F32, {}, 2, 3), TensorOf(3, 5),
                                       ProductOptions{.alpha = 0});
  ASSERT_THAT(unread, IsOk());
  EXPECT_FALSE(unread->a.has_value());
}

TEST(TensorTest, RequestsAreCheckedAsThoseOfMatricesAre) {
  const std::vector<float> values(6);
  EXPECT_THAT(
      BuildRequest(TensorOf(2, 3), TensorOf(4, 5)),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("got 4 rows of op(B), want k = 3")));
  EXPECT_THAT(BuildRequest(TensorOf(2, 3), TensorOf(5, 3).Transposed()), IsOk());
  // A matrix that is not on the server needs its bytes.
  EXPECT_THAT(BuildRequest(PackedView(v1::ELEMENT_TYPE_F32, {}, 2, 3), TensorOf(3, 5)),
              StatusIs(absl::StatusCode::kInvalidArgument, "a.data: got 0 bytes, want m*k*4 = 24"));
  EXPECT_THAT(BuildRequest(TensorOf(2, 3), TensorOf(3, 5).Matrices(0, 3), {.batch = 2}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("b.tensor: got 3 matrices")));
  EXPECT_THAT(
      BuildChainRequest(TensorOf(2, 3), TensorOf(3, 5), {.into = TensorOf(5, 2)}),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("into: got 5x2, want m*n = 2x5")));
  EXPECT_THAT(BuildRequest(TensorOf(2, 3), TensorOf(3, 5), {.beta = 1, .c = View(values, 2, 3)},
                           TensorOf(2, 5)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("want one of them")));
}

TEST(TensorTest, IsFoundListedCompressedAndDeleted) {
  const FakeTensors server;
  auto client = Client::Create(server.address());
  ASSERT_THAT(client, IsOk());
  const auto tensor = client->Put(View(std::vector<float>(8), 2, 4), {.name = "w"});
  ASSERT_THAT(tensor, IsOk());
  const auto found = client->Describe(NamedTensor("w"));
  ASSERT_THAT(found, IsOk());
  EXPECT_EQ(ViewOf(*found).columns, 4);
  const auto sparse = client->Compress(tensor->ref(), {.keep = {.name = "w24"}});
  ASSERT_THAT(sparse, IsOk());
  EXPECT_EQ(sparse->info().spec().sparsity(), v1::SPARSITY_2_4);
  const auto listed = client->ListTensors();
  ASSERT_THAT(listed, IsOk());
  EXPECT_EQ(listed->tensors_size(), 2);
  EXPECT_THAT(client->Delete(NamedTensor("w24")), IsOk());
  EXPECT_THAT(client->Delete(NamedTensor("w24")), StatusIs(absl::StatusCode::kNotFound));
}

}  // namespace
}  // namespace gemmd
