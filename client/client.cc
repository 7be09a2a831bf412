// SPDX-License-Identifier: Apache-2.0
#include "gemmd/client.h"

#include <algorithm>
#include <utility>

#include "client/channel.h"
#include "client/connections.h"
#include "client/status_conversion.h"
#include "gemmd/v1/admin.pb.h"
#include "gemmd/v1/gemm.pb.h"
#include "gemmd/v1/incidents.pb.h"
#include "gemmd/v1/instructions.pb.h"
#include "gemmd/v1/registry.pb.h"
#include "gemmd/v1/statistics.pb.h"
#include "proto/deadline_after.h"

namespace gemmd {
namespace {

// Runs one blocking call of a stub.
template <typename Response, typename Call>
absl::StatusOr<Response> Block(grpc::ClientContext& context, Call call) {
  Response response;
  const grpc::Status status = call(&response);
  if (!status.ok()) return ToAbslStatus(status, context);
  return response;
}

}  // namespace

void ClientState::Prepare(grpc::ClientContext& context, const CallOptions& options) const {
  context.set_deadline(DeadlineAfter(options.timeout.value_or(timeout)));
  // gRPC ends the process over characters that metadata must not have.
  const bool can_be_sent = std::all_of(options.traceparent.begin(), options.traceparent.end(),
                                       [](unsigned char c) { return c > ' ' && c <= '~'; });
  if (!options.traceparent.empty() && can_be_sent) {
    context.AddMetadata("traceparent", options.traceparent);
  }
  session->AddMetadata(context);
}

absl::StatusOr<Client> Client::Create(absl::string_view address, const ClientOptions& options) {
  auto channels = MakeChannels(address, options);
  if (!channels.ok()) return channels.status();
  EndParkedClients();
  auto state = std::make_unique<ClientState>();
  state->timeout = options.timeout;
  for (std::shared_ptr<grpc::Channel>& channel : *channels) {
    state->connections.push_back({channel, v1::Gemm::NewStub(channel),
                                  v1::Registry::NewStub(channel), v1::Admin::NewStub(channel),
                                  v1::Tensors::NewStub(channel)});
  }
  state->session =
      std::make_unique<ClientSession>(std::string(address), options, channels->front());
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
  if (state_->outstanding.CancelAndWait()) {
    state_ = nullptr;
    EndParkedClients();
  } else {
    ParkClient(std::move(state_));
  }
}

absl::StatusOr<v1::MultiplyResponse> Client::Multiply(const v1::MultiplyRequest& request,
                                                      const CallOptions& options) {
  grpc::ClientContext context;
  state_->Prepare(context, options);
  return Block<v1::MultiplyResponse>(context, [&](v1::MultiplyResponse* response) {
    return state_->Next().gemm->Multiply(&context, request, response);
  });
}

absl::StatusOr<v1::ListKernelsResponse> Client::ListKernels(absl::string_view name_pattern,
                                                            const CallOptions& options) {
  grpc::ClientContext context;
  state_->Prepare(context, options);
  v1::ListKernelsRequest request;
  request.set_name_pattern(std::string(name_pattern));
  return Block<v1::ListKernelsResponse>(context, [&](v1::ListKernelsResponse* response) {
    return state_->Next().registry->ListKernels(&context, request, response);
  });
}

absl::StatusOr<v1::ListDevicesResponse> Client::ListDevices(const CallOptions& options) {
  grpc::ClientContext context;
  state_->Prepare(context, options);
  return Block<v1::ListDevicesResponse>(context, [&](v1::ListDevicesResponse* response) {
    return state_->Next().registry->ListDevices(&context, v1::ListDevicesRequest(), response);
  });
}

absl::Status Client::RestartDevice(absl::string_view device, const CallOptions& options) {
  v1::RestartDeviceRequest request;
  request.set_device(std::string(device));
  grpc::ClientContext context;
  state_->Prepare(context, options);
  return Block<v1::RestartDeviceResponse>(context,
                                          [&](v1::RestartDeviceResponse* response) {
                                            return state_->Next().admin->RestartDevice(
                                                &context, request, response);
                                          })
      .status();
}

absl::StatusOr<v1::ListIncidentsResponse> Client::ListIncidents(const CallOptions& options) {
  grpc::ClientContext context;
  state_->Prepare(context, options);
  return Block<v1::ListIncidentsResponse>(context, [&](v1::ListIncidentsResponse* response) {
    return state_->Next().admin->ListIncidents(&context, v1::ListIncidentsRequest(), response);
  });
}

absl::StatusOr<v1::GetIncidentProductResponse> Client::GetIncidentProduct(
    int64_t id, const CallOptions& options, bool without_operands) {
  v1::GetIncidentProductRequest request;
  request.set_id(id);
  request.set_without_operands(without_operands);
  grpc::ClientContext context;
  state_->Prepare(context, options);
  return Block<v1::GetIncidentProductResponse>(
      context, [&](v1::GetIncidentProductResponse* response) {
        return state_->Next().admin->GetIncidentProduct(&context, request, response);
      });
}

absl::StatusOr<v1::ListSessionsResponse> Client::ListSessions(int64_t limit,
                                                              const CallOptions& options) {
  v1::ListSessionsRequest request;
  request.set_limit(limit);
  grpc::ClientContext context;
  state_->Prepare(context, options);
  return Block<v1::ListSessionsResponse>(context, [&](v1::ListSessionsResponse* response) {
    return state_->Next().admin->ListSessions(&context, request, response);
  });
}

absl::StatusOr<v1::DropSessionResponse> Client::DropSession(absl::string_view id,
                                                            const CallOptions& options) {
  v1::DropSessionRequest request;
  request.set_id(std::string(id));
  grpc::ClientContext context;
  state_->Prepare(context, options);
  return Block<v1::DropSessionResponse>(context, [&](v1::DropSessionResponse* response) {
    return state_->Next().admin->DropSession(&context, request, response);
  });
}

absl::StatusOr<v1::ExplainResponse> Client::Explain(const v1::MultiplyRequest& request,
                                                    const CallOptions& options) {
  v1::ExplainRequest explain;
  v1::MultiplyRequest& copy = *explain.mutable_request();
  copy = request;
  if (copy.has_a()) copy.mutable_a()->clear_source();
  if (copy.has_b()) copy.mutable_b()->clear_source();
  if (copy.has_c()) copy.mutable_c()->clear_source();
  grpc::ClientContext context;
  state_->Prepare(context, options);
  return Block<v1::ExplainResponse>(context, [&](v1::ExplainResponse* response) {
    return state_->Next().registry->Explain(&context, explain, response);
  });
}

absl::StatusOr<v1::GetServerInfoResponse> Client::GetServerInfo(const CallOptions& options) {
  grpc::ClientContext context;
  state_->Prepare(context, options);
  return Block<v1::GetServerInfoResponse>(context, [&](v1::GetServerInfoResponse* response) {
    return state_->Next().registry->GetServerInfo(&context, v1::GetServerInfoRequest(), response);
  });
}

absl::StatusOr<v1::GetStatisticsResponse> Client::GetStatistics(const CallOptions& options) {
  grpc::ClientContext context;
  state_->Prepare(context, options);
  return Block<v1::GetStatisticsResponse>(context, [&](v1::GetStatisticsResponse* response) {
    return state_->Next().registry->GetStatistics(&context, v1::GetStatisticsRequest(), response);
  });
}

absl::StatusOr<v1::ListInstructionsResponse> Client::ListInstructions(
    absl::string_view chip, absl::string_view name_pattern, const CallOptions& options) {
  grpc::ClientContext context;
  state_->Prepare(context, options);
  v1::ListInstructionsRequest request;
  request.set_chip(std::string(chip));
  request.set_name_pattern(std::string(name_pattern));
  return Block<v1::ListInstructionsResponse>(context, [&](v1::ListInstructionsResponse* response) {
    return state_->Next().registry->ListInstructions(&context, request, response);
  });
}

absl::StatusOr<v1::DescribeFragmentResponse> Client::DescribeFragment(
    const v1::DescribeFragmentRequest& request, const CallOptions& options) {
  grpc::ClientContext context;
  state_->Prepare(context, options);
  return Block<v1::DescribeFragmentResponse>(context, [&](v1::DescribeFragmentResponse* response) {
    return state_->Next().registry->DescribeFragment(&context, request, response);
  });
}

}  // namespace gemmd
