// SPDX-License-Identifier: Apache-2.0
//
// Messages of Put, whose chunks are read where they were received, and of Get.
#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "gemmd/v1/resident.pb.h"
#include "server/wire/tensor_convert.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

grpc::ByteBuffer Cut(const std::string& bytes, size_t first) {
  const grpc::Slice slices[] = {grpc::Slice(bytes.substr(0, first)),
                                grpc::Slice(bytes.substr(first))};
  return grpc::ByteBuffer(slices, 2);
}

std::string DataOf(const PutMessage::Chunk& chunk) {
  std::string data;
  for (const auto& piece : chunk.pieces) {
    data.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  }
  return data;
}

std::string Field(int number, const std::string& bytes) {
  return std::string{static_cast<char>(number << 3 | 2), static_cast<char>(bytes.size())} + bytes;
}

std::string ChunkOf(const std::string& fields) {
  return Field(v1::PutRequest::kChunkFieldNumber, fields);
}

// Each is a chunk, in the form of all serializers or in another one.
std::vector<std::string> Chunks() {
  constexpr int kData = v1::PutChunk::kDataFieldNumber;
  const std::string offset = {static_cast<char>(v1::PutChunk::kOffsetFieldNumber << 3), '\xac', 2};
  const std::string data = Field(kData, "0123456789");
  const std::string unknown = Field(15, "unknown");
  return {ChunkOf(offset + data),
          ChunkOf(data + offset),
          ChunkOf(data),
          ChunkOf(offset),
          ChunkOf(""),
          ChunkOf(offset + Field(kData, "")),
          ChunkOf(data + Field(kData, "the last one counts")),
          ChunkOf(offset + data + unknown),
          ChunkOf(offset + data) + unknown,
          ChunkOf(offset) + ChunkOf(data)};
}

TEST(PutMessageTest, ChunksAreReadAsProtobufReadsThemHoweverTheyAreCut) {
  for (const std::string& bytes : Chunks()) {
    v1::PutRequest want;
    ASSERT_TRUE(want.ParseFromString(bytes));
    for (size_t first = 0; first <= bytes.size(); ++first) {
      const absl::StatusOr<PutMessage> got = ReadPutRequest(Cut(bytes, first));
      ASSERT_THAT(got, IsOk());
      ASSERT_TRUE(got->chunk.has_value());
      EXPECT_EQ(got->chunk->offset, want.chunk().offset());
      EXPECT_EQ(DataOf(*got->chunk), want.chunk().data());
    }
  }
}

TEST(PutMessageTest, WhatIsCutShortIsRefused) {
  for (const std::string& bytes : Chunks()) {
    for (size_t size = 1; size < bytes.size(); ++size) {
      v1::PutRequest want;
      const bool is_message = want.ParseFromString(bytes.substr(0, size));
      EXPECT_EQ(ReadPutRequest(Cut(bytes.substr(0, size), size / 2)).ok(), is_message);
    }
  }
}

TEST(PutMessageTest, AChunkOfGetIsAsProtobufWritesIt) {
  for (const int64_t offset : {int64_t{0}, int64_t{300}, int64_t{1} << 40}) {
    for (const std::string& data : {std::string(), std::string(300, 'x')}) {
      const auto owner = std::make_shared<std::string>(data);
      std::vector<grpc::Slice> slices;
      ASSERT_TRUE(ChunkAnswer(offset,
                              {reinterpret_cast<const std::byte*>(owner->data()), owner->size()},
                              owner)
                      .Dump(&slices)
                      .ok());
      std::string bytes;
      for (const grpc::Slice& slice : slices) {
        bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
      }
      v1::GetResponse read;
      ASSERT_TRUE(read.ParseFromString(bytes));
      EXPECT_EQ(read.chunk().offset(), offset);
      EXPECT_EQ(read.chunk().data(), data);
    }
  }
}

}  // namespace
}  // namespace gemmd
