// SPDX-License-Identifier: Apache-2.0
#include "server/wire/gemm_service.h"

#include <grpc/support/time.h>
#include <grpcpp/alarm.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/matrix/status.h"
#include "server/wire/incoming.h"
#include "server/wire/outgoing.h"

namespace gemmd {

namespace {

// The number of products of a message that are queued together. While the device works on them,
// parsing continues.
constexpr size_t kStartedTogether = 64;

// The maximum time for which a message occupies one of gRPC's threads without a break.
constexpr int64_t kMaxAtOnceNs = 1'000'000;

// A product that has ended. Of a refused product, only its part of the answer is kept.
struct Ended {
  std::unique_ptr<RequestedProduct> product;
  std::string refusal;

  int64_t bytes() const {
    return product != nullptr ? product->answer_bytes() : static_cast<int64_t>(refusal.size());
  }
};

grpc::ByteBuffer AnswersOf(const std::vector<Ended>& products) {
  size_t copied_bytes = 0;
  for (const Ended& ended : products) {
    const size_t d_bytes = ended.product != nullptr ? ended.product->outcome.d.size() : 0;
    if (d_bytes <= kCopiedBytes) copied_bytes += d_bytes;
  }
  JointAnswer message(products.size(), copied_bytes);
  for (const Ended& ended : products) {
    if (ended.product != nullptr) {
      message.Add(*ended.product);
    } else {
      message.Add(ended.refusal);
    }
  }
  return message.Take();
}

// One Gemm.MultiplyStream call. A message may ask for many products, and may answer many.
class MultiplyStreamReactor final : public ProductStream<Ended> {
 public:
  MultiplyStreamReactor(const ServiceParts& parts, grpc::CallbackServerContext& context)
      : ProductStream(parts, Handler::kMultiplyStream, kMaxJointAnswers, context) {}

 private:
  grpc::ByteBuffer MessageOf(std::vector<Ended>& answers) override { return AnswersOf(answers); }

  // Splits the message that was read into its products, and starts them.
  void StartProducts() override {
    if (absl::Status status = Cut(); !status.ok()) return End(std::move(status));
    StartSome();
  }

  // A caller that was allowed to begin the stream may have lost that right since.
  absl::Status Cut() {
    ASSIGN_OR_RETURN(arrival_, ArrivalOfMessage());
    products_.emplace(incoming_.buffer);
    RETURN_IF_ERROR(products_->Cut());
    is_list_ = products_->size() > 1;
    if (is_list_) FindSession();
    return absl::OkStatus();
  }

  // Looks the session up once for all products.
  void FindSession() {
    const bool has_token = !arrival_.session.empty();
    if (!has_token && arrival_.caller != nullptr) {
      gemmd::FindSession(parts_.runner.tensors(), arrival_);
    }
    if (arrival_.used_session != nullptr) arrival_.session.clear();
  }

  // Starts products for up to kMaxAtOnceNs, up to kStartedTogether at a time. The rest is started
  // on another thread, so that other work waiting for this thread comes first.
  void StartSome() {
    const Deferral deferral;  // Sends the answers of refused products together.
    const int64_t until_ns = parts_.clock.NowNs() + kMaxAtOnceNs;
    while (products_->size() > 0) {
      Company company;
      if (is_list_) company.reserve(std::min(products_->size(), kStartedTogether));
      bool is_over = false;
      while (products_->size() > 0 && company.size() < kStartedTogether && !is_over) {
        StartNext(is_list_ ? &company : nullptr);
        is_over = parts_.clock.NowNs() >= until_ns;
      }
      parts_.runner.StartTogether(std::move(company));
      CancelIfBroken();
      if (is_over) break;
    }
    if (products_->size() > 0) {
      // The alarm keeps its callback, so the callback must not own the reactor. The stream does not
      // end before all products of the message are started.
      alarm_.Set(gpr_now(GPR_CLOCK_MONOTONIC), [this](bool /*ok*/) {
        const auto self = shared_from_this();
        const HandlerTimer timer = timing_.Begin();
        StartSome();
      });
      return;
    }
    End(absl::OkStatus());
  }

  void End(absl::Status refused) {
    products_.reset();
    arrival_.used_session.reset();
    EndReading(std::move(refused));
  }

  void StartNext(Company* company) {
    auto product = std::make_unique<RequestedProduct>();
    product->id = Enter();
    product->arrival = arrival_;
    product->arrival.span = SpanOfProduct();
    // Captures no more than fits into the function object without an allocation.
    product->answer = [self = std::static_pointer_cast<MultiplyStreamReactor>(shared_from_this())](
                          std::unique_ptr<Product> ended) {
      self->Answer(TakeEnded(std::move(ended)));
    };
    if (absl::Status status = Begin(product, company); !status.ok()) {
      product->outcome.status = std::move(status);
      Answer(std::move(product));
    }
  }

  absl::Status Begin(std::unique_ptr<RequestedProduct>& product, Company* company) {
    ASSIGN_OR_RETURN(Incoming incoming, products_->Take());
    MultiplyMessage request(std::move(incoming));
    return RequestedProduct::Start(parts_.runner, parts_.quota, request, product, company);
  }

  void Answer(std::unique_ptr<RequestedProduct> product) {
    const HeldFields held = product->ReleaseRequest();  // Freed after the answer is sent.
    const JobId id = product->id;
    Ended ended;
    if (const absl::Status& status = product->outcome.status; status.ok()) {
      product->LeaveQueue();
      ended.product = std::move(product);
    } else {
      ended.refusal = JointAnswer::RefusalOf(product->arrival.request_id, status);
      product.reset();
    }
    ProductStream::Answer(id, std::move(ended));
  }

  std::optional<JointRequest> products_;
  bool is_list_ = false;  // Whether the message asks for several products.
  Arrival arrival_;
  grpc::Alarm alarm_;
};

// The indices of the methods, in the order of the service's declaration.
constexpr int kMultiply = 0;
constexpr int kMultiplyStream = 1;

}  // namespace

GemmService::GemmService(const ServiceParts& parts) : parts_(parts) {
  MarkMethodRawCallback(kMultiply, new grpc::internal::CallbackUnaryHandler<WireBytes, WireBytes>(
                                       [this](grpc::CallbackServerContext* context,
                                              const WireBytes* request, WireBytes* response) {
                                         return StartMultiply(*context, *request, *response);
                                       }));
  MarkMethodRawCallback(kMultiplyStream,
                        new grpc::internal::CallbackBidiHandler<WireBytes, WireBytes>(
                            [this](grpc::CallbackServerContext* context) {
                              const auto stream =
                                  std::make_shared<MultiplyStreamReactor>(parts_, *context);
                              stream->Start();
                              return stream.get();
                            }));
}

grpc::ServerUnaryReactor* GemmService::StartMultiply(grpc::CallbackServerContext& context,
                                                     const WireBytes& request,
                                                     WireBytes& response) {
  // gRPC calls this as soon as the last byte has arrived.
  const int64_t arrived_ns = parts_.clock.NowNs();
  const HandlerTimer timer(parts_.times, parts_.clock, Handler::kMultiply, arrived_ns);
  auto* const call =
      new UnaryProduct<ProductExchange>(parts_, Handler::kMultiply, context, response);
  call->Start(
      ArrivalOf(context, OriginOf(context, "Multiply", parts_.gate, parts_.clock), arrived_ns,
                parts_.gate, parts_.runner.tensors()),
      [&](ProductExchange& exchange, JobId id, Arrival arrival, ProductExchange::Answer answer) {
        MultiplyMessage message(Incoming(request.buffer));
        return exchange.Start(parts_, id, message, std::move(arrival), std::move(answer));
      });
  return call;
}

}  // namespace gemmd
