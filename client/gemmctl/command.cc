// SPDX-License-Identifier: Apache-2.0
#include "client/gemmctl/command.h"

#include <cmath>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "client/output_file.h"
#include "client/terminal/text.h"
#include "gemmd/element_type.h"
#include "gemmd/v1/tensors.pb.h"
#include "kernels/matrix/status.h"

namespace gemmd {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using nlohmann::ordered_json;

// As flags and messages spell it: "sampled", not VERIFY_MODE_SAMPLED; "row"; "2:4".
std::string EnumText(const google::protobuf::EnumValueDescriptor& value) {
  if (value.type() == v1::ElementType_descriptor()) {
    return std::string(ElementTypeName(static_cast<v1::ElementType>(value.number())));
  }
  // Every value begins with the name of its type, ORDER_ROW_MAJOR of Order.
  std::string prefix;
  for (const char c : value.type()->name()) {
    if (absl::ascii_isupper(static_cast<unsigned char>(c)) && !prefix.empty()) prefix += '_';
    prefix += absl::ascii_toupper(static_cast<unsigned char>(c));
  }
  absl::string_view name = absl::StripPrefix(value.name(), prefix + "_");
  if (value.type() == v1::Order_descriptor()) name = absl::StripSuffix(name, "_MAJOR");
  return value.name() == "SPARSITY_2_4" ? "2:4" : absl::AsciiStrToLower(name);
}

// The value of a field, or the `index`-th value of a repeated field.
ordered_json ValueJson(const Message& message, const FieldDescriptor& field, int index) {
  const Reflection& get = *message.GetReflection();
  const FieldDescriptor* const f = &field;
  const bool repeated = field.is_repeated();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return repeated ? get.GetRepeatedInt32(message, f, index) : get.GetInt32(message, f);
    case FieldDescriptor::CPPTYPE_INT64:
      return repeated ? get.GetRepeatedInt64(message, f, index) : get.GetInt64(message, f);
    case FieldDescriptor::CPPTYPE_UINT32:
      return repeated ? get.GetRepeatedUInt32(message, f, index) : get.GetUInt32(message, f);
    case FieldDescriptor::CPPTYPE_UINT64:
      return repeated ? get.GetRepeatedUInt64(message, f, index) : get.GetUInt64(message, f);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return NumberJson(repeated ? get.GetRepeatedDouble(message, f, index)
                                 : get.GetDouble(message, f));
    case FieldDescriptor::CPPTYPE_FLOAT:
      return NumberJson(repeated ? get.GetRepeatedFloat(message, f, index)
                                 : get.GetFloat(message, f));
    case FieldDescriptor::CPPTYPE_BOOL:
      return repeated ? get.GetRepeatedBool(message, f, index) : get.GetBool(message, f);
    case FieldDescriptor::CPPTYPE_ENUM:
      return EnumText(
          *(repeated ? get.GetRepeatedEnum(message, f, index) : get.GetEnum(message, f)));
    case FieldDescriptor::CPPTYPE_STRING:
      return repeated ? get.GetRepeatedString(message, f, index) : get.GetString(message, f);
    case FieldDescriptor::CPPTYPE_MESSAGE: break;
  }
  return MessageJson(repeated ? get.GetRepeatedMessage(message, f, index)
                              : get.GetMessage(message, f));
}

}  // namespace

ordered_json NumberJson(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return value;
}

ordered_json MessageJson(const Message& message) {
  const Reflection& get = *message.GetReflection();
  ordered_json json = ordered_json::object();
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor& field = *message.GetDescriptor()->field(i);
    if (field.has_presence() && !get.HasField(message, &field)) continue;
    if (field.type() == FieldDescriptor::TYPE_BYTES) continue;
    if (field.is_repeated()) {
      ordered_json& values = json[field.name()] = ordered_json::array();
      for (int j = 0; j < get.FieldSize(message, &field); ++j)
        values.push_back(ValueJson(message, field, j));
    } else {
      json[field.name()] = ValueJson(message, field, 0);
    }
  }
  return json;
}

std::string JsonLine(const ordered_json& json) {
  return json.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

absl::StatusOr<absl::Duration> ParseTimeout(const std::string& text, const std::string& flag) {
  const absl::Duration timeout = ParseTime(text).value_or(absl::ZeroDuration());
  if (timeout > absl::ZeroDuration() && timeout < absl::InfiniteDuration()) return timeout;
  return absl::InvalidArgumentError(absl::StrCat(
      flag, ": got \"", text, "\", want a positive number of seconds or a time such as 500ms"));
}

absl::StatusOr<Client> Connect(const GlobalFlags& flags, absl::Duration default_timeout) {
  ClientOptions options;
  options.timeout = default_timeout;
  // The server's limit applies.
  options.max_message_bytes = std::numeric_limits<int32_t>::max();
  if (!flags.timeout.empty()) {
    ASSIGN_OR_RETURN(options.timeout, ParseTimeout(flags.timeout));
  }
  RETURN_IF_ERROR(ApplySecurityFlags(flags.security, options));
  return Client::Create(flags.address, options);
}

ExitCode WriteOrPrint(const std::string& path, const std::string& text, const Console& console) {
  if (path == "-") {
    console.Print(text);
    return ExitCode::kOk;
  }
  const absl::Status status = WriteTextFile(path, text);
  return status.ok() ? ExitCode::kOk : FailLocally(console, status);
}

}  // namespace gemmd
