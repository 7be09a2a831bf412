// SPDX-License-Identifier: Apache-2.0
//
// Asynchronous products: who keeps a call alive, and how a client ends while calls are under way.
#include <utility>

#include "client/connections.h"
#include "client/status_conversion.h"

namespace gemmd {
namespace {

// The client whose callback this thread is running, so that a client destroyed in its own callback
// does not wait for that callback to end.
thread_local const OutstandingCalls* running_callback_of = nullptr;

void RunCallback(OutstandingCalls& outstanding, AsyncCallState& call,
                 absl::StatusOr<v1::MultiplyResponse> result) {
  const OutstandingCalls* const outer = std::exchange(running_callback_of, &outstanding);
  Client::MultiplyDone done = std::move(call.done);
  std::move(done)(std::move(result));
  done = nullptr;  // What the callback owns, perhaps the client, ends here and not after Remove.
  running_callback_of = outer;
}

}  // namespace

void OutstandingCalls::Add(const std::shared_ptr<AsyncCallState>& call) {
  absl::MutexLock lock(&mutex_);
  calls_.emplace(call.get(), call);
  if (is_closed_) call->context.TryCancel();
}

void OutstandingCalls::Remove(const AsyncCallState* call) {
  std::shared_ptr<AsyncCallState> last;  // Destroyed without the lock.
  absl::MutexLock lock(&mutex_);
  const auto it = calls_.find(call);
  last = std::move(it->second);
  calls_.erase(it);
}

void OutstandingCalls::CancelAndWait() {
  std::vector<std::shared_ptr<AsyncCallState>> calls;
  {
    absl::MutexLock lock(&mutex_);
    is_closed_ = true;
    for (const auto& [key, call] : calls_) calls.push_back(call);
  }
  for (const auto& call : calls) call->context.TryCancel();
  if (running_callback_of == this) return;
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(this, &OutstandingCalls::IsEmpty));
}

void AsyncCall::Cancel() {
  if (const std::shared_ptr<AsyncCallState> state = state_.lock()) state->context.TryCancel();
}

AsyncCall Client::MultiplyAsync(v1::MultiplyRequest request, MultiplyDone done,
                                const CallOptions& options) {
  auto call = std::make_shared<AsyncCallState>();
  call->request = std::move(request);
  call->done = std::move(done);
  state_->SetDeadline(call->context, options);
  state_->outstanding.Add(call);
  AsyncCall handle(call);
  // The closure keeps the call, and with it the channel, to the end, whatever becomes of the
  // client.
  v1::Gemm::Stub& stub = *state_->Next().gemm;
  const std::shared_ptr<State> state = state_;
  stub.async()->Multiply(
      &call->context, &call->request, &call->response, [state, call](const grpc::Status& status) {
        absl::StatusOr<v1::MultiplyResponse> result =
            status.ok() ? absl::StatusOr<v1::MultiplyResponse>(std::move(call->response))
                        : ToAbslStatus(status, call->context);
        RunCallback(state->outstanding, *call, std::move(result));
        state->outstanding.Remove(call.get());
      });
  return handle;
}

}  // namespace gemmd
