// SPDX-License-Identifier: Apache-2.0
//
// A request without operands, parsed as its service parses it and compared with protobuf's own
// parse of the same bytes.
#pragma once

#include <google/protobuf/message.h>

#include <string>
#include <string_view>
#include <vector>

#include "server/wire/incoming.h"
#include "tests/fuzz/target.h"

namespace gemmd::fuzz {

// No method without operands takes a longer one.
inline constexpr int64_t kMaxBytes = int64_t{1} << 20;

struct Question {
  const google::protobuf::Message* message;
  void (*run)(std::string_view bytes, Choices& choices);
};

// Refusals repeat only the beginning of a peer's text.
inline void DemandBrief(const absl::Status& status) {
  Demand(status.message().size() < 2048, "a refusal is long");
}

template <typename Request>
void Ignore(const Request& /*request*/) {}

template <typename Request, void (*kAsk)(const Request&) = Ignore<Request>>
Question QuestionOf() {
  return {&Request::default_instance(), [](std::string_view bytes, Choices& choices) {
            Request want;
            const bool is_message =
                want.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
            Request got;
            if (choices.OnceIn(1024)) {
              const std::string longer(kMaxBytes + 1, ' ');
              Demand(absl::IsResourceExhausted(ReadRequest(Cut(longer, choices), got, kMaxBytes)),
                     "a request of any length is read");
            }
            const grpc::ByteBuffer buffer = Cut(bytes, choices);
            const absl::Status status = ReadRequest(TakeRequest(buffer), got, kMaxBytes);
            Demand(buffer.Length() == 0, "the bytes of a request stay");
            if (IsAboutCountsOfFields(status)) return;
            Demand(status.ok() == is_message, "protobuf takes another request");
            if (!is_message) return DemandBrief(status);
            want.DiscardUnknownFields();
            Demand(got.SerializeAsString() == want.SerializeAsString(),
                   "protobuf parses another request");
            kAsk(got);
          }};
}

// The questions about tensors, and about models, which are tensors in KServe's terms.
std::vector<Question> TensorQuestions();

}  // namespace gemmd::fuzz
