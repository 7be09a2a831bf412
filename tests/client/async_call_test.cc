// SPDX-License-Identifier: Apache-2.0
//
// Asynchronous calls: completion, cancellation, and clients that are destroyed early.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/notification.h"
#include "gemmd/client.h"
#include "gemmd/v1/gemm.pb.h"
#include "tests/client/fake_service.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using Result = absl::StatusOr<v1::MultiplyResponse>;

FakeScript ScriptOfIds() {
  FakeScript script;
  script.multiply = [](grpc::CallbackServerContext&, const v1::MultiplyRequest& request,
                       v1::MultiplyResponse& response) -> std::optional<grpc::Status> {
    if (request.request_id() == "open") return std::nullopt;
    if (request.request_id() == "bad")
      return grpc::Status(grpc::StatusCode::NOT_FOUND, "kernel: got none");
    response.set_request_id(request.request_id());
    return grpc::Status::OK;
  };
  return script;
}

v1::MultiplyRequest RequestNamed(const std::string& id) {
  v1::MultiplyRequest request;
  request.set_request_id(id);
  return request;
}

// Starts a call and waits for its end.
Result RunToEnd(Client& client, const std::string& id, const CallOptions& options = {}) {
  Result result = absl::UnknownError("not called back");
  absl::Notification done;
  client.MultiplyAsync(
      RequestNamed(id),
      [&](Result ended) {
        result = std::move(ended);
        done.Notify();
      },
      options);
  done.WaitForNotification();
  return result;
}

TEST(AsyncCallTest, CallsShareARequest) {
  const FakeServer server(ScriptOfIds());
  auto client = Client::Create(server.address());
  ASSERT_THAT(client, IsOk());
  const auto request = std::make_shared<const v1::MultiplyRequest>(RequestNamed("shared"));
  constexpr int kCalls = 10;
  absl::BlockingCounter left(kCalls);
  std::atomic<int> named = 0;
  for (int i = 0; i < kCalls; ++i) {
    client->MultiplyAsync(request, [&](const Result& result) {
      named += result.ok() && result->request_id() == "shared";
      left.DecrementCount();
    });
  }
  left.Wait();
  EXPECT_EQ(named, kCalls);
}

TEST(AsyncCallTest, CallsBackOnceWithTheAnswer) {
  const FakeServer server(ScriptOfIds());
  auto client = Client::Create(server.address());
  ASSERT_THAT(client, IsOk());
  const Result result = RunToEnd(*client, "one");
  ASSERT_THAT(result, IsOk());
  EXPECT_EQ(result->request_id(), "one");
  EXPECT_THAT(RunToEnd(*client, "bad"), StatusIs(absl::StatusCode::kNotFound, "kernel: got none"));
  EXPECT_THAT(RunToEnd(*client, "open", {.timeout = absl::Milliseconds(50)}),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
}

// Calls begin and end concurrently, often in memory that another call has just released.
TEST(AsyncCallTest, RunsManyAtOnceFromManyThreads) {
  const FakeServer server(ScriptOfIds());
  auto client = Client::Create(server.address());
  ASSERT_THAT(client, IsOk());
  constexpr size_t kThreads = 4;
  constexpr size_t kCalls = 2500;
  std::vector<std::atomic<int>> answers(kThreads * kCalls);
  absl::BlockingCounter pending(kThreads * kCalls);
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (size_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      for (size_t j = i * kCalls; j < (i + 1) * kCalls; ++j) {
        client->MultiplyAsync(RequestNamed(absl::StrCat(j)), [&, j](const Result& result) {
          if (result.ok() && result->request_id() == absl::StrCat(j)) answers[j].fetch_add(1);
          pending.DecrementCount();
        });
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  pending.Wait();
  for (const std::atomic<int>& count : answers) EXPECT_EQ(count.load(), 1);
}

TEST(AsyncCallTest, StartsTheNextCallFromACallback) {
  const FakeServer server(ScriptOfIds());
  auto client = Client::Create(server.address());
  ASSERT_THAT(client, IsOk());
  absl::Notification done;
  client->MultiplyAsync(RequestNamed("first"), [&](const Result& first) {
    EXPECT_THAT(first, IsOk());
    client->MultiplyAsync(RequestNamed("second"), [&](const Result& second) {
      EXPECT_THAT(second, IsOk());
      done.Notify();
    });
  });
  done.WaitForNotification();
}

TEST(AsyncCallTest, CancelEndsTheCall) {
  const FakeServer server(ScriptOfIds());
  auto client = Client::Create(server.address());
  ASSERT_THAT(client, IsOk());
  absl::Notification done;
  Result result = absl::UnknownError("not called back");
  AsyncCall call = client->MultiplyAsync(RequestNamed("open"), [&](Result ended) {
    result = std::move(ended);
    done.Notify();
  });
  call.Cancel();
  done.WaitForNotification();
  EXPECT_THAT(result, StatusIs(absl::StatusCode::kCancelled));
  call.Cancel();  // After the end: no effect.
}

TEST(AsyncCallTest, DestroyingTheClientEndsItsCalls) {
  const FakeServer server(ScriptOfIds());
  constexpr int kCalls = 20;
  int called_back = 0;  // Unguarded on purpose: no callback may run once the client is gone.
  {
    auto client = Client::Create(server.address());
    ASSERT_THAT(client, IsOk());
    absl::Mutex mutex;
    for (int i = 0; i < kCalls; ++i) {
      client->MultiplyAsync(RequestNamed("open"), [&](const Result& result) {
        absl::MutexLock lock(&mutex);
        EXPECT_THAT(result, StatusIs(absl::StatusCode::kCancelled));
        ++called_back;
      });
    }
    // Destroys the client before the mutex.
    Client last = *std::move(client);
  }
  EXPECT_EQ(called_back, kCalls);
}

// A load generator: each callback starts the next call until it is told to stop.
void KeepCalling(Client& client, std::atomic<int>& calls) {
  client.MultiplyAsync(RequestNamed("next"), [&](const Result& result) {
    calls.fetch_add(1);
    if (result.ok()) KeepCalling(client, calls);
  });
}

TEST(AsyncCallTest, DestroyingTheClientEndsChainsOfCalls) {
  const FakeServer server(ScriptOfIds());
  auto client = Client::Create(server.address());
  ASSERT_THAT(client, IsOk());
  std::atomic<int> calls = 0;
  {
    auto kept = std::make_unique<Client>(*std::move(client));
    for (int i = 0; i < 8; ++i) KeepCalling(*kept, calls);
    ASSERT_THAT(RunToEnd(*kept, "meanwhile"), IsOk());
  }
  EXPECT_GE(calls.load(), 8);
}

TEST(AsyncCallTest, DestroyingTheClientInItsCallbackIsAllowed) {
  const FakeServer server(ScriptOfIds());
  auto created = Client::Create(server.address());
  ASSERT_THAT(created, IsOk());
  auto client = std::make_unique<Client>(*std::move(created));
  absl::Notification first_done;
  absl::Notification open_done;
  Client& alive = *client;
  alive.MultiplyAsync(RequestNamed("open"), [&](const Result& result) {
    EXPECT_THAT(result, StatusIs(absl::StatusCode::kCancelled));
    open_done.Notify();
  });
  alive.MultiplyAsync(RequestNamed("quick"), [&](const Result& result) {
    EXPECT_THAT(result, IsOk());
    client.reset();
    first_done.Notify();
  });
  first_done.WaitForNotification();
  open_done.WaitForNotification();
}

TEST(AsyncCallTest, ACallbackMayOwnTheClient) {
  const FakeServer server(ScriptOfIds());
  absl::Notification done;
  {
    auto created = Client::Create(server.address());
    ASSERT_THAT(created, IsOk());
    auto client = std::make_shared<Client>(*std::move(created));
    client->MultiplyAsync(RequestNamed("one"), [client, &done](const Result& result) {
      EXPECT_THAT(result, IsOk());
      done.Notify();
    });
  }
  done.WaitForNotification();
}

// gRPC 1.51 ends its callback threads with the last channel that used them, and joins them: a
// channel that a callback thread destroys would join itself. No server may run in this process
// here, since it would keep those threads.
TEST(AsyncCallTest, TheLastChannelEndsOnAThreadOfTheUser) {
  ClientOptions options;
  options.max_attempts = 1;
  for (int i = 0; i < 100; ++i) {
    absl::Notification done;
    {
      // Port 1 is reserved; nothing listens there.
      auto created = Client::Create("127.0.0.1:1", options);
      ASSERT_THAT(created, IsOk());
      auto client = std::make_shared<Client>(*std::move(created));
      client->MultiplyAsync(RequestNamed("one"), [client, &done](const Result& result) {
        EXPECT_THAT(result, StatusIs(absl::StatusCode::kUnavailable));
        done.Notify();
      });
    }
    done.WaitForNotification();
  }
  for (int i = 0; i < 100; ++i) {
    auto client = Client::Create("127.0.0.1:1", options);
    ASSERT_THAT(client, IsOk());
    client->MultiplyAsync(RequestNamed("one"), [](const Result&) {});
  }
}

TEST(AsyncCallTest, ACallOutlivesItsHandle) {
  const FakeServer server(ScriptOfIds());
  auto client = Client::Create(server.address());
  ASSERT_THAT(client, IsOk());
  absl::Notification done;
  {
    const AsyncCall call = client->MultiplyAsync(RequestNamed("one"), [&](const Result& result) {
      EXPECT_THAT(result, IsOk());
      done.Notify();
    });
  }
  done.WaitForNotification();
}

}  // namespace
}  // namespace gemmd
