// SPDX-License-Identifier: Apache-2.0
//
// What answers contain about kernels, candidates, stages and types.
#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "kernels/kernel.h"
#include "server/wire/convert.h"
#include "server/wire/outgoing.h"
#include "server/wire/registry_service.h"

namespace gemmd {
namespace {

std::string WireName(ElementType type) {
  std::string name = "ELEMENT_TYPE_";
  for (const char letter : NameOf(type)) name += static_cast<char>(std::toupper(letter));
  return name;
}

std::string WireName(bool value) { return value ? "true" : "false"; }

TEST(ConvertTest, EveryElementTypeHasItsOwnNumber) {
  for (const ElementType type : kAllElementTypes) {
    EXPECT_EQ(v1::ElementType_Name(ToWire(type)), WireName(type));
  }
}

// The expected values of the message's fields, by name.
std::map<std::string, std::string> WantedFields(const Kernel& kernel) {
  return {{"name", std::string(kernel.name)},
          {"device_kind", std::string(NameOf(kernel.device_kind))},
          {"provider", std::string(kernel.provider)},
          {"a_type", WireName(kernel.a)},
          {"b_type", WireName(kernel.b)},
          {"compute_type_a", WireName(kernel.recipe.a_compute)},
          {"compute_type_b", WireName(kernel.recipe.b_compute)},
          {"accumulation_type", WireName(kernel.recipe.accumulation)},
          {"description", std::string(kernel.how)},
          {"exact", WireName(kernel.recipe.exact)},
          {"deterministic", WireName(kernel.deterministic)},
          {"batch_invariant", WireName(kernel.batch_invariant)},
          {"flushes_subnormals", WireName(kernel.recipe.flushes_subnormals)},
          {"promotion_k", std::to_string(kernel.recipe.promotion_k)},
          {"availability", ""}};  // The service adds it, device by device.
}

// Every field of the message, as text.
std::map<std::string, std::string> FieldsOf(const google::protobuf::Message& message) {
  using google::protobuf::FieldDescriptor;
  std::map<std::string, std::string> fields;
  const google::protobuf::Descriptor& descriptor = *message.GetDescriptor();
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  for (int i = 0; i < descriptor.field_count(); ++i) {
    const FieldDescriptor* field = descriptor.field(i);
    std::string& text = fields[std::string(field->name())];
    if (field->is_repeated()) {
      for (int j = 0; j < reflection.FieldSize(message, field); ++j) text += "element ";
      continue;
    }
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_STRING: text = reflection.GetString(message, field); break;
      case FieldDescriptor::CPPTYPE_ENUM: text = reflection.GetEnum(message, field)->name(); break;
      case FieldDescriptor::CPPTYPE_INT32:
        text = std::to_string(reflection.GetInt32(message, field));
        break;
      case FieldDescriptor::CPPTYPE_BOOL:
        text = WireName(reflection.GetBool(message, field));
        break;
      default: text = "a type that this test does not know";
    }
  }
  return fields;
}

TEST(ConvertTest, KernelsArriveWhole) {
  for (const Kernel& kernel : Catalog()) EXPECT_EQ(FieldsOf(ToWire(kernel)), WantedFields(kernel));
}

// No two fields of one type have the same value, so a mix-up is noticed.
TEST(ConvertTest, NoFieldOfAKernelTakesThePlaceOfAnother) {
  Kernel kernel = Catalog().front();
  kernel.name = "a name";
  kernel.provider = "a provider";
  kernel.how = "a description";
  kernel.a = ElementType::kE4m3;
  kernel.b = ElementType::kE5m2;
  kernel.recipe.a_compute = ElementType::kF16;
  kernel.recipe.b_compute = ElementType::kBf16;
  kernel.recipe.accumulation = ElementType::kF32;
  kernel.recipe.promotion_k = 128;
  for (int truth = 0; truth < 4; ++truth) {
    kernel.recipe.exact = truth == 0;
    kernel.deterministic = truth == 1;
    kernel.batch_invariant = truth == 2;
    kernel.recipe.flushes_subnormals = truth == 3;
    EXPECT_EQ(FieldsOf(ToWire(kernel)), WantedFields(kernel));
  }
}

// Whatever the catalogue has: none of these traits follows from another.
TEST(ConvertTest, TheTraitsOfAKernelAreToldApart) {
  for (int traits = 0; traits < 16; ++traits) {
    Kernel kernel = Catalog().front();
    kernel.deterministic = (traits & 1) != 0;
    kernel.batch_invariant = (traits & 2) != 0;
    kernel.recipe.exact = (traits & 4) != 0;
    kernel.recipe.flushes_subnormals = (traits & 8) != 0;
    const v1::Kernel wire = ToWire(kernel);
    EXPECT_EQ(wire.deterministic(), kernel.deterministic) << traits;
    EXPECT_EQ(wire.batch_invariant(), kernel.batch_invariant) << traits;
    EXPECT_EQ(wire.exact(), kernel.recipe.exact) << traits;
    EXPECT_EQ(wire.flushes_subnormals(), kernel.recipe.flushes_subnormals) << traits;
  }
}

TEST(ConvertTest, EachStageArrivesUnderItsOwnName) {
  const v1::Timing wire = ToWire({.stage_ns = {1, 2, 3, 4, 5, 6}, .total_ns = 7});
  EXPECT_EQ(wire.receive_ns(), 1);
  EXPECT_EQ(wire.queue_ns(), 2);
  EXPECT_EQ(wire.copy_in_ns(), 3);
  EXPECT_EQ(wire.compute_ns(), 4);
  EXPECT_EQ(wire.copy_out_ns(), 5);
  EXPECT_EQ(wire.send_prepare_ns(), 6);
  EXPECT_EQ(wire.total_ns(), 7);
}

}  // namespace
}  // namespace gemmd
