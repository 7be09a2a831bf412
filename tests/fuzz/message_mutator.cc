// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/message_mutator.h"

#include <google/protobuf/descriptor.h>

#include <limits>
#include <string>

namespace gemmd::fuzz {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

double SomeReal(Choices& choices) {
  constexpr double kReals[] = {0, -0.0, 1, -1, 0.5, 1e-300, 1e300};
  if (choices.OnceIn(8)) return std::numeric_limits<double>::quiet_NaN();
  if (choices.OnceIn(8)) return std::numeric_limits<double>::infinity();
  return kReals[choices.Below(std::size(kReals))];
}

std::string SomeText(std::string text, Choices& choices) {
  constexpr std::string_view kTexts[] = {
      "auto",       "cpu",    "sim:sm_90", "*",
      "onednn.f32", "[a-z]*", "weights",   "mma.m16n8k16.f32.bf16.bf16.f32"};
  switch (choices.Below(4)) {
    case 0: return std::string(kTexts[choices.Below(std::size(kTexts))]);
    case 1: text.resize(choices.Below(200), static_cast<char>(choices.Bits())); return text;
    case 2:
      if (!text.empty()) text[choices.Below(text.size())] = static_cast<char>(choices.Bits());
      return text;
    default: text.push_back(static_cast<char>(choices.Bits())); return text;
  }
}

// Text of proto3 is UTF-8, and protobuf refuses other bytes when it parses it.
std::string SomeAscii(std::string text, Choices& choices) {
  text = SomeText(std::move(text), choices);
  for (char& c : text) c = static_cast<char>(c & 0x7f);
  return text;
}

// Sets a field, or appends to a repeated one.
void SetField(Message& message, const FieldDescriptor& field, Choices& choices) {
  const Reflection& reflection = *message.GetReflection();
  const bool is_list = field.is_repeated();
  const auto number = SomeNumber(choices);
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT64:
      if (is_list) return reflection.AddInt64(&message, &field, number);
      return reflection.SetInt64(&message, &field, number);
    case FieldDescriptor::CPPTYPE_INT32:
      if (is_list) return reflection.AddInt32(&message, &field, static_cast<int32_t>(number));
      return reflection.SetInt32(&message, &field, static_cast<int32_t>(number));
    case FieldDescriptor::CPPTYPE_UINT64:
      if (is_list) return reflection.AddUInt64(&message, &field, static_cast<uint64_t>(number));
      return reflection.SetUInt64(&message, &field, static_cast<uint64_t>(number));
    case FieldDescriptor::CPPTYPE_UINT32:
      if (is_list) return reflection.AddUInt32(&message, &field, static_cast<uint32_t>(number));
      return reflection.SetUInt32(&message, &field, static_cast<uint32_t>(number));
    case FieldDescriptor::CPPTYPE_ENUM: {
      const auto value = static_cast<int>(choices.OnceIn(16) ? number : choices.Below(18));
      if (is_list) return reflection.AddEnumValue(&message, &field, value);
      return reflection.SetEnumValue(&message, &field, value);
    }
    case FieldDescriptor::CPPTYPE_BOOL:
      if (is_list) return reflection.AddBool(&message, &field, choices.OnceIn(2));
      return reflection.SetBool(&message, &field, choices.OnceIn(2));
    case FieldDescriptor::CPPTYPE_FLOAT: {
      const auto real = static_cast<float>(SomeReal(choices));
      if (is_list) return reflection.AddFloat(&message, &field, real);
      return reflection.SetFloat(&message, &field, real);
    }
    case FieldDescriptor::CPPTYPE_DOUBLE:
      if (is_list) return reflection.AddDouble(&message, &field, SomeReal(choices));
      return reflection.SetDouble(&message, &field, SomeReal(choices));
    case FieldDescriptor::CPPTYPE_STRING: {
      const bool is_text = field.type() == FieldDescriptor::TYPE_STRING;
      const std::string old = is_list ? "" : reflection.GetString(message, &field);
      const std::string text = is_text ? SomeAscii(old, choices) : SomeText(old, choices);
      if (is_list) return reflection.AddString(&message, &field, text);
      return reflection.SetString(&message, &field, text);
    }
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return MutateMessage(is_list ? *reflection.AddMessage(&message, &field)
                                   : *reflection.MutableMessage(&message, &field),
                           choices);
    default: return;  // No other types exist.
  }
}

}  // namespace

void MutateMessage(Message& message, Choices& choices) {
  const auto* const descriptor = message.GetDescriptor();
  if (descriptor->field_count() == 0) return;
  const auto count = static_cast<size_t>(descriptor->field_count());
  for (size_t edits = 1 + choices.Below(3); edits > 0; --edits) {
    const FieldDescriptor& field = *descriptor->field(static_cast<int>(choices.Below(count)));
    if (choices.OnceIn(6)) {
      message.GetReflection()->ClearField(&message, &field);
    } else if (field.is_repeated() && choices.OnceIn(2)) {
      const Reflection& reflection = *message.GetReflection();
      const int size = reflection.FieldSize(message, &field);
      if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE && size > 0) {
        const auto at = static_cast<int>(choices.Below(static_cast<size_t>(size)));
        MutateMessage(*reflection.MutableRepeatedMessage(&message, &field, at), choices);
      }
    } else {
      SetField(message, field, choices);
    }
  }
}

}  // namespace gemmd::fuzz
