// SPDX-License-Identifier: Apache-2.0
//
// What the fuzzer feeds: each target takes bytes of a peer or of a file, and checks more than that
// the code survives them.
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

// Numbers that depend only on the input, so that the rest of what a target does, such as cutting it
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
  // Inputs to start with.
  std::vector<std::string> (*seeds)();
  // The type of message that inputs are; null where they are text or plain data. Inputs of such a
  // target are changed field by field.
  const google::protobuf::Message* (*message)() = nullptr;
  // Repairs a message so that it is valid, as far as possible: few random messages would be.
  void (*repair)(google::protobuf::Message& message, Choices& choices) = nullptr;
  // Instead of `message`: the types of which an input is one. The first byte chooses.
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

// A small number, or one near a limit of sizes or counts.
int64_t SomeNumber(Choices& choices);

// Ends the process with `what` on standard error unless the condition holds.
void Demand(bool holds, std::string_view what);

// Whether a message has more fields than Incoming accepts; protobuf has no such limit.
bool IsAboutCountsOfFields(const absl::Status& status);

// The bytes in slices, cut anywhere.
grpc::ByteBuffer Cut(std::string_view bytes, Choices& choices);

// The bytes of all slices.
std::string Joined(const grpc::ByteBuffer& buffer);

// abseil's own type, since the client's libraries are built with it.
inline absl::string_view Viewed(std::string_view text) { return {text.data(), text.size()}; }

template <typename Message>
const google::protobuf::Message* DefaultOf() {
  return &Message::default_instance();
}

}  // namespace gemmd::fuzz
