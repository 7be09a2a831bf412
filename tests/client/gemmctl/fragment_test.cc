// SPDX-License-Identifier: Apache-2.0
//
// gemmctl fragment: grids, their drawings, and the operands that are requested.
#include "client/gemmctl/fragment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/matrix/npy.h"
#include "gemmd/v1/instructions.pb.h"
#include "gemmd/v1/tensors.pb.h"
#include "tests/client/fake_service.h"
#include "tests/client/gemmctl/gemmctl_runner.h"
#include "tests/testing/scratch_folder.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

// A fragment of `lanes` lanes that each hold `per_lane` neighbours along a row, or along a column.
v1::DescribeFragmentResponse LineFragment(int lanes, int per_lane, bool is_vertical) {
  v1::DescribeFragmentResponse fragment;
  fragment.set_operand(v1::FRAGMENT_OPERAND_A);
  fragment.mutable_instruction()->set_name("line<&>");
  fragment.mutable_instruction()->set_lanes(lanes);
  fragment.set_type(v1::ELEMENT_TYPE_F16);
  fragment.set_element_bits(16);
  fragment.set_container_bits(16);
  fragment.set_rows(is_vertical ? per_lane : 2);
  fragment.set_columns(lanes * per_lane / fragment.rows());
  for (int lane = 0; lane < lanes; ++lane) {
    for (int i = 0; i < per_lane; ++i) {
      v1::FragmentEntry& entry = *fragment.add_entries();
      entry.set_lane(lane);
      entry.set_element(i);
      entry.set_first_bit(16 * i);
      entry.set_row(is_vertical ? i : lane % 2);
      entry.set_column(is_vertical ? lane : lane / 2 * per_lane + i);
    }
  }
  return fragment;
}

std::vector<std::string> Labels(const FragmentGrid& grid) {
  std::vector<std::string> labels;
  for (const auto& row : grid.cells) {
    for (const FragmentCell& cell : row) labels.push_back(cell.label);
  }
  return labels;
}

TEST(FragmentGridTest, NeighboursShareACell) {
  const auto grids = MakeGrids(LineFragment(4, 2, false), "A");
  ASSERT_THAT(grids, IsOk());
  ASSERT_EQ(grids->size(), 1u);
  const FragmentGrid& grid = grids->front();
  EXPECT_EQ(grid.title, "A: 2 x 4 f16, 1 register in each of 4 lanes");
  EXPECT_THAT(grid.rows, ElementsAre("0", "1"));
  EXPECT_THAT(grid.columns, ElementsAre("0..1", "2..3"));
  EXPECT_THAT(Labels(grid), ElementsAre("T0:{a0,a1}", "T2:{a0,a1}", "T1:{a0,a1}", "T3:{a0,a1}"));
}

TEST(FragmentGridTest, AlsoOnesBelowEachOther) {
  const auto grids = MakeGrids(LineFragment(2, 4, true), "A");
  ASSERT_THAT(grids, IsOk());
  EXPECT_THAT(grids->front().rows, ElementsAre("0..3"));
  EXPECT_THAT(Labels(grids->front()), ElementsAre("T0:{a0..a3}", "T1:{a0..a3}"));
}

TEST(FragmentGridTest, OneExceptionKeepsThemApart) {
  v1::DescribeFragmentResponse fragment = LineFragment(4, 2, false);
  fragment.mutable_entries(6)->set_column(3);  // The neighbours of lane 3 in the opposite order.
  fragment.mutable_entries(7)->set_column(2);
  const auto grids = MakeGrids(fragment, "A");
  ASSERT_THAT(grids, IsOk());
  EXPECT_THAT(Labels(grids->front()), ElementsAre("T0:{a0}", "T0:{a1}", "T2:{a0}", "T2:{a1}",
                                                  "T1:{a0}", "T1:{a1}", "T3:{a1}", "T3:{a0}"));
}

TEST(FragmentGridTest, EveryHolderIsNamed) {
  v1::DescribeFragmentResponse fragment = LineFragment(4, 2, false);
  const v1::DescribeFragmentResponse once = fragment;
  fragment.clear_entries();
  for (int lane = 0; lane < 4; ++lane) {
    for (int i = 0; i < 4; ++i) {  // Elements 2 and 3 repeat 0 and 1.
      v1::FragmentEntry& entry = *fragment.add_entries();
      entry = once.entries(2 * lane + i % 2);
      entry.set_element(i);
    }
  }
  const auto grids = MakeGrids(fragment, "A");
  ASSERT_THAT(grids, IsOk());
  EXPECT_EQ(Labels(grids->front()).front(), "T0:{a0,a1},{a2,a3}");
}

TEST(FragmentGridTest, MetadataIsBitsAndSparseOperandsSaySo) {
  v1::DescribeFragmentResponse fragment = LineFragment(4, 2, false);
  fragment.set_operand(v1::FRAGMENT_OPERAND_METADATA);
  fragment.set_element_bits(4);
  fragment.set_selector(1);
  auto grids = MakeGrids(fragment, "metadata");
  ASSERT_THAT(grids, IsOk());
  EXPECT_EQ(grids->front().title, "metadata: 2 rows x 4 groups, 4 bits each, selector 1");
  EXPECT_EQ(Labels(grids->front()).front(), "T0:[7:0]");
  fragment = LineFragment(4, 2, false);
  fragment.mutable_instruction()->set_sparsity("2:4");
  fragment.mutable_instruction()->set_k(8);
  fragment.set_element_bits(12);
  fragment.set_container_shift(3);
  grids = MakeGrids(fragment, "A");
  ASSERT_THAT(grids, IsOk());
  EXPECT_THAT(grids->front().title, HasSubstr("lanes, 2:4 of k = 8, bits 3 to 14 of a byte each"));
}

TEST(FragmentGridTest, ProductsHaveGridsOfTheirOwn) {
  v1::DescribeFragmentResponse fragment = LineFragment(4, 2, false);
  fragment.set_columns(2);
  for (v1::FragmentEntry& entry : *fragment.mutable_entries()) {
    entry.set_product(entry.column() / 2);
    entry.set_column(entry.column() % 2);
  }
  const auto grids = MakeGrids(fragment, "A");
  ASSERT_THAT(grids, IsOk());
  ASSERT_EQ(grids->size(), 2u);
  EXPECT_THAT((*grids)[1].title, HasSubstr(", product 1"));
  EXPECT_THAT(Labels((*grids)[1]), ElementsAre("T2:{a0,a1}", "T3:{a0,a1}"));
}

TEST(FragmentGridTest, RefusesAnswersThatAreNoFragment) {
  EXPECT_FALSE(MakeGrids({}, "A").ok());
  v1::DescribeFragmentResponse fragment = LineFragment(4, 2, false);
  fragment.mutable_entries(3)->set_row(2);
  EXPECT_FALSE(MakeGrids(fragment, "A").ok());
  fragment = LineFragment(4, 2, false);
  fragment.set_rows(1 << 30);
  fragment.set_columns(1 << 30);
  EXPECT_FALSE(MakeGrids(fragment, "A").ok());
  fragment = LineFragment(4, 2, false);
  fragment.mutable_entries(3)->set_product(1 << 30);
  EXPECT_FALSE(MakeGrids(fragment, "A").ok());
}

TEST(FragmentDrawingTest, TextLinesUp) {
  const auto grids = MakeGrids(LineFragment(4, 2, false), "A");
  ASSERT_THAT(grids, IsOk());
  EXPECT_EQ(GridText(grids->front(), false),
            "A: 2 x 4 f16, 1 register in each of 4 lanes\n"
            "\n"
            "   0..1        2..3\n"
            "0  T0:{a0,a1}  T2:{a0,a1}\n"
            "1  T1:{a0,a1}  T3:{a0,a1}\n");
  EXPECT_THAT(GridText(grids->front(), true), HasSubstr("\n0  \x1b[31mT0:{a0,a1}\x1b[0m  "));
}

TEST(FragmentDrawingTest, WideGridsAreCutIntoEvenParts) {
  const auto grids = MakeGrids(LineFragment(64, 2, false), "A");
  ASSERT_THAT(grids, IsOk());
  std::istringstream lines(GridText(grids->front(), false));
  std::string line;
  std::getline(lines, line);
  int count = 0;
  size_t longest = 0;
  for (; std::getline(lines, line); ++count) longest = std::max(longest, line.size());
  EXPECT_EQ(count, 4 * 4);  // 32 cells of 11 characters, 8 per line; each part has 4 lines.
  EXPECT_LE(longest, 120u);
}

TEST(FragmentDrawingTest, SvgStandsAlone) {
  const auto grids = MakeGrids(LineFragment(4, 2, false), "A");
  ASSERT_THAT(grids, IsOk());
  const std::string svg = GridsSvg("line<&>", *grids);
  EXPECT_THAT(svg, StartsWith("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\""));
  EXPECT_THAT(svg, HasSubstr("<title>line&lt;&amp;&gt;</title>"));
  EXPECT_THAT(svg, HasSubstr("class=\"label\">T3:{a0,a1}</text>"));
  EXPECT_THAT(svg, HasSubstr("class=\"heading\">2..3</text>"));
  EXPECT_THAT(svg, Not(HasSubstr("href")));
  // Lanes differ in colour: the page, and one rectangle for each of four cells.
  std::set<std::string> fills;
  size_t rectangles = 0;
  for (size_t at = svg.find("<rect"); at != std::string::npos; at = svg.find("<rect", at + 1)) {
    ++rectangles;
    fills.insert(svg.substr(svg.find("fill=", at), 14));
  }
  EXPECT_EQ(rectangles, 5u);
  EXPECT_GE(fills.size(), 4u);
}

// 2 x 4 halves and more, in the given order: element (i, j) is 10 i + j + 0.5.
NpyArray Halves(int64_t rows, int64_t columns, v1::Order order) {
  NpyArray array = {.type = v1::ELEMENT_TYPE_F32, .shape = {rows, columns}, .order = order};
  const bool is_by_columns = order == v1::ORDER_COLUMN_MAJOR;
  for (int64_t line = 0; line < (is_by_columns ? columns : rows); ++line) {
    for (int64_t i = 0; i < (is_by_columns ? rows : columns); ++i) {
      const int64_t row = is_by_columns ? i : line;
      const int64_t column = is_by_columns ? line : i;
      const float value = static_cast<float>(10 * row + column) + 0.5f;
      array.data.append(reinterpret_cast<const char*>(&value), sizeof(value));
    }
  }
  return array;
}

TEST(FragmentValuesTest, StandWhereTheFragmentHoldsThem) {
  const v1::DescribeFragmentResponse fragment = LineFragment(4, 2, false);
  for (const v1::Order order : {v1::ORDER_ROW_MAJOR, v1::ORDER_COLUMN_MAJOR}) {
    const auto values = ValuesOf(fragment, Halves(3, 5, order));
    ASSERT_THAT(values, IsOk());
    const auto grids = MakeGrids(fragment, "A", &*values);
    ASSERT_THAT(grids, IsOk());
    const FragmentCell& cell = grids->front().cells[1][1];
    EXPECT_THAT(cell.values, ElementsAre("12.5", "13.5"));
    EXPECT_EQ(cell.hint,
              "[1, 2] = 12.5, 0x4a40: a0 of lane 3, bits 15 to 0 of register 0\n"
              "[1, 3] = 13.5, 0x4ac0: a1 of lane 3, bits 31 to 16 of register 0");
    const std::string svg = GridsSvg("values", *grids);
    EXPECT_THAT(svg, HasSubstr("class=\"value\">12.5 13.5</text>"));
    EXPECT_THAT(svg, HasSubstr("<title>[1, 2] = 12.5, 0x4a40: a0 of lane 3"));
  }
}

TEST(FragmentValuesTest, WithoutAMatrixThePlacesAreTold) {
  const auto grids = MakeGrids(LineFragment(4, 2, false), "A");
  ASSERT_THAT(grids, IsOk());
  EXPECT_THAT(grids->front().cells[0][0].values, testing::IsEmpty());
  EXPECT_THAT(GridsSvg("places", *grids),
              HasSubstr("<title>[0, 0]: a0 of lane 0, bits 15 to 0 of register 0\n[0, 1]: a1"));
}

TEST(FragmentValuesTest, RefusesWhatDoesNotFit) {
  v1::DescribeFragmentResponse fragment = LineFragment(4, 2, false);
  EXPECT_THAT(ValuesOf(fragment, Halves(2, 3, v1::ORDER_ROW_MAJOR)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "--values: got 2 x 3, want a matrix of 2 x 4 or more"));
  NpyArray vector = Halves(1, 8, v1::ORDER_ROW_MAJOR);
  vector.shape = {8};
  EXPECT_THAT(ValuesOf(fragment, vector), StatusIs(absl::StatusCode::kInvalidArgument,
                                                   HasSubstr("got an array of 1 dimensions")));
  fragment.set_type(v1::ELEMENT_TYPE_UNSPECIFIED);
  EXPECT_THAT(ValuesOf(fragment, Halves(2, 4, v1::ORDER_ROW_MAJOR)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("for metadata")));
}

// A server whose instruction has the operands that the test gives; it records the requests.
FakeScript FragmentScript(const v1::Instruction& instruction, std::vector<std::string>& asked) {
  FakeScript script;
  script.describe_fragment = [&asked, instruction](const v1::DescribeFragmentRequest& request,
                                                   v1::DescribeFragmentResponse& response) {
    response = LineFragment(4, 2, false);
    *response.mutable_instruction() = instruction;
    response.mutable_instruction()->set_name(request.instruction());
    response.set_operand(request.operand());
    asked.push_back(absl::StrCat(v1::FragmentOperand_Name(request.operand()).substr(17), " ",
                                 request.selector()));
    return grpc::Status::OK;
  };
  return script;
}

TEST(GemmctlFragmentTest, AsksForEveryOperandThatThereIs) {
  v1::Instruction instruction;
  instruction.set_lanes(4);
  instruction.set_b_registers(2);
  std::vector<std::string> asked;
  {
    const FakeServer server(FragmentScript(instruction, asked));
    const Outcome run = RunGemmctl({"fragment", "dense"}, server.address());
    EXPECT_THAT(run.out, StartsWith("dense\n\nA: 2 x 4"));
    EXPECT_THAT(run.out, HasSubstr("\nD, and C alike: 2 x 4"));
    EXPECT_THAT(run.out, Not(HasSubstr("\x1b")));
    EXPECT_THAT(asked, ElementsAre("A 0", "B 0", "D 0"));
    asked.clear();
    EXPECT_EQ(RunGemmctl({"fragment", "dense", "--selector", "1"}, server.address()).code,
              ExitCode::kRefused);
    asked.clear();
    RunGemmctl({"fragment", "dense", "--operand", "c"}, server.address());
    EXPECT_THAT(asked, ElementsAre("C 0"));
    asked.clear();
    const Outcome json = RunGemmctl({"fragment", "dense", "--json"}, server.address());
    EXPECT_THAT(asked, ElementsAre("A 0", "B 0", "C 0", "D 0"));
    EXPECT_EQ(std::count(json.out.begin(), json.out.end(), '\n'), 4);
    asked.clear();
  }
  instruction.set_b_registers(0);
  instruction.set_sparsity("2:4");
  instruction.set_d_type(v1::ELEMENT_TYPE_F32);
  const FakeServer server(FragmentScript(instruction, asked));
  const Outcome run = RunGemmctl({"fragment", "sparse", "--selector", "1"}, server.address());
  EXPECT_THAT(run.out, StartsWith("sparse (B is read from shared memory)\n"));
  EXPECT_THAT(asked, ElementsAre("A 0", "METADATA 1", "C 0", "D 0"));
}

TEST(GemmctlFragmentTest, WritesAFile) {
  std::vector<std::string> asked;
  v1::Instruction instruction;
  instruction.set_lanes(4);
  const FakeServer server(FragmentScript(instruction, asked));
  const ScratchFolder folder;
  const std::string path = folder.Path("f.svg");
  const Outcome run = RunGemmctl({"fragment", "dense", "--svg", path}, server.address());
  EXPECT_EQ(run.code, ExitCode::kOk) << run.err;
  EXPECT_EQ(run.out, "");
  std::ostringstream written;
  written << std::ifstream(path).rdbuf();
  EXPECT_EQ(written.str(), RunGemmctl({"fragment", "dense", "--svg", "-"}, server.address()).out);
  EXPECT_THAT(written.str(), StartsWith("<svg"));
  const Outcome unwritable =
      RunGemmctl({"fragment", "dense", "--svg", folder.Path("no/f.svg")}, server.address());
  EXPECT_EQ(unwritable.code, ExitCode::kUsage);

  const std::string matrix = folder.Path("m.npy");
  ASSERT_THAT(WriteNpyFile(Halves(2, 4, v1::ORDER_ROW_MAJOR), matrix), IsOk());
  const Outcome drawn = RunGemmctl(
      {"fragment", "dense", "--operand", "a", "--values", matrix, "--svg", "-"}, server.address());
  EXPECT_EQ(drawn.code, ExitCode::kOk) << drawn.err;
  EXPECT_THAT(drawn.out, HasSubstr(">12.5 13.5</text>"));
  const Outcome undrawn =
      RunGemmctl({"fragment", "dense", "--operand", "a", "--values", matrix}, server.address());
  EXPECT_EQ(undrawn.code, ExitCode::kUsage);
}

}  // namespace
}  // namespace gemmd
