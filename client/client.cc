// SPDX-License-Identifier: Apache-2.0
#include "gemmd/client.h"

#include <openssl/sha.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/const_init.h"
#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "client/channel.h"
#include "client/client_session.h"
#include "client/connections.h"
#include "client/operand_size.h"
#include "client/product_call.h"
#include "client/transfer.h"
#include "gemmd/health/health.pb.h"
#include "gemmd/tensor.h"
#include "gemmd/v1/admin.pb.h"
#include "gemmd/v1/gemm.pb.h"
#include "gemmd/v1/incidents.pb.h"
#include "gemmd/v1/instructions.pb.h"
#include "gemmd/v1/registry.pb.h"
#include "gemmd/v1/resident.pb.h"
#include "gemmd/v1/statistics.pb.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/support/client_callback.h"
#include "kernels/matrix/status.h"
#include "proto/deadline_after.h"

namespace gemmd {
namespace {

// The OutstandingCalls whose callback this thread is running, so that a client destroyed in its own
// callback does not wait for that callback to end.
thread_local const OutstandingCalls* running_callback_of = nullptr;

void RunCallback(const OutstandingCalls* outstanding, AsyncCallState& call,
                 absl::StatusOr<v1::MultiplyResponse> result) {
  const OutstandingCalls* const outer = std::exchange(running_callback_of, outstanding);
  Client::MultiplyDone done = std::move(call.done);
  std::move(done)(std::move(result));
  done = nullptr;  // Destroys what the callback owns, perhaps the client.
  running_callback_of = outer;
}

// Parked clients: clients destroyed in their own callbacks, kept until a client is created or
// destroyed elsewhere. The list is global because nothing else owns them.
ABSL_CONST_INIT absl::Mutex parked_mutex(absl::kConstInit);
std::vector<std::unique_ptr<ClientState>>& ParkedClients()
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(parked_mutex) {
  // Never destroyed: channels must not be destroyed during process exit.
  static auto& clients = *new std::vector<std::unique_ptr<ClientState>>;
  return clients;
}

}  // namespace

void OutstandingCalls::Add(const std::shared_ptr<AsyncCallState>& call) {
  absl::MutexLock lock(&mutex_);
  calls_.emplace(call.get(), call);
  if (is_closed_) call->Cancel();
}

void OutstandingCalls::End(AsyncCallState* call, absl::StatusOr<v1::MultiplyResponse> result) {
  RunCallback(this, *call, std::move(result));
  std::shared_ptr<AsyncCallState> last;
  {
    // Once this call is destroyed, a new call may reuse its address, so erase the address first.
    absl::MutexLock lock(&mutex_);
    const auto it = calls_.find(call);
    last = std::move(it->second);
    calls_.erase(it);
    ++ending_;
  }
  last = nullptr;
  // The client may be destroyed once this lock is released.
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
  // Not under the lock, which callbacks acquire.
  for (const auto& call : calls) call->Cancel();
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
  std::vector<std::unique_ptr<ClientState>> ended;  // Destroyed after the lock is released.
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

void AsyncCallState::Start(std::shared_ptr<const v1::MultiplyRequest> request) {
  Attempt* attempt = nullptr;
  {
    absl::MutexLock lock(&mutex);
    attempt = &attempts.emplace_back(*this, std::move(request));
    sent.token =
        client.session->Prepare(attempt->context, deadline - SteadyTime::Now(), traceparent);
    if (is_cancelled) attempt->context.TryCancel();
  }
  client.Next().gemm->async()->Multiply(&attempt->context, attempt->request.get(),
                                        &attempt->response, attempt);
  attempt->StartCall();
}

void AsyncCallState::Attempt::OnDone(const grpc::Status& status) {
  if (status.ok()) return call.client.outstanding.End(&call, std::move(response));
  const absl::Status refusal = ToAbslStatus(status, context);
  if (!IsLoss(refusal) || !NamesTensors(*request)) {
    return call.client.outstanding.End(&call, refusal);  // Destroys this.
  }
  call.client.session->RunSoon(
      [&state = call, refusal, sent = request] { state.SendAgain(refusal, *sent); });
}

void AsyncCallState::SendAgain(const absl::Status& refusal, const v1::MultiplyRequest& refused) {
  absl::Status ready = absl::CancelledError("product: it was cancelled");
  if (!IsCancelled()) ready = client.session->Restore(refusal, sent, deadline);
  if (!ready.ok()) return client.outstanding.End(this, ready);
  auto current = std::make_shared<v1::MultiplyRequest>(refused);
  sent.uses = client.session->Translate(*current);
  Start(std::move(current));
}

void AsyncCallState::Cancel() {
  Attempt* attempt = nullptr;
  {
    absl::MutexLock lock(&mutex);
    is_cancelled = true;
    if (!attempts.empty()) attempt = &attempts.back();
  }
  // Not under the lock: gRPC may run reactions of other calls on this thread.
  if (attempt != nullptr) attempt->context.TryCancel();
}

void AsyncCall::Cancel() {
  if (const std::shared_ptr<AsyncCallState> state = state_.lock()) state->Cancel();
}

namespace {

SteadyTime DeadlineOf(const ClientState& state, const std::optional<absl::Duration>& timeout) {
  return SteadyTime::Now() + timeout.value_or(state.timeout);
}

// Options with the time left until the caller's deadline.
CallOptions Until(SteadyTime deadline, CallOptions options = {}) {
  options.timeout = deadline - SteadyTime::Now();
  return options;
}

// A method of a stub.
template <typename Stub, typename Request, typename Response>
using Method = grpc::Status (Stub::*)(grpc::ClientContext*, const Request&, Response*);

// Makes one blocking call over the next connection, with the given stub of it. Sets `token` to the
// session token that it sends.
template <typename Stub, typename Request, typename Response>
absl::StatusOr<Response> Call(ClientState& state, std::unique_ptr<Stub> Connection::*stub,
                              Method<Stub, Request, Response> method, const Request& request,
                              const CallOptions& options, std::string* token = nullptr) {
  grpc::ClientContext context;
  std::string sent = state.Prepare(context, options);
  if (token != nullptr) *token = std::move(sent);
  Response response;
  const grpc::Status status = ((*(state.Next().*stub)).*method)(&context, request, &response);
  if (!status.ok()) return ToAbslStatus(status, context);
  return response;
}

v1::TensorRef MessageOf(const TensorRef& ref) {
  v1::TensorRef message;
  if (ref.handle.empty()) {
    message.set_name(ref.name);
  } else {
    message.set_handle(ref.handle);
  }
  return message;
}

// Runs `call(request, &token)` with the current handles of the tensors that the request names; the
// call sets `token` to the session token that it sends. If the server refuses because it has lost a
// restorable tensor, puts the tensor again and repeats the call.
template <typename Response, typename Request, typename Call>
absl::StatusOr<Response> CallWithTensors(ClientSession& session, Request& request,
                                         SteadyTime deadline, Call call) {
  SentTensors sent;
  while (true) {
    sent.uses = session.restorable().Translate(TensorRefsOf(request));
    absl::StatusOr<Response> response = call(request, &sent.token);
    if (response.ok()) return response;
    RETURN_IF_ERROR(session.Restore(response.status(), sent, deadline));
  }
}

// A new tensor has this name: the one that it has replaced must not be restored.
void ForgetName(RestorableTensors& restorable, const std::string& name) {
  if (!name.empty()) restorable.Forget(MessageOf(NamedTensor(name)));
}

// Uploads a tensor; in another session if the server does not know the client's any more.
absl::StatusOr<v1::TensorInfo> UploadInSession(ClientSession& session, const UploadPlan& plan) {
  const SteadyTime deadline = plan.terms.timeout.has_value()
                                  ? plan.terms.entry + *plan.terms.timeout
                                  : SteadyTime::Now() + plan.terms.patience;
  SentTensors sent = {.is_upload = true};
  while (true) {
    sent.token = session.token();
    auto info = RunUpload(session, plan);
    if (info.ok()) return info;
    RETURN_IF_ERROR(session.Restore(info.status(), sent, deadline));
  }
}

}  // namespace

PendingProduct Client::MultiplyAsync(const MatrixView& a, const MatrixView& b,
                                     const ProductOptions& product_options,
                                     const CallOptions& call_options) {
  return MultiplyAsync(Operand(a), Operand(b), product_options, call_options);
}

PendingProduct Client::MultiplyAsync(const Operand& a, const Operand& b,
                                     const ProductOptions& product_options,
                                     const CallOptions& call_options) {
  // The deadline counts from here.
  const SteadyTime deadline = DeadlineOf(*state_, call_options.timeout);
  const std::shared_ptr<grpc::Channel> channel = state_->Next().channel;
  auto call = std::make_unique<ProductCall>(channel);
  std::string token = state_->Prepare(call->context(), call_options);
  auto request = BuildLentRequest(a, b, product_options);
  if (!request.ok()) return PendingProduct(request.status());
  auto retry = RetryOf(*state_->session, *request, std::move(token), channel, deadline,
                       call_options.traceparent);
  call->Start(*std::move(request), product_options.into, std::move(retry));
  return PendingProduct(std::move(call));
}

absl::StatusOr<MultiplyResult> Client::Multiply(const MatrixView& a, const MatrixView& b,
                                                const ProductOptions& product_options,
                                                const CallOptions& call_options) {
  return MultiplyAsync(a, b, product_options, call_options).Wait();
}

absl::StatusOr<MultiplyResult> Client::Multiply(const Operand& a, const Operand& b,
                                                const ProductOptions& product_options,
                                                const CallOptions& call_options) {
  return MultiplyAsync(a, b, product_options, call_options).Wait();
}

AsyncCall Client::MultiplyAsync(v1::MultiplyRequest request, MultiplyDone done,
                                const CallOptions& options) {
  return MultiplyAsync(std::make_shared<const v1::MultiplyRequest>(std::move(request)),
                       std::move(done), options);
}

AsyncCall Client::MultiplyAsync(std::shared_ptr<const v1::MultiplyRequest> request,
                                MultiplyDone done, const CallOptions& options) {
  auto call = std::make_shared<AsyncCallState>(
      *state_, std::move(done), DeadlineOf(*state_, options.timeout), options.traceparent);
  if (auto current = state_->session->Translated(*request); current.has_value()) {
    call->sent.uses = std::move(current->uses);
    request = std::move(current->request);
  }
  state_->outstanding.Add(call);
  AsyncCall handle(call);
  call->Start(std::move(request));
  return handle;
}

namespace {

using HealthStub =
    grpc::TemplatedGenericStub<health::HealthCheckRequest, health::HealthCheckResponse>;

constexpr char kCheckMethod[] = "/grpc.health.v1.Health/Check";
constexpr char kWatchMethod[] = "/grpc.health.v1.Health/Watch";

ServingStatus ToServingStatus(const health::HealthCheckResponse& response) {
  switch (response.status()) {
    case health::HealthCheckResponse::SERVING: return ServingStatus::kServing;
    case health::HealthCheckResponse::NOT_SERVING: return ServingStatus::kNotServing;
    case health::HealthCheckResponse::SERVICE_UNKNOWN: return ServingStatus::kServiceUnknown;
    default: return ServingStatus::kUnknown;
  }
}

// A running watch: passes each status to the thread that waits in Next. Its gRPC hold, which lets
// that thread start reads, is removed when reading has ended.
class Watch
    : public grpc::ClientBidiReactor<health::HealthCheckRequest, health::HealthCheckResponse> {
 public:
  Watch(const std::shared_ptr<grpc::Channel>& channel, absl::string_view service) {
    request_.set_service(std::string(service));
    stub_ = std::make_unique<HealthStub>(channel);
  }

  grpc::ClientContext& context() { return context_; }

  void Start() {
    stub_->PrepareBidiStreamingCall(&context_, kWatchMethod, {}, this);
    AddHold();
    StartWriteLast(&request_, grpc::WriteOptions());
    StartCall();
  }

  // The next status; false at the end of the call.
  bool Next(ServingStatus* serving) ABSL_LOCKS_EXCLUDED(mutex_) {
    StartRead(&response_);
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(this, &Watch::HasRead));
    read_ = Read::kPending;
    *serving = ToServingStatus(response_);
    return !ended_;
  }

  // Waits for the end; call it once Next has returned false.
  absl::Status Finish() ABSL_LOCKS_EXCLUDED(mutex_) {
    RemoveHold();
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&done_));
    return ToAbslStatus(status_, context_);
  }

  void OnReadDone(bool ok) override ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    read_ = Read::kArrived;
    ended_ = !ok;
  }

  void OnDone(const grpc::Status& status) override ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    status_ = status;
    done_ = true;
  }

 private:
  enum class Read { kPending, kArrived };
  bool HasRead() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return read_ == Read::kArrived; }

  grpc::ClientContext context_;
  std::unique_ptr<HealthStub> stub_;
  health::HealthCheckRequest request_;
  health::HealthCheckResponse response_;
  absl::Mutex mutex_;
  Read read_ ABSL_GUARDED_BY(mutex_) = Read::kPending;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::Status status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

absl::string_view ServingStatusName(ServingStatus status) {
  switch (status) {
    case ServingStatus::kServing: return "SERVING";
    case ServingStatus::kNotServing: return "NOT_SERVING";
    case ServingStatus::kServiceUnknown: return "SERVICE_UNKNOWN";
    case ServingStatus::kUnknown: break;
  }
  return "UNKNOWN";
}

absl::StatusOr<ServingStatus> Client::CheckHealth(absl::string_view service,
                                                  const CallOptions& options) {
  grpc::ClientContext context;
  state_->Prepare(context, options);
  health::HealthCheckRequest request;
  request.set_service(std::string(service));
  health::HealthCheckResponse response;
  absl::Notification done;
  grpc::Status status;
  HealthStub stub(state_->Next().channel);
  stub.UnaryCall(&context, kCheckMethod, {}, &request, &response, [&](grpc::Status ended) {
    status = std::move(ended);
    done.Notify();
  });
  done.WaitForNotification();
  if (!status.ok()) return ToAbslStatus(status, context);
  return ToServingStatus(response);
}

absl::Status Client::WatchHealth(absl::string_view service,
                                 const std::function<bool(ServingStatus)>& on_change,
                                 const CallOptions& options) {
  Watch watch(state_->Next().channel, service);
  state_->Prepare(watch.context(), options);
  watch.Start();
  ServingStatus serving = ServingStatus::kUnknown;
  std::optional<ServingStatus> last;
  bool is_wanted = true;
  while (watch.Next(&serving)) {
    const bool has_changed = last != serving;
    last = serving;
    if (is_wanted && has_changed && !on_change(serving)) {
      is_wanted = false;
      watch.context().TryCancel();
    }
  }
  const absl::Status status = watch.Finish();
  return is_wanted ? status : absl::OkStatus();
}

absl::StatusOr<Client> Client::Create(absl::string_view address, const ClientOptions& options) {
  ASSIGN_OR_RETURN(auto channels, MakeChannels(address, options));
  EndParkedClients();
  auto state = std::make_unique<ClientState>();
  state->timeout = options.timeout;
  for (std::shared_ptr<grpc::Channel>& channel : channels) {
    state->connections.push_back({channel, v1::Gemm::NewStub(channel),
                                  v1::Registry::NewStub(channel), v1::Admin::NewStub(channel),
                                  v1::Tensors::NewStub(channel)});
  }
  state->session = std::make_unique<ClientSession>(std::string(address), options, channels.front());
  return Client(std::move(state));
}

Client::Client(std::unique_ptr<ClientState> state) : state_(std::move(state)) {}
Client::Client(Client&& other) noexcept = default;

Client& Client::operator=(Client&& other) noexcept {
  if (this != &other) {
    Close();
    state_ = std::move(other.state_);
  }
  return *this;
}

Client::~Client() { Close(); }

void Client::Close() {
  if (state_ == nullptr) return;
  state_->session->BeginClosing();  // Calls that wait for another session end, too.
  if (state_->outstanding.CancelAndWait()) {
    state_ = nullptr;
    EndParkedClients();
  } else {
    ParkClient(std::move(state_));
  }
}

absl::StatusOr<v1::MultiplyResponse> Client::Multiply(const v1::MultiplyRequest& request,
                                                      const CallOptions& options) {
  const SteadyTime deadline = DeadlineOf(*state_, options.timeout);
  const auto multiply = [&](const v1::MultiplyRequest& sent, std::string* token) {
    return Call(*state_, &Connection::gemm, &v1::Gemm::Stub::Multiply, sent,
                Until(deadline, options), token);
  };
  if (!NamesTensors(request) || state_->session->restorable().IsEmpty()) {
    SentTensors sent;
    auto response = multiply(request, &sent.token);
    if (response.ok() || !NamesTensors(request)) return response;
    return state_->session->Restore(response.status(), sent, deadline);
  }
  v1::MultiplyRequest current = request;
  state_->session->Translate(current);
  return CallWithTensors<v1::MultiplyResponse>(*state_->session, current, deadline, multiply);
}

absl::StatusOr<v1::ListKernelsResponse> Client::ListKernels(absl::string_view name_pattern,
                                                            const CallOptions& options) {
  v1::ListKernelsRequest request;
  request.set_name_pattern(std::string(name_pattern));
  return Call(*state_, &Connection::registry, &v1::Registry::Stub::ListKernels, request, options);
}

absl::StatusOr<v1::ListDevicesResponse> Client::ListDevices(const CallOptions& options) {
  return Call(*state_, &Connection::registry, &v1::Registry::Stub::ListDevices,
              v1::ListDevicesRequest(), options);
}

absl::Status Client::RestartDevice(absl::string_view device, const CallOptions& options) {
  v1::RestartDeviceRequest request;
  request.set_device(std::string(device));
  return Call(*state_, &Connection::admin, &v1::Admin::Stub::RestartDevice, request, options)
      .status();
}

absl::StatusOr<v1::ListIncidentsResponse> Client::ListIncidents(const CallOptions& options) {
  return Call(*state_, &Connection::admin, &v1::Admin::Stub::ListIncidents,
              v1::ListIncidentsRequest(), options);
}

absl::StatusOr<v1::GetIncidentProductResponse> Client::GetIncidentProduct(
    int64_t id, const CallOptions& options, bool without_operands) {
  v1::GetIncidentProductRequest request;
  request.set_id(id);
  request.set_without_operands(without_operands);
  return Call(*state_, &Connection::admin, &v1::Admin::Stub::GetIncidentProduct, request, options);
}

absl::StatusOr<v1::ListSessionsResponse> Client::ListSessions(int64_t limit,
                                                              const CallOptions& options) {
  v1::ListSessionsRequest request;
  request.set_limit(limit);
  return Call(*state_, &Connection::admin, &v1::Admin::Stub::ListSessions, request, options);
}

absl::StatusOr<v1::DropSessionResponse> Client::DropSession(absl::string_view id,
                                                            const CallOptions& options) {
  v1::DropSessionRequest request;
  request.set_id(std::string(id));
  return Call(*state_, &Connection::admin, &v1::Admin::Stub::DropSession, request, options);
}

absl::StatusOr<v1::ExplainResponse> Client::Explain(const v1::MultiplyRequest& request,
                                                    const CallOptions& options) {
  v1::ExplainRequest explain;
  v1::MultiplyRequest& copy = *explain.mutable_request();
  copy = request;
  if (copy.has_a()) copy.mutable_a()->clear_source();
  if (copy.has_b()) copy.mutable_b()->clear_source();
  if (copy.has_c()) copy.mutable_c()->clear_source();
  return Call(*state_, &Connection::registry, &v1::Registry::Stub::Explain, explain, options);
}

absl::StatusOr<v1::GetServerInfoResponse> Client::GetServerInfo(const CallOptions& options) {
  return Call(*state_, &Connection::registry, &v1::Registry::Stub::GetServerInfo,
              v1::GetServerInfoRequest(), options);
}

absl::StatusOr<v1::GetStatisticsResponse> Client::GetStatistics(const CallOptions& options) {
  return Call(*state_, &Connection::registry, &v1::Registry::Stub::GetStatistics,
              v1::GetStatisticsRequest(), options);
}

absl::StatusOr<v1::ListInstructionsResponse> Client::ListInstructions(
    absl::string_view chip, absl::string_view name_pattern, const CallOptions& options) {
  v1::ListInstructionsRequest request;
  request.set_chip(std::string(chip));
  request.set_name_pattern(std::string(name_pattern));
  return Call(*state_, &Connection::registry, &v1::Registry::Stub::ListInstructions, request,
              options);
}

absl::StatusOr<v1::DescribeFragmentResponse> Client::DescribeFragment(
    const v1::DescribeFragmentRequest& request, const CallOptions& options) {
  return Call(*state_, &Connection::registry, &v1::Registry::Stub::DescribeFragment, request,
              options);
}

std::string Sha256Of(std::span<const std::byte> bytes) {
  std::string digest(SHA256_DIGEST_LENGTH, '\0');
  SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(),
         reinterpret_cast<unsigned char*>(digest.data()));
  return digest;
}

TensorRef NamedTensor(absl::string_view name) { return {.name = std::string(name)}; }
TensorRef TensorOfHandle(absl::string_view handle) { return {.handle = std::string(handle)}; }

namespace {

// The start, within the tensor, of a part of a range. The server reports a range that exceeds the
// tensor. It cannot detect that a part exceeds the range that it was taken from, so such a part
// gets a start that the server refuses.
int64_t BeginOf(const TensorView& outer, int64_t outer_first, int64_t outer_count, int64_t first,
                int64_t count) {
  if (outer.is_whole) return first;
  const bool is_within = outer_first >= 0 && first >= 0 && count >= 0 && first <= outer_count &&
                         count <= outer_count - first;
  return is_within && outer_first <= std::numeric_limits<int64_t>::max() - first
             ? outer_first + first
             : -1;
}

}  // namespace

TensorView TensorView::Rows(int64_t first, int64_t count) const {
  TensorView view = *this;
  view.first_row = BeginOf(*this, first_row, rows, first, count);
  view.rows = count;
  view.is_whole = false;
  return view;
}

TensorView TensorView::Columns(int64_t first, int64_t count) const {
  TensorView view = *this;
  view.first_column = BeginOf(*this, first_column, columns, first, count);
  view.columns = count;
  view.is_whole = false;
  return view;
}

TensorView TensorView::Matrices(int64_t first, int64_t count) const {
  TensorView view = *this;
  view.first_matrix = BeginOf(*this, first_matrix, matrices, first, count);
  view.matrices = count;
  view.is_whole = false;
  return view;
}

TensorView TensorView::Transposed() const {
  TensorView view = *this;
  view.transpose = !transpose;
  return view;
}

v1::TensorPart TensorView::part() const {
  v1::TensorPart part;
  *part.mutable_tensor() = MessageOf(tensor);
  if (is_whole) return part;
  part.set_first_row(first_row);
  part.set_rows(rows);
  part.set_first_column(first_column);
  part.set_columns(columns);
  part.set_first_matrix(first_matrix);
  part.set_matrices(matrices);
  return part;
}

TensorView ViewOf(const v1::TensorInfo& info) {
  const v1::TensorSpec& spec = info.spec();
  TensorView view;
  view.tensor = TensorOfHandle(info.handle());
  view.type = spec.type();
  view.order = spec.order();
  view.sparsity = spec.sparsity();
  view.rows = spec.rows();
  view.columns = spec.columns();
  view.matrices = spec.has_matrices() ? spec.matrices() : 1;
  return view;
}

ResidentTensor::ResidentTensor(v1::TensorInfo info, std::weak_ptr<TensorOwner> owner)
    : info_(std::make_shared<const v1::TensorInfo>(std::move(info))), owner_(std::move(owner)) {}

ResidentTensor::ResidentTensor(ResidentTensor&& other) noexcept
    : info_(other.info_), owner_(std::move(other.owner_)) {
  other.owner_.reset();
}

ResidentTensor& ResidentTensor::operator=(ResidentTensor&& other) noexcept {
  if (this == &other) return *this;
  DeleteFromServer();
  info_ = other.info_;
  owner_ = std::move(other.owner_);
  other.owner_.reset();
  return *this;
}

const std::string& ResidentTensor::handle() const { return info_->handle(); }
v1::ElementType ResidentTensor::type() const { return info_->spec().type(); }
int64_t ResidentTensor::rows() const { return info_->spec().rows(); }
int64_t ResidentTensor::columns() const { return info_->spec().columns(); }
int64_t ResidentTensor::bytes() const { return info_->bytes(); }

ResidentTensor::~ResidentTensor() { DeleteFromServer(); }

std::string ResidentTensor::Release() && {
  const SessionUse use(owner_.lock());
  owner_.reset();
  if (use.session() == nullptr) return info_->handle();
  const std::string current = use.session()->restorable().Forget(MessageOf(ref()));
  return current.empty() ? info_->handle() : current;
}

void ResidentTensor::DeleteFromServer() {
  const SessionUse use(owner_.lock());
  owner_.reset();
  if (use.session() == nullptr) return;
  if (info_->pinned()) {
    use.session()->restorable().Forget(MessageOf(ref()));
  } else {
    use.session()->DeleteSoon(info_->handle());
  }
}

Operand::Operand(const MatrixView& view) : matrix_(view) {}
Operand::Operand(const TensorView& view) : tensor_(view) {}
Operand::Operand(const ResidentTensor& tensor) : tensor_(tensor.view()) {}

namespace {

// Runs a call of the Tensors service that names tensors, opening a session if there is none.
template <typename Request, typename Response>
absl::StatusOr<Response> CallTensors(ClientState& state,
                                     Method<v1::Tensors::Stub, Request, Response> method,
                                     Request request, const CallOptions& options) {
  const SteadyTime deadline = DeadlineOf(state, options.timeout);
  ASSIGN_OR_RETURN(const auto session, state.session->Open(deadline));
  return CallWithTensors<Response>(
      *state.session, request, deadline, [&](const Request& sent, std::string* token) {
        return Call(state, &Connection::tensors, method, sent, Until(deadline, options), token);
      });
}

void FillKeep(const KeepOptions& keep, v1::NewTensor& message) {
  message.set_name(keep.name);
  message.set_pinned(keep.pinned);
  message.set_lease_ns(absl::ToInt64Nanoseconds(keep.lease));
}

absl::Status CheckIsAsStored(const MatrixView& matrix, int64_t matrices) {
  if (matrix.transpose) {
    return absl::InvalidArgumentError(
        "matrix.transpose: got true, want false: a product uses a tensor transposed");
  }
  if (matrix.batch_stride.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat("matrix.batch_stride: got ",
                                                   *matrix.batch_stride,
                                                   ", want none: matrices follow each other"));
  }
  if (matrices >= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("matrices: got ", matrices, ", want 1 or more"));
}

void FillSpec(const MatrixView& matrix, int64_t matrices, v1::TensorSpec& spec) {
  spec.set_type(matrix.type);
  spec.set_order(matrix.order);
  spec.set_rows(matrix.rows);
  spec.set_columns(matrix.columns);
  spec.set_leading_dimension(matrix.leading_dimension);
  spec.set_sparsity(matrix.sparsity);
  if (matrices != 1) spec.set_matrices(matrices);
  spec.mutable_scale()->mutable_values()->Add(matrix.scale.begin(), matrix.scale.end());
  const BlockScaleView& view = matrix.blocks;
  if (view.empty()) return;
  FillBlocks(view, *spec.mutable_scale());
  spec.mutable_scale()->mutable_blocks()->clear_factors();  // Bytes of the tensor.
  spec.set_k_along_columns(view.k_along_columns);
}

// The number of bytes of the factors of a tensor's blocks.
absl::StatusOr<int64_t> FactorBytes(const MatrixView& matrix, int64_t matrices) {
  const BlockScaleView& view = matrix.blocks;
  if (view.rows_per_block < 1 || view.k_per_block < 1) {
    return absl::InvalidArgumentError(absl::StrCat("matrix.blocks: got blocks of ",
                                                   view.rows_per_block, "x", view.k_per_block,
                                                   ", want 1x1 or more"));
  }
  const auto blocks = [](int64_t extent, int64_t size) {
    return extent / size + (extent % size != 0 ? 1 : 0);
  };
  int64_t bytes = 0;
  const int64_t lines = view.k_along_columns ? matrix.columns : matrix.rows;
  const int64_t k = view.k_along_columns ? matrix.rows : matrix.columns;
  if (__builtin_mul_overflow(blocks(lines, view.rows_per_block), blocks(k, view.k_per_block),
                             &bytes) ||
      __builtin_mul_overflow(bytes, view.per_matrix ? matrices : 1, &bytes) ||
      __builtin_mul_overflow(bytes, view.type == v1::kFactorF32 ? 4 : 1, &bytes)) {
    return absl::InvalidArgumentError("matrix.blocks: got 2^63 bytes of factors or more");
  }
  if (static_cast<size_t>(bytes) == view.factors.size()) return bytes;
  return absl::InvalidArgumentError(
      absl::StrCat("matrix.blocks.factors: got ", view.factors.size(), " bytes, want ", bytes));
}

// What follows the caller's bytes in a tensor: the padding of the last line and, at a multiple of
// 16 bytes, the factors of blocks.
absl::StatusOr<std::vector<std::byte>> TailOf(const MatrixView& matrix, int64_t matrices,
                                              int64_t bytes) {
  constexpr int64_t kAlignment = 16;
  std::vector<std::byte> tail(static_cast<size_t>(bytes) - matrix.data.size());
  if (matrix.blocks.empty()) return tail;
  RETURN_IF_ERROR(FactorBytes(matrix, matrices).status());
  tail.resize(tail.size() + static_cast<size_t>((kAlignment - bytes % kAlignment) % kAlignment));
  tail.insert(tail.end(), matrix.blocks.factors.begin(), matrix.blocks.factors.end());
  return tail;
}

}  // namespace

absl::StatusOr<SessionInfo> Client::OpenSession(absl::string_view token,
                                                const CallOptions& options) {
  const SteadyTime deadline = DeadlineOf(*state_, options.timeout);
  return token.empty() ? state_->session->Open(deadline)
                       : state_->session->Join(std::string(token), deadline);
}

absl::StatusOr<ResidentTensor> Client::Put(const MatrixView& matrix, const PutOptions& options) {
  const SteadyTime entry = SteadyTime::Now();
  RETURN_IF_ERROR(CheckIsAsStored(matrix, options.matrices));
  const OperandShape shape = ShapeOf(matrix, options.matrices);
  RETURN_IF_ERROR(
      CheckOperandBytes("matrix", "rows*columns", shape, static_cast<int64_t>(matrix.data.size())));
  const int64_t bytes = SizeOperand("matrix", shape)->full;
  ASSIGN_OR_RETURN(const std::vector<std::byte> tail, TailOf(matrix, options.matrices, bytes));

  const SteadyTime deadline = entry + options.timeout.value_or(state_->timeout);
  ASSIGN_OR_RETURN(const auto session, state_->session->Open(deadline));
  // Memory of tensors deleted before must be free for this one.
  state_->session->AwaitDeletions(deadline);
  UploadPlan plan = {.begin = {},
                     .source = {.data = matrix.data, .tail = tail},
                     .connections = options.connections,
                     .terms = {.progress = options.progress,
                               .timeout = options.timeout,
                               .entry = entry,
                               .patience = state_->timeout}};
  FillSpec(matrix, options.matrices, *plan.begin.mutable_spec());
  FillKeep({.name = options.name, .pinned = options.pinned, .lease = options.lease},
           *plan.begin.mutable_keep());
  plan.begin.set_device(options.device);
  plan.begin.set_sha256(options.restorable && options.sha256.empty() ? HashOf(matrix.data, tail)
                                                                     : options.sha256);
  ASSIGN_OR_RETURN(auto info, UploadInSession(*state_->session, plan));
  RestorableTensors& restorable = state_->session->restorable();
  if (options.restorable) {
    restorable.Add(info.handle(), {.begin = std::move(plan.begin),
                                   .data = matrix.data,
                                   .tail = tail,
                                   .connections = options.connections});
  } else {
    ForgetName(restorable, options.name);
  }
  return ResidentTensor(std::move(info), state_->session->owner());
}

absl::StatusOr<TensorView> Client::Get(const TensorRef& tensor, std::span<std::byte> into,
                                       const GetOptions& options) {
  const SteadyTime entry = SteadyTime::Now();
  const SteadyTime deadline = entry + options.timeout.value_or(state_->timeout);
  const int64_t bytes = static_cast<int64_t>(into.size());
  if (options.bytes.has_value() && *options.bytes != bytes) {
    return absl::InvalidArgumentError(absl::StrCat("into: got ", bytes, " bytes, want ",
                                                   *options.bytes, " as options.bytes says"));
  }
  ASSIGN_OR_RETURN(const auto session, state_->session->Open(deadline));
  TensorRef ref = tensor;
  if (tensor.handle.empty()) {
    // Prevents mixing bytes of two tensors that had this name one after the other.
    ASSIGN_OR_RETURN(const auto info, Describe(tensor, Until(deadline)));
    ref = TensorOfHandle(info.handle());
  }
  const auto sink = [into](int64_t offset, std::span<const std::byte> piece) {
    std::memcpy(into.data() + offset, piece.data(), piece.size());
    return absl::OkStatus();
  };
  v1::TensorRef named = MessageOf(ref);
  ASSIGN_OR_RETURN(
      const auto got,
      CallWithTensors<v1::TensorInfo>(
          *state_->session, named, deadline, [&](const v1::TensorRef& sent, std::string* token) {
            *token = state_->session->token();
            return RunDownload(*state_->session, {.tensor = sent,
                                                  .offset = options.offset,
                                                  .bytes = bytes,
                                                  .is_rest = !options.bytes.has_value(),
                                                  .sink = sink,
                                                  .connections = options.connections,
                                                  .terms = {.progress = options.progress,
                                                            .timeout = options.timeout,
                                                            .entry = entry,
                                                            .patience = state_->timeout}});
          }));
  return ViewOf(got);
}

absl::StatusOr<TensorView> Client::Get(const TensorRef& tensor, const TensorSink& sink,
                                       const GetOptions& options) {
  const SteadyTime entry = SteadyTime::Now();
  ASSIGN_OR_RETURN(const auto info,
                   Describe(tensor, Until(entry + options.timeout.value_or(state_->timeout))));
  const int64_t left = info.bytes() - options.offset;
  if (options.offset < 0 || left < 0 || options.bytes.value_or(left) > left ||
      options.bytes.value_or(0) < 0) {
    return absl::OutOfRangeError(absl::StrCat("range: got ", options.bytes.value_or(left),
                                              " bytes from ", options.offset,
                                              " on, want them within the tensor's ", info.bytes()));
  }
  ASSIGN_OR_RETURN(const auto got, RunDownload(*state_->session,
                                               {.tensor = MessageOf(TensorOfHandle(info.handle())),
                                                .offset = options.offset,
                                                .bytes = options.bytes.value_or(left),
                                                .is_rest = !options.bytes.has_value(),
                                                .sink = sink,
                                                .connections = options.connections,
                                                .terms = {.progress = options.progress,
                                                          .timeout = options.timeout,
                                                          .entry = entry,
                                                          .patience = state_->timeout}}));
  return ViewOf(got);
}

absl::StatusOr<v1::ListTensorsResponse> Client::ListTensors(absl::string_view pattern,
                                                            const CallOptions& options) {
  v1::ListTensorsRequest request;
  request.set_pattern(std::string(pattern));
  return CallTensors(*state_, &v1::Tensors::Stub::List, request, options);
}

absl::StatusOr<v1::TensorInfo> Client::Describe(const TensorRef& tensor,
                                                const CallOptions& options) {
  return CallTensors(*state_, &v1::Tensors::Stub::Describe, MessageOf(tensor), options);
}

absl::Status Client::Delete(const TensorRef& tensor, const CallOptions& options) {
  v1::TensorRef request = MessageOf(tensor);
  const std::string current = state_->session->restorable().Forget(request);
  if (request.has_handle() && !current.empty()) request.set_handle(current);
  return CallTensors(*state_, &v1::Tensors::Stub::Delete, request, options).status();
}

absl::StatusOr<v1::TensorInfo> Client::KeepAlive(const TensorRef& tensor,
                                                 const KeepAliveOptions& keep,
                                                 const CallOptions& options) {
  v1::KeepAliveRequest request;
  *request.mutable_tensor() = MessageOf(tensor);
  if (keep.lease.has_value()) request.set_lease_ns(absl::ToInt64Nanoseconds(*keep.lease));
  if (keep.pinned.has_value()) request.set_pinned(*keep.pinned);
  auto info = CallTensors(*state_, &v1::Tensors::Stub::KeepAlive, request, options);
  if (info.ok()) state_->session->restorable().SetKeep(*info);
  return info;
}

absl::Status Client::KeepAlive(ResidentTensor& tensor, const KeepAliveOptions& keep,
                               const CallOptions& options) {
  ASSIGN_OR_RETURN(auto info, KeepAlive(tensor.ref(), keep, options));
  tensor.info_ = std::make_shared<const v1::TensorInfo>(std::move(info));
  return absl::OkStatus();
}

absl::StatusOr<ResidentTensor> Client::Compress(const TensorRef& tensor,
                                                const CompressOptions& compress,
                                                const CallOptions& options) {
  const SteadyTime deadline = DeadlineOf(*state_, options.timeout);
  v1::CompressRequest request;
  *request.mutable_tensor() = MessageOf(tensor);
  FillKeep(compress.keep, *request.mutable_keep());
  if (compress.mask.has_value()) *request.mutable_mask() = MessageOf(*compress.mask);
  state_->session->AwaitDeletions(deadline);
  ASSIGN_OR_RETURN(auto info, CallTensors(*state_, &v1::Tensors::Stub::Compress, request,
                                          Until(deadline, options)));
  ForgetName(state_->session->restorable(), compress.keep.name);
  return ResidentTensor(std::move(info), state_->session->owner());
}

PendingChain Client::ChainAsync(const Operand& a, const Operand& b, const ChainOptions& chain,
                                const CallOptions& options) {
  const SteadyTime deadline = DeadlineOf(*state_, options.timeout);
  auto request = BuildLentChainRequest(a, b, chain);
  if (!request.ok()) return PendingChain(request.status());
  const auto session = state_->session->Open(deadline);
  if (!session.ok()) return PendingChain(session.status());
  const bool is_new = !chain.into.has_value();
  if (is_new) state_->session->AwaitDeletions(deadline);
  const std::shared_ptr<grpc::Channel> channel = state_->Next().channel;
  auto call = std::make_unique<ProductCall>(channel);
  std::string token = state_->Prepare(call->context(), Until(deadline, options));
  auto retry =
      RetryOf(*state_->session, *request, std::move(token), channel, deadline, options.traceparent);
  call->Start(*std::move(request), {}, std::move(retry));
  return PendingChain(std::move(call), state_->session->owner(), is_new);
}

absl::StatusOr<ChainResult> Client::Chain(const Operand& a, const Operand& b,
                                          const ChainOptions& chain, const CallOptions& options) {
  return ChainAsync(a, b, chain, options).Wait();
}

PendingChain::PendingChain(absl::Status failure) : failure_(std::move(failure)) {}
PendingChain::PendingChain(std::unique_ptr<ProductCall> call, std::weak_ptr<TensorOwner> owner,
                           bool is_new)
    : call_(std::move(call)), owner_(std::move(owner)), is_new_(is_new) {}
PendingChain::PendingChain(PendingChain&& other) noexcept = default;
PendingChain& PendingChain::operator=(PendingChain&& other) noexcept {
  Drop();
  failure_ = std::move(other.failure_);
  call_ = std::move(other.call_);
  owner_ = std::move(other.owner_);
  is_new_ = other.is_new_;
  return *this;
}
PendingChain::~PendingChain() { Drop(); }

// If a tensor was created despite the cancellation, destroying the result deletes it.
void PendingChain::Drop() {
  if (call_ == nullptr) return;
  Cancel();
  Wait().IgnoreError();
}

void PendingChain::Cancel() {
  if (call_ != nullptr) call_->Cancel();
}

absl::StatusOr<ChainResult> PendingChain::Wait() {
  const absl::Status failure = std::exchange(
      failure_, absl::FailedPreconditionError("product: its answer was taken already"));
  if (call_ == nullptr) return failure;
  auto response = call_->WaitForMessage();
  call_ = nullptr;  // Waits until nothing reads the matrices.
  if (!response.ok()) return response.status();
  ChainResult result = {
      .tensor = {}, .response = std::make_shared<const v1::MultiplyResponse>(*std::move(response))};
  if (!is_new_) return result;
  if (!result.response->has_tensor()) {
    return absl::DataLossError("chain: got no tensor, want the one that D went into");
  }
  result.tensor = ResidentTensor(result.response->tensor(), owner_);
  if (const SessionUse use(owner_.lock()); use.session() != nullptr) {
    ForgetName(use.session()->restorable(), result.tensor->info().name());
  }
  return result;
}

}  // namespace gemmd
