// SPDX-License-Identifier: Apache-2.0
#include "server/wire/health_service.h"

#include <grpcpp/create_channel_posix.h>
#include <grpcpp/grpcpp.h>
#include <sys/socket.h>

#include <array>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "gemmd/v1/registry.grpc.pb.h"
#include "health/v1/health.grpc.pb.h"
#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"
#include "proto/deadline_after.h"
#include "server/store/digest.h"
#include "server/system/files.h"
#include "server/system/mutex.h"
#include "server/wire/calls.h"
#include "server/wire/gate.h"
#include "server/wire/incoming.h"

namespace gemmd {

Health::Health(std::string multiplying, std::string default_device)
    : multiplying_(std::move(multiplying)), default_device_(std::move(default_device)) {
  SetReady(default_device_, false);
}

void Health::Set(Entry& entry, State state) {
  entry.state = state;
  for (Watcher* const watcher : entry.watchers) watcher->Tell(state);
}

void Health::SetReady(const std::string& name, bool is_ready) {
  MutexLock lock(&mutex_);
  if (is_lame_duck_) return;
  const State state = is_ready ? State::kServing : State::kNotServing;
  Set(entries_[name], state);
  if (name != default_device_) return;
  Set(entries_[""], state);
  Set(entries_[multiplying_], state);
}

absl::Status Health::serving() const {
  MutexLock lock(&mutex_);
  if (is_lame_duck_) return absl::UnavailableError("the server is stopping");
  if (entries_.at("").state == State::kServing) return absl::OkStatus();
  return absl::UnavailableError("the default device, " + default_device_ + ", is not ready");
}

Health::State Health::StateOf(std::string_view name) const {
  MutexLock lock(&mutex_);
  const auto entry = entries_.find(name);
  return entry == entries_.end() ? State::kUnknown : entry->second.state;
}

void Health::Watch(const std::string& name, Watcher& watcher) {
  MutexLock lock(&mutex_);
  Entry& entry = entries_[name];
  entry.watchers.insert(&watcher);
  watcher.Tell(entry.state);
}

void Health::Unwatch(const std::string& name, Watcher& watcher) {
  MutexLock lock(&mutex_);
  const auto entry = entries_.find(name);
  if (entry == entries_.end() || entry->second.watchers.erase(&watcher) == 0) return;
  const bool is_known = entry->second.state != State::kUnknown;
  if (!is_known && entry->second.watchers.empty()) entries_.erase(entry);
}

void Health::EnterLameDuck() {
  MutexLock lock(&mutex_);
  is_lame_duck_ = true;
  for (auto& [name, entry] : entries_) {
    if (entry.state != State::kUnknown) Set(entry, State::kNotServing);
  }
}

namespace {

constexpr char kMarkKey[] = "gemmd-self";

// Empty if the system gives no random bits; then no call counts as the daemon's own.
const std::string& Mark() {
  static const std::string mark = [] {
    const absl::StatusOr<RandomId> random = RandomId::Make();
    return random.ok() ? random->ToHex() : "";
  }();
  return mark;
}

}  // namespace

bool IsOwnCall(const grpc::ServerContextBase& context) {
  const auto [first, last] = context.client_metadata().equal_range(kMarkKey);
  return first != last && !Mark().empty() && first->second == Mark();
}

absl::Status CallSelf(const std::function<void(int descriptor)>& take, absl::Duration timeout) {
  std::array<int, 2> pair = {-1, -1};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair.data()) != 0) {
    return absl::ResourceExhaustedError("no file descriptor is left");
  }
  take(pair[1]);
  const auto stub = v1::Registry::NewStub(grpc::CreateInsecureChannelFromFd("self", pair[0]));
  grpc::ClientContext context;
  context.set_deadline(DeadlineAfter(timeout));
  context.AddMetadata(kMarkKey, Mark());
  v1::ListDevicesResponse response;
  const grpc::Status status = stub->ListDevices(&context, v1::ListDevicesRequest(), &response);
  if (status.ok()) return absl::OkStatus();
  return {static_cast<absl::StatusCode>(status.error_code()),
          Concat("a call of the daemon to itself: ", status.error_message())};
}

namespace {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

// Errors: as ReadRequest; InvalidArgument where the name is too long.
absl::StatusOr<std::string> NameIn(const grpc::ByteBuffer& request) {
  HealthCheckRequest wire;
  RETURN_IF_ERROR(ReadRequest(request, wire, RuleOf("/grpc.health.v1.Health/").max_bytes));
  RETURN_IF_ERROR(CheckNameLength("service", wire.service()));
  // A copy: the message's own string may have the capacity of a longer text that preceded this one.
  return std::string(wire.service());
}

RegistryAnswer AnswerFor(Health::State state) {
  HealthCheckResponse response;
  response.set_status(static_cast<HealthCheckResponse::ServingStatus>(state));
  return AnswerOf(response);
}

// Sends every change until the client has gone. Of the states that come while one is being sent,
// only the last is sent.
class WatchReactor final : public AnsweringReactor<grpc::ServerWriteReactor<grpc::ByteBuffer>>,
                           public Health::Watcher {
 public:
  WatchReactor(const ServiceParts& parts, Health& health, grpc::CallbackServerContext& context)
      : AnsweringReactor(parts, HandlerOf("Health"), context), health_(health) {}

  void Start(const grpc::ByteBuffer& request) {
    const HandlerTimer timer = timing_.Begin();
    absl::StatusOr<std::string> name =
        OrNoMemory("message: no memory, try again later", [&] { return NameIn(request); });
    if (!name.ok()) {
      EndWith(name.status());
      return Advance();
    }
    name_ = *std::move(name);
    health_.Watch(name_, *this);
  }

  // The reactor is not deleted meanwhile: OnDone waits for Health's lock.
  void Tell(Health::State state) override {
    {
      MutexLock lock(&mutex_);
      wanted_ = state;
    }
    Advance();
  }

  void OnDone() override {
    const HandlerTimer timer = timing_.Begin();
    health_.Unwatch(name_, *this);
    delete this;
  }

 private:
  std::optional<Waiting> TakeAnswer() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (wanted_ == told_) return std::nullopt;
    told_ = wanted_;
    return Waiting{AnswerFor(*told_).bytes};
  }

  Health& health_;
  std::string name_;
  std::optional<Health::State> wanted_ ABSL_GUARDED_BY(mutex_);
  std::optional<Health::State> told_ ABSL_GUARDED_BY(mutex_);  // Sent last, or being sent.
};

using Base =
    grpc::health::v1::Health::WithRawCallbackMethod_Watch<grpc::health::v1::Health::Service>;

class HealthService final : public AnsweredService<Base> {
 public:
  // All answers are too short to be counted as unread.
  HealthService(Health& health, const ServiceParts& parts)
      : AnsweredService(parts, /*max_unread_bytes=*/0), health_(health) {
    AddRaw(
        MethodNumber(grpc::health::v1::Health::service_full_name(), "Check"), HandlerOf("Health"),
        [this](Context&, const grpc::ByteBuffer& request) -> absl::StatusOr<RegistryAnswer> {
          ASSIGN_OR_RETURN(const std::string name, NameIn(request));
          const Health::State state = health_.StateOf(name);
          if (state != Health::State::kUnknown) return AnswerFor(state);
          return absl::NotFoundError(GotWant("service", Shown(name), "one that this server has"));
        });
  }

  grpc::ServerWriteReactor<grpc::ByteBuffer>* Watch(Context* context,
                                                    const grpc::ByteBuffer* request) override {
    auto* const reactor = new WatchReactor(parts_, health_, *context);
    reactor->Start(TakeRequest(*request));
    return reactor;
  }

 private:
  Health& health_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeHealthService(Health& health, const ServiceParts& parts) {
  return std::make_unique<HealthService>(health, parts);
}

}  // namespace gemmd
