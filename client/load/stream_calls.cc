// SPDX-License-Identifier: Apache-2.0
#include "client/load/stream_calls.h"

#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "gemmd/multiply_stream.h"

namespace gemmd {
namespace {

// How long a stream that ended stays away, so that a server that ends each at once is not flooded.
constexpr absl::Duration kPause = absl::Milliseconds(100);

}  // namespace

// One stream after the other. Senders hold `stream_mutex_` for reading as long as they use the
// stream, so that no call gets into one that has ended.
class StreamCalls::Stream {
 public:
  explicit Stream(Client& client)
      : client_(client), stream_(Open()), receiver_([this] { Run(); }) {}

  ~Stream() {
    {
      absl::MutexLock lock(&mutex_);
      is_closing_ = true;
    }
    {
      absl::ReaderMutexLock lock(&stream_mutex_);
      stream_->CloseSending();
    }
    receiver_.join();
  }

  void Send(const v1::MultiplyRequest& request, Done done) {
    v1::MultiplyRequest named = request;
    absl::ReaderMutexLock lock(&stream_mutex_);
    {
      absl::MutexLock calls_lock(&mutex_);
      named.set_request_id(absl::StrCat(++last_id_));
      calls_[named.request_id()] = std::move(done);
    }
    const absl::Status sent = stream_->Send(named);
    if (sent.ok()) return;
    absl::MutexLock calls_lock(&mutex_);
    unsent_.emplace_back(named.request_id(), sent);
  }

  void Cancel() {
    {
      absl::MutexLock lock(&mutex_);
      is_closing_ = true;
    }
    absl::ReaderMutexLock lock(&stream_mutex_);
    stream_->Cancel();
  }

 private:
  std::unique_ptr<MultiplyStream> Open() {
    // The stream lasts as long as the load.
    return client_.OpenMultiplyStream({.timeout = absl::InfiniteDuration()});
  }

  void Run() {
    while (true) {
      Receive();
      const absl::Status status = stream_->Finish();
      EndUnsent();
      EndAll(status.ok() ? absl::CancelledError("stream: the server has ended it") : status);
      if (AwaitClosing(kPause)) return;
      absl::WriterMutexLock lock(&stream_mutex_);
      stream_ = Open();
      if (IsClosing()) stream_->Cancel();
    }
  }

  void Receive() {
    while (std::optional<StreamAnswer> answer = stream_->Receive()) {
      if (answer->response.ok()) {
        End(answer->request_id, std::move(**answer->response));
      } else {
        End(answer->request_id, answer->response.status());
      }
      EndUnsent();
    }
  }

  void End(const std::string& id, absl::StatusOr<v1::MultiplyResponse> result) {
    Done done;
    {
      absl::MutexLock lock(&mutex_);
      const auto call = calls_.find(id);
      if (call == calls_.end()) return;
      done = std::move(call->second);
      calls_.erase(call);
    }
    std::move(done)(std::move(result));
  }

  void EndUnsent() {
    std::vector<std::pair<std::string, absl::Status>> unsent;
    {
      absl::MutexLock lock(&mutex_);
      unsent.swap(unsent_);
    }
    for (auto& [id, status] : unsent) End(id, std::move(status));
  }

  void EndAll(const absl::Status& status) {
    absl::flat_hash_map<std::string, Done> calls;
    {
      absl::MutexLock lock(&mutex_);
      calls.swap(calls_);
    }
    for (auto& [id, done] : calls) std::move(done)(status);
  }

  bool AwaitClosing(absl::Duration timeout) {
    absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(&is_closing_), timeout);
  }
  bool IsClosing() {
    absl::MutexLock lock(&mutex_);
    return is_closing_;
  }

  Client& client_;
  absl::Mutex stream_mutex_;
  std::unique_ptr<MultiplyStream> stream_;  // Changed by the receiver, under the lock.

  absl::Mutex mutex_;
  uint64_t last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<std::string, Done> calls_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::pair<std::string, absl::Status>> unsent_ ABSL_GUARDED_BY(mutex_);
  bool is_closing_ ABSL_GUARDED_BY(mutex_) = false;

  std::thread receiver_;
};

StreamCalls::StreamCalls(std::vector<Client>& clients, int streams_of_client)
    : streams_of_client_(static_cast<size_t>(streams_of_client)) {
  for (Client& client : clients) {
    for (int i = 0; i < streams_of_client; ++i) {
      streams_.push_back(std::make_unique<Stream>(client));
    }
  }
}

StreamCalls::~StreamCalls() = default;

void StreamCalls::Send(size_t client, const v1::MultiplyRequest& request, Done done) {
  const uint64_t turn = next_.fetch_add(1, std::memory_order_relaxed);
  const size_t stream = client * streams_of_client_ + turn % streams_of_client_;
  streams_[stream]->Send(request, std::move(done));
}

void StreamCalls::Cancel() {
  for (const auto& stream : streams_) stream->Cancel();
}

}  // namespace gemmd
