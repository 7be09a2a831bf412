// SPDX-License-Identifier: Apache-2.0
#include "tests/client/load/delayed_server.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "gemmd/v1/gemm.grpc.pb.h"

namespace gemmd {

class DelayedServer::Gemm : public v1::Gemm::WithCallbackMethod_Multiply<v1::Gemm::Service> {
 public:
  explicit Gemm(const DelayScript& script)
      : script_(script), is_held_(script.is_held), timer_([this] { Run(); }) {}

  ~Gemm() override {
    {
      absl::MutexLock lock(&mutex_);
      is_ending_ = true;
    }
    timer_.join();
  }

  grpc::ServerUnaryReactor* Multiply(grpc::CallbackServerContext* context,
                                     const v1::MultiplyRequest* /*request*/,
                                     v1::MultiplyResponse* response) override {
    response->mutable_timing()->set_compute_ns(1000);
    response->mutable_timing()->set_total_ns(1500);
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    absl::MutexLock lock(&mutex_);
    const absl::Time now = absl::Now();
    ++calls_;
    if (calls_ == script_.stall_at_call) stalled_until_ = now + script_.stall;
    const absl::Duration delay =
        calls_ <= script_.early_calls ? script_.early_delay : script_.delay;
    held_.emplace(std::max(now + delay, stalled_until_), reactor);
    return reactor;
  }

  int64_t calls() {
    absl::MutexLock lock(&mutex_);
    return calls_;
  }

  void Release() {
    absl::MutexLock lock(&mutex_);
    is_held_ = false;
  }

 private:
  bool HasAnswers() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !is_held_ && !held_.empty();
  }

  // Sends due answers until the end, and then the rest.
  void Run() {
    absl::MutexLock lock(&mutex_);
    while (!is_ending_ || !held_.empty()) {
      const absl::Time due = HasAnswers() ? held_.begin()->first : absl::InfiniteFuture();
      const auto has_earlier = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return is_ending_ || (HasAnswers() && held_.begin()->first < due);
      };
      if (!is_ending_ && absl::Now() < due) {
        mutex_.AwaitWithDeadline(absl::Condition(&has_earlier), due);
        continue;
      }
      grpc::ServerUnaryReactor* const reactor = held_.begin()->second;
      held_.erase(held_.begin());
      mutex_.Unlock();
      reactor->Finish(grpc::Status::OK);
      mutex_.Lock();
    }
  }

  const DelayScript script_;
  absl::Mutex mutex_;
  int64_t calls_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Time stalled_until_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  std::multimap<absl::Time, grpc::ServerUnaryReactor*> held_ ABSL_GUARDED_BY(mutex_);
  bool is_held_ ABSL_GUARDED_BY(mutex_);
  bool is_ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread timer_;
};

DelayedServer::DelayedServer(const DelayScript& script) : gemm_(std::make_unique<Gemm>(script)) {
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(gemm_.get());
  server_ = builder.BuildAndStart();
  address_ = absl::StrCat("127.0.0.1:", port);
}

DelayedServer::~DelayedServer() {
  server_->Shutdown(std::chrono::system_clock::now());
  server_->Wait();
}

int64_t DelayedServer::calls() const { return gemm_->calls(); }

void DelayedServer::Release() { gemm_->Release(); }

}  // namespace gemmd
