// SPDX-License-Identifier: Apache-2.0
//
// Asynchronous products: who keeps a call alive, and how a client ends while calls are under way.
#include <utility>

#include "absl/base/const_init.h"
#include "client/connections.h"
#include "client/status_conversion.h"
#include "gemmd/v1/gemm.pb.h"

namespace gemmd {
namespace {

// The calls of which this thread is running a callback, so that a client destroyed in its own
// callback does not wait for that callback to end.
thread_local const OutstandingCalls* running_callback_of = nullptr;

void RunCallback(const OutstandingCalls* outstanding, AsyncCallState& call,
                 absl::StatusOr<v1::MultiplyResponse> result) {
  const OutstandingCalls* const outer = std::exchange(running_callback_of, outstanding);
  Client::MultiplyDone done = std::move(call.done);
  std::move(done)(std::move(result));
  done = nullptr;  // What the callback owns, perhaps the client, ends here.
  running_callback_of = outer;
}

// Parked clients. The list is global because nobody is left to own them. It holds what clients that
// were destroyed in their own callbacks left, until a client is made or destroyed elsewhere.
ABSL_CONST_INIT absl::Mutex parked_mutex(absl::kConstInit);
std::vector<std::unique_ptr<ClientState>>& ParkedClients()
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(parked_mutex) {
  // Never destroyed: channels must not end during the end of the process.
  static auto& clients = *new std::vector<std::unique_ptr<ClientState>>;
  return clients;
}

}  // namespace

void OutstandingCalls::Add(const std::shared_ptr<AsyncCallState>& call) {
  absl::MutexLock lock(&mutex_);
  calls_.emplace(call.get(), call);
  if (is_closed_) call->context.TryCancel();
}

void OutstandingCalls::End(AsyncCallState* call, absl::StatusOr<v1::MultiplyResponse> result) {
  RunCallback(this, *call, std::move(result));
  std::shared_ptr<AsyncCallState> last;
  {
    // The address may belong to a new call as soon as this one is destroyed, so it is forgotten
    // first.
    absl::MutexLock lock(&mutex_);
    const auto it = calls_.find(call);
    last = std::move(it->second);
    calls_.erase(it);
    ++ending_;
  }
  last = nullptr;
  // The client may go with the end of this lock.
  absl::MutexLock lock(&mutex_);
  --ending_;
}

bool OutstandingCalls::CancelAndWait() {
  std::vector<std::shared_ptr<AsyncCallState>> calls;
  {
    absl::MutexLock lock(&mutex_);
    is_closed_ = true;
    for (const auto& [key, call] : calls_) calls.push_back(call);
  }
  // Without the lock, which callbacks take.
  for (const auto& call : calls) call->context.TryCancel();
  calls.clear();
  if (running_callback_of == this) return false;
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(this, &OutstandingCalls::HasEnded));
  return true;
}

bool OutstandingCalls::IsEmpty() const {
  absl::MutexLock lock(&mutex_);
  return HasEnded();
}

void ParkClient(std::unique_ptr<ClientState> client) {
  absl::MutexLock lock(&parked_mutex);
  ParkedClients().push_back(std::move(client));
}

void EndParkedClients() {
  if (running_callback_of != nullptr) return;
  std::vector<std::unique_ptr<ClientState>> ended;  // Destroyed without the lock.
  absl::MutexLock lock(&parked_mutex);
  std::vector<std::unique_ptr<ClientState>>& parked = ParkedClients();
  for (auto it = parked.begin(); it != parked.end();) {
    if ((*it)->outstanding.IsEmpty()) {
      ended.push_back(std::move(*it));
      it = parked.erase(it);
    } else {
      ++it;
    }
  }
}

void AsyncCallState::OnDone(const grpc::Status& status) {
  auto result = status.ok() ? absl::StatusOr<v1::MultiplyResponse>(std::move(response))
                            : ToAbslStatus(status, context);
  outstanding.End(this, std::move(result));  // Destroys this.
}

void AsyncCall::Cancel() {
  if (const std::shared_ptr<AsyncCallState> state = state_.lock()) state->context.TryCancel();
}

AsyncCall Client::MultiplyAsync(v1::MultiplyRequest request, MultiplyDone done,
                                const CallOptions& options) {
  return MultiplyAsync(std::make_shared<const v1::MultiplyRequest>(std::move(request)),
                       std::move(done), options);
}

AsyncCall Client::MultiplyAsync(std::shared_ptr<const v1::MultiplyRequest> request,
                                MultiplyDone done, const CallOptions& options) {
  auto call = std::make_shared<AsyncCallState>(state_->outstanding);
  call->request = std::move(request);
  call->done = std::move(done);
  state_->Prepare(call->context, options);
  state_->outstanding.Add(call);
  state_->Next().gemm->async()->Multiply(&call->context, call->request.get(), &call->response,
                                         call.get());
  AsyncCall handle(call);
  call->StartCall();
  return handle;
}

}  // namespace gemmd
