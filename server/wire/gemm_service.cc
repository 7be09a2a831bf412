// SPDX-License-Identifier: Apache-2.0
#include "server/wire/gemm_service.h"

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/matrix/status.h"
#include "server/wire/incoming.h"
#include "server/wire/outgoing.h"
#include "server/wire/product_exchange.h"

namespace gemmd {

namespace {

// A message that was read.
struct Asked {
  JointRequest products;
  Arrival arrival;

  size_t size() const { return products.size(); }
};

// A product that has ended. Of a refused product, only its part of the answer is kept.
struct Ended {
  std::unique_ptr<RequestedProduct> product;
  std::string refusal;

  int64_t bytes() const {
    return product != nullptr ? product->answer_bytes() : static_cast<int64_t>(refusal.size());
  }
  int64_t refusal_bytes() const {
    return product != nullptr ? 0 : static_cast<int64_t>(sizeof(*this) + refusal.size());
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
class MultiplyStreamReactor final : public ProductStream<Asked, Ended> {
 public:
  MultiplyStreamReactor(const ServiceParts& parts, grpc::CallbackServerContext& context)
      : ProductStream(parts, HandlerOf("MultiplyStream"), kMaxJointAnswers, context) {}

 private:
  grpc::ByteBuffer MessageOf(std::vector<Ended>& answers) override { return AnswersOf(answers); }

  // A caller that was allowed to begin the stream may have lost that right since.
  absl::StatusOr<Asked> ReadMessage(grpc::ByteBuffer& bytes, int64_t arrived_ns) override {
    ASSIGN_OR_RETURN(Arrival arrival, ArrivalOfMessage(arrived_ns));
    JointRequest products(bytes);
    RETURN_IF_ERROR(products.Cut());
    if (products.size() > 1) FindSession(arrival);
    return Asked{std::move(products), std::move(arrival)};
  }

  // Looks the session up once for all products.
  void FindSession(Arrival& arrival) {
    const bool has_token = !arrival.session.empty();
    if (!has_token && arrival.caller != nullptr) {
      gemmd::FindSession(parts_.runner.tensors(), arrival);
    }
    if (arrival.used_session != nullptr) arrival.session.clear();
  }

  void StartProduct(Asked& asked, Company& company) override {
    auto product = std::make_unique<RequestedProduct>();
    product->id = Enter();
    product->arrival = asked.arrival;
    product->arrival.span = SpanOfProduct();
    // Captures no more than fits into the function object without an allocation.
    product->answer = [self = std::static_pointer_cast<MultiplyStreamReactor>(shared_from_this())](
                          std::unique_ptr<Product> ended) {
      self->Answer(TakeEnded(std::move(ended)));
    };
    if (absl::Status status = Begin(asked.products, product, company); !status.ok()) {
      product->outcome.status = std::move(status);
      Answer(std::move(product));
    }
  }

  absl::Status Begin(JointRequest& products, std::unique_ptr<RequestedProduct>& product,
                     Company& company) {
    ASSIGN_OR_RETURN(Incoming incoming, products.Take());
    MultiplyMessage request(std::move(incoming));
    return RequestedProduct::Start(parts_.runner, parts_.quota, request, product, &company);
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
};

class GemmService final : public v1::Gemm::Service {
 public:
  explicit GemmService(const ServiceParts& parts) : parts_(parts) {
    const std::string_view name = v1::Gemm::service_full_name();
    const auto begin = [this](ProductExchange& exchange, JobId id, grpc::ByteBuffer& request,
                              Arrival arrival, ProductExchange::Answer answer) {
      MultiplyMessage message{Incoming(request)};
      return exchange.Start(parts_, id, message, std::move(arrival), std::move(answer));
    };
    MarkMethodRawCallback(MethodNumber(name, "Multiply"),
                          UnaryHandler<ProductExchange>(parts_, HandlerOf("Multiply"), begin));
    MarkMethodRawCallback(MethodNumber(name, "MultiplyStream"),
                          StreamHandler<MultiplyStreamReactor>(parts_));
  }

 private:
  const ServiceParts parts_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeGemmService(const ServiceParts& parts) {
  return std::make_unique<GemmService>(parts);
}

}  // namespace gemmd
