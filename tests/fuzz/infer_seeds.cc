// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/infer_seeds.h"

#include <iterator>
#include <string_view>

#include "kserve/v2/inference.pb.h"
#include "tests/fuzz/resident_tensors.h"

namespace gemmd::fuzz {
namespace {

using google::protobuf::Message;
using inference::ModelInferRequest;

using Parameters = google::protobuf::Map<std::string, inference::InferParameter>;

// Sets one of the known parameters, mostly to a valid value.
void SetSomeParameter(Parameters& parameters, Choices& choices) {
  enum class Kind { kNumber, kFlag, kText };
  struct Known {
    const char* name;
    Kind kind;
    const char* text = "f16";
  };
  constexpr Known kKnown[] = {{"alpha", Kind::kNumber},
                              {"beta", Kind::kNumber},
                              {"priority", Kind::kNumber},
                              {"timeout", Kind::kNumber},
                              {"transpose_a", Kind::kFlag},
                              {"transpose_b", Kind::kFlag},
                              {"transpose_c", Kind::kFlag},
                              {"require_deterministic", Kind::kFlag},
                              {"require_batch_invariant", Kind::kFlag},
                              {"fast_accumulation", Kind::kFlag},
                              {"headers", Kind::kFlag},
                              {"activation", Kind::kText, "silu"},
                              {"bias_axis", Kind::kText, "rows"},
                              {"bit_operation", Kind::kText, "xor"},
                              {"kernel", Kind::kText, "auto"},
                              {"device", Kind::kText, "cpu"},
                              {"output_type", Kind::kText},
                              {"accumulation_type", Kind::kText, "f32"},
                              {"shared_memory_region", Kind::kText},
                              {"sequence_id", Kind::kNumber},
                              {"classification", Kind::kNumber}};
  const Known& known = kKnown[choices.Below(std::size(kKnown) - (choices.OnceIn(8) ? 0 : 3))];
  inference::InferParameter& parameter = parameters[known.name];
  const auto kind = choices.OnceIn(16) ? static_cast<Kind>(choices.Below(3)) : known.kind;
  switch (kind) {
    case Kind::kNumber:
      if (choices.OnceIn(3)) return parameter.set_uint64_param(choices.Bits() >> choices.Below(64));
      if (choices.OnceIn(2)) return parameter.set_int64_param(1);
      return parameter.set_double_param(0.5);
    case Kind::kFlag: return parameter.set_bool_param(choices.OnceIn(2));
    case Kind::kText: return parameter.set_string_param(choices.OnceIn(8) ? "no such" : known.text);
  }
}

struct Carrier {
  const char* datatype;
  size_t width;
  const char* type;  // Another kind of value that it may have.
};
constexpr Carrier kCarriers[] = {{"FP32", 4, "tf32"}, {"FP16", 2, "f16"},   {"INT8", 1, "s8"},
                                 {"UINT8", 1, "s4"},  {"UINT8", 1, "e4m3"}, {"UINT8", 1, "b1"},
                                 {"FP64", 8, "f64"},  {"BF16", 2, "bf16"},  {"INT32", 4, "s32"}};

// Fills an input with as many elements as its shape says, as bytes or as numbers.
void FillInput(ModelInferRequest& request, int position, size_t width, bool is_typed,
               Choices& choices) {
  auto& input = *request.mutable_inputs(position);
  size_t elements = 1;
  for (const int64_t extent : input.shape()) elements *= static_cast<size_t>(extent & 1023);
  input.clear_contents();
  if (!is_typed) {
    request.add_raw_input_contents(std::string(elements * width, '\1'));
    return;
  }
  auto& contents = *input.mutable_contents();
  for (size_t i = 0; i < elements; ++i) {
    const auto number = static_cast<int>(choices.Below(choices.OnceIn(64) ? 300 : 100));
    if (input.datatype() == "FP32") contents.add_fp32_contents(1);
    if (input.datatype() == "FP64") contents.add_fp64_contents(1);
    if (input.datatype() == "INT8" || input.datatype() == "INT32")
      contents.add_int_contents(number);
    if (input.datatype() == "UINT8") contents.add_uint_contents(static_cast<uint32_t>(number));
  }
}

// Gives an input a valid type, and a shape that agrees with the other inputs.
void RepairInput(ModelInferRequest& request, int position, const ResidentTensor* b, bool is_typed,
                 Choices& choices) {
  auto& input = *request.mutable_inputs(position);
  const std::string_view name = input.name();
  const bool is_vector = name == "BIAS" || name.ends_with("_SCALE");
  if (input.shape_size() > (is_vector ? 1 : 3)) input.mutable_shape()->Truncate(is_vector ? 1 : 3);
  for (int64_t& extent : *input.mutable_shape()) extent &= 7;
  if (!choices.OnceIn(4)) {
    input.clear_shape();
    if (!is_vector && b != nullptr && b->matrices > 1) input.add_shape(b->matrices);
    if (!is_vector) input.add_shape(4);
    input.add_shape(b != nullptr && name != "C" ? 16 : 4);
    if (b != nullptr && name == "C") input.set_shape(input.shape_size() - 1, b->columns);
    if (name.ends_with("_SCALE")) input.set_shape(0, choices.OnceIn(2) ? 1 : 4);
  }
  if (!choices.OnceIn(4)) input.clear_parameters();
  const bool is_sum = is_vector || name == "C";
  const Carrier& carrier = kCarriers[is_sum ? 0 : choices.Below(std::size(kCarriers))];
  input.set_datatype(carrier.datatype);
  // A and B mostly have one type.
  size_t width = carrier.width;
  if (position > 0 && !is_sum && !choices.OnceIn(4)) {
    input.set_datatype(request.inputs(0).datatype());
    *input.mutable_parameters() = request.inputs(0).parameters();
    for (const Carrier& each : kCarriers) {
      if (each.datatype == input.datatype()) width = each.width;
    }
  } else if (choices.OnceIn(3)) {
    (*input.mutable_parameters())["type"].set_string_param(carrier.type);
    if (choices.OnceIn(3)) (*input.mutable_parameters())["columns"].set_int64_param(4);
  }
  FillInput(request, position, width, is_typed, choices);
}

// Sets the name of the model; returns the tensor that is B if the model is one.
const ResidentTensor* RepairModel(ModelInferRequest& request, Choices& choices) {
  request.clear_model_version();
  if (!choices.OnceIn(3)) {
    request.set_model_name("gemm");
    return nullptr;
  }
  const ResidentTensor& tensor = kResidentTensors[choices.Below(std::size(kResidentTensors))];
  request.set_model_name(tensor.name);
  return &tensor;
}

void SetParameters(ModelInferRequest& request, uint64_t seed) {
  auto& all = *request.mutable_parameters();
  for (const char* name : {"alpha", "beta"}) all[name].set_int64_param(1);
  for (const char* name : {"transpose_a", "transpose_b", "transpose_c", "require_deterministic",
                           "require_batch_invariant", "fast_accumulation", "binary_data_output"}) {
    all[name].set_bool_param(seed % 2 == 0);
  }
  all["activation"].set_string_param("gelu_erf");
  all["bias_axis"].set_string_param(seed % 2 == 0 ? "rows" : "columns");
  all["device"].set_string_param("cpu");
  all["output_type"].set_string_param(seed % 2 == 0 ? "f16" : "FP32");
  all["accumulation_type"].set_string_param("f32");
  all["priority"].set_uint64_param(seed);
  all["timeout"].set_int64_param(static_cast<int64_t>(seed * 1000));
  for (auto& input : *request.mutable_inputs()) {
    (*input.mutable_parameters())["type"].set_string_param(seed % 3 == 0 ? "e4m3" : "f32");
    (*input.mutable_parameters())["columns"].set_int64_param(4);
  }
  if (seed == 7) all["shared_memory_region"].set_string_param("x");
  if (seed == 6) all["sequence_id"].set_int64_param(1);
}

// A product of two 4x4 matrices of these elements.
ModelInferRequest PlainInfer(const char* datatype, size_t width) {
  ModelInferRequest request;
  request.set_model_name("gemm");
  for (const char* const name : {"A", "B"}) {
    auto& input = *request.add_inputs();
    input.set_name(name);
    input.set_datatype(datatype);
    input.add_shape(4);
    input.add_shape(4);
    request.add_raw_input_contents(std::string(16 * width, '\1'));
  }
  return request;
}

// One more input of a product, as bytes.
ModelInferRequest::InferInputTensor& AddInput(ModelInferRequest& request, const char* name,
                                              const std::vector<int64_t>& shape, size_t bytes) {
  auto& input = *request.add_inputs();
  input.set_name(name);
  input.set_datatype("FP32");
  for (const int64_t extent : shape) input.add_shape(extent);
  request.add_raw_input_contents(std::string(bytes, '\0'));
  return input;
}

// Writes numbers as unpacked fields, which protobuf accepts as well.
void SetUnpacked(ModelInferRequest& request, bool is_wide) {
  request.clear_raw_input_contents();
  for (auto& input : *request.mutable_inputs()) {
    auto& contents = *input.mutable_contents();
    auto& fields = *contents.GetReflection()->MutableUnknownFields(&contents);
    for (int i = 0; i < 16; ++i) {
      if (is_wide) fields.AddFixed64(inference::InferTensorContents::kFp64ContentsFieldNumber, 1);
      if (!is_wide) fields.AddFixed32(inference::InferTensorContents::kFp32ContentsFieldNumber, 1);
    }
  }
}

// One request of each unusual kind.
std::vector<ModelInferRequest> UnusualRequests() {
  std::vector<ModelInferRequest> requests;
  const auto add = [&](auto change, const char* datatype = "FP32", size_t width = 4) {
    requests.push_back(PlainInfer(datatype, width));
    change(requests.back());
  };
  add([](auto& request) { SetUnpacked(request, false); });
  add([](auto& request) { SetUnpacked(request, true); }, "FP64", 8);
  add([](auto& request) { SetUnpacked(request, true); });
  add(
      [](auto& request) {
        request.clear_raw_input_contents();
        for (auto& input : *request.mutable_inputs())
          input.mutable_contents()->add_fp32_contents(1);
      },
      "INT8", 1);
  add(
      [](auto& request) {
        (*request.mutable_inputs(0)->mutable_parameters())["type"].set_string_param("s4");
        request.mutable_inputs(0)->set_shape(1, INT64_MAX / 4);
      },
      "UINT8", 1);
  add([](auto& request) { request.mutable_inputs(1)->set_shape(0, -1); });
  add([](auto& request) {
    for (const int64_t matrices : {2, 3}) {
      auto& input = *request.mutable_inputs(matrices == 2 ? 0 : 1);
      input.clear_shape();
      for (const int64_t extent : {matrices, int64_t{4}, int64_t{4}}) input.add_shape(extent);
    }
  });
  add([](auto& request) { AddInput(request, "C", {4, 5}, 80); });
  add([](auto& request) { AddInput(request, "A_SCALE", {4}, 15); }, "INT8", 1);
  add([](auto& request) {
    auto& bias = AddInput(request, "BIAS", {1}, 1);
    bias.set_datatype("UINT8");
    (*bias.mutable_parameters())["type"].set_string_param("b1");
  });
  for (const char* const type : {"b1", "s32", "e4m3"}) {
    add([type](auto& request) {
      (*request.mutable_parameters())["output_type"].set_string_param(type);
    });
  }
  // Parameters without a value, of a wrong kind, and out of bounds.
  for (const char* const name : {"alpha", "priority", "transpose_a", "device", "sequence_id",
                                 "classification", "shared_memory_region", "no such"}) {
    for (int kind = 0; kind < 6; ++kind) {
      add([name, kind](auto& request) {
        auto& parameter = (*request.mutable_parameters())[name];
        if (kind == 1) parameter.set_bool_param(true);
        if (kind == 2) parameter.set_int64_param(-1);
        if (kind == 3) parameter.set_uint64_param(1);
        if (kind == 4) parameter.set_double_param(1);
        if (kind == 5) parameter.set_string_param("");
      });
    }
  }
  return requests;
}

}  // namespace

void RepairInfer(Message& message, Choices& choices) {
  auto& request = static_cast<ModelInferRequest&>(message);
  if (choices.OnceIn(4)) return;
  const ResidentTensor* const b = RepairModel(request, choices);
  std::vector<const char*> names = {"A", "B", "C", "BIAS", "A_SCALE", "B_SCALE"};
  if (b != nullptr) names = {"A", "C", "BIAS", "A_SCALE"};
  const bool is_typed = choices.OnceIn(3);
  request.clear_raw_input_contents();
  const int least = b == nullptr ? 2 : 1;
  while (request.inputs_size() < least) {
    auto& input = *request.add_inputs();
    input.add_shape(4);
    input.add_shape(4);
  }
  while (request.inputs_size() > static_cast<int>(names.size())) {
    request.mutable_inputs()->RemoveLast();
  }
  // The inputs after A and B, in any order.
  while (names.size() > static_cast<size_t>(least) && choices.OnceIn(2)) {
    names.erase(names.begin() + least);
    names.push_back("BIAS");
  }
  for (int i = 0; i < request.inputs_size(); ++i) {
    request.mutable_inputs(i)->set_name(names[static_cast<size_t>(i)]);
    RepairInput(request, i, b, is_typed, choices);
  }
  if (!choices.OnceIn(3)) request.clear_outputs();
  if (!choices.OnceIn(3)) request.clear_parameters();
  while (choices.OnceIn(2)) SetSomeParameter(*request.mutable_parameters(), choices);
}

std::vector<std::string> InferSeeds() {
  // An input that ends with a tag of 0; more inputs, outputs and contents than allowed; and
  // contents given twice.
  std::vector<std::string> seeds = {
      "\x0a\x04gemm\x2a\x0e\x0a\x01"
      "A\x12\x05UINT8\x1a\x02\x04\x04"
      "\x2a\x0f\x0a\x01"
      "B\x12\x05UINT8\x1a\x02\x04\x04"};
  seeds.front() +=
      std::string(1, '\0') + ":\x10" + std::string(16, '\1') + ":\x10" + std::string(16, '\1');
  for (const char* const field : {"\x2a\x00", "\x32\x00", "\x3a\x00"}) {
    seeds.emplace_back();
    for (int i = 0; i < 10; ++i) seeds.back() += std::string(field, 2);
  }
  seeds.push_back(std::string("\x2a\x06\x2a\x01\x01\x2a\x01\x01", 8));
  // Numbers that end within their length.
  ModelInferRequest cut = PlainInfer("INT8", 1);
  cut.clear_raw_input_contents();
  for (auto& input : *cut.mutable_inputs()) {
    for (int i = 0; i < 5; ++i) input.mutable_contents()->add_int_contents(1);
  }
  seeds.push_back(cut.SerializeAsString());
  const std::string numbers("\x05\1\1\1\1\1", 6);
  seeds.back().replace(seeds.back().find(numbers), 1, "\x7f");
  for (const ModelInferRequest& request : UnusualRequests()) {
    seeds.push_back(request.SerializeAsString());
  }
  for (uint64_t seed = 0; seed < 40; ++seed) {
    Choices choices(seed);
    ModelInferRequest request;
    request.set_id("request");
    request.add_outputs()->set_name("D");
    (*request.mutable_parameters())["alpha"].set_double_param(0.5);
    RepairInfer(request, choices);
    seeds.push_back(request.SerializeAsString());
    // With all known parameters.
    ModelInferRequest full = request;
    SetParameters(full, seed);
    seeds.push_back(full.SerializeAsString());
    // With contents as numbers.
    request.clear_raw_input_contents();
    for (auto& input : *request.mutable_inputs()) {
      input.clear_contents();
      input.set_datatype(seed % 2 == 0 ? "FP32" : "INT8");
      for (int i = 0; i < 16; ++i) {
        if (seed % 2 == 0) input.mutable_contents()->add_fp32_contents(1);
        if (seed % 2 == 1) input.mutable_contents()->add_int_contents(-i);
      }
    }
    seeds.push_back(request.SerializeAsString());
  }
  return seeds;
}

}  // namespace gemmd::fuzz
