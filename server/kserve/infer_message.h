// SPDX-License-Identifier: Apache-2.0
//
// A ModelInferRequest as it has arrived. Its tensors stay in the slices that gRPC received them in;
// only the rest, which is short, becomes a message.
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

// The parameters of a request or of one of its tensors, each asked for once by name and kind.
class Parameters {
 public:
  using Map = google::protobuf::Map<std::string, inference::InferParameter>;

  // `field` names them: "inputs[0].parameters". Borrows both.
  Parameters(std::string_view field, const Map& map) : field_(field), map_(map) {}

  // What is asked for may be absent. A value is never empty where there is one. Errors:
  // InvalidArgument, another kind of value: "parameters.alpha: got a string, want a number".
  absl::StatusOr<std::optional<std::string>> Text(std::string_view name) const;
  absl::StatusOr<std::optional<double>> Number(std::string_view name) const;
  absl::StatusOr<std::optional<int64_t>> Count(std::string_view name) const;  // 0 or more.
  absl::StatusOr<bool> Flag(std::string_view name) const;                     // Absent: false.

  // Errors: InvalidArgument a name that is none of these; Unimplemented one of shared memory, of
  // sequences or of classification.
  absl::Status CheckNames(std::initializer_list<std::string_view> known) const;

  std::string FieldOf(std::string_view name) const;

 private:
  const inference::InferParameter* Find(std::string_view name) const;
  absl::Status WrongKind(std::string_view name, const inference::InferParameter& value,
                         std::string_view want) const;

  const std::string_view field_;
  const Map& map_;
};

// What one request may hold. The model that takes most takes six inputs.
inline constexpr int kMaxInferInputs = 8;
inline constexpr int64_t kMaxInferRestBytes = int64_t{16} << 10;  // Beside contents.

// The bytes of one input where they lie.
struct InputContents {
  enum class Form : uint8_t {
    kNone,
    kRaw,    // The elements.
    kTyped,  // An InferTensorContents.
  };
  Form form = Form::kNone;
  ReceivedSlices slices = {};
  int64_t bytes = 0;

  // Whether they stay where they are: long enough, and not in scraps.
  bool ShallStay() const {
    return bytes >= kHeldFromBytes && bytes / kMinSliceBytes >= static_cast<int64_t>(slices.size());
  }
};

class InferMessage {
 public:
  // Takes the bytes out of `buffer`.
  explicit InferMessage(grpc::ByteBuffer& buffer);

  // Finds the tensors and parses the rest, once, before anything else. It takes no more than
  // kMaxInferRestBytes allow. Errors: InvalidArgument where the bytes are no such message, or it
  // is against its bounds, or where inputs and contents are not of one number and form.
  absl::Status Read();

  // The request without the contents of its inputs.
  const inference::ModelInferRequest& request() const { return request_; }
  // One for each input.
  std::vector<InputContents>& contents() { return contents_; }

  // Whether contents came as bytes.
  bool has_raw() const { return raw_ > 0; }

  int64_t wire_bytes() const { return wire_bytes_; }
  // The most that request() takes.
  int64_t request_bytes() const;

  // The id of a request that could not be read; empty where it is no text.
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

  // Contents of a kind, in the order in which they came.
  struct Place {
    InputContents::Form form;
    int position;  // The input's, or that among the raw contents.
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
