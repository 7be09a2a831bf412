// SPDX-License-Identifier: Apache-2.0
//
// Headers of .npy files, most of them hostile.
#include "client/matrix/npy_header.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "tests/client/matrix/npy_text.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::string MessageOf(absl::string_view dict) {
  const auto header = ParseNpyHeader(dict);
  EXPECT_TRUE(header.ok() || absl::IsInvalidArgument(header.status())) << dict;
  return std::string(header.status().message());
}

TEST(NpyHeaderTest, ReadsWhatNumpyWrites) {
  // Taken from numpy 2.4.6.
  const auto header = ParseNpyHeader(
      "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }                                 "
      "         "
      "                \n");
  ASSERT_THAT(header, IsOk());
  EXPECT_EQ(header->byte_order, '<');
  EXPECT_EQ(header->kind, 'f');
  EXPECT_EQ(header->item_bytes, 4);
  EXPECT_FALSE(header->fortran_order);
  EXPECT_THAT(header->shape, ElementsAre(2, 3));
}

TEST(NpyHeaderTest, ReadsAllShapesAndKeyOrders) {
  EXPECT_THAT(ParseNpyHeader("{'descr':'|b1','fortran_order':True,'shape':()}\n")->shape,
              IsEmpty());
  EXPECT_THAT(ParseNpyHeader("{'shape': (3,), 'fortran_order': True, 'descr': \"|V1\"}\n")->shape,
              ElementsAre(3));
  EXPECT_THAT(
      ParseNpyHeader(
          "{'descr': '>i4', 'shape': (1, 0, 9223372036854775807,), 'fortran_order': True,}\n")
          ->shape,
      ElementsAre(0 + 1, 0, INT64_MAX));
}

TEST(NpyHeaderTest, RefusesEverythingElse) {
  const std::string good = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)}";
  EXPECT_THAT(ParseNpyHeader(good + "\n"), IsOk());
  for (const std::string& bad : {
           std::string(),
           std::string("\n"),
           good,                        // No line feed.
           absl::StrCat(good, " "),     // No line feed either.
           absl::StrCat(good, "\n\n"),  // Something after it.
           absl::StrCat(good, "\n", good),
           absl::StrCat(good, "x\n"),
           absl::StrCat(" \t", good, "\n"),
           std::string("{}\n"),
           std::string("[]\n"),
           std::string("{'descr': '<f4', 'fortran_order': False}\n"),
           std::string("{'descr': '<f4', 'shape': (2, 3)}\n"),
           std::string("{'fortran_order': False, 'shape': (2, 3)}\n"),
           std::string("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), 'more': 1}\n"),
           std::string(
               "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)}\n"),
           std::string(
               "{'shape': (2, 3), 'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)}\n"),
           std::string("{'descr': '<f4' 'fortran_order': False, 'shape': (2, 3)}\n"),
           std::string("{'descr': '<f4',, 'fortran_order': False, 'shape': (2, 3)}\n"),
           std::string("{'descr' '<f4', 'fortran_order': False, 'shape': (2, 3)}\n"),
           std::string("{descr: '<f4', 'fortran_order': False, 'shape': (2, 3)}\n"),
           std::string("{'descr': '<f4', 'fortran_order': false, 'shape': (2, 3)}\n"),
           std::string("{'descr': '<f4', 'fortran_order': 0, 'shape': (2, 3)}\n"),
           std::string("{'descr': '<f4', 'fortran_order': False, 'shape': [2, 3]}\n"),
           std::string("{'descr': '<f4', 'fortran_order': False, 'shape': 2}\n"),
           std::string("{'descr': '<f4', 'fortran_order': False, 'shape': (2)}\n"),
           std::string("{'descr': '<f4', 'fortran_order': False, 'shape': (2 3)}\n"),
           std::string("{'descr': '<f4', 'fortran_order': False, 'shape': (2,, 3)}\n"),
           std::string("{'descr': '<f4', 'fortran_order': False, 'shape': (,)}\n"),
           std::string("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3}\n"),
           std::string("{'descr': '<f4', 'fortran_order': False, 'shape': (2, (3,))}\n"),
           std::string("{'descr': '<f4', 'fortran_order': False, 'shape': (-2, 3)}\n"),
           std::string("{'descr': '<f4', 'fortran_order': False, 'shape': (2.0, 3)}\n"),
           std::string("{'descr': '<f4', 'fortran_order': False, 'shape': (0x2, 3)}\n"),
           std::string("{'descr': '<f4', 'fortran_order': False, 'shape': (2L, 3L)}\n"),
           std::string(
               "{'descr': '<f4', 'fortran_order': False, 'shape': (9223372036854775808,)}\n"),
           std::string("{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, 1, 1)}\n"),
           std::string("{'descr': '<f4\\n', 'fortran_order': False, 'shape': (2, 3)}\n"),
           std::string("{'descr': '<f\xc3\xa9', 'fortran_order': False, 'shape': (2, 3)}\n"),
           std::string("{'descr': '<f4\", 'fortran_order': False, 'shape': (2, 3)}\n"),
           std::string("{'descr': '<f4"),
           std::string("{'descr': ''"),
           std::string("{'descr': '<f', 'fortran_order': False, 'shape': (2, 3)}\n"),
           std::string("{'descr': 'f4', 'fortran_order': False, 'shape': (2, 3)}\n"),
           std::string("{'descr': '<f0', 'fortran_order': False, 'shape': (2, 3)}\n"),
           std::string("{'descr': '<f-4', 'fortran_order': False, 'shape': (2, 3)}\n"),
           std::string("{'descr': '<f1234567', 'fortran_order': False, 'shape': (2, 3)}\n"),
           std::string("{'descr': [('x', '<f4')], 'fortran_order': False, 'shape': (2, 3)}\n"),
           std::string("{'descr': {'descr': {'descr': '<f4'}}}\n"),
           absl::StrCat(good, "\n", absl::string_view("\0", 1)),
       }) {
    EXPECT_THAT(MessageOf(bad), HasSubstr("npy header, byte ")) << bad;
  }
}

TEST(NpyHeaderTest, NamesThePlaceAndTheReason) {
  EXPECT_EQ(MessageOf("{'descr': '<f4', 'fortran_order': Maybe, 'shape': (2, 3)}\n"),
            "npy header, byte 34: got \"Maybe, 'shape': \", want True or False");
  EXPECT_EQ(MessageOf("{'descr': [('a', '<f4')]}\n"),
            "npy header, byte 10: got \"[('a', '<f4')]}\\n\", want a plain element type "
            "(structured arrays are not "
            "matrices)");
  EXPECT_EQ(MessageOf("{'descr': '<f4'"), "npy header, byte 15: got the end, want ',' or '}'");
}

TEST(NpyHeaderTest, DeepNestingIsNoRecursion) {
  const std::string nested = absl::StrCat("{'shape': ", std::string(9000, '('));
  EXPECT_THAT(MessageOf(nested), HasSubstr("want an extent"));
}

TEST(NpyHeaderTest, BoundsTheLengthBeforeReading) {
  std::string text = RawNpyHeader(2, "");
  text.replace(8, 4, "\xff\xff\xff\xff");
  EXPECT_THAT(ReadNpyText(text),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "npy header length: got 4294967295 bytes, want at most 10000"));
  const std::string long_dict = absl::StrCat(
      "{'descr': '<f4', 'fortran_order': False, 'shape': (0, 3)}", std::string(20000, ' '), "\n");
  EXPECT_THAT(
      ReadNpyText(RawNpyHeader(1, long_dict)),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("npy header length: got 20058")));
}

// The longest header that is taken, and one that is a byte longer.
TEST(NpyHeaderTest, TakesHeadersOfTenThousandBytes) {
  const std::string dict = "{'descr': '<f4', 'fortran_order': False, 'shape': (0, 3)}";
  for (const int version : {1, 2, 3}) {
    const auto text = [&](size_t bytes) {
      return RawNpyHeader(version,
                          absl::StrCat(dict, std::string(bytes - dict.size() - 1, ' '), "\n"));
    };
    EXPECT_THAT(ReadNpyText(text(10000)), IsOk()) << version;
    EXPECT_THAT(ReadNpyText(text(10001)),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         "npy header length: got 10001 bytes, want at most 10000"))
        << version;
  }
}

TEST(NpyHeaderTest, KnowsTheThreeFormats) {
  const std::string dict = "{'descr': '<f4', 'fortran_order': False, 'shape': (0, 3)}\n";
  for (int version : {1, 2, 3})
    EXPECT_THAT(ReadNpyText(RawNpyHeader(version, dict)), IsOk()) << version;
  EXPECT_THAT(
      ReadNpyText(RawNpyHeader(4, dict)),
      StatusIs(absl::StatusCode::kInvalidArgument, "npy version: got 4.0, want 1.0, 2.0 or 3.0"));
  EXPECT_THAT(ReadNpyText(RawNpyHeader(0, dict)), StatusIs(absl::StatusCode::kInvalidArgument));
  std::string minor = RawNpyHeader(1, dict);
  minor[7] = 1;
  EXPECT_THAT(ReadNpyText(minor), StatusIs(absl::StatusCode::kInvalidArgument,
                                           "npy version: got 1.1, want 1.0, 2.0 or 3.0"));
  EXPECT_THAT(ReadNpyText("PK\x03\x04 not an array"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("npy magic: got \"PK")));
}

TEST(NpyHeaderTest, RefusesEveryTruncation) {
  const std::string text =
      RawNpyHeader(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)}\n") +
      std::string(24, 'x');
  ASSERT_THAT(ReadNpyText(text), IsOk());
  for (size_t length = 0; length < text.size(); ++length) {
    EXPECT_THAT(ReadNpyText(absl::string_view(text).substr(0, length)),
                StatusIs(absl::StatusCode::kInvalidArgument))
        << length;
  }
}

TEST(NpyHeaderTest, PrintsWhatItReads) {
  NpyHeader header;
  header.byte_order = '|';
  header.kind = 'V';
  header.item_bytes = 1;
  header.fortran_order = true;
  for (const std::vector<int64_t>& shape :
       std::vector<std::vector<int64_t>>{{3}, {2, 3}, {0, 0}, {INT64_MAX, 1, INT64_MAX}}) {
    header.shape = shape;
    const std::string text = PrintNpyHeader(header);
    EXPECT_EQ(text.size() % 64, 0u);
    EXPECT_EQ(text.back(), '\n');
    const auto parsed = ParseNpyHeader(absl::string_view(text).substr(10));
    ASSERT_THAT(parsed, IsOk());
    EXPECT_EQ(parsed->shape, shape);
    EXPECT_EQ(parsed->kind, 'V');
    EXPECT_TRUE(parsed->fortran_order);
  }
}

}  // namespace
}  // namespace gemmd
