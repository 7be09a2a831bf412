// SPDX-License-Identifier: Apache-2.0
#include "server/kserve/infer_message.h"

#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/wire_format_lite.h>

#include <algorithm>
#include <new>
#include <utility>

#include "kernels/matrix/invalid.h"
#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"
#include "proto/field_start.h"
#include "server/wire/incoming.h"
#include "server/wire/product_exchange.h"

namespace gemmd {

namespace {

using inference::InferParameter;

std::string_view KindOf(const InferParameter& value) {
  switch (value.parameter_choice_case()) {
    case InferParameter::kBoolParam: return "a bool";
    case InferParameter::kInt64Param: return "an int64";
    case InferParameter::kStringParam: return "a string";
    case InferParameter::kDoubleParam: return "a double";
    case InferParameter::kUint64Param: return "a uint64";
    default: return "no value";
  }
}

// Features of other servers that clients request by a name unknown here.
absl::Status CheckForeign(const std::string& field, std::string_view name) {
  if (name.starts_with("shared_memory_")) {
    return absl::UnimplementedError(
        GotWant(field, "a region",
                "none: no memory is shared with this server; send raw_input_contents, and keep "
                "weights on the server as a resident tensor"));
  }
  if (name.starts_with("sequence_")) {
    return absl::UnimplementedError(GotWant(field, "a sequence", "none: products have no state"));
  }
  if (name == "classification") {
    return absl::UnimplementedError(GotWant(field, "classes", "none: D is sent whole"));
  }
  return absl::OkStatus();
}

}  // namespace

std::string Parameters::FieldOf(std::string_view name) const { return Concat(field_, ".", name); }

const InferParameter* Parameters::Find(std::string_view name) const {
  const auto found = map_.find(std::string(name));
  return found == map_.end() ? nullptr : &found->second;
}

absl::Status Parameters::WrongKind(std::string_view name, const InferParameter& value,
                                   std::string_view want) const {
  return Invalid(FieldOf(name), KindOf(value), want);
}

absl::StatusOr<std::optional<std::string>> Parameters::Text(std::string_view name) const {
  const InferParameter* const value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (value->parameter_choice_case() != InferParameter::kStringParam ||
      value->string_param().empty()) {
    return WrongKind(name, *value, "a string that is not empty");
  }
  return value->string_param();
}

absl::StatusOr<std::optional<double>> Parameters::Number(std::string_view name) const {
  const InferParameter* const value = Find(name);
  if (value == nullptr) return std::nullopt;
  switch (value->parameter_choice_case()) {
    case InferParameter::kDoubleParam: return value->double_param();
    case InferParameter::kInt64Param: return static_cast<double>(value->int64_param());
    case InferParameter::kUint64Param: return static_cast<double>(value->uint64_param());
    default: return WrongKind(name, *value, "a number");
  }
}

absl::StatusOr<std::optional<int64_t>> Parameters::Count(std::string_view name) const {
  const InferParameter* const value = Find(name);
  if (value == nullptr) return std::nullopt;
  switch (value->parameter_choice_case()) {
    case InferParameter::kInt64Param:
      if (value->int64_param() >= 0) return value->int64_param();
      return Invalid(FieldOf(name), value->int64_param(), "at least 0");
    case InferParameter::kUint64Param:
      return static_cast<int64_t>(std::min<uint64_t>(value->uint64_param(), INT64_MAX));
    default: return WrongKind(name, *value, "a whole number");
  }
}

absl::StatusOr<bool> Parameters::Flag(std::string_view name) const {
  const InferParameter* const value = Find(name);
  if (value == nullptr) return false;
  if (value->parameter_choice_case() == InferParameter::kBoolParam) return value->bool_param();
  return WrongKind(name, *value, "a bool");
}

absl::Status Parameters::CheckNames(std::initializer_list<std::string_view> known) const {
  for (const auto& [name, value] : map_) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    if (absl::Status status = CheckForeign(FieldOf(Shown(name)), name); !status.ok()) return status;
    std::string names;
    for (const std::string_view each : known) {
      names += names.empty() ? "" : ", ";
      names += each;
    }
    return Invalid(field_, Concat("an unknown \"", Shown(name), "\""),
                   names.empty() ? "none" : "one of " + names);
  }
  return absl::OkStatus();
}

namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;
using google::protobuf::io::CodedOutputStream;
using google::protobuf::io::StringOutputStream;
using inference::ModelInferRequest;
using Form = InputContents::Form;

const uint32_t kInputTag = DelimitedTag(ModelInferRequest::kInputsFieldNumber);
const uint32_t kOutputTag = DelimitedTag(ModelInferRequest::kOutputsFieldNumber);
const uint32_t kRawTag = DelimitedTag(ModelInferRequest::kRawInputContentsFieldNumber);
const uint32_t kContentsTag =
    DelimitedTag(ModelInferRequest::InferInputTensor::kContentsFieldNumber);

// An entry of a map takes 5 bytes on the wire and about 150 in memory.
constexpr int64_t kParsedGrowth = 32;

absl::Status TooMany(std::string_view field) {
  return Invalid(field, "more", Concat("at most ", kMaxInferInputs, " in one request"));
}

}  // namespace

InferMessage::InferMessage(grpc::ByteBuffer& buffer)
    : wire_bytes_(static_cast<int64_t>(buffer.Length())), slices_(TakeSlices(buffer)) {}

int64_t InferMessage::request_bytes() const {
  return kParsedGrowth * static_cast<int64_t>(rest_.size());
}

absl::Status InferMessage::Read() {
  try {
    if (slices_.empty() && wire_bytes_ > 0) throw std::bad_alloc();
    RETURN_IF_ERROR(Scan());
    RETURN_IF_ERROR(ParseRest());
    RETURN_IF_ERROR(Match());
    Cut();
    return absl::OkStatus();
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("message: no memory to parse it in, try again later");
  }
}

absl::Status InferMessage::Scan() {
  SliceStream stream(slices_, SliceStream::After::kKeep);
  CodedInputStream input(&stream);
  (void)input.PushLimit(static_cast<int>(wire_bytes_));
  while (const uint32_t tag = NextTag(input)) {
    if (tag == kRawTag) {
      RETURN_IF_ERROR(AddRaw(input));
    } else if (tag == kInputTag) {
      RETURN_IF_ERROR(AddInput(input));
    } else {
      if (tag == kOutputTag && ++outputs_ > kMaxInferInputs) return TooMany("outputs");
      RETURN_IF_ERROR(AddRest(input, tag, rest_));
    }
  }
  // NextTag returns 0 at the end and for an invalid tag.
  return input.ConsumedEntireMessage() ? absl::OkStatus() : MalformedMessage();
}

absl::Status InferMessage::AddRaw(Input& input) {
  if (raw_ == kMaxInferInputs) return TooMany("raw_input_contents");
  Place place = {Form::kRaw, raw_++, {}};
  if (!ReadRange(input, place.range)) return MalformedMessage();
  if (!input.Skip(static_cast<int>(place.range.end - place.range.begin))) return MalformedMessage();
  places_.push_back(place);
  return absl::OkStatus();
}

absl::Status InferMessage::AddInput(Input& input) {
  if (inputs_ == kMaxInferInputs) return TooMany("inputs");
  const int position = inputs_++;
  WireRange range;
  if (!ReadRange(input, range)) return MalformedMessage();
  const CodedInputStream::Limit limit = input.PushLimit(static_cast<int>(range.end - range.begin));
  std::string rest;
  while (const uint32_t tag = NextTag(input)) {
    RETURN_IF_ERROR(tag == kContentsTag ? AddContents(input, position) : AddRest(input, tag, rest));
  }
  // The last byte may be a 0, which is not a valid tag.
  if (!input.ConsumedEntireMessage()) return MalformedMessage();
  input.PopLimit(limit);
  AppendFieldStart(ModelInferRequest::kInputsFieldNumber, rest.size(), rest_);
  rest_ += rest;
  return absl::OkStatus();
}

absl::Status InferMessage::AddContents(Input& input, int position) {
  Place place = {Form::kTyped, position, {}};
  if (!ReadRange(input, place.range)) return MalformedMessage();
  if (!input.Skip(static_cast<int>(place.range.end - place.range.begin))) return MalformedMessage();
  if (!places_.empty() && places_.back().form == Form::kTyped &&
      places_.back().position == position) {
    return Invalid(Concat("inputs[", position, "].contents"), "two of them", "one");
  }
  places_.push_back(place);
  return absl::OkStatus();
}

// Copies a field, up to the limit.
absl::Status InferMessage::AddRest(Input& input, uint32_t tag, std::string& rest) {
  const size_t before = &rest == &rest_ ? rest.size() : rest.size() + rest_.size();
  const int64_t room = kMaxInferRestBytes - static_cast<int64_t>(before);
  const int left = input.BytesUntilLimit();
  const bool is_cut = left > room;
  if (room > 0) {
    const auto limit = input.PushLimit(static_cast<int>(std::min<int64_t>(left, room)));
    StringOutputStream stream(&rest);
    bool is_copied = false;
    {
      CodedOutputStream output(&stream);
      is_copied = WireFormatLite::SkipField(&input, tag, &output);
    }
    if (is_copied) {
      input.PopLimit(limit);
      return absl::OkStatus();
    }
    if (!is_cut) return MalformedMessage();
  }
  return Invalid("message", "more bytes beside the contents of inputs",
                 Concat("at most ", kMaxInferRestBytes));
}

absl::Status InferMessage::ParseRest() {
  Incoming rest(ReceivedSlices({grpc::Slice(rest_)}));
  RETURN_IF_ERROR(rest.Examine(request_).status());
  request_.Clear();
  // Invalid UTF-8 is detected only now.
  if (!request_.ParseFromString(rest_)) {
    request_.Clear();
    return MalformedMessage();
  }
  request_.DiscardUnknownFields();
  return absl::OkStatus();
}

// Whether each input has contents, all in the same form. Empty inputs need none.
absl::Status InferMessage::Match() {
  contents_.resize(static_cast<size_t>(inputs_));
  if (raw_ == 0) return absl::OkStatus();
  for (const Place& place : places_) {
    if (place.form == Form::kRaw) continue;
    return Invalid(Concat("inputs[", place.position, "].contents"),
                   "values beside raw_input_contents", "either of them");
  }
  if (raw_ == inputs_) return absl::OkStatus();
  // Clients that use shared memory send fewer.
  for (int i = 0; i < inputs_; ++i) {
    const std::string field = Concat("inputs[", i, "].parameters");
    RETURN_IF_ERROR(
        Parameters(field, request_.inputs(i).parameters()).CheckNames({"type", "columns"}));
  }
  return Invalid("raw_input_contents", raw_, Concat("one for each input = ", inputs_));
}

// Gives each input its part of the slices.
void InferMessage::Cut() {
  SliceWalk walk;
  for (const Place& place : places_) {
    InputContents& contents = contents_[static_cast<size_t>(place.position)];
    contents.form = place.form;
    contents.bytes = place.range.end - place.range.begin;
    walk.Cut(slices_, place.range, contents.slices);
  }
  slices_.clear();
}

std::string InferMessage::UnparsedId() const {
  // The message that was read is gone once the tensors are cut out.
  if (!request_.id().empty()) return std::string(CutAtCharacter(request_.id(), kMaxNameBytes));
  Incoming again(slices_);
  return gemmd::UnparsedId(again, ModelInferRequest::kIdFieldNumber);
}

}  // namespace gemmd
