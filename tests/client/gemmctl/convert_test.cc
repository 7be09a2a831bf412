// SPDX-License-Identifier: Apache-2.0
//
// gemmctl convert: output, counts, refusals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "client/matrix/npy.h"
#include "gemmd/v1/tensors.pb.h"
#include "nlohmann/json.hpp"
#include "tests/client/gemmctl/gemmctl_runner.h"
#include "tests/client/matrix/npy_text.h"
#include "tests/testing/scratch_folder.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

constexpr float kFloatInfinity = std::numeric_limits<float>::infinity();
constexpr float kFloatNan = std::numeric_limits<float>::quiet_NaN();

// A file of f32.
std::string Floats(const std::vector<int64_t>& shape, const std::vector<float>& values) {
  NpyArray array = {.type = v1::ELEMENT_TYPE_F32, .shape = shape};
  array.data.resize(values.size() * sizeof(float));
  // An empty vector has no address that may be passed to memcpy.
  if (!values.empty()) std::memcpy(array.data.data(), values.data(), array.data.size());
  return WriteNpyText(array);
}

// The values of a file of f32.
std::vector<float> FloatsOf(const NpyArray& array) {
  std::vector<float> values(array.data.size() / sizeof(float));
  if (!values.empty()) std::memcpy(values.data(), array.data.data(), array.data.size());
  return values;
}

Outcome Convert(const std::string& in, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"convert", "-", "-o", "-"});
  return RunGemmctl(arguments, "", in);
}

TEST(ConvertTest, CountsWhatChangesAndHow) {
  const std::string in = Floats({2, 4}, {1, 1.03f, 448, 470, kFloatInfinity, kFloatNan, -1e9f, 0});
  const Outcome run = Convert(in, {"--type", "e4m3", "--order", "column", "--json"});
  ASSERT_EQ(run.code, ExitCode::kOk) << run.err;
  EXPECT_EQ(run.err,
            "{\"batch\":1,\"rows\":2,\"columns\":4,\"input_type\":\"f32\",\"input_order\":\"row\","
            "\"type\":\"e4m3\",\"order\":\"column\",\"values\":8,\"rounded\":1,\"saturated\":3,"
            "\"became_infinite\":0,\"nan\":1,\"nan_lost\":0}\n");
  const auto array = ReadNpyText(run.out, v1::ELEMENT_TYPE_E4M3);
  ASSERT_THAT(array, IsOk());
  EXPECT_EQ(array->order, v1::ORDER_COLUMN_MAJOR);
  EXPECT_THAT(array->shape, ElementsAre(2, 4));
  EXPECT_EQ(array->data, std::string("\x38\x7e\x38\x7f\x7e\xfe\x7e\x00", 8));
}

TEST(ConvertTest, KeepsTheBitsOfAnUnchangedType) {
  uint32_t payload = 0xffc12345;
  float odd_nan = 0;
  std::memcpy(&odd_nan, &payload, sizeof(payload));
  const std::string in = Floats({2, 1}, {odd_nan, -0.0f});
  const Outcome run = Convert(in, {});
  ASSERT_EQ(run.code, ExitCode::kOk) << run.err;
  EXPECT_EQ(run.out, in);
  EXPECT_THAT(run.err, HasSubstr("f32 -> f32"));
  EXPECT_THAT(run.err, testing::ContainsRegex("NaN +1\n"));
}

TEST(ConvertTest, ShapeCountsElementsRowByRowWhateverTheOrders) {
  const std::string in = Floats({2, 6}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
  const Outcome column = Convert(in, {"--order", "column"});
  const Outcome run = Convert(column.out, {"--shape", "4,3"});
  ASSERT_EQ(run.code, ExitCode::kOk) << run.err;
  const auto array = ReadNpyText(run.out);
  ASSERT_THAT(array, IsOk());
  EXPECT_EQ(array->order, v1::ORDER_COLUMN_MAJOR);
  EXPECT_THAT(array->shape, ElementsAre(4, 3));
  EXPECT_THAT(FloatsOf(*array), ElementsAre(0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11));
  const Outcome batch = Convert(column.out, {"--shape", "2,3,2", "--order", "row"});
  const auto matrices = ReadNpyText(batch.out);
  ASSERT_THAT(matrices, IsOk()) << batch.err;
  EXPECT_THAT(matrices->shape, ElementsAre(2, 3, 2));
  EXPECT_THAT(FloatsOf(*matrices), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11));
  // A batch has no order in a file; the input's is not kept.
  EXPECT_EQ(Convert(column.out, {"--shape", "2,3,2"}).out, batch.out);
}

TEST(ConvertTest, MatricesWithoutElementsKeepTheirShape) {
  const Outcome run = Convert(Floats({0, 7}, {}), {"--type", "s4", "--shape", "3,0,5"});
  ASSERT_EQ(run.code, ExitCode::kOk) << run.err;
  const auto array = ReadNpyText(run.out, v1::ELEMENT_TYPE_S4);
  ASSERT_THAT(array, IsOk());
  EXPECT_THAT(array->shape, ElementsAre(3, 0, 5));
  EXPECT_EQ(array->data, "");
}

TEST(ConvertTest, FilesAreReadAndWrittenAndTheReportGoesToTheOutput) {
  const ScratchFolder folder;
  const std::string a = folder.Path("a.npy");
  const std::string b = folder.Path("b.npy");
  ASSERT_EQ(RunGemmctl({"random", "5,3", "--type", "e2m1", "-o", a}, "").code, ExitCode::kOk);
  // The list of extents does not take the next word, so the file may follow it.
  const Outcome run = RunGemmctl(
      {"convert", "--input-type", "e2m1", "--type", "bf16", "--shape", "3,5", a, "-o", b}, "");
  ASSERT_EQ(run.code, ExitCode::kOk) << run.err;
  EXPECT_EQ(run.err, "");
  EXPECT_EQ(run.out,
            "shape            3 x 5\n"
            "type             e2m1 -> bf16\n"
            "order            row -> row\n"
            "values           15\n"
            "rounded          0\n"
            "saturated        0\n"
            "became infinite  0\n"
            "NaN              0\n"
            "NaN lost         0\n");
  const auto array = ReadNpyFile(b, v1::ELEMENT_TYPE_UNSPECIFIED);
  ASSERT_THAT(array, IsOk());
  EXPECT_EQ(array->type, v1::ELEMENT_TYPE_BF16);
}

TEST(ConvertTest, SaysWhatIsWrong) {
  struct Refusal {
    std::vector<std::string> arguments;
    std::string message;
  };
  const std::string in = Floats({3, 4}, std::vector<float>(12));
  const Refusal refusals[] = {
      {{"--shape", "5,3"}, "--shape: got 5,3, want a shape of 12 elements, as the input has"},
      {{"--shape", "4294967296,4294967296,4294967296"}, "want a shape of 12 elements"},
      {{"--shape", "1,1,3,4"}, "--shape: got 1,1,3,4, want 1 to 3 whole numbers"},
      {{"--shape", "12", "--order", "column"},
       "--order: got column for an array of 1 dimensions, want row: "},
      {{"--shape", "1,3,4", "--order", "column"},
       "--order: got column for an array of 3 dimensions, want row: "},
      {{"--input-type", "e4m3"}, "standard input: npy descr: got '<f4', want '|V1' or '|u1'"},
      {{"--type", "f31"}, "--type: "},
      {{"--order", "diagonal"}, "--order: "},
  };
  for (const Refusal& refusal : refusals) {
    const Outcome run = Convert(in, refusal.arguments);
    EXPECT_EQ(run.code, ExitCode::kUsage) << refusal.message;
    EXPECT_THAT(run.err, StartsWith("gemmctl: INVALID_ARGUMENT: "));
    EXPECT_THAT(run.err, HasSubstr(refusal.message));
    EXPECT_EQ(run.out, "");
  }
  EXPECT_THAT(Convert(in + in, {}).err, HasSubstr("standard input: npy file: got bytes"));
  EXPECT_THAT(RunGemmctl({"convert", "/missing.npy", "-o", "-"}, "").err,
              StartsWith("gemmctl: NOT_FOUND: /missing.npy: "));
}

}  // namespace
}  // namespace gemmd
