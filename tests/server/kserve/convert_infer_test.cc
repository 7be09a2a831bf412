// SPDX-License-Identifier: Apache-2.0
//
// KServe requests as products: their bytes, wherever the slices are cut, and what is refused before
// a product is made.
#include "server/kserve/convert_infer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "server/wire/convert.h"
#include "server/wire/incoming.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using inference::ModelInferRequest;
using testing::HasSubstr;
using testing::StartsWith;

grpc::ByteBuffer CutEvery(const std::string& bytes, size_t step) {
  std::vector<grpc::Slice> slices;
  for (size_t begin = 0; begin < bytes.size(); begin += step) {
    slices.emplace_back(bytes.substr(begin, step));
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

std::string Floats(size_t count, float first = 1) {
  std::string bytes;
  for (size_t i = 0; i < count; ++i) {
    const float value = first + static_cast<float>(i % 7);
    bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  return bytes;
}

ModelInferRequest::InferInputTensor& AddInput(ModelInferRequest& request, const std::string& name,
                                              const std::string& datatype,
                                              const std::vector<int64_t>& shape) {
  auto& input = *request.add_inputs();
  input.set_name(name);
  input.set_datatype(datatype);
  input.mutable_shape()->Assign(shape.begin(), shape.end());
  return input;
}

// A request for A [m, k] times B [k, n] of FP32, as raw bytes.
ModelInferRequest RawProduct(int64_t m, int64_t n, int64_t k) {
  ModelInferRequest request;
  request.set_model_name("gemm");
  request.set_id("one");
  AddInput(request, "A", "FP32", {m, k});
  AddInput(request, "B", "FP32", {k, n});
  request.add_raw_input_contents(Floats(static_cast<size_t>(m * k)));
  request.add_raw_input_contents(Floats(static_cast<size_t>(k * n), 3));
  return request;
}

std::string BytesOf(const Source& source) {
  std::string bytes;
  for (const Piece& piece : source.pieces) {
    bytes.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  }
  return bytes;
}

class ConvertInferTest : public testing::Test {
 protected:
  absl::Status Read(const std::string& bytes, size_t step = 1 << 20) {
    grpc::ByteBuffer buffer = CutEvery(bytes, step);
    InferMessage message(buffer);
    if (absl::Status status = message.Read(); !status.ok()) {
      unparsed_id_ = message.UnparsedId();
      return status;
    }
    const absl::StatusOr<int64_t> most = PrepareContents(message);
    if (!most.ok()) return most.status();
    most_ = *most;
    absl::StatusOr<InferAsked> asked = ConvertInfer(message, model_, quota_, product_, held_);
    if (!asked.ok()) return asked.status();
    asked_ = *asked;
    parsed_ = std::make_unique<Product>();
    const absl::Status parsed = ParseMultiply(product_, &held_, *parsed_);
    return parsed.ok() ? parsed : asked_.places.Rename(parsed);
  }
  absl::Status Read(const ModelInferRequest& request, size_t step = 1 << 20) {
    return Read(request.SerializeAsString(), step);
  }
  // The text of the refusal.
  template <typename Request>
  std::string Refusal(const Request& request) {
    product_.Clear();
    held_ = HeldFields();
    return std::string(Read(request).message());
  }

  const Model model_ = {"gemm", nullptr};
  ReceiveQuota quota_{int64_t{1} << 30};
  v1::MultiplyRequest product_;
  HeldFields held_;
  InferAsked asked_;
  std::unique_ptr<Product> parsed_;
  int64_t most_ = 0;
  std::string unparsed_id_;
};

TEST_F(ConvertInferTest, BytesAreThereWhereverTheyAreCut) {
  const ModelInferRequest request = RawProduct(100, 90, 120);  // Too long to be copied.
  for (const size_t step : {7, 1000, 5000, 40'000, 1 << 20}) {
    product_.Clear();
    held_ = HeldFields();
    ASSERT_THAT(Read(request, step), IsOk());
    EXPECT_EQ(held_.empty(), step < static_cast<size_t>(kMinSliceBytes));
    EXPECT_EQ(BytesOf(parsed_->job.a), request.raw_input_contents(0));
    EXPECT_EQ(BytesOf(parsed_->job.b), request.raw_input_contents(1));
    EXPECT_EQ(parsed_->job.problem.m, 100);
    EXPECT_EQ(parsed_->job.problem.n, 90);
    EXPECT_EQ(parsed_->job.problem.k, 120);
    EXPECT_EQ(product_.request_id(), "one");
    // Memory is counted for what is copied.
    const auto raw = static_cast<int64_t>(request.raw_input_contents(0).size() +
                                          request.raw_input_contents(1).size());
    EXPECT_GE(most_, held_.empty() ? raw : 0);
  }
}

TEST_F(ConvertInferTest, NumbersAreBytesOfTheirElements) {
  ModelInferRequest request;
  auto& a = AddInput(request, "A", "INT8", {1, 3});
  for (const int value : {-128, 0, 127}) a.mutable_contents()->add_int_contents(value);
  auto& b = AddInput(request, "B", "UINT8", {3, 1});
  for (const unsigned value : {0U, 200U, 255U}) b.mutable_contents()->add_uint_contents(value);
  ASSERT_THAT(Read(request, 3), IsOk());
  EXPECT_EQ(BytesOf(parsed_->job.a), std::string("\x80\0\x7f", 3));
  EXPECT_EQ(BytesOf(parsed_->job.b), std::string("\0\xc8\xff", 3));
  a.mutable_contents()->set_int_contents(1, 128);
  EXPECT_THAT(Refusal(request), "inputs[0].contents.int_contents[1]: got 128, want -128 to 127");
  a.mutable_contents()->add_fp32_contents(1);
  EXPECT_THAT(Refusal(request),
              "inputs[0].contents: got fp32_contents, want int_contents for INT8");
  a.mutable_contents()->Clear();
  a.mutable_contents()->MergeFromString("\xfa\x3e\x01x");
  EXPECT_THAT(Refusal(request),
              "inputs[0].contents: got an unknown field, want int_contents for INT8");
  b.set_datatype("BF16");
  a.mutable_contents()->Clear();
  for (int i = 0; i < 3; ++i) a.mutable_contents()->add_int_contents(i);
  EXPECT_THAT(Refusal(request), "inputs[1].contents: got values, want raw_input_contents for BF16");
}

// Packed numbers, long enough to stay in their slices; or one by one, as an encoder may also write
// them.
TEST_F(ConvertInferTest, FloatsMayBePackedOrNot) {
  const std::string elements = Floats(100 * 100);
  ModelInferRequest request;
  for (const char* const name : {"A", "B"}) {
    auto& values = *AddInput(request, name, "FP32", {100, 100}).mutable_contents();
    values.mutable_fp32_contents()->Resize(100 * 100, 0);
    std::memcpy(values.mutable_fp32_contents()->mutable_data(), elements.data(), elements.size());
  }
  ASSERT_THAT(Read(request, 16 << 10), IsOk());
  EXPECT_FALSE(held_.empty());
  EXPECT_EQ(BytesOf(parsed_->job.a), elements);
  EXPECT_EQ(BytesOf(parsed_->job.b), elements);

  std::string unpacked;
  for (size_t i = 0; i < elements.size(); i += 4) unpacked += "\x35" + elements.substr(i, 4);
  ReceivedSlices slices({grpc::Slice(unpacked.substr(0, 33)), grpc::Slice(unpacked.substr(33))});
  EXPECT_FALSE(StripPackedFloats("FP32", slices));
  EXPECT_EQ(DecodeContents("x", "FP32", slices).value(), elements);
}

TEST_F(ConvertInferTest, RefusalsNameTheField) {
  const auto refused = [&](auto change) {
    ModelInferRequest request = RawProduct(2, 3, 4);
    change(request);
    return Refusal(request);
  };
  EXPECT_EQ(refused([](auto& r) { r.mutable_raw_input_contents(1)->pop_back(); }),
            "raw_input_contents[1]: got 47 bytes, want k*n*4 = 48");
  EXPECT_EQ(refused([](auto& r) { r.mutable_raw_input_contents()->RemoveLast(); }),
            "raw_input_contents: got 1, want one for each input = 2");
  EXPECT_EQ(refused([](auto& r) { r.mutable_inputs(1)->mutable_contents()->add_fp32_contents(1); }),
            "inputs[1].contents: got values beside raw_input_contents, want either of them");
  EXPECT_EQ(refused([](auto& r) { r.mutable_inputs(0)->set_shape(0, -1); }),
            "inputs[0].shape[0]: got -1, want at least 0");
  EXPECT_THAT(refused([](auto& r) {
                r.mutable_inputs(0)->set_shape(0, std::numeric_limits<int64_t>::max());
              }),
              HasSubstr("want sizes in bytes below 2^63"));
  EXPECT_EQ(refused([](auto& r) { r.mutable_inputs(1)->set_name("A"); }),
            "inputs[1].name: got A, want that of input 0 once");
  EXPECT_EQ(refused([](auto& r) { r.add_outputs()->set_name("E"); }),
            "outputs[0].name: got E, want D, once");
  EXPECT_THAT(refused([](auto& r) { r.set_id(std::string(129, 'x')); }), StartsWith("id: got 129"));
  EXPECT_THAT(refused([](auto& r) {
                for (int i = 0; i < 7; ++i) r.add_inputs();
              }),
              "inputs: got more, want at most 8 in one request");
  EXPECT_THAT(refused([](auto& r) {
                auto& scale = AddInput(r, "A_SCALE", "FP32", {2});
                scale.mutable_shape()->Set(0, int64_t{1} << 40);
                r.add_raw_input_contents("");
              }),
              "inputs[2].shape: got [1099511627776], want [1] or [2]");
}

TEST_F(ConvertInferTest, WhatIsBesideContentsIsBounded) {
  ModelInferRequest request = RawProduct(2, 3, 4);
  for (int i = 0; i < 2000; ++i) {
    (*request.mutable_inputs(0)->mutable_parameters())[std::to_string(i)].set_bool_param(true);
  }
  EXPECT_THAT(Refusal(request), StartsWith("message: got more bytes beside the contents"));
  EXPECT_EQ(unparsed_id_, "one");
  // An unknown field.
  const std::string unknown = "\xfa\x3e\xd0\x0f" + std::string(2000, 'x');
  EXPECT_THAT(Refusal(RawProduct(2, 3, 4).SerializeAsString() + unknown),
              HasSubstr("unknown fields, want at most 1024"));
  // Unknown fields inside repeated messages.
  const std::string half = "\xfa\x3e\xd8\x04" + std::string(600, 'x');
  const auto with_unknown = [&](bool is_in_map, int count) {
    ModelInferRequest wide = RawProduct(2, 3, 4);
    for (int i = 0; i < count; ++i) {
      auto& input = *wide.mutable_inputs(i);
      if (!is_in_map) {
        input.MergeFromString(half);
        continue;
      }
      auto& type = (*input.mutable_parameters())["type"];
      type.set_string_param("f32");
      type.MergeFromString(half);
    }
    return wide.SerializeAsString();
  };
  for (const bool is_in_map : {false, true}) {
    EXPECT_THAT(Read(with_unknown(is_in_map, 1), 1000), IsOk());
    EXPECT_THAT(Refusal(with_unknown(is_in_map, 2)),
                HasSubstr("unknown fields, want at most 1024"));
  }
  // Numbers that are decoded one by one.
  ModelInferRequest numbers;
  auto& a = AddInput(numbers, "A", "INT8", {1, kMaxDecodedBytes + 1});
  a.mutable_contents()->mutable_int_contents()->Resize(kMaxDecodedBytes + 1, 1);
  EXPECT_THAT(Refusal(numbers),
              "inputs[0].contents: got more bytes of numbers, want at most 16384 in one request; "
              "send raw_input_contents");
}

TEST_F(ConvertInferTest, EveryBeginningOfAMessageIsRead) {
  const std::string bytes = RawProduct(2, 3, 4).SerializeAsString();
  for (size_t size = 0; size < bytes.size(); ++size) {
    product_.Clear();
    held_ = HeldFields();
    EXPECT_THAT(Read(bytes.substr(0, size), 5), StatusIs(absl::StatusCode::kInvalidArgument))
        << size;
  }
}

}  // namespace
}  // namespace gemmd
