// SPDX-License-Identifier: Apache-2.0
//
// gemmctl explain --model: the layers of a file, the error of each type, and the best type.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/gemmctl/explain.h"
#include "client/matrix/safetensors.h"
#include "gemmd/element_codec.h"
#include "gemmd/element_type.h"
#include "gemmd/v1/gemm.pb.h"
#include "gemmd/v1/registry.pb.h"
#include "nlohmann/json.hpp"
#include "tests/client/fake_service.h"
#include "tests/client/gemmctl/gemmctl_runner.h"
#include "tests/testing/random_source.h"
#include "tests/testing/scratch_folder.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<float> NormalValues(RandomSource& source, size_t count) {
  std::vector<float> values(count);
  for (float& value : values) value = static_cast<float>(source.Normal());
  return values;
}

// Rows of very different sizes: one factor per row compensates for that.
TEST(WeightErrorTest, IsThatOfTheElements) {
  RandomSource source;
  constexpr int64_t kRows = 9;
  constexpr int64_t kColumns = 130001;  // Several parts.
  std::vector<float> values = NormalValues(source, kRows * kColumns);
  for (int64_t i = 0; i < kRows; ++i) {
    for (int64_t j = 0; j < kColumns; ++j) {
      values[static_cast<size_t>(i * kColumns + j)] *= std::ldexp(1.0f, static_cast<int>(i) - 4);
    }
  }
  const MatrixView view = View(values, kRows, kColumns);
  for (const v1::ElementType type : {v1::ELEMENT_TYPE_BF16, v1::ELEMENT_TYPE_F16}) {
    double changes = 0;
    double all = 0;
    for (const float value : values) {
      const double change = RoundToElement(type, value) - value;
      changes += change * change;
      all += static_cast<double>(value) * value;
    }
    const auto error = WeightError(view, type);
    ASSERT_THAT(error, IsOk());
    EXPECT_NEAR(*error, std::sqrt(changes / all), 1e-12);
    EXPECT_GT(*error, 0);
  }
  const auto f32 = WeightError(view, v1::ELEMENT_TYPE_F32);
  ASSERT_THAT(f32, IsOk());
  EXPECT_EQ(*f32, 0);
  // A step of s8 is a 127th of the row's largest value, at most 6 standard deviations here. So the
  // error is at most half a step, and 1/3.46 of a step if it is uniform.
  const auto s8 = WeightError(view, v1::ELEMENT_TYPE_S8);
  ASSERT_THAT(s8, IsOk());
  EXPECT_GT(*s8, 3.0 / 127 / 3.47);
  EXPECT_LT(*s8, 7.0 / 127 / 2);
}

TEST(WeightErrorTest, IsNotANumberWhereThereIsNoFactor) {
  std::vector<float> values = {1, 2, 3, std::numeric_limits<float>::infinity()};
  for (const v1::ElementType type : {v1::ELEMENT_TYPE_S8, v1::ELEMENT_TYPE_BF16}) {
    const auto error = WeightError(View(values, 2, 2), type);
    ASSERT_THAT(error, IsOk());
    EXPECT_TRUE(std::isnan(*error));
  }
  EXPECT_THAT(WeightError(View(values, 3, 2), v1::ELEMENT_TYPE_BF16),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("got 16 bytes, want rows*columns*4 = 24")));
}

struct Tensor {
  std::string name;
  std::string type;
  std::vector<int64_t> shape;
  std::string bytes;
};

std::string BytesOf(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

std::string WriteModel(const ScratchFolder& folder, const std::vector<Tensor>& tensors) {
  const std::string path = folder.Path("model.safetensors");
  SafetensorsHeader header;
  int64_t at = 0;
  for (const Tensor& tensor : tensors) {
    const auto end = at + static_cast<int64_t>(tensor.bytes.size());
    header.tensors.push_back({tensor.name, tensor.type, tensor.shape, at, end});
    at = end;
  }
  OutputFile file;
  EXPECT_THAT(BeginSafetensors(path, header, file), IsOk());
  for (const Tensor& tensor : tensors) EXPECT_THAT(file.Write(tensor.bytes), IsOk());
  EXPECT_THAT(file.Commit(), IsOk());
  return path;
}

// A server on which narrow types are fast and f16 is unknown; it records the requests.
FakeScript ExplainScript(std::vector<std::string>& asked) {
  FakeScript script;
  script.explain = [&asked](const v1::ExplainRequest& request, v1::ExplainResponse& response) {
    const v1::MultiplyRequest& product = request.request();
    asked.push_back(absl::StrCat(ElementTypeName(product.a().type()), " ", product.m(), " ",
                                 product.n(), " ", product.k()));
    if (product.a().type() == v1::ELEMENT_TYPE_F16) {
      return grpc::Status(grpc::StatusCode::UNIMPLEMENTED, "no kernel");
    }
    response.set_device("fake");
    v1::Candidate& candidate = *response.add_candidates();
    candidate.set_kernel("some");
    candidate.set_predicted_ns(ElementBits(product.a().type()) * 1000);
    return grpc::Status::OK;
  };
  return script;
}

TEST(GemmctlModelTest, NamesTheBestTypeOfEachLayer) {
  RandomSource source;
  const ScratchFolder folder;
  const std::string path =
      WriteModel(folder, {{"a.weight", "F32", {8, 64}, BytesOf(NormalValues(source, 8 * 64))},
                          {"a.bias", "F32", {8}, BytesOf(NormalValues(source, 8))},
                          {"b.weight", "F32", {8, 64}, std::string(8 * 64 * 4, '\0')},
                          {"ids", "I64", {2, 2}, std::string(32, '\0')}});
  std::vector<std::string> asked;
  const FakeServer server(ExplainScript(asked));
  const Outcome run = RunGemmctl({"explain", "--model", path, "--rows", "3"}, server.address());
  ASSERT_EQ(run.code, ExitCode::kOk) << run.err;
  // Each type once, although there are two layers of one shape.
  EXPECT_THAT(asked,
              ElementsAre("f32 3 8 64", "bf16 3 8 64", "f16 3 8 64", "e4m3 3 8 64", "s8 3 8 64"));
  EXPECT_THAT(run.out, HasSubstr("f16 no kernel"));
  EXPECT_THAT(run.out, HasSubstr("2 layers, "));
  EXPECT_THAT(run.out, HasSubstr("; 2 other tensors left out\n"));

  const Outcome json =
      RunGemmctl({"explain", "--model", path, "--max-error", "0.02", "--json"}, server.address());
  const size_t end = json.out.find('\n');
  const auto first = nlohmann::json::parse(json.out.substr(0, end));
  const auto second = nlohmann::json::parse(json.out.substr(end + 1));
  EXPECT_EQ(first["layer"], "a.weight");
  EXPECT_EQ(first["n"], 8);
  EXPECT_EQ(first["k"], 64);
  EXPECT_EQ(first["best"], "s8") << first.dump();  // e4m3 is as fast, but less accurate.
  EXPECT_EQ(first["types"].size(), 5u);
  EXPECT_EQ(first["types"][1]["predicted_ns"], 16000);
  EXPECT_EQ(first["types"][2].count("predicted_ns"), 0u);
  EXPECT_EQ(second["types"][3]["error"], 0) << "of zeros";

  const Outcome none = RunGemmctl({"explain", "--model", path, "--type", "s8", "--max-error", "0"},
                                  server.address());
  EXPECT_THAT(none.out, HasSubstr("; 1 have none"));
}

TEST(GemmctlModelTest, SaysWhatItDoesNotTake) {
  const ScratchFolder folder;
  std::vector<std::string> asked;
  const FakeServer server(ExplainScript(asked));
  const Outcome both = RunGemmctl({"explain", "--model", "model.safetensors", "--random", "1,2,3"},
                                  server.address());
  EXPECT_EQ(both.code, ExitCode::kUsage);
  EXPECT_THAT(both.err, HasSubstr("--model: got operands"));
  const Outcome missing =
      RunGemmctl({"explain", "--model", folder.Path("none.safetensors")}, server.address());
  EXPECT_EQ(missing.code, ExitCode::kUsage);
  EXPECT_THAT(missing.err, HasSubstr("none.safetensors"));
  EXPECT_THAT(asked, ElementsAre());
}

}  // namespace
}  // namespace gemmd
