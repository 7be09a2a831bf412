// SPDX-License-Identifier: Apache-2.0
#include "server/kserve/infer_exchange.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "kernels/or_no_memory.h"
#include "kernels/status_macros.h"
#include "server/scheduling/saturating.h"

namespace gemmd {
namespace {

constexpr std::string_view kNoMemory = "message: no memory to parse it in, try again later";

}  // namespace

class InferExchange::Request final : public ArrivedRequest {
 public:
  Request(InferExchange& exchange, grpc::ByteBuffer& buffer)
      : exchange_(exchange), message_(buffer) {}

  absl::StatusOr<int64_t> Examine(v1::MultiplyRequest& /*message*/) override {
    RETURN_IF_ERROR(message_.Read());
    ASSIGN_OR_RETURN(const int64_t prepared,
                     OrNoMemory(kNoMemory, [this] { return PrepareContents(message_); }));
    return message_.wire_bytes() + message_.request_bytes() + prepared;
  }

  // Contents that came in scraps are put together.
  absl::Status Parse(v1::MultiplyRequest& message, ReceiveQuota& quota, HeldFields& held,
                     Arrival& arrival) override {
    return OrNoMemory(kNoMemory, [&] { return Convert(message, quota, held, arrival); });
  }

  std::string UnparsedId() override { return message_.UnparsedId(); }

 private:
  absl::Status Convert(v1::MultiplyRequest& message, ReceiveQuota& quota, HeldFields& held,
                       Arrival& arrival) {
    const inference::ModelInferRequest& request = message_.request();
    message.set_request_id(request.id());
    ASSIGN_OR_RETURN(const Model model,
                     exchange_.setting_.models.Find({arrival.session, arrival.caller},
                                                    request.model_name(), request.model_version()));
    Known& known = exchange_.known_.emplace();
    known.model = model.name;
    known.key = model.handle();
    ASSIGN_OR_RETURN(known.asked, ConvertInfer(message_, model, quota, message, held));
    if (known.asked.timeout_ns > 0) {
      arrival.deadline_ns =
          std::min(arrival.deadline_ns, SaturatingSum(arrival.arrived_ns, known.asked.timeout_ns));
    }
    return absl::OkStatus();
  }

  InferExchange& exchange_;
  InferMessage message_;
};

absl::StatusOr<JobId> InferExchange::Start(grpc::ByteBuffer& request, Arrival arrival,
                                           Answer answer) {
  const int64_t arrived_ns = arrival.arrived_ns;
  Request arrived(*this, request);
  absl::StatusOr<JobId> id = product_.Start(
      setting_.runner, setting_.quota, arrived, std::move(arrival),
      [this, arrived_ns, answer = std::move(answer)](const absl::Status& status) mutable {
        std::move(answer)(End(status, arrived_ns));
      });
  if (id.ok()) return id;
  return End(id.status(), arrived_ns);
}

// Counts the product, and gives its status in the words of its request.
absl::Status InferExchange::End(const absl::Status& status, int64_t arrived_ns) {
  if (!known_) return status;
  if (!status.ok()) {
    setting_.counts.AddFailure(known_->key, setting_.clock.NowNs() - arrived_ns);
    return known_->asked.places.Rename(status);
  }
  const v1::MultiplyResponse& response = product_.response();
  setting_.counts.AddSuccess(known_->key, response.timing(), response.d().batch(),
                             absl::ToUnixMillis(absl::Now()));
  return status;
}

InferSubject InferExchange::Subject() const {
  return {known_->model, product_.request_id(), known_->asked.has_batch};
}

grpc::ByteBuffer InferExchange::TakeUnaryAnswer() {
  return InferAnswer(Subject(), product_.TakeResponse(), product_.TakeD());
}

grpc::ByteBuffer InferExchange::TakeStreamedAnswer() {
  return StreamedInferAnswer(Subject(), product_.TakeResponse(), product_.TakeD());
}

}  // namespace gemmd
