// SPDX-License-Identifier: Apache-2.0
#include "server/wire/product_exchange.h"

#include <grpc/support/time.h>

#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/hash/hash.h"
#include "absl/time/time.h"
#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"
#include "proto/field_start.h"
#include "server/system/log.h"
#include "server/wire/convert.h"
#include "server/wire/outgoing.h"
#include "server/wire/tensor_service.h"

namespace gemmd {

namespace {

// The deadline on the clock of `now_ns`. std::chrono's nanoseconds since 1970 are not used: they
// overflow in the year 2262, and a client may ask for a later deadline.
int64_t DeadlineNs(gpr_timespec deadline, int64_t now_ns) {
  const gpr_timespec left = gpr_time_sub(deadline, gpr_now(deadline.clock_type));
  const int64_t left_ns =
      absl::ToInt64Nanoseconds(absl::Seconds(left.tv_sec) + absl::Nanoseconds(left.tv_nsec));
  return left_ns < kNoDeadlineNs - now_ns ? now_ns + left_ns : kNoDeadlineNs;
}

}  // namespace

std::string UnparsedId(Incoming& request, int number) {
  const std::string beginning = request.ShortText(number, kMaxNameBytes + 1);
  const std::string_view id = CutAtCharacter(beginning, kMaxNameBytes);
  // Parses the text as some text field, to find out whether it is UTF-8.
  std::string field;
  AppendFieldStart(v1::MultiplyRequest::kRequestIdFieldNumber, id.size(), field);
  v1::MultiplyRequest message;
  return message.ParseFromString(field.append(id)) ? message.request_id() : "";
}

absl::Status RequestedProduct::Start(ProductRunner& runner, ReceiveQuota& quota,
                                     ArrivedRequest& request,
                                     std::unique_ptr<RequestedProduct>& product, Company* company) {
  Arrival& arrival = product->arrival;
  const absl::StatusOr<int64_t> max_bytes = request.Examine(**product->message_);
  absl::Status parsed = max_bytes.status();
  if (parsed.ok()) {
    absl::StatusOr<Admission::Ticket> held = runner.Hold(*max_bytes, arrival);
    if (!held.ok()) {
      arrival.request_id = request.UnparsedId();
      product->Refuse();
      return held.status();
    }
    product->ticket = *std::move(held);
    parsed = product->Parse(runner, quota, request);
  } else {
    arrival.request_id = request.UnparsedId();
  }
  std::unique_ptr<Product> started = std::move(product);
  absl::Status status = company == nullptr ? runner.Start(started, std::move(parsed))
                                           : runner.StartWith(*company, started, std::move(parsed));
  if (status.ok()) return status;
  product.reset(static_cast<RequestedProduct*>(started.release()));
  product->Refuse();
  return status;
}

absl::Status RequestedProduct::Parse(ProductRunner& runner, ReceiveQuota& quota,
                                     ArrivedRequest& request) {
  v1::MultiplyRequest& message = **message_;
  const absl::Status status = request.Parse(message, quota, held_, arrival);
  arrival.request_id = status.ok()
                           ? std::string(CutAtCharacter(message.request_id(), kMaxNameBytes))
                           : request.UnparsedId();
  RETURN_IF_ERROR(status);
  return ParseWithTensors(runner.tensors(),
                          {.token = arrival.session,
                           .identity = arrival.caller.get(),
                           .session = std::exchange(arrival.used_session, nullptr)},
                          message, &held_, *this);
}

HeldFields RequestedProduct::ReleaseRequest() {
  message_.reset();
  return std::move(held_);
}

void RequestedProduct::Refuse() {
  const HeldFields held = ReleaseRequest();
  outcome.d = HeldBytes();
  tensors.reset();
  entry = Meter::Entry();
  ticket = Admission::Ticket();
}

std::unique_ptr<RequestedProduct> TakeEnded(std::unique_ptr<Product> ended) {
  return std::unique_ptr<RequestedProduct>(static_cast<RequestedProduct*>(ended.release()));
}

absl::Status ProductExchange::Start(const ServiceParts& parts, JobId id, ArrivedRequest& request,
                                    Arrival arrival, Answer answer, Company* company) {
  auto product = std::make_unique<RequestedProduct>();
  product->id = id;
  product->arrival = std::move(arrival);
  product->answer = [this](std::unique_ptr<Product> ended) { End(TakeEnded(std::move(ended))); };
  answer_ = std::move(answer);
  absl::Status status =
      RequestedProduct::Start(parts.runner, parts.quota, request, product, company);
  if (status.ok()) return status;
  answer_ = nullptr;
  product_ = std::move(product);
  return status;
}

// The exchange may have been destroyed once `answer` has been called.
void ProductExchange::End(std::unique_ptr<RequestedProduct> ended) {
  const HeldFields held = ended->ReleaseRequest();
  const absl::Status status = ended->outcome.status;
  if (!status.ok()) ended->Refuse();
  product_ = std::move(ended);
  Answer answer = std::move(answer_);
  std::move(answer)(status);
}

grpc::ByteBuffer ProductExchange::TakeUnaryAnswer() { return UnaryAnswer(*product_); }

v1::MultiplyResponse ProductExchange::TakeResponse() {
  v1::MultiplyResponse response;
  FillResponse(*product_, response);
  FillMatrix(product_->job.problem, *response.mutable_d());
  return response;
}

std::optional<TraceSpan> StartSpan(grpc::CallbackServerContext& context) {
  const auto [first, last] = context.client_metadata().equal_range(kTraceparentKey);
  // With two values, the parent would be ambiguous.
  if (first == last || std::next(first) != last) return std::nullopt;
  std::optional<TraceSpan> span = ContinueTrace({first->second.data(), first->second.size()});
  if (span) context.AddTrailingMetadata(kTraceparentKey, span->traceparent());
  return span;
}

void FindSession(TensorStore& store, Arrival& arrival) {
  const std::string_view owner =
      arrival.caller == nullptr ? std::string_view() : std::string_view(arrival.caller->name);
  absl::StatusOr<TensorStore::SessionUse> use = store.Use(arrival.session, owner);
  if (!use.ok()) return;
  arrival.used_session = std::make_shared<const TensorStore::SessionUse>(*std::move(use));
}

Arrival OriginOf(grpc::CallbackServerContext& context, std::string_view method, const Gate& gate,
                 const Clock& clock) {
  Arrival origin;
  origin.deadline_ns = DeadlineNs(context.raw_deadline(), clock.NowNs());
  origin.peer_name = std::make_shared<const std::string>(gate.PeerOf(context));
  origin.method = method;
  origin.connection = ConnectionOf(context);
  origin.session = SessionTokenOf(context);
  return origin;
}

absl::StatusOr<Arrival> ArrivalOf(grpc::CallbackServerContext& context, Arrival origin,
                                  int64_t arrived_ns, const Gate& gate, TensorStore& store) {
  Arrival arrival = std::move(origin);
  arrival.arrived_ns = arrived_ns;
  ASSIGN_OR_RETURN(arrival.caller, gate.CallerOf(context, Role::kMultiply));
  if (arrival.session.empty()) return arrival;
  // A token that the server never issued is not used as the session: a caller could make up one for
  // each call, and each would get its own turn in the queue.
  FindSession(store, arrival);
  if (arrival.used_session != nullptr) {
    arrival.connection = absl::HashOf(arrival.connection, arrival.used_session->token());
  }
  return arrival;
}

}  // namespace gemmd
