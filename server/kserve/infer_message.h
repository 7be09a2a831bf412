// SPDX-License-Identifier: Apache-2.0
//
// A received ModelInferRequest. Its tensors stay in the slices in which gRPC received them; only
// the rest, which is short, is parsed as a message.
#pragma once

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/map.h>
#include <grpcpp/support/byte_buffer.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kserve/v2/inference.pb.h"
#include "server/wire/incoming.h"

namespace gemmd {

// The parameters of a request or of one of its tensors. Each is read once, by name and kind.
class Parameters {
 public:
  using Map = google::protobuf::Map<std::string, inference::InferParameter>;

  // `field` names them: "inputs[0].parameters". Borrows both.
  Parameters(std::string_view field, const Map& map) : field_(field), map_(map) {}

  // A parameter may be absent; a present value is never empty. Errors: InvalidArgument for another
  // kind of value: "parameters.alpha: got a string, want a number".
  absl::StatusOr<std::optional<std::string>> Text(std::string_view name) const;
  absl::StatusOr<std::optional<double>> Number(std::string_view name) const;
  absl::StatusOr<std::optional<int64_t>> Count(std::string_view name) const;  // 0 or more.
  absl::StatusOr<bool> Flag(std::string_view name) const;                     // Absent: false.

  // Errors: InvalidArgument for a name not in the list; Unimplemented for a name of shared memory,
  // sequences or classification.
  absl::Status CheckNames(std::initializer_list<std::string_view> known) const;

  std::string FieldOf(std::string_view name) const;

 private:
  const inference::InferParameter* Find(std::string_view name) const;
  absl::Status WrongKind(std::string_view name, const inference::InferParameter& value,
                         std::string_view want) const;

  const std::string_view field_;
  const Map& map_;
};

// Limits of one request. The model with the most inputs has six.
inline constexpr int kMaxInferInputs = 8;
inline constexpr int64_t kMaxInferRestBytes = int64_t{16} << 10;  // Without contents.

// The bytes of one input in the received slices.
struct InputContents {
  enum class Form : uint8_t {
    kNone,
    kRaw,    // The elements.
    kTyped,  // An InferTensorContents.
  };
  Form form = Form::kNone;
  ReceivedSlices slices = {};
  int64_t bytes = 0;

  // Whether they stay in place: they are long enough and not in many short slices.
  bool ShallStay() const {
    return bytes >= kHeldFromBytes && bytes / kMinSliceBytes >= static_cast<int64_t>(slices.size());
  }
};

class InferMessage {
 public:
  // Takes the bytes out of `buffer`.
  explicit InferMessage(grpc::ByteBuffer& buffer);

  // Finds the tensors and parses the rest; call it once, first. The rest is at most
  // kMaxInferRestBytes. Errors: InvalidArgument if the bytes are not such a message, a limit is
  // exceeded, or inputs and contents differ in number or form.
  absl::Status Read();

  // The request without the contents of its inputs.
  const inference::ModelInferRequest& request() const { return request_; }
  // One for each input.
  std::vector<InputContents>& contents() { return contents_; }

  // Whether contents were sent as bytes.
  bool has_raw() const { return raw_ > 0; }

  int64_t wire_bytes() const { return wire_bytes_; }
  // Max memory of request().
  int64_t request_bytes() const;

  // The id of a request that could not be read; empty if it is not text.
  std::string UnparsedId() const;

 private:
  using Input = google::protobuf::io::CodedInputStream;

  absl::Status Scan();
  absl::Status AddRaw(Input& input);
  absl::Status AddInput(Input& input);
  absl::Status AddRest(Input& input, uint32_t tag, std::string& rest);
  absl::Status AddContents(Input& input, int position);
  absl::Status ParseRest();
  absl::Status Match();
  void Cut();

  // Contents of one kind, in order of arrival.
  struct Place {
    InputContents::Form form;
    int position;  // Of the input, or among the raw contents.
    WireRange range;
  };

  int64_t wire_bytes_ = 0;
  ReceivedSlices slices_;
  std::string rest_;  // The message without contents.
  int inputs_ = 0;
  int outputs_ = 0;
  int raw_ = 0;
  std::vector<Place> places_;
  inference::ModelInferRequest request_;
  std::vector<InputContents> contents_;
};

}  // namespace gemmd
