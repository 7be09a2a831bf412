// SPDX-License-Identifier: Apache-2.0
//
// Restorable tensors of a client whose daemon is killed and started again at the same address.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): kill is POSIX.
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gemmd/client.h"
#include "gemmd/multiply_stream.h"
#include "gemmd/v1/admin.pb.h"
#include "gemmd/v1/gemm.pb.h"
#include "gemmd/v1/resident.pb.h"
#include "gemmd/v1/statistics.pb.h"
#include "tests/client/fake_tensors.h"
#include "tests/testing/patience.h"
#include "tests/testing/scratch_folder.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using testing::HasSubstr;
using testing::Not;

// A daemon on a unix socket.
class RestartedDaemon {
 public:
  RestartedDaemon() { Start(); }
  ~RestartedDaemon() { Kill(); }

  std::string address() const { return absl::StrCat("unix:", folder_.Path("gemmd.sock")); }

  void Kill() {
    if (pid_ == 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }

  void Start() {
    const std::string ready = folder_.Path("ready");
    std::filesystem::remove(ready);
    std::vector<std::string> command = {GEMMD_BINARY, absl::StrCat("--listen=", address()),
                                        absl::StrCat("--ready-file=", ready), "--devices=cpu",
                                        "--cpu-threads=1"};
    std::vector<char*> arguments;
    for (std::string& argument : command) arguments.push_back(argument.data());
    arguments.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, folder_.Path("log").c_str(),
                                     O_WRONLY | O_CREAT | O_APPEND, 0600);
    ASSERT_EQ(posix_spawn(&pid_, GEMMD_BINARY, &actions, nullptr, arguments.data(), environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    ASSERT_TRUE(Eventually([&] { return std::filesystem::exists(ready); })) << folder_.Path("log");
  }

 private:
  const ScratchFolder folder_;
  pid_t pid_ = 0;
};

// Waits for the daemon, and looks for it often.
absl::StatusOr<Client> PatientClient(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 100);
  return Client::Create(address, {.timeout = kPatience,
                                  .initial_backoff = absl::Milliseconds(20),
                                  .max_backoff = absl::Milliseconds(50),
                                  .wait_for_ready = true,
                                  .channel_arguments = arguments});
}

std::vector<float> Numbers(size_t count, int seed) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    values[i] = static_cast<float>((static_cast<int>(i) * 7 + seed) % 11 - 5);
  }
  return values;
}

// A product of small integers, which floats hold exactly.
std::vector<float> ProductOf(const std::vector<float>& a, const std::vector<float>& b, size_t m,
                             size_t k, size_t n) {
  std::vector<float> d(m * n);
  for (size_t i = 0; i < m; ++i) {
    for (size_t l = 0; l < k; ++l) {
      for (size_t j = 0; j < n; ++j) d[i * n + j] += a[i * k + l] * b[l * n + j];
    }
  }
  return d;
}

std::vector<float> ElementsOf(const MultiplyResult& result) {
  const auto elements = result.elements<float>();
  return elements.ok() ? std::vector<float>(elements->begin(), elements->end())
                       : std::vector<float>();
}

std::vector<float> DownloadOf(Client& client, const ResidentTensor& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.bytes()) / sizeof(float));
  EXPECT_THAT(client.Get(tensor.ref(), std::as_writable_bytes(std::span(values))), IsOk());
  return values;
}

constexpr size_t kM = 3;
constexpr size_t kK = 64;
constexpr size_t kN = 48;

class RestartTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { daemon_ = std::make_unique<RestartedDaemon>(); }
  static void TearDownTestSuite() { daemon_ = nullptr; }

  void SetUp() override {
    auto made = PatientClient(daemon_->address());
    ASSERT_THAT(made, IsOk());
    client_.emplace(*std::move(made));
    LoseAll();
  }

  static void Restart() {
    daemon_->Kill();
    daemon_->Start();
  }

  // The server loses all sessions with their tensors, as in a restart, but at once.
  static void LoseAll() {
    auto operating = Client::Create(daemon_->address());
    ASSERT_THAT(operating, IsOk());
    const auto sessions = operating->ListSessions();
    ASSERT_THAT(sessions, IsOk());
    for (const v1::Session& session : sessions->sessions()) {
      ASSERT_THAT(operating->DropSession(session.id()), IsOk());
    }
  }

  v1::TensorStatistics Tensors() {
    const auto statistics = client_->GetStatistics();
    EXPECT_THAT(statistics, IsOk());
    return statistics.ok() ? statistics->tensors() : v1::TensorStatistics();
  }

  static std::unique_ptr<RestartedDaemon> daemon_;
  std::optional<Client> client_;
  const std::vector<float> a_ = Numbers(kM * kK, 1);
  const std::vector<float> w_ = Numbers(kK * kN, 2);
  const std::vector<float> d_ = ProductOf(a_, w_, kM, kK, kN);
  const MatrixView a_view_ = View(a_, kM, kK);
  const MatrixView w_view_ = View(w_, kK, kN);
};

std::unique_ptr<RestartedDaemon> RestartTest::daemon_;

TEST_F(RestartTest, EachCallGetsItsTensorsBack) {
  const auto same_bits = [&](const absl::StatusOr<MultiplyResult>& product) {
    ASSERT_THAT(product, IsOk());
    EXPECT_EQ(ElementsOf(*product), d_);
  };
  const std::pair<const char*, std::function<void(ResidentTensor&)>> calls[] = {
      {"Multiply", [&](ResidentTensor& w) { same_bits(client_->Multiply(a_view_, w)); }},
      {"a part",
       [&](ResidentTensor& w) {
         const auto product = client_->Multiply(a_view_, w.Columns(8, 16));
         ASSERT_THAT(product, IsOk());
         const std::vector<float> part = ElementsOf(*product);
         ASSERT_EQ(part.size(), kM * 16);
         for (size_t i = 0; i < kM; ++i) {
           for (size_t j = 0; j < 16; ++j) EXPECT_EQ(part[i * 16 + j], d_[i * kN + 8 + j]);
         }
       }},
      {"a message",
       [&](ResidentTensor& w) {
         const auto request = BuildRequest(a_view_, w);
         ASSERT_THAT(request, IsOk());
         const auto response = client_->Multiply(*request);
         ASSERT_THAT(response, IsOk());
         EXPECT_EQ(response->d().data(), std::string(reinterpret_cast<const char*>(d_.data()),
                                                     d_.size() * sizeof(float)));
       }},
      {"Chain",
       [&](ResidentTensor& w) {
         const auto chain = client_->Chain(a_view_, w);
         ASSERT_THAT(chain, IsOk());
         EXPECT_EQ(DownloadOf(*client_, *chain->tensor), d_);
       }},
      {"Get", [&](ResidentTensor& w) { EXPECT_EQ(DownloadOf(*client_, w), w_); }},
      {"Get to a sink",
       [&](ResidentTensor& w) {
         int64_t bytes = 0;
         const TensorSink sink = [&](int64_t, std::span<const std::byte> piece) {
           bytes += static_cast<int64_t>(piece.size());
           return absl::OkStatus();
         };
         EXPECT_THAT(client_->Get(w.ref(), sink), IsOk());
         EXPECT_EQ(bytes, w.bytes());
       }},
      {"Describe",
       [&](ResidentTensor& w) {
         const auto info = client_->Describe(w.ref());
         ASSERT_THAT(info, IsOk());
         EXPECT_EQ(info->name(), "w");
         EXPECT_TRUE(info->pinned());
       }},
      {"Describe by name",
       [&](ResidentTensor&) { EXPECT_THAT(client_->Describe(NamedTensor("w")), IsOk()); }},
      {"Compress",
       [&](ResidentTensor& w) {
         const auto sparse = client_->Compress(w.ref());
         ASSERT_THAT(sparse, IsOk());
         EXPECT_EQ(sparse->info().spec().sparsity(), v1::SPARSITY_2_4);
       }},
      {"KeepAlive",
       [&](ResidentTensor& w) {
         ASSERT_THAT(client_->KeepAlive(w, {.lease = absl::Minutes(7)}), IsOk());
         EXPECT_TRUE(w.info().pinned());
       }},
  };
  auto w = client_->Put(w_view_, {.name = "w", .pinned = true, .restorable = true});
  ASSERT_THAT(w, IsOk());
  for (const auto& [name, call] : calls) {
    SCOPED_TRACE(name);
    LoseAll();
    const int64_t before = Tensors().uploads_complete();
    call(*w);
    // The first call sends the bytes, and no other.
    call(*w);
    EXPECT_EQ(Tensors().uploads_complete(), before + 1);
  }
  // As KeepAlive has left it.
  Restart();
  const auto info = client_->Describe(w->ref());
  ASSERT_THAT(info, IsOk());
  EXPECT_EQ(info->lease_ns(), absl::ToInt64Nanoseconds(absl::Minutes(7)));
}

TEST_F(RestartTest, CallsInFlightSucceed) {
  const auto w = client_->Put(w_view_, {.restorable = true});
  ASSERT_THAT(w, IsOk());
  std::atomic<int> products = 0;
  std::atomic<bool> is_over = false;
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i) {
    callers.emplace_back([&] {
      while (!is_over) {
        std::vector<PendingProduct> pending;
        for (int p = 0; p < 3; ++p) pending.push_back(client_->MultiplyAsync(a_view_, *w));
        for (PendingProduct& one : pending) {
          const auto product = one.Wait();
          EXPECT_THAT(product, IsOk());
          EXPECT_EQ(product.ok() ? ElementsOf(*product) : std::vector<float>(), d_);
        }
        ++products;
      }
    });
  }
  for (int restart = 0; restart < 3; ++restart) {
    const int before = products;
    EXPECT_TRUE(Eventually([&] { return products >= before + 4; }));
    Restart();
  }
  const int before = products;
  EXPECT_TRUE(Eventually([&] { return products >= before + 8; }));
  is_over = true;
  for (std::thread& caller : callers) caller.join();
  // All callers wait for one upload.
  EXPECT_EQ(Tensors().uploads_complete(), 1);
}

TEST_F(RestartTest, CallbacksRestoreTheirTensors) {
  const auto w = client_->Put(w_view_, {.restorable = true});
  ASSERT_THAT(w, IsOk());
  const auto request = BuildRequest(a_view_, *w);
  ASSERT_THAT(request, IsOk());
  const std::string bytes(reinterpret_cast<const char*>(d_.data()), d_.size() * sizeof(float));
  for (const auto& lose : {std::function<void()>(LoseAll), std::function<void()>(Restart)}) {
    lose();
    const int64_t before = Tensors().uploads_complete();
    std::vector<std::promise<absl::StatusOr<v1::MultiplyResponse>>> done(16);
    for (auto& one : done) {
      client_->MultiplyAsync(*request, [&one](absl::StatusOr<v1::MultiplyResponse> response) {
        one.set_value(std::move(response));
      });
    }
    for (auto& one : done) {
      const auto response = Awaited(one.get_future(), "a product");
      ASSERT_THAT(response, IsOk());
      EXPECT_EQ(response->d().data(), bytes);
    }
    EXPECT_EQ(Tensors().uploads_complete(), before + 1);
  }
}

TEST_F(RestartTest, StreamsTakeOperandsOfAnyKind) {
  const auto w = client_->Put(w_view_, {.restorable = true});
  ASSERT_THAT(w, IsOk());
  const std::string bytes(reinterpret_cast<const char*>(d_.data()), d_.size() * sizeof(float));
  const auto stream = client_->OpenMultiplyStream();
  const auto expect_product = [&](const absl::Status& sent) {
    ASSERT_THAT(sent, IsOk());
    const auto answer = stream->Receive();
    ASSERT_TRUE(answer.has_value());
    ASSERT_THAT(answer->response, IsOk());
    EXPECT_EQ((*answer->response)->d().data(), bytes);
  };
  expect_product(stream->Send(a_view_, w_view_, {.request_id = "views"}));
  expect_product(stream->Send(a_view_, *w, {.request_id = "tensor"}));
  LoseAll();
  expect_product(stream->Send(a_view_, *w, {.request_id = "restored"}));
  EXPECT_THAT(stream->Finish(), IsOk());
}

TEST_F(RestartTest, ProductsOfStreamsRestoreTheirTensors) {
  const auto w = client_->Put(w_view_, {.restorable = true});
  ASSERT_THAT(w, IsOk());
  auto request = BuildRequest(a_view_, *w);
  ASSERT_THAT(request, IsOk());
  const std::string bytes(reinterpret_cast<const char*>(d_.data()), d_.size() * sizeof(float));
  const auto receive = [&](MultiplyStream& stream) {
    const auto answer = stream.Receive();
    ASSERT_TRUE(answer.has_value());
    ASSERT_THAT(answer->response, IsOk());
    EXPECT_EQ((*answer->response)->request_id(), answer->request_id);
    EXPECT_EQ((*answer->response)->d().data(), bytes);
  };
  const auto stream = client_->OpenMultiplyStream();
  const int64_t before = Tensors().uploads_complete();
  ASSERT_THAT(stream->Send(*request), IsOk());
  receive(*stream);
  // A stream that was open before, one that is opened afterwards, and one whose sending is closed.
  for (int round = 0; round < 2; ++round) {
    LoseAll();
    const auto later = client_->OpenMultiplyStream();
    for (MultiplyStream* const each : {&*stream, &*later}) {
      for (const char* const id : {"x", "y", "z"}) {
        request->set_request_id(id);
        ASSERT_THAT(each->Send(*request), IsOk());
      }
      if (each == &*later) each->CloseSending();
      for (int i = 0; i < 3; ++i) receive(*each);
    }
    EXPECT_THAT(later->Finish(), IsOk());
  }
  EXPECT_EQ(Tensors().uploads_complete(), before + 2);
  EXPECT_THAT(stream->Finish(), IsOk());
}

TEST_F(RestartTest, AProductOfAStreamWhoseIdAnotherHasIsNotSentAgain) {
  const auto w = client_->Put(w_view_, {.restorable = true});
  ASSERT_THAT(w, IsOk());
  auto request = BuildRequest(a_view_, *w);
  ASSERT_THAT(request, IsOk());
  LoseAll();
  const auto stream = client_->OpenMultiplyStream();
  for (const char* const id : {"same", "same", "other"}) {
    request->set_request_id(id);
    ASSERT_THAT(stream->Send(*request), IsOk());
  }
  stream->CloseSending();
  int restored = 0;
  for (int i = 0; i < 3; ++i) {
    const auto answer = stream->Receive();
    ASSERT_TRUE(answer.has_value());
    EXPECT_EQ(answer->response.ok(), answer->request_id == "other");
    restored += answer->response.ok() ? 1 : 0;
  }
  EXPECT_EQ(restored, 1);
}

TEST_F(RestartTest, CallbacksAndStreamsUseRestoredTensors) {
  const auto w = client_->Put(w_view_, {.restorable = true});
  ASSERT_THAT(w, IsOk());
  LoseAll();
  const auto request = BuildRequest(a_view_, *w);
  ASSERT_THAT(request, IsOk());
  EXPECT_THAT(client_->Multiply(*request), IsOk());
  const std::string bytes(reinterpret_cast<const char*>(d_.data()), d_.size() * sizeof(float));

  std::promise<absl::StatusOr<v1::MultiplyResponse>> done;
  client_->MultiplyAsync(*request, [&](absl::StatusOr<v1::MultiplyResponse> response) {
    done.set_value(std::move(response));
  });
  const auto response = Awaited(done.get_future(), "a product");
  ASSERT_THAT(response, IsOk());
  EXPECT_EQ(response->d().data(), bytes);

  const auto stream = client_->OpenMultiplyStream();
  ASSERT_THAT(stream->Send(*request), IsOk());
  const auto answer = stream->Receive();
  ASSERT_TRUE(answer.has_value());
  ASSERT_THAT(answer->response, IsOk());
  EXPECT_EQ((*answer->response)->d().data(), bytes);
  EXPECT_THAT(stream->Finish(), IsOk());
}

TEST_F(RestartTest, BytesThatTheSessionHasAreNotSent) {
  const auto first = client_->Put(w_view_, {.name = "first", .restorable = true});
  const std::vector<float> copy = w_;
  const auto second = client_->Put(View(copy, kK, kN), {.name = "second", .restorable = true});
  ASSERT_THAT(first, IsOk());
  ASSERT_THAT(second, IsOk());
  LoseAll();
  const v1::TensorStatistics before = Tensors();
  for (const auto* w : {&*first, &*second}) {
    const auto product = client_->Multiply(a_view_, *w);
    ASSERT_THAT(product, IsOk());
    EXPECT_EQ(ElementsOf(*product), d_);
  }
  EXPECT_EQ(Tensors().uploads_complete(), before.uploads_complete() + 1);
  EXPECT_EQ(Tensors().uploads_known(), before.uploads_known() + 1);
}

TEST_F(RestartTest, ChangedMemoryIsAnError) {
  std::vector<float> source = w_;
  const auto w = client_->Put(View(source, kK, kN), {.name = "w", .restorable = true});
  ASSERT_THAT(w, IsOk());
  LoseAll();
  source[5] += 1;
  const auto is_refused = StatusIs(absl::StatusCode::kFailedPrecondition,
                                   HasSubstr("restorable tensor w: got other bytes in its memory"));
  EXPECT_THAT(client_->Multiply(a_view_, *w), is_refused);
  const auto request = BuildRequest(a_view_, *w);
  ASSERT_THAT(request, IsOk());
  std::promise<absl::StatusOr<v1::MultiplyResponse>> done;
  client_->MultiplyAsync(*request, [&](absl::StatusOr<v1::MultiplyResponse> response) {
    done.set_value(std::move(response));
  });
  EXPECT_THAT(Awaited(done.get_future(), "a product"), is_refused);
  const auto stream = client_->OpenMultiplyStream();
  ASSERT_THAT(stream->Send(*request), IsOk());
  EXPECT_THAT(stream->Receive()->response, is_refused);
  source[5] -= 1;
  const auto product = client_->Multiply(a_view_, *w);
  ASSERT_THAT(product, IsOk());
  EXPECT_EQ(ElementsOf(*product), d_);
}

TEST_F(RestartTest, OtherTensorsAreLostAndTheErrorSaysWhatHelps) {
  const auto w = client_->Put(w_view_, {.name = "w"});
  const auto restorable = client_->Put(w_view_, {.restorable = true});
  ASSERT_THAT(w, IsOk());
  ASSERT_THAT(restorable, IsOk());
  const auto result = client_->Chain(a_view_, *w);
  ASSERT_THAT(result, IsOk());
  LoseAll();
  EXPECT_THAT(client_->Multiply(a_view_, *restorable), IsOk());
  for (const auto& lost : {w->ref(), result->tensor->ref(), NamedTensor("w")}) {
    EXPECT_THAT(client_->Describe(lost),
                StatusIs(absl::StatusCode::kNotFound, HasSubstr("PutOptions::restorable")));
  }
  EXPECT_THAT(client_->Multiply(a_view_, *w),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("PutOptions::restorable")));
  EXPECT_THAT(client_->Put(w_view_), IsOk());
  // It does not help against other mistakes.
  EXPECT_THAT(client_->Multiply(a_view_, *restorable, {.device = "none"}),
              StatusIs(absl::StatusCode::kNotFound, Not(HasSubstr("restor"))));
  const auto request = BuildRequest(a_view_, *w, {.device = "none"});
  ASSERT_THAT(request, IsOk());
  EXPECT_THAT(client_->Multiply(*request), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(RestartTest, WhatWasOverwrittenReplacedOrReleasedIsNotRestored) {
  const std::vector<float> square = Numbers(kK * kK, 3);
  const MatrixView view = View(square, kK, kK);
  const auto into = client_->Put(view, {.restorable = true});
  const auto replaced = client_->Put(view, {.name = "w", .restorable = true});
  auto released = client_->Put(view, {.restorable = true});
  ASSERT_THAT(into, IsOk());
  ASSERT_THAT(replaced, IsOk());
  ASSERT_THAT(released, IsOk());
  const auto replacing = client_->Put(w_view_, {.name = "w", .restorable = true});
  ASSERT_THAT(replacing, IsOk());
  EXPECT_THAT(client_->Describe(replaced->ref()), StatusIs(absl::StatusCode::kNotFound));
  LoseAll();
  const std::string handle = std::move(*released).Release();
  // A tensor that shares its bytes with others cannot be overwritten, so this one is put first.
  EXPECT_THAT(client_->Describe(into->ref()), IsOk());
  EXPECT_THAT(client_->Chain(view, view, {.into = into->view()}), IsOk());
  EXPECT_EQ(DownloadOf(*client_, *into), ProductOf(square, square, kK, kK, kK));
  LoseAll();
  // NotFound if the client already has another session.
  EXPECT_FALSE(client_->Describe(into->ref()).ok());
  EXPECT_THAT(client_->Multiply(a_view_, *replacing), IsOk());
  EXPECT_THAT(client_->Describe(into->ref()), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(client_->Describe(replaced->ref()), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(client_->Describe(TensorOfHandle(handle)), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_EQ(DownloadOf(*client_, *replacing), w_);
}

TEST_F(RestartTest, ARestoredTensorIsDeletedWithItsHandle) {
  const int64_t known = Tensors().uploads_known();
  {
    const auto w = client_->Put(w_view_, {.restorable = true});
    ASSERT_THAT(w, IsOk());
    LoseAll();
    EXPECT_THAT(client_->Multiply(a_view_, *w), IsOk());
    EXPECT_EQ(Tensors().tensors(), 1);
  }
  // Waits for the deletion.
  const auto other = client_->Put(w_view_);
  ASSERT_THAT(other, IsOk());
  EXPECT_EQ(Tensors().tensors(), 1);
  EXPECT_EQ(Tensors().uploads_known(), known);
}

TEST_F(RestartTest, DeletedTensorsAreNotRestored) {
  const auto w = client_->Put(w_view_, {.name = "w", .pinned = true, .restorable = true});
  ASSERT_THAT(w, IsOk());
  LoseAll();
  EXPECT_THAT(client_->Multiply(a_view_, *w), IsOk());
  EXPECT_THAT(client_->Delete(w->ref()), IsOk());
  EXPECT_THAT(client_->Describe(w->ref()), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_EQ(Tensors().tensors(), 0);
}

// The same without a daemon, where the requests can be counted.
TEST(RestorableTest, IsPutAgainWhenItsLeaseHasEnded) {
  const FakeTensors server;
  auto client = Client::Create(server.address());
  auto other = Client::Create(server.address());
  ASSERT_THAT(client, IsOk());
  ASSERT_THAT(other, IsOk());
  const auto session = client->OpenSession();
  ASSERT_THAT(session, IsOk());
  ASSERT_THAT(other->OpenSession(session->token), IsOk());
  // The padding of the last line is not in the caller's memory, but belongs to the hash.
  const std::vector<float> values = {1, 2, 0, 3, 4};
  MatrixView view = View(values, 2, 2);
  view.leading_dimension = 3;
  const auto tensor = client->Put(view, {.restorable = true});
  ASSERT_THAT(tensor, IsOk());
  ASSERT_THAT(other->Delete(tensor->ref()), IsOk());
  EXPECT_THAT(client->Describe(tensor->ref()), IsOk());
  EXPECT_EQ(server.begun().size(), 2u);
  EXPECT_EQ(server.begun()[0].SerializeAsString(), server.begun()[1].SerializeAsString());
  EXPECT_EQ(server.sessions_opened(), 2);
}

TEST(RestorableTest, ANameThatAnotherTensorHasIsNotTakenFromIt) {
  const FakeTensors server;
  auto client = Client::Create(server.address());
  auto other = Client::Create(server.address());
  ASSERT_THAT(client, IsOk());
  ASSERT_THAT(other, IsOk());
  const auto session = client->OpenSession();
  ASSERT_THAT(session, IsOk());
  ASSERT_THAT(other->OpenSession(session->token), IsOk());
  const std::vector<float> values = {1, 2, 3, 4};
  const std::vector<float> newer = {5, 6, 7, 8};
  const auto tensor = client->Put(View(values, 2, 2), {.name = "w", .restorable = true});
  ASSERT_THAT(tensor, IsOk());
  const auto replacing = other->Put(View(newer, 2, 2), {.name = "w"});
  ASSERT_THAT(replacing, IsOk());
  EXPECT_THAT(client->Describe(tensor->ref()),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("got another tensor of that name")));
  EXPECT_EQ(server.begun().size(), 2u);
}

// A product whose tensor is lost, and that something ends while the tensor is being restored.
void EndDuringRestoration(
    const std::function<void(std::optional<Client>& client, PendingProduct& product)>& end) {
  FakeTensors server({.session_delay = absl::Milliseconds(200)});
  auto made = Client::Create(server.address(), {.timeout = kPatience});
  ASSERT_THAT(made, IsOk());
  std::optional<Client> client = *std::move(made);
  const std::vector<float> values = {1, 2, 3, 4};
  const auto tensor = client->Put(View(values, 2, 2), {.restorable = true});
  ASSERT_THAT(tensor, IsOk());
  server.BreakSessions(true);
  const size_t calls = server.times_left().size();
  PendingProduct product = client->MultiplyAsync(View(values, 2, 2), *tensor);
  std::thread waiting([&] { EXPECT_FALSE(product.Wait().ok()); });
  EXPECT_TRUE(Eventually([&] { return server.times_left().size() > calls; }));
  end(client, product);
  waiting.join();
  EXPECT_TRUE(server.products().empty());
}

// The same for a call with a callback, which runs once all the same.
void EndDuringRestorationForACallback(
    const std::function<void(std::optional<Client>& client, AsyncCall& call)>& end,
    std::string_view text) {
  FakeTensors server({.session_delay = absl::Milliseconds(200)});
  auto made = Client::Create(server.address(), {.timeout = kPatience});
  ASSERT_THAT(made, IsOk());
  std::optional<Client> client = *std::move(made);
  const std::vector<float> values = {1, 2, 3, 4};
  const auto tensor = client->Put(View(values, 2, 2), {.restorable = true});
  ASSERT_THAT(tensor, IsOk());
  const auto request = BuildRequest(View(values, 2, 2), *tensor);
  ASSERT_THAT(request, IsOk());
  server.BreakSessions(true);
  const int sessions = server.sessions_opened();
  std::promise<absl::StatusOr<v1::MultiplyResponse>> done;
  AsyncCall call = client->MultiplyAsync(
      *request,
      [&](absl::StatusOr<v1::MultiplyResponse> response) { done.set_value(std::move(response)); });
  EXPECT_TRUE(Eventually([&] { return server.sessions_opened() > sessions; }));
  end(client, call);
  EXPECT_THAT(Awaited(done.get_future(), "the end"),
              StatusIs(absl::StatusCode::kCancelled, HasSubstr(text)));
  EXPECT_TRUE(server.products().empty());
}

TEST(RestorableTest, ACancelledCallIsNotSentAgain) {
  EndDuringRestorationForACallback([](std::optional<Client>&, AsyncCall& call) { call.Cancel(); },
                                   "");
}

TEST(RestorableTest, AClientMayEndDuringARestorationForACallback) {
  EndDuringRestorationForACallback(
      [](std::optional<Client>& client, AsyncCall&) { client.reset(); },
      "session: the client ends");
}

// On a thread of gRPC after a restoration, on one of the client where there can be none.
class CallbackTest : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(OwnAndJoinedSession, CallbackTest, testing::Bool());

TEST_P(CallbackTest, MayDestroyTheClientAfterALoss) {
  const bool is_joined = GetParam();
  FakeTensors server;
  auto first = Client::Create(server.address());
  auto made = Client::Create(server.address(), {.timeout = kPatience});
  ASSERT_THAT(first, IsOk());
  ASSERT_THAT(made, IsOk());
  std::optional<Client> client = *std::move(made);
  if (is_joined) {
    const auto session = first->OpenSession();
    ASSERT_THAT(session, IsOk());
    ASSERT_THAT(client->OpenSession(session->token), IsOk());
  }
  const std::vector<float> values = {1, 2, 3, 4};
  auto tensor = client->Put(View(values, 2, 2), {.name = "w", .restorable = true});
  ASSERT_THAT(tensor, IsOk());
  const auto request = BuildRequest(View(values, 2, 2), *tensor);
  ASSERT_THAT(request, IsOk());
  server.BreakSessions(true);
  std::promise<bool> done;
  client->MultiplyAsync(*request, [&](const absl::StatusOr<v1::MultiplyResponse>& response) {
    client.reset();
    done.set_value(response.ok());
  });
  EXPECT_EQ(Awaited(done.get_future(), "the end"), !is_joined);
  EXPECT_FALSE(client.has_value());
}

TEST(RestorableTest, ACancelledProductIsNotSentAgain) {
  EndDuringRestoration([](std::optional<Client>&, PendingProduct& product) { product.Cancel(); });
}

TEST(RestorableTest, AClientMayEndDuringARestoration) {
  EndDuringRestoration([](std::optional<Client>& client, PendingProduct&) { client.reset(); });
}

TEST(RestorableTest, ASessionThatWasJoinedIsNotReplaced) {
  FakeTensors server;
  auto first = Client::Create(server.address());
  auto client = Client::Create(server.address());
  ASSERT_THAT(first, IsOk());
  ASSERT_THAT(client, IsOk());
  const auto session = first->OpenSession();
  ASSERT_THAT(session, IsOk());
  ASSERT_THAT(client->OpenSession(session->token), IsOk());
  const std::vector<float> values = {1, 2, 3, 4};
  const auto tensor = client->Put(View(values, 2, 2), {.restorable = true});
  ASSERT_THAT(tensor, IsOk());
  server.BreakSessions(true);
  EXPECT_THAT(client->Describe(tensor->ref()),
              StatusIs(absl::StatusCode::kUnauthenticated, "gemmd-session: got an unknown token"));
  EXPECT_EQ(server.begun().size(), 1u);
}

}  // namespace
}  // namespace gemmd
