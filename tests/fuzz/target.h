// SPDX-License-Identifier: Apache-2.0
//
// What the fuzzer feeds: each target takes bytes of a peer or of a file, and demands more of the
// code than that it survives them.
#pragma once

#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace gemmd::fuzz {

// Numbers that the input alone decides: what a target does beside reading it, such as cutting it
// into slices, is the same in every run.
class Choices {
 public:
  explicit Choices(uint64_t seed) : state_(seed) {}
  explicit Choices(std::string_view input);

  uint64_t Bits();
  size_t Below(size_t end) { return static_cast<size_t>(Bits() % end); }
  bool OnceIn(size_t times) { return Below(times) == 0; }

 private:
  uint64_t state_;
};

struct Target {
  std::string_view name;
  void (*run)(std::string_view input);
  // Inputs to begin with.
  std::vector<std::string> (*seeds)();
  // The message that the input is; null where it is text or plain data. Inputs of such a target
  // are changed field by field.
  const google::protobuf::Message* (*message)() = nullptr;
  // Makes a message one that is taken, as far as it can: few random ones would be.
  void (*repair)(google::protobuf::Message& message, Choices& choices) = nullptr;
  // In the place of `message`: those of which an input is one. Its first byte says which.
  std::vector<const google::protobuf::Message*> (*messages)() = nullptr;
  // Changes an input that is neither a message nor text, and keeps its form.
  void (*change)(std::string& input, Choices& choices) = nullptr;
};

// Each file of targets lists its own.
std::vector<Target> ProductTargets();
std::vector<Target> InferTargets();
std::vector<Target> TensorTargets();
std::vector<Target> AnswerTargets();
std::vector<Target> RegistryTargets();
std::vector<Target> QuestionTargets();
std::vector<Target> ResidentTargets();
std::vector<Target> RecordTargets();
std::vector<Target> FileTargets();
std::vector<Target> LoadTargets();
std::vector<Target> HeaderTargets();
std::vector<Target> TrustTargets();

// Small, or near to where a size or a count ends.
int64_t SomeNumber(Choices& choices);

// Ends the process, with `what` on standard error, unless it holds.
void Demand(bool holds, std::string_view what);

// Whether a message has more fields than Incoming takes, where protobuf has no bound.
bool IsAboutCountsOfFields(const absl::Status& status);

// The bytes in slices, cut anywhere.
grpc::ByteBuffer Cut(std::string_view bytes, Choices& choices);

// The bytes of all slices.
std::string Joined(const grpc::ByteBuffer& buffer);

// The client's libraries are built with abseil's own type.
inline absl::string_view Viewed(std::string_view text) { return {text.data(), text.size()}; }

template <typename Message>
const google::protobuf::Message* DefaultOf() {
  return &Message::default_instance();
}

}  // namespace gemmd::fuzz
