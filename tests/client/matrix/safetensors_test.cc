// SPDX-License-Identifier: Apache-2.0
//
// .safetensors files: what is read, what is written, and which false files are refused.
#include "client/matrix/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/testing/random_source.h"
#include "tests/testing/scratch_folder.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

constexpr char kTwoTensors[] =
    R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F16","shape":[2,1],"data_offsets":[12,16]},)"
    R"("a":{"shape":[3],"data_offsets":[0,12],"dtype":"F32"}})";

TEST(SafetensorsHeaderTest, ReadsTensorsInTheOrderOfTheirBytes) {
  const auto header = ParseSafetensorsHeader(kTwoTensors, 16);
  ASSERT_THAT(header, IsOk());
  ASSERT_EQ(header->tensors.size(), 2u);
  EXPECT_EQ(header->tensors[0].name, "a");
  EXPECT_EQ(header->tensors[0].type, "F32");
  EXPECT_THAT(header->tensors[0].shape, ElementsAre(3));
  EXPECT_EQ(header->tensors[1].name, "b");
  EXPECT_EQ(header->tensors[1].begin, 12);
  EXPECT_THAT(header->metadata, ElementsAre(Pair("format", "pt")));
}

TEST(SafetensorsHeaderTest, WritesWhatItReads) {
  auto header = ParseSafetensorsHeader(kTwoTensors, 16);
  header->tensors[0].name = "quote\" and \xff";
  const std::string text = PrintSafetensorsHeader(*header);
  EXPECT_EQ(text.size() % 8, 0u);
  const auto length = SafetensorsHeaderBytes(text.substr(0, 8), static_cast<int64_t>(text.size()));
  ASSERT_THAT(length, IsOk());
  EXPECT_EQ(*length, static_cast<int64_t>(text.size()) - 8);
  const auto again = ParseSafetensorsHeader(text.substr(8), 16);
  ASSERT_THAT(again, IsOk());
  EXPECT_EQ(again->tensors[0].name, "quote\" and \xef\xbf\xbd");
  EXPECT_EQ(again->metadata, header->metadata);
  EXPECT_THAT(ParseSafetensorsHeader("{}", 0), IsOk());
}

// One tensor, with the given entry.
std::string One(const std::string& entry) { return absl::StrCat("{\"t\":{", entry, "}}"); }

TEST(SafetensorsHeaderTest, RefusesWhatIsNotOfTheFormat) {
  const std::string good = R"("dtype":"F32","shape":[2],"data_offsets":[0,8])";
  ASSERT_THAT(ParseSafetensorsHeader(One(good), 8), IsOk());
  const std::string deep(100'000, '[');
  const struct {
    std::string json;
    const char* message;
  } cases[] = {
      {"", "got no JSON at byte"},
      {"[]", "got an array"},
      {"7", "got 7"},
      {deep, "got an array"},
      {One(good) + "x", "got no JSON at byte"},
      {R"({"t":7})", "\"t\": got 7"},
      {R"({"__metadata__":{"a":1}})", "got 1"},
      {R"({"__metadata__":{"a":"1","b":"","a":"2"}})",
       "got two texts of __metadata__ \"a\", want one"},
      {R"({"__metadata__":{"a":"1"},"__metadata__":{"b":"2"}})",
       "got \"__metadata__\" twice, want it once"},
      {One(R"("dtype":"F32","shape":[2])"), "tensor \"t\": got too few keys"},
      {One(good + R"(,"dtype":"F32")"), "got \"dtype\", want each of the keys"},
      {One(good + R"(,"more":{"shape":[1}})"), "got no JSON at byte"},
      {One(R"("dtype":null,"shape":[2],"data_offsets":[0,8])"), "got null"},
      {R"({"t":null})", "got null"},
      {R"({"__metadata__":{"a":null}})", "got null"},
      {One(R"("dtype":{"F32":1},"shape":[2],"data_offsets":[0,8])"), "got an object"},
      {One(R"("dtype":"F32","shape":[[2]],"data_offsets":[0,8])"), "got an array"},
      {One(R"("dtype":"F32","shape":"2","data_offsets":[0,8])"), "got a string"},
      {One(R"("dtype":"F32","shape":[-2],"data_offsets":[0,8])"), "got -2"},
      {One(R"("dtype":"F32","shape":[2.5],"data_offsets":[0,8])"), "got a fraction"},
      {One(R"("dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,8])"),
       "got 9223372036854775808"},
      {One(R"("dtype":"F32","shape":[2],"data_offsets":[0,4,8])"), "got 3 offsets"},
      {One(R"("dtype":"F31","shape":[2],"data_offsets":[0,8])"), "dtype: got \"F31\", want one of"},
      {One(R"("dtype":"F32","shape":[3],"data_offsets":[0,8])"),
       "data_offsets: got 0 to 8, want 12 bytes"},
      {One(R"("dtype":"F32","shape":[2],"data_offsets":[8,0])"), "got 8 to 0, want 8 bytes"},
      {One(R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8])"),
       "shape: got a size of 2^63 bits or more"},
      {One(R"("dtype":"F4","shape":[3],"data_offsets":[0,2])"), "got 12 bits, want whole bytes"},
      {One(R"("dtype":"F32","shape":[1],"data_offsets":[4,8])"),
       "data_offsets: got 4, want 0, where the tensor before it ends"},
      {One(R"("dtype":"F32","shape":[1],"data_offsets":[0,4])"), "got 8 bytes, want 4"},
      {R"({"t":{"dtype":"U8","shape":[5],"data_offsets":[0,5]},)"
       R"("u":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
       "tensor \"u\": data_offsets: got 4, want 5"},
      {R"({"t":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
       R"("t":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
       "got two tensors \"t\", want one"},
  };
  for (const auto& c : cases) {
    const auto header = ParseSafetensorsHeader(c.json, 8);
    EXPECT_EQ(header.status().code(), absl::StatusCode::kInvalidArgument) << c.message;
    EXPECT_THAT(header.status().message(), HasSubstr(c.message));
    EXPECT_LT(header.status().message().size(), 500u);
  }
}

TEST(SafetensorsHeaderTest, LeavesOutWhatElseATensorSaysOfItself) {
  const std::string good = R"("dtype":"F32","shape":[2],"data_offsets":[0,8])";
  const std::string deep = std::string(1000, '[') + std::string(1000, ']');
  for (const std::string& value :
       {std::string("1"), std::string("-1"), std::string("1.5"), std::string("null"),
        std::string("true"), std::string("\"F16\""), std::string("[]"), std::string("{}"), deep,
        std::string(R"([1,{"shape":[3],"dtype":[{}]},null])"),
        std::string(R"({"dtype":"F16","data_offsets":[0,1],"x":{"y":[{}]}})")}) {
    for (const std::string& entry :
         {absl::StrCat("\"more\":", value, ",", good), absl::StrCat(good, ",\"more\":", value),
          absl::StrCat("\"a\":", value, ",", good, ",\"b\":", value)}) {
      const auto header = ParseSafetensorsHeader(One(entry), 8);
      ASSERT_THAT(header, IsOk()) << entry;
      ASSERT_EQ(header->tensors.size(), 1u);
      EXPECT_EQ(header->tensors[0].type, "F32");
      EXPECT_THAT(header->tensors[0].shape, ElementsAre(2));
      EXPECT_EQ(header->tensors[0].end, 8);
    }
  }
  EXPECT_THAT(ParseSafetensorsHeader(absl::StrCat(R"({"__metadata__":null,"t":{)", good, "}}"), 8),
              IsOk());
}

TEST(SafetensorsHeaderTest, RefusesLengthsThatTheFileOrTheFormatLacks) {
  const auto length = [](std::string field, int64_t file_bytes) {
    field.resize(8, '\0');
    return SafetensorsHeaderBytes(field, file_bytes);
  };
  EXPECT_EQ(length(std::string("\x10", 1), 24).value_or(-1), 16);
  EXPECT_THAT(length(std::string("\x11", 1), 24).status().message(),
              HasSubstr("got 17 bytes, want at most 16, of a file of 24 bytes"));
  EXPECT_EQ(length(std::string("\x00\xe1\xf5\x05", 4), int64_t{1} << 40).value_or(-1), 100'000'000);
  EXPECT_THAT(length(std::string("\x01\xe1\xf5\x05", 4), int64_t{1} << 40).status().message(),
              HasSubstr("want at most 100000000"));
  EXPECT_FALSE(length(std::string(8, '\xff'), int64_t{1} << 40).ok());
  EXPECT_FALSE(SafetensorsHeaderBytes("1234567", 7).ok());
}

TEST(SafetensorsHeaderTest, AnyChangeIsReadOrRefused) {
  RandomSource random;
  const auto below = [&](size_t count) {
    return static_cast<size_t>(random.Between(0, static_cast<int64_t>(count) - 1));
  };
  const std::string letters = "\"{}[]:,0123456789-.eE \\u\xff\x01";
  int64_t read = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string json = kTwoTensors;
    for (size_t edits = below(3) + 1; edits > 0; --edits) {
      const size_t at = below(json.size());
      const char letter = letters[below(letters.size())];
      if (below(3) == 0) json.erase(at, 1);
      if (random.Flip()) json.insert(at, 1, letter);
      if (random.Flip()) json[below(json.size())] = letter;
    }
    const auto header = ParseSafetensorsHeader(json, 16);
    if (!header.ok()) continue;
    ++read;
    int64_t end = 0;
    for (const SafetensorsEntry& tensor : header->tensors) {
      ASSERT_EQ(tensor.begin, end) << json;
      ASSERT_EQ(SafetensorsBytes(tensor.type, tensor.shape).value_or(-1), tensor.bytes()) << json;
      end = tensor.end;
    }
    ASSERT_EQ(end, 16) << json;
  }
  EXPECT_GT(read, 0);
}

std::string FileOf(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

TEST(SafetensorsTest, MapsWhatItWrites) {
  const ScratchFolder folder;
  const auto header = ParseSafetensorsHeader(kTwoTensors, 16);
  const std::string path = folder.Path("two.safetensors");
  {
    OutputFile file;
    ASSERT_THAT(BeginSafetensors(path, *header, file), IsOk());
    ASSERT_THAT(file.Write("abcdefghijkl"), IsOk());
    ASSERT_THAT(file.Write("mnop"), IsOk());
    EXPECT_FALSE(std::ifstream(path).is_open());
    ASSERT_THAT(file.Commit(), IsOk());
  }
  const auto file = MappedSafetensors::Open(path);
  ASSERT_THAT(file, IsOk());
  ASSERT_NE(file->Find("b"), nullptr);
  EXPECT_EQ(file->BytesOf(*file->Find("b")), "mnop");
  EXPECT_EQ(file->BytesOf(file->header().tensors[0]), "abcdefghijkl");
  EXPECT_EQ(file->Find("c"), nullptr);
}

TEST(SafetensorsTest, WhatIsNotEndedLeavesNothing) {
  const ScratchFolder folder;
  const std::string path = FileOf(folder.Path("old.safetensors"), "old");
  {
    OutputFile file;
    ASSERT_THAT(BeginSafetensors(path, {}, file), IsOk());
  }
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.Path("")), {}), 1);
  std::string text;
  std::ifstream(path) >> text;
  EXPECT_EQ(text, "old");
  OutputFile nowhere;
  EXPECT_THAT(BeginSafetensors("/nowhere/x.safetensors", {}, nowhere).message(),
              HasSubstr("/nowhere/x.safetensors: cannot be written"));
}

TEST(SafetensorsTest, NamesFilesThatAreNone) {
  const ScratchFolder folder;
  EXPECT_EQ(MappedSafetensors::Open("/nowhere").status().code(), absl::StatusCode::kNotFound);
  for (const std::string& text :
       {std::string(), std::string("1234"), std::string(8, '\xff'),
        std::string("\x02\0\0\0\0\0\0\0{", 9), std::string("\x02\0\0\0\0\0\0\0{}x", 11)}) {
    const std::string path = FileOf(folder.Path("bad"), text);
    const auto file = MappedSafetensors::Open(path);
    EXPECT_EQ(file.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(file.status().message()), testing::StartsWith(path + ": "));
  }
  EXPECT_FALSE(MappedSafetensors::Open(folder.Path("")).ok());
}

}  // namespace
}  // namespace gemmd
