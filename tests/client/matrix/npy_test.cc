// SPDX-License-Identifier: Apache-2.0
//
// Arrays of .npy files: types, packing, orders, sizes that lie.
#include "client/matrix/npy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/matrix/npy_header.h"
#include "client/matrix/npy_storage.h"
#include "gemmd/v1/tensors.pb.h"
#include "tests/client/matrix/npy_text.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

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
  // Were these sizes allocated, the test would end here.
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
          // Written in C order: the same elements otherwise arranged.
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

}  // namespace
}  // namespace gemmd
