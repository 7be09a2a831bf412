// SPDX-License-Identifier: Apache-2.0
//
// One product that was asked for in the words of KServe, from the bytes of its request to those of
// its answer: the same for unary calls and streams.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <optional>
#include <string>

#include "server/kserve/convert_infer.h"
#include "server/kserve/infer_answer.h"
#include "server/kserve/model_counts.h"
#include "server/kserve/models.h"
#include "server/metrics/handler_times.h"
#include "server/wire/product_exchange.h"
#include "server/wire/send_watch.h"

namespace gemmd {

// What all calls share. Borrowed.
struct InferSetting {
  ProductRunner& runner;
  const Gate& gate;
  ReceiveQuota& quota;
  const Models& models;
  ModelCounts& counts;
  SendWatch& watch;
  HandlerTimes& times;
  const Clock& clock;
};

class InferExchange {
 public:
  using Answer = ProductExchange::Answer;

  explicit InferExchange(const InferSetting& setting) : setting_(setting) {}

  // As ProductExchange::Start; errors, here and those that `answer` gets, are in the words of
  // KServe.
  absl::StatusOr<JobId> Start(grpc::ByteBuffer& request, Arrival arrival, Answer answer);

  const std::string& id() const { return product_.request_id(); }
  int64_t answer_bytes() const { return product_.answer_bytes(); }
  void LeaveQueue() { product_.LeaveQueue(); }

  // The answer to a product that is OK and has left the queue, once.
  grpc::ByteBuffer TakeUnaryAnswer();
  grpc::ByteBuffer TakeStreamedAnswer();

 private:
  class Request;
  struct Known {  // Once the request is parsed.
    std::string model;
    ModelCounts::Key key;
    InferAsked asked;
  };

  absl::Status End(const absl::Status& status, int64_t arrived_ns);
  InferSubject Subject() const;

  const InferSetting& setting_;
  std::optional<Known> known_;
  ProductExchange product_;
};

}  // namespace gemmd
