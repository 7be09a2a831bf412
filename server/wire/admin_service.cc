// SPDX-License-Identifier: Apache-2.0
#include "server/wire/admin_service.h"

#include <cstring>
#include <string>

#include "absl/strings/match.h"
#include "gemmd/v1/admin.grpc.pb.h"
#include "kernels/matrix/invalid.h"
#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"
#include "server/system/log.h"
#include "server/wire/calls.h"
#include "server/wire/convert.h"
#include "server/wire/outgoing.h"

namespace gemmd {

namespace {

// Sets the step from one matrix of a batch to the next, in elements. Errors: FailedPrecondition if
// a request cannot express it.
absl::Status FillStride(std::string_view field, const MatrixLayout& layout, v1::Operand& wire) {
  const int64_t stride = layout.batch_stride_bytes;
  if (layout.is_sparse()) {
    const absl::StatusOr<MatrixLayout> tight =
        TightSparseLayout(field, layout.type, layout.rows, layout.columns);
    if (stride == 0) wire.set_batch_stride(0);
    if (stride == 0 || (tight.ok() && tight->batch_stride_bytes == stride)) return absl::OkStatus();
  } else if (stride * 8 % BitsOf(layout.type) == 0) {
    wire.set_batch_stride(stride * 8 / BitsOf(layout.type));
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      Concat("id: ", field, " was a part of a tensor whose batch stride a request cannot express"));
}

void Fill(const MatrixLayout& layout, const std::vector<std::byte>& bytes, v1::Operand& wire) {
  wire.set_type(ToWire(layout.type));
  wire.set_data(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (layout.is_sparse()) {
    wire.set_sparsity(v1::SPARSITY_2_4);
  } else {
    wire.set_order(ToWire(layout.order));
    wire.set_leading_dimension(layout.leading_dimension);
  }
}

// Sets block factors, or plain floats if `blocks` is null.
void FillScale(const BlockScale* blocks, const std::vector<std::byte>& factors, v1::Operand& wire) {
  if (blocks != nullptr) return Fill(*blocks, factors, *wire.mutable_scale()->mutable_blocks());
  for (size_t at = 0; at < factors.size(); at += sizeof(float)) {
    float value = 0;
    std::memcpy(&value, &factors[at], sizeof(value));
    wire.mutable_scale()->add_values(value);
  }
}

}  // namespace

v1::Incident ToWire(const IncidentLog::Entry& entry) {
  const Incident& incident = entry.incident;
  v1::Incident wire;
  wire.set_id(incident.id);
  wire.set_time_unix_ns(incident.time_unix_ns);
  wire.set_device(incident.device);
  wire.set_kernel(incident.kernel);
  wire.set_problem(incident.problem);
  wire.set_mode(ToWire(incident.mode));
  wire.set_batch(incident.element.batch);
  wire.set_row(incident.element.row);
  wire.set_column(incident.element.column);
  wire.set_element_type(std::string(NameOf(incident.element_type)));
  wire.set_got_bits(incident.element.got_bits);
  wire.set_want_bits(incident.element.want_bits);
  wire.set_wrong_elements(incident.wrong_elements);
  wire.set_a_sha256(incident.a_sha256);
  wire.set_b_sha256(incident.b_sha256);
  wire.set_c_sha256(incident.c_sha256);
  wire.set_chip_state(incident.chip_state);
  wire.set_request_id(incident.request_id);
  wire.set_bias_sha256(incident.bias_sha256);
  wire.set_has_operands(entry.has_operands());
  wire.set_took_out_device(incident.took_out_device);
  return wire;
}

absl::StatusOr<v1::MultiplyRequest> ProductOf(const IncidentLog::Entry& entry,
                                              bool without_operands) {
  if (entry.product == nullptr || (!without_operands && !entry.has_operands())) {
    return absl::FailedPreconditionError(
        without_operands ? "id: the scale factors of this incident were not kept"
                         : "id: the operands of this incident were not kept");
  }
  const KeptProduct& kept = *entry.product;
  const Problem& problem = kept.problem;
  v1::MultiplyRequest request;
  request.set_m(problem.m);
  request.set_n(problem.n);
  request.set_k(problem.k);
  request.set_batch(problem.batch);
  Fill(problem.a, kept.a, *request.mutable_a());
  FillScale(problem.blocks_of_a(), kept.a_scale, *request.mutable_a());
  Fill(problem.b, kept.b, *request.mutable_b());
  FillScale(problem.blocks_of_b(), kept.b_scale, *request.mutable_b());
  if (problem.has_c()) Fill(problem.c, kept.c, *request.mutable_c());
  if (problem.batch > 1) {
    RETURN_IF_ERROR(FillStride("a", problem.a, *request.mutable_a()));
    RETURN_IF_ERROR(FillStride("b", problem.b, *request.mutable_b()));
    if (problem.has_c()) RETURN_IF_ERROR(FillStride("c", problem.c, *request.mutable_c()));
  }
  request.set_alpha(problem.alpha);
  request.set_beta(problem.beta);
  if (problem.bias_axis != BiasAxis::kNone) {
    v1::Bias& bias = *request.mutable_bias();
    bias.set_type(ToWire(problem.bias_type));
    bias.set_axis(static_cast<v1::BiasAxis>(problem.bias_axis));
    bias.set_data(reinterpret_cast<const char*>(kept.bias.data()), kept.bias.size());
  }
  request.set_activation(static_cast<v1::Activation>(problem.activation));
  request.set_bit_operation(static_cast<v1::BitOperation>(problem.bit_operation));
  request.set_accumulation_type(ToWire(problem.accumulation));
  request.mutable_d()->set_type(ToWire(problem.d.type));
  request.mutable_d()->set_order(ToWire(problem.d.order));
  if (without_operands) {
    request.mutable_a()->clear_data();
    request.mutable_b()->clear_data();
    if (request.has_c()) request.mutable_c()->clear_data();
    if (request.has_bias()) request.mutable_bias()->clear_data();
  }
  request.set_kernel(entry.incident.kernel);
  request.set_device(entry.incident.device);
  return request;
}

absl::StatusOr<v1::GetIncidentProductResponse> FindProduct(
    const std::vector<IncidentLog::Entry>& entries, const v1::GetIncidentProductRequest& request,
    int64_t max_bytes) {
  for (const IncidentLog::Entry& entry : entries) {
    if (entry.incident.id != request.id()) continue;
    v1::GetIncidentProductResponse response;
    ASSIGN_OR_RETURN(*response.mutable_request(), ProductOf(entry, request.without_operands()));
    *response.mutable_incident() = ToWire(entry);
    const auto bytes = static_cast<int64_t>(response.ByteSizeLong());
    if (bytes <= max_bytes) return response;
    return absl::ResourceExhaustedError(
        Concat("id: the product takes ", bytes, " bytes, a message holds at most ", max_bytes));
  }
  return absl::NotFoundError(
      Concat("id: got ", request.id(), ", want one that ListIncidents gives"));
}

absl::StatusOr<v1::ListSessionsResponse> ListSessions(const TensorStore& store,
                                                      const v1::ListSessionsRequest& request) {
  constexpr int64_t kDefaultLimit = 100;
  constexpr int64_t kMaxLimit = 1000;
  if (request.limit() < 0 || request.limit() > kMaxLimit) {
    return Invalid("limit", request.limit(), Concat("0 to ", kMaxLimit));
  }
  const int64_t limit = request.limit() == 0 ? kDefaultLimit : request.limit();
  const TensorStore::SessionList list = store.ListSessions(static_cast<size_t>(limit));
  v1::ListSessionsResponse response;
  for (const TensorStore::SessionState& state : list.sessions) {
    v1::Session& session = *response.add_sessions();
    session.set_id(state.id);
    session.set_caller(state.caller);
    session.set_age_ns(state.age_ns);
    session.set_streams(state.streams);
    session.set_in_use(state.is_in_use);
    session.set_lingers_ns(state.lingers_ns);
    session.set_tensors(state.tensors);
    session.set_pinned_tensors(state.pinned);
    session.set_uploads(state.uploads);
    session.set_host_bytes(state.bytes);
    for (const TensorStore::SessionState::OwnTensor& own : state.largest) {
      v1::SessionTensor& tensor = *session.add_largest_tensors();
      tensor.set_name(own.name);
      tensor.set_bytes(own.bytes);
      tensor.set_pinned(own.pinned);
    }
  }
  response.set_left_out(list.left_out);
  return response;
}

absl::StatusOr<TensorStore::Dropped> DropSession(TensorStore& store,
                                                 const v1::DropSessionRequest& request) {
  RETURN_IF_ERROR(CheckNameLength("id", request.id()));
  return store.DropSession(request.id());
}

namespace {

// The maximum bytes of unread answers, in addition to the operands of one incident.
constexpr int64_t kMaxUnreadAdminBytes = int64_t{1} << 20;

absl::Status CheckIsLocal(const std::string& peer) {
  if (absl::StartsWith(peer, "unix:")) return absl::OkStatus();
  return absl::PermissionDeniedError(
      Concat("peer: got ", peer, ", want a unix socket (--listen=unix:PATH)"));
}

class AdminService final : public AnsweredService<v1::Admin::Service> {
 public:
  AdminService(const std::vector<ServedDevice>& devices, const ServiceParts& parts,
               const IncidentLog& incidents, int64_t max_message_bytes)
      : AnsweredService(parts, incidents.max_kept_bytes() + kMaxUnreadAdminBytes),
        devices_(devices),
        incidents_(incidents),
        store_(parts.runner.tensors()),
        max_message_bytes_(max_message_bytes) {
    // With rules, the gate has already checked the caller's role. Without rules, operators are
    // recognized by the user that the kernel reports at the other end of a unix socket; other users
    // may use the socket for products.
    const auto may_change = [this](Context& context) {
      RETURN_IF_ERROR(CheckIsLocal(context.peer()));
      return parts_.gate.is_open() ? parts_.gate.CheckOperator(context) : absl::OkStatus();
    };
    const auto may_look = [this, may_change](Context& context) {
      return parts_.gate.is_open() ? may_change(context) : absl::OkStatus();
    };
    // A server that is short of memory returns no operands. All other answers are small, and
    // restarting a worker or dropping a session may be what relieves the shortage.
    const auto may_take = [this, may_look](Context& context) {
      const absl::Status status = may_look(context);
      return status.ok() ? parts_.runner.CheckQuestion() : status;
    };
    const std::string_view name = v1::Admin::service_full_name();
    Add(name, HandlerOf("RestartDevice"), may_change, &AdminService::RestartDevice);
    Add(name, HandlerOf("ListIncidents"), may_look, &AdminService::ListIncidents);
    Add(name, HandlerOf("GetIncidentProduct"), may_take, &AdminService::GetIncidentProduct);
    Add(name, HandlerOf("ListSessions"), may_look, &AdminService::ListSessions);
    Add(name, HandlerOf("DropSession"), may_change, &AdminService::DropSession);
  }

 private:
  absl::StatusOr<RegistryAnswer> RestartDevice(Context&, const v1::RestartDeviceRequest& wire) {
    const absl::Status status = Restart(wire.device());
    spdlog::info("event=restart_device device={} status={}", LogValue(Shown(wire.device())),
                 absl::StatusCodeToString(status.code()));
    RETURN_IF_ERROR(status);
    return AnswerOf(v1::RestartDeviceResponse());
  }

  absl::StatusOr<RegistryAnswer> ListIncidents(Context&, const v1::ListIncidentsRequest&) {
    v1::ListIncidentsResponse incidents;
    for (const IncidentLog::Entry& entry : incidents_.entries()) {
      *incidents.add_incidents() = ToWire(entry);
    }
    incidents.set_found(incidents_.found());
    return AnswerOf(incidents);
  }

  absl::StatusOr<RegistryAnswer> GetIncidentProduct(Context&,
                                                    const v1::GetIncidentProductRequest& wire) {
    ASSIGN_OR_RETURN(const v1::GetIncidentProductResponse product,
                     FindProduct(incidents_.entries(), wire, max_message_bytes_));
    return AnswerOf(product);
  }

  absl::StatusOr<RegistryAnswer> ListSessions(Context&, const v1::ListSessionsRequest& wire) {
    ASSIGN_OR_RETURN(const v1::ListSessionsResponse sessions, gemmd::ListSessions(store_, wire));
    return AnswerOf(sessions);
  }

  absl::StatusOr<RegistryAnswer> DropSession(Context& context, const v1::DropSessionRequest& wire) {
    const absl::StatusOr<TensorStore::Dropped> dropped = gemmd::DropSession(store_, wire);
    const TensorStore::Dropped told = dropped.ok() ? *dropped : TensorStore::Dropped();
    spdlog::info(
        "event=drop_session session={} caller={} tensors={} freed_bytes={} held_bytes={} "
        "peer={} status={}",
        LogValue(Shown(wire.id())), LogValue(told.caller), told.tensors, told.freed_bytes,
        told.held_bytes, LogValue(parts_.gate.PeerOf(context)),
        absl::StatusCodeToString(dropped.status().code()));
    RETURN_IF_ERROR(dropped.status());
    v1::DropSessionResponse answer;
    answer.set_tensors(told.tensors);
    answer.set_freed_bytes(told.freed_bytes);
    answer.set_held_bytes(told.held_bytes);
    return AnswerOf(answer);
  }

  absl::Status Restart(const std::string& name) const {
    RETURN_IF_ERROR(CheckNameLength("device", name));
    for (const ServedDevice& served : devices_) {
      if (served.device->info().name == name) return served.device->RestartWorker();
    }
    return absl::NotFoundError(GotWant("device", Shown(name), "one that ListDevices names"));
  }

  const std::vector<ServedDevice>& devices_;
  const IncidentLog& incidents_;
  TensorStore& store_;
  const int64_t max_message_bytes_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeAdminService(const std::vector<ServedDevice>& devices,
                                                const ServiceParts& parts,
                                                const IncidentLog& incidents,
                                                int64_t max_message_bytes) {
  return std::make_unique<AdminService>(devices, parts, incidents, max_message_bytes);
}

}  // namespace gemmd
