// SPDX-License-Identifier: Apache-2.0
//
// gemmctl diff: text, map, refusals, exit codes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "client/matrix/npy.h"
#include "client/terminal/text.h"
#include "gemmd/v1/tensors.pb.h"
#include "nlohmann/json.hpp"
#include "tests/client/gemmctl/gemmctl_runner.h"
#include "tests/testing/scratch_folder.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

class DiffTest : public testing::Test {
 protected:
  std::string File(const std::string& name, const std::vector<float>& values) {
    NpyArray array = {.type = v1::ELEMENT_TYPE_F32,
                      .shape = {2, static_cast<int64_t>(values.size()) / 2}};
    array.data.assign(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
    EXPECT_THAT(WriteNpyFile(array, folder_.Path(name)), IsOk());
    return folder_.Path(name);
  }

 private:
  ScratchFolder folder_;
};

TEST_F(DiffTest, EqualFilesAreTheSame) {
  const std::string a = File("a.npy", {1, 2, 3, std::nanf("")});
  const Outcome run = RunGemmctl({"diff", a, a}, "");
  EXPECT_EQ(run.code, ExitCode::kOk) << run.err;
  EXPECT_THAT(run.out, HasSubstr("2 x 2 f32: the same bits in all 4 elements\n"));
  const auto json = nlohmann::json::parse(RunGemmctl({"diff", a, a, "--json"}, "").out);
  EXPECT_EQ(json["same"], true);
  EXPECT_THAT(json["worst"], IsEmpty());
}

TEST_F(DiffTest, SaysWhereAndHowFar) {
  const float next = std::nextafterf(1, 2);
  const std::string a = File("a.npy", {1, 2, 3, 4, 0, 6});
  const std::string b = File("b.npy", {next, 2, 3, std::nanf(""), -0.0f, 6});
  const Outcome run = RunGemmctl({"diff", a, b}, "");
  EXPECT_EQ(run.code, ExitCode::kRefused);
  EXPECT_THAT(run.err, IsEmpty());
  EXPECT_THAT(run.out, HasSubstr("2 x 3 f32: other bits in 3 of 6 elements (50 %)\n"
                                 "largest distance: 1 ulps, 1.19e-07 absolute, 1.19e-07 relative; "
                                 "1 with NaN on a side\n"));
  EXPECT_THAT(run.out,
              HasSubstr("ulps  elements\n   0         1\n   1         1\n NaN         1\n"));
  EXPECT_THAT(run.out, HasSubstr("[1, 0]    4         nan   NaN       nan       nan  0x40800000  "
                                 "0x7fc00000\n"
                                 "[0, 0]    1  1.00000012     1  1.19e-07  1.19e-07  0x3f800000  "
                                 "0x3f800001\n"));
  // The map has one letter for both rows.
  EXPECT_THAT(run.out, HasSubstr("each letter is 4 x 1 elements"));
  EXPECT_THAT(run.out, HasSubstr("\n  N0.\n"));
  const auto json =
      nlohmann::json::parse(RunGemmctl({"diff", a, b, "--json", "--worst", "1"}, "").out);
  EXPECT_EQ(json["differing"], 3);
  EXPECT_EQ(json["worst"].size(), 1u);
  EXPECT_EQ(json["worst"][0]["b"], "NaN");
  EXPECT_EQ(json["worst"][0]["ulps"], nullptr);
  EXPECT_EQ(
      json["by_ulps"].dump(),
      R"([{"elements":1,"least_ulps":0,"most_ulps":0},{"elements":1,"least_ulps":1,"most_ulps":1}])");
}

TEST_F(DiffTest, DrawingsGoToFilesOrToTheOutput) {
  const std::string a = File("a<b>.npy", {1, 2});
  const std::string b = File("b.npy", {1, 3});
  const Outcome run = RunGemmctl({"diff", a, b, "--svg", "-", "--json"}, "");
  EXPECT_EQ(run.code, ExitCode::kRefused);
  EXPECT_THAT(run.out, HasSubstr("<title>rows 1, columns 0: 1 differ, at most by 4194304 ulps; at "
                                 "[1, 0] 2 and 3, 0x40000000 and 0x40400000</title>"));
  EXPECT_THAT(run.out, HasSubstr("a&lt;b&gt;.npy"));
  EXPECT_EQ(nlohmann::json::parse(run.err)["differing"], 1);
  const Outcome nowhere = RunGemmctl({"diff", a, b, "--html", "/nowhere/x.html"}, "");
  EXPECT_EQ(nowhere.code, ExitCode::kUsage);
  EXPECT_THAT(nowhere.err, HasSubstr("/nowhere/x.html: cannot be written"));
}

TEST_F(DiffTest, RefusesWhatItCannotCompare) {
  const std::string a = File("a.npy", {1, 2});
  const std::string b = File("b.npy", {1, 2, 3, 4});
  const struct {
    std::vector<std::string> arguments;
    const char* message;
  } cases[] = {
      {{"diff", a, b}, "b: got 2 x 2, want 2 x 1 as a has"},
      {{"diff"}, "A, B: got none, want two .npy files to compare, or a product and --chips"},
      {{"diff", a}, ": B: got none, want two .npy files to compare, or a product and --chips"},
      {{"diff", a, a, "--transpose-b"}, "--chips: got none beside options of a product"},
      {{"diff", "--random", "2,2,2"}, "--chips: got none beside options of a product"},
      {{"diff", a, a, "--chips", "sm_80"}, "got sm_80, want two names or more"},
      {{"diff", a, a, "--chips", "sm_80,"}, "got sm_80,, want two names or more"},
      {{"diff", a, a, "--chips", "sm_80,sm_90", "--chip", "sm_80"}, "got --device or --chip too"},
      {{"diff", a, "/nowhere.npy"}, "/nowhere.npy"},
  };
  for (const auto& c : cases) {
    const Outcome run = RunGemmctl(c.arguments, "");
    EXPECT_EQ(run.code, ExitCode::kUsage) << c.message;
    EXPECT_THAT(run.err, HasSubstr(c.message));
    EXPECT_THAT(run.out, IsEmpty());
  }
}

TEST(MarkupTest, EscapesWhatMarkupMeans) {
  EXPECT_EQ(EscapedMarkup("<a b=\"c\">&'\x01\x7f\t\n"),
            "&lt;a b=&quot;c&quot;&gt;&amp;&#39;??\t\n");
}

}  // namespace
}  // namespace gemmd
