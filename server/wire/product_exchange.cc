// SPDX-License-Identifier: Apache-2.0
#include "server/wire/product_exchange.h"

#include <grpc/support/time.h>

#include <iterator>
#include <string>
#include <string_view>
#include <utility>

#include "absl/time/time.h"
#include "kernels/peer_text.h"
#include "kernels/status_macros.h"
#include "proto/field_start.h"
#include "server/system/log.h"
#include "server/wire/convert.h"
#include "server/wire/convert_answer.h"
#include "server/wire/tensor_operands.h"
#include "server/wire/tensor_session.h"

namespace gemmd {
namespace {

// The deadline on the clock of `now_ns`. std::chrono's nanoseconds since 1970 overflow in the year
// 2262, and a client may ask for a later deadline, so they are not used.
int64_t DeadlineNs(gpr_timespec deadline, int64_t now_ns) {
  const gpr_timespec left = gpr_time_sub(deadline, gpr_now(deadline.clock_type));
  const int64_t left_ns =
      absl::ToInt64Nanoseconds(absl::Seconds(left.tv_sec) + absl::Nanoseconds(left.tv_nsec));
  return left_ns < kNoDeadlineNs - now_ns ? now_ns + left_ns : kNoDeadlineNs;
}

// A request of gemmd's own.
class MultiplyMessage final : public ArrivedRequest {
 public:
  explicit MultiplyMessage(Incoming incoming) : incoming_(std::move(incoming)) {}

  absl::StatusOr<int64_t> Examine(v1::MultiplyRequest& message) override {
    return incoming_.Examine(message);
  }
  absl::Status Parse(v1::MultiplyRequest& message, ReceiveQuota& quota, HeldFields& held,
                     Arrival& /*arrival*/) override {
    is_parsed_ = true;
    return incoming_.Parse(message, quota, held);
  }
  std::string UnparsedId() override {
    // Parsing frees the bytes.
    if (is_parsed_) return "";
    return gemmd::UnparsedId(incoming_, v1::MultiplyRequest::kRequestIdFieldNumber);
  }

 private:
  Incoming incoming_;
  bool is_parsed_ = false;
};

}  // namespace

std::string UnparsedId(Incoming& request, int number) {
  const std::string beginning = request.ShortText(number, kMaxNameBytes + 1);
  const std::string_view id = CutAtCharacter(beginning, kMaxNameBytes);
  // Any field of text does to find out whether it is text.
  std::string field;
  AppendFieldStart(v1::MultiplyRequest::kRequestIdFieldNumber, id.size(), field);
  v1::MultiplyRequest message;
  return message.ParseFromString(field.append(id)) ? message.request_id() : "";
}

absl::StatusOr<JobId> ProductExchange::Start(ProductRunner& runner, ReceiveQuota& quota,
                                             Incoming request, Arrival arrival, Answer answer) {
  MultiplyMessage message(std::move(request));
  return Start(runner, quota, message, std::move(arrival), std::move(answer));
}

absl::StatusOr<JobId> ProductExchange::Start(ProductRunner& runner, ReceiveQuota& quota,
                                             ArrivedRequest& request, Arrival arrival,
                                             Answer answer) {
  absl::StatusOr<JobId> id =
      StartProduct(runner, quota, request, std::move(arrival), std::move(answer));
  if (!id.ok()) {
    answer_ = nullptr;
    Release();
  }
  return id;
}

absl::StatusOr<JobId> ProductExchange::StartProduct(ProductRunner& runner, ReceiveQuota& quota,
                                                    ArrivedRequest& request, Arrival arrival,
                                                    Answer answer) {
  auto product = std::make_unique_for_overwrite<RequestedProduct>();
  v1::MultiplyRequest& message = *product->message;
  const absl::StatusOr<int64_t> most_bytes = request.Examine(message);
  absl::Status status = most_bytes.status();
  if (status.ok()) {
    absl::StatusOr<Admission::Ticket> ticket = runner.Hold(*most_bytes, arrival);
    if (!ticket.ok()) {
      request_id_ = request.UnparsedId();
      return ticket.status();
    }
    ticket_ = *std::move(ticket);
    status = request.Parse(message, quota, product->held, arrival);
  }
  request_id_ = status.ok() ? std::string(CutAtCharacter(message.request_id(), kMaxNameBytes))
                            : request.UnparsedId();
  arrival.request_id = request_id_;
  if (status.ok()) {
    status = ParseWithTensors(runner.tensors(),
                              {.token = arrival.session,
                               .identity = arrival.caller.get(),
                               .session = std::exchange(arrival.used_session, nullptr)},
                              message, &product->held, *product);
  }
  product->arrival = std::move(arrival);
  product->prepare = [this](const Product& ended) { FillResponse(ended, *response_.emplace()); };
  product->answer = [this](Product& ended) { End(ended); };
  answer_ = std::move(answer);
  return runner.Start(std::move(product), std::move(status), ticket_);
}

// The request is freed with the product, when the answer is on its way: that takes a while for long
// operands. This may be gone by then.
void ProductExchange::End(Product& product) {
  const absl::Status& status = product.outcome.status;
  if (status.ok()) {
    d_ = std::move(product.outcome.d);
    *(*response_)->mutable_timing() = ToWire(product.timing);
  } else {
    Release();
  }
  Answer answer = std::move(answer_);
  std::move(answer)(status);
}

void ProductExchange::Release() {
  d_ = HeldBytes();
  ticket_ = Admission::Ticket();
}

grpc::ByteBuffer ProductExchange::TakeUnaryAnswer() {
  return UnaryAnswer(**response_, std::move(d_));
}

void ProductExchange::TakeAnswer(JointAnswer& to) {
  to.Add(request_id_, **response_, std::move(d_));
}

void ProductExchange::LeaveQueue() { ticket_.MarkAnswered(answer_bytes()); }

std::optional<TraceSpan> StartSpan(grpc::CallbackServerContext& context) {
  const auto [first, last] = context.client_metadata().equal_range(kTraceparentKey);
  // Two values cannot both be the parent.
  if (first == last || std::next(first) != last) return std::nullopt;
  std::optional<TraceSpan> span = ContinueTrace({first->second.data(), first->second.size()});
  if (span) context.AddTrailingMetadata(kTraceparentKey, span->traceparent());
  return span;
}

absl::StatusOr<Arrival> ArrivalOf(grpc::CallbackServerContext& context, std::string_view method,
                                  int64_t arrived_ns, const Gate& gate, const Clock& clock) {
  Arrival arrival;
  ASSIGN_OR_RETURN(arrival.caller, gate.CallerOf(context, Role::kMultiply));
  arrival.arrived_ns = arrived_ns;
  arrival.deadline_ns = DeadlineNs(context.raw_deadline(), clock.NowNs());
  arrival.peer = context.peer();
  arrival.method = method;
  arrival.connection = ConnectionOf(context);
  arrival.session = SessionTokenOf(context);
  return arrival;
}

}  // namespace gemmd
