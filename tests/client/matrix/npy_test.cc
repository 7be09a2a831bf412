// SPDX-License-Identifier: Apache-2.0
//
// Arrays of .npy files: types, packing, orders, false sizes.
#include "client/matrix/npy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gemmd/v1/tensors.pb.h"
#include "tests/client/matrix/npy_text.h"
#include "tests/testing/scratch_folder.h"
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

// The longest accepted header, and one that is a byte longer.
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

TEST(NpyTest, ReadsPlainTypesAsTheyAre) {
  const struct {
    const char* descr;
    v1::ElementType type;
    size_t bytes;
  } cases[] = {{"<f8", v1::ELEMENT_TYPE_F64, 8},  {"<f4", v1::ELEMENT_TYPE_F32, 4},
               {"<f2", v1::ELEMENT_TYPE_F16, 2},  {"<V2", v1::ELEMENT_TYPE_BF16, 2},
               {"<f1", v1::ELEMENT_TYPE_E5M2, 1}, {"|i1", v1::ELEMENT_TYPE_S8, 1},
               {"|u1", v1::ELEMENT_TYPE_U8, 1},   {"<i4", v1::ELEMENT_TYPE_S32, 4}};
  for (const auto& row : cases) {
    const std::string data =
        std::string("abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGHIJKLMN").substr(0, 6 * row.bytes);
    const auto array = ReadNpyText(NpyFileText(row.descr, "(2, 3)", data));
    ASSERT_THAT(array, IsOk()) << row.descr;
    EXPECT_EQ(array->type, row.type);
    EXPECT_EQ(array->order, v1::ORDER_ROW_MAJOR);
    EXPECT_THAT(array->shape, ElementsAre(2, 3));
    EXPECT_EQ(array->data, data);
  }
}

TEST(NpyTest, SwapsBigEndianFiles) {
  EXPECT_EQ(ReadNpyText(NpyFileText(">f4", "(1, 2)", "abcdefgh"))->data, "dcbahgfe");
  EXPECT_EQ(ReadNpyText(NpyFileText(">f8", "(1, 1)", "abcdefgh"))->data, "hgfedcba");
  EXPECT_EQ(ReadNpyText(NpyFileText(">f2", "(1, 2)", "abcd"))->data, "badc");
  EXPECT_EQ(ReadNpyText(NpyFileText(">i1", "(1, 2)", "ab"))->data, "ab");
}

TEST(NpyTest, FortranOrderIsColumnMajor) {
  const auto array = ReadNpyText(NpyFileText("|u1", "(2, 3)", "abcdef", true));
  ASSERT_THAT(array, IsOk());
  EXPECT_EQ(array->order, v1::ORDER_COLUMN_MAJOR);
  EXPECT_EQ(array->data, "abcdef");
}

TEST(NpyTest, PutsFortranBatchesInCOrder) {
  // Element (b, i, j) lies at b + 2 * (i + 2 * j).
  const auto array = ReadNpyText(NpyFileText("|u1", "(2, 2, 3)", "abcdefghijkl", true));
  ASSERT_THAT(array, IsOk());
  EXPECT_EQ(array->order, v1::ORDER_ROW_MAJOR);
  EXPECT_EQ(array->data, "aeicgkbfjdhl");
}

TEST(NpyTest, AsksForTheTypeWhereTheFileCannotSay) {
  const std::string file = NpyFileText("|V1", "(1, 2)", "\x01\x02");
  EXPECT_THAT(ReadNpyText(file),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "npy descr: got '|V1', which may be e4m3, e5m2, e3m2, e2m3, e2m1, s4, u4: "
                       "want its type named"));
  EXPECT_EQ(ReadNpyText(file, v1::ELEMENT_TYPE_E4M3)->data, "\x01\x02");
  EXPECT_EQ(ReadNpyText(NpyFileText("<V1", "(1, 2)", "\x01\x02"), v1::ELEMENT_TYPE_E5M2)->type,
            v1::ELEMENT_TYPE_E5M2);
}

TEST(NpyTest, RefusesTypesThatDoNotFit) {
  EXPECT_THAT(
      ReadNpyText(NpyFileText("<f4", "(1, 1)", "abcd"), v1::ELEMENT_TYPE_BF16),
      StatusIs(absl::StatusCode::kInvalidArgument,
               "npy descr: got '<f4', want '<V2' or '<u2' for type bf16 (the file is of f32: "
               "gemmctl convert --type bf16 makes another one)"));
  EXPECT_THAT(
      ReadNpyText(NpyFileText("<i8", "(1, 1)", "abcdefgh")),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("npy descr: got '<i8', want f8, f4")));
  for (const char* descr : {"<c8", "<U4", "|O8", "|S5", "<M8", "<V3", "|V16", "<f3", "<f16"}) {
    EXPECT_THAT(ReadNpyText(NpyFileText(descr, "(0, 1)", "")),
                StatusIs(absl::StatusCode::kInvalidArgument))
        << descr;
  }
}

TEST(NpyTest, TakesRawBitsAndNarrowerReadings) {
  EXPECT_EQ(ReadNpyText(NpyFileText("<f4", "(1, 1)", "abcd"), v1::ELEMENT_TYPE_TF32)->type,
            v1::ELEMENT_TYPE_TF32);
  EXPECT_EQ(ReadNpyText(NpyFileText("<u2", "(1, 1)", "ab"), v1::ELEMENT_TYPE_BF16)->type,
            v1::ELEMENT_TYPE_BF16);
  EXPECT_EQ(ReadNpyText(NpyFileText("<u2", "(1, 1)", "ab"), v1::ELEMENT_TYPE_F16)->type,
            v1::ELEMENT_TYPE_F16);
  EXPECT_EQ(ReadNpyText(NpyFileText("|u1", "(1, 1)", "a"), v1::ELEMENT_TYPE_E4M3)->type,
            v1::ELEMENT_TYPE_E4M3);
  EXPECT_EQ(ReadNpyText(NpyFileText("|i1", "(1, 2)", "\xff\x07"), v1::ELEMENT_TYPE_S4)->data,
            "\x7f");
}

TEST(NpyTest, PacksNarrowTypesLowBitsFirst) {
  // Each line starts on a byte.
  EXPECT_EQ(
      ReadNpyText(NpyFileText("|V1", "(2, 3)", "\x01\x02\x03\x04\x05\x06"), v1::ELEMENT_TYPE_U4)
          ->data,
      "\x21\x03\x54\x06");
  EXPECT_EQ(ReadNpyText(NpyFileText("|V1", "(2, 3)", "\x01\x02\x03\x04\x05\x06", true),
                        v1::ELEMENT_TYPE_U4)
                ->data,
            "\x21\x43\x65");
  // -2 as ml_dtypes writes it (0x0e) and with its sign repeated (0xfe).
  EXPECT_EQ(ReadNpyText(NpyFileText("|V1", "(1, 2)", "\x0e\xfe"), v1::ELEMENT_TYPE_S4)->data,
            "\xee");
  // 0b111111, 0b000001, 0b100000, 0b001111: 24 bits.
  EXPECT_EQ(
      ReadNpyText(NpyFileText("|V1", "(1, 4)", "\x3f\x01\x20\x0f"), v1::ELEMENT_TYPE_E3M2)->data,
      std::string("\x7f\x00\x3e", 3));
  EXPECT_EQ(
      ReadNpyText(NpyFileText("|b1", "(1, 10)", std::string("\1\0\1\1\0\0\0\1\0\1", 10)))->data,
      "\x8d\x02");
}

TEST(NpyTest, RefusesValuesThatTheTypeLacks) {
  const struct {
    const char* descr;
    v1::ElementType type;
    const char* bad;
  } cases[] = {{"|b1", v1::ELEMENT_TYPE_B1, "\x02"},   {"|V1", v1::ELEMENT_TYPE_U4, "\x10"},
               {"|V1", v1::ELEMENT_TYPE_S4, "\x10"},   {"|V1", v1::ELEMENT_TYPE_S4, "\xf7"},
               {"|V1", v1::ELEMENT_TYPE_E2M1, "\x10"}, {"|V1", v1::ELEMENT_TYPE_E2M3, "\x40"},
               {"|V1", v1::ELEMENT_TYPE_E3M2, "\xff"}};
  for (const auto& row : cases) {
    EXPECT_THAT(
        ReadNpyText(NpyFileText(row.descr, "(1, 2)", absl::StrCat("\x01", row.bad)), row.type),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("npy element 1: got byte ")));
  }
}

TEST(NpyTest, ReadsVectorsBatchesAndNothing) {
  EXPECT_THAT(ReadNpyText(NpyFileText("<f4", "(3,)", std::string(12, 'x')))->shape, ElementsAre(3));
  EXPECT_THAT(ReadNpyText(NpyFileText("<f4", "(2, 1, 3)", std::string(24, 'x')))->shape,
              ElementsAre(2, 1, 3));
  EXPECT_EQ(ReadNpyText(NpyFileText("|b1", "(2, 1, 3)", std::string(6, '\1')))->data, "\x07\x07");
  for (const char* shape : {"(0,)", "(0, 3)", "(3, 0)", "(0, 0)", "(0, 4, 4)", "(4, 0, 4)",
                            "(4, 4, 0)", "(4611686018427387904, 0, 4611686018427387904)"}) {
    for (const bool fortran : {false, true}) {
      EXPECT_EQ(ReadNpyText(NpyFileText("|b1", shape, "", fortran))->data, "") << shape;
      EXPECT_EQ(ReadNpyText(NpyFileText("<f8", shape, "", fortran))->data, "") << shape;
    }
  }
  EXPECT_THAT(
      ReadNpyText(NpyFileText("<f4", "()", "abcd")),
      StatusIs(absl::StatusCode::kInvalidArgument, "npy shape: got 0 dimensions, want 1 to 3"));
}

TEST(NpyTest, BelievesNoSize) {
  // If these sizes were allocated, the test would fail here.
  for (const char* shape :
       {"(1099511627776,)", "(4611686018427387904,)", "(1048576, 1048576, 1024)"}) {
    EXPECT_THAT(
        ReadNpyText(NpyFileText("|u1", shape, "abc")),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("npy data: got 3 bytes, want ")))
        << shape;
  }
  for (const char* shape :
       {"(4611686018427387904, 2)", "(9223372036854775807,)", "(3037000500, 3037000500)"}) {
    EXPECT_THAT(ReadNpyText(NpyFileText("<f8", shape, "abc")),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         "npy shape: got a size of 2^63 bytes or more, want "
                         "less"))
        << shape;
  }
}

TEST(NpyTest, ReadsArraysOneAfterTheOther) {
  std::string text = NpyFileText("|u1", "(1, 2)", "ab") + NpyFileText("|u1", "(1, 1)", "c");
  std::FILE* const file = fmemopen(text.data(), text.size(), "rb");
  EXPECT_EQ(ReadNpy(file, v1::ELEMENT_TYPE_UNSPECIFIED)->data, "ab");
  EXPECT_EQ(ReadNpy(file, v1::ELEMENT_TYPE_UNSPECIFIED)->data, "c");
  EXPECT_THAT(ExpectEndOfFile(file), IsOk());
  std::fclose(file);
}

// Every type, order and dimension that can be written.
TEST(NpyTest, ReadsBackWhatItWrites) {
  for (int i = 1; i < v1::ElementType_ARRAYSIZE; ++i) {
    const auto type = static_cast<v1::ElementType>(i);
    for (const std::vector<int64_t>& shape :
         std::vector<std::vector<int64_t>>{{5}, {3, 5}, {1, 1}, {0, 4}, {2, 3, 5}, {2, 0, 3}}) {
      for (const v1::Order order : {v1::ORDER_ROW_MAJOR, v1::ORDER_COLUMN_MAJOR}) {
        NpyArray array;
        array.type = type;
        array.shape = shape;
        array.order = shape.size() == 1 ? v1::ORDER_ROW_MAJOR : order;
        const int64_t columns = shape.back();
        const int64_t rows = shape.size() > 1 ? shape[shape.size() - 2] : 1;
        const int64_t batch = shape.size() > 2 ? shape[0] : 1;
        const bool by_columns = array.order == v1::ORDER_COLUMN_MAJOR;
        const int64_t length = by_columns ? rows : columns;
        const int64_t lines = batch * (by_columns ? columns : rows);
        const int64_t line_bytes = (length * ElementBits(type) + 7) / 8;
        for (int64_t line = 0; line < lines; ++line) {
          for (int64_t byte = 0; byte < line_bytes; ++byte)
            array.data.push_back(static_cast<char>(line * 37 + byte * 11));
          // Bits after the last element are zero.
          const int64_t used = length * ElementBits(type) % 8;
          if (used != 0)
            array.data.back() = static_cast<char>(array.data.back() & ((1 << used) - 1));
        }
        const auto again = ReadNpyText(WriteNpyText(array), type);
        ASSERT_THAT(again, IsOk()) << ElementTypeName(type);
        EXPECT_EQ(again->shape, shape);
        EXPECT_EQ(again->type, type);
        if (by_columns && shape.size() == 3) {
          // Written in C order: the same elements in another arrangement.
          EXPECT_EQ(again->order, v1::ORDER_ROW_MAJOR);
          EXPECT_EQ(WriteNpyText(*again), WriteNpyText(array));
        } else {
          EXPECT_EQ(again->order, array.order);
          EXPECT_EQ(again->data, array.data);
        }
      }
    }
  }
}

TEST(NpyTest, WritesBytesThatNumpyReads) {
  NpyArray array = {
      .type = v1::ELEMENT_TYPE_BF16, .shape = {1, 2}, .order = v1::ORDER_ROW_MAJOR, .data = "abcd"};
  EXPECT_EQ(WriteNpyText(array),
            absl::StrCat(absl::string_view("\x93NUMPY\x01\x00\x76\x00", 10),
                         "{'descr': '<V2', 'fortran_order': False, 'shape': (1, 2), }",
                         std::string(58, ' '), "\n", "abcd"));
  array = {.type = v1::ELEMENT_TYPE_S4,
           .shape = {3, 1},
           .order = v1::ORDER_COLUMN_MAJOR,
           .data = "\x7e\x08"};
  EXPECT_EQ(WriteNpyText(array).substr(128), "\x0e\x07\x08");
  EXPECT_THAT(WriteNpyText(array),
              HasSubstr("{'descr': '|V1', 'fortran_order': True, 'shape': (3, 1), }"));
}

// A real file, whose length is known.
class NpyFileTest : public testing::Test {
 protected:
  void Write(absl::string_view text) const {
    std::FILE* const file = std::fopen(path_.c_str(), "wb");
    std::fwrite(text.data(), 1, text.size(), file);
    std::fclose(file);
  }

  ScratchFolder folder_;
  std::string path_ = folder_.Path("array.npy");
};

TEST_F(NpyFileTest, ReadsAndWrites) {
  const NpyArray array = {
      .type = v1::ELEMENT_TYPE_F16, .shape = {1, 2}, .order = v1::ORDER_ROW_MAJOR, .data = "abcd"};
  ASSERT_THAT(WriteNpyFile(array, path_), IsOk());
  EXPECT_EQ(ReadNpyFile(path_, v1::ELEMENT_TYPE_UNSPECIFIED)->data, "abcd");
}

TEST_F(NpyFileTest, ComparesTheClaimWithTheFile) {
  Write(NpyFileText("<f8", "(1048576, 1048576)", "abc"));
  EXPECT_THAT(ReadNpyFile(path_, v1::ELEMENT_TYPE_UNSPECIFIED),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       absl::StrCat(path_, ": npy data: got 3 bytes, want 8796093022208")));
  Write(NpyFileText("|u1", "(1, 2)", "abc"));
  EXPECT_THAT(ReadNpyFile(path_, v1::ELEMENT_TYPE_UNSPECIFIED),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       absl::StrCat(path_, ": npy file: got bytes after the data, want its end")));
  Write("");
  EXPECT_THAT(ReadNpyFile(path_, v1::ELEMENT_TYPE_UNSPECIFIED),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       absl::StrCat(path_, ": npy magic: got 0 bytes, want 8")));
}

TEST_F(NpyFileTest, SaysWhichFileIsMissing) {
  EXPECT_THAT(ReadNpyFile("/nonexistent/a.npy", v1::ELEMENT_TYPE_UNSPECIFIED),
              StatusIs(absl::StatusCode::kNotFound,
                       "/nonexistent/a.npy: cannot be read: No such file or directory"));
  EXPECT_FALSE(
      WriteNpyFile({.type = v1::ELEMENT_TYPE_F16, .shape = {0}, .data = {}}, "/nonexistent/a.npy")
          .ok());
  EXPECT_FALSE(ReadNpyFile("/", v1::ELEMENT_TYPE_UNSPECIFIED).ok());
}

TEST_F(NpyFileTest, NoticesAFullDisk) {
  const NpyArray array = {.type = v1::ELEMENT_TYPE_U8,
                          .shape = {1 << 20},
                          .order = v1::ORDER_ROW_MAJOR,
                          .data = std::string(1 << 20, 'x')};
  EXPECT_THAT(WriteNpyFile(array, "/dev/full"),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("No space left")));
}

TEST_F(NpyFileTest, LargeFilesAreMapped) {
  const auto written = [this](const std::string& name, v1::ElementType type, size_t bytes) {
    EXPECT_THAT(WriteNpyFile({.type = type, .shape = {2, 3}, .data = std::string(bytes, '\0')},
                             folder_.Path(name)),
                IsOk());
    return folder_.Path(name);
  };
  const std::string path = written("a.npy", v1::ELEMENT_TYPE_F32, 24);
  const auto mapped = MappedNpy::Open(path, v1::ELEMENT_TYPE_UNSPECIFIED);
  ASSERT_THAT(mapped, IsOk());
  EXPECT_TRUE(mapped->is_mapped());
  EXPECT_EQ(mapped->data().size(), 24u);
  const auto packed =
      MappedNpy::Open(written("b.npy", v1::ELEMENT_TYPE_S4, 4), v1::ELEMENT_TYPE_S4);
  ASSERT_THAT(packed, IsOk());
  EXPECT_FALSE(packed->is_mapped());
  EXPECT_EQ(packed->data().size(), 4u);
  // A truncated file is not an array.
  std::filesystem::resize_file(path, 100);
  EXPECT_THAT(MappedNpy::Open(path, v1::ELEMENT_TYPE_UNSPECIFIED),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace gemmd
