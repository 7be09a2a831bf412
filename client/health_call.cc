// SPDX-License-Identifier: Apache-2.0
//
// grpc.health.v1 by method name, through messages of our own (gemmd/health/health.proto says why).
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "client/connections.h"
#include "client/status_conversion.h"
#include "gemmd/health/health.pb.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/support/client_callback.h"

namespace gemmd {
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

// A watch under way: hands each status to the thread that waits in Next. Its hold, which lets that
// thread start reads, goes when the reading has ended.
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

}  // namespace gemmd
