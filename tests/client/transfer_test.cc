// SPDX-License-Identifier: Apache-2.0
//
// Uploads and downloads: chunks, several connections, and what happens when those break.
#include "client/transfer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "absl/strings/escaping.h"
#include "gemmd/client.h"
#include "gemmd/v1/resident.pb.h"
#include "tests/client/fake_tensors.h"
#include "tests/testing/patience.h"
#include "tests/testing/random_source.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/units.h"

namespace gemmd {
namespace {

using testing::HasSubstr;

std::vector<uint8_t> RandomBytes(int64_t count) {
  std::vector<uint8_t> bytes(static_cast<size_t>(count));
  std::mt19937_64 random(7);
  for (size_t i = 0; i + 8 <= bytes.size(); i += 8) {
    const uint64_t value = random();
    std::memcpy(bytes.data() + i, &value, 8);
  }
  return bytes;
}

std::string TextOf(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

MatrixView Line(const std::vector<uint8_t>& bytes) {
  return View(bytes, 1, static_cast<int64_t>(bytes.size()));
}

// Retries quickly, so that faults take little time.
Client Connect(const FakeTensors& server, absl::Duration timeout = absl::Seconds(60)) {
  auto client = Client::Create(server.address(), {.timeout = timeout, .max_attempts = 1});
  EXPECT_THAT(client, IsOk());
  return *std::move(client);
}

TEST(TransferTest, BytesComeBackAsTheyWent) {
  for (const int64_t bytes :
       {int64_t{1}, int64_t{999}, int64_t{1000}, int64_t{1001}, int64_t{50000}}) {
    const FakeTensors server({.max_chunk_bytes = 1000});
    Client client = Connect(server);
    const auto sent = RandomBytes(bytes);
    const auto tensor = client.Put(Line(sent));
    ASSERT_THAT(tensor, IsOk());
    EXPECT_EQ(server.chunks(), (bytes + 999) / 1000);
    std::vector<uint8_t> got(sent.size());
    ASSERT_THAT(client.Get(tensor->ref(), std::as_writable_bytes(std::span(got))), IsOk());
    EXPECT_EQ(got, sent);
  }
}

TEST(TransferTest, AnEmptyTensorNeedsNoBytes) {
  const FakeTensors server;
  Client client = Connect(server);
  const auto tensor = client.Put(View(std::vector<float>(), 0, 5));
  ASSERT_THAT(tensor, IsOk());
  EXPECT_THAT(client.Get(tensor->ref(), std::span<std::byte>()), IsOk());
}

TEST(TransferTest, LargeTensorsTravelOverSeveralConnections) {
  const FakeTensors server;
  Client client = Connect(server);
  const auto sent = RandomBytes(12 * kMebi);
  int64_t last = 0;
  const auto tensor = client.Put(Line(sent), {.progress = [&](const TransferProgress& now) {
                                   EXPECT_EQ(now.bytes_total, 12 * kMebi);
                                   EXPECT_GE(now.bytes_done, last);
                                   last = now.bytes_done;
                                 }});
  ASSERT_THAT(tensor, IsOk());
  EXPECT_EQ(last, 12 * kMebi);
  EXPECT_EQ(server.connections(), 4);
  EXPECT_EQ(server.puts(), 4);
  EXPECT_EQ(server.bytes_of(tensor->handle()), TextOf(sent));
  std::vector<uint8_t> got(sent.size());
  ASSERT_THAT(client.Get(tensor->ref(), std::as_writable_bytes(std::span(got)), {.connections = 3}),
              IsOk());
  EXPECT_TRUE(got == sent);
  EXPECT_THAT(client.Put(Line(sent), {.connections = 17}),
              StatusIs(absl::StatusCode::kInvalidArgument, "connections: got 17, want 0 to 16"));
}

TEST(TransferTest, TheClientTriesHowManyConnectionsAreFaster) {
  const FakeTensors server;
  Client client = Connect(server);
  const auto sent = RandomBytes(12 * kMebi);
  // What was divided the first time is not divided the second time.
  ASSERT_THAT(client.Put(Line(sent)), IsOk());
  EXPECT_EQ(server.puts(), 4);
  const auto tensor = client.Put(Line(sent));
  ASSERT_THAT(tensor, IsOk());
  EXPECT_EQ(server.puts(), 5);
  std::vector<uint8_t> got(sent.size());
  for (int i = 0; i < 3; ++i) {
    std::fill(got.begin(), got.end(), uint8_t{0});
    ASSERT_THAT(client.Get(tensor->ref(), std::as_writable_bytes(std::span(got))), IsOk());
    EXPECT_TRUE(got == sent);
  }
  // A caller that gives a number gets that number.
  ASSERT_THAT(client.Put(Line(sent), {.connections = 2}), IsOk());
  EXPECT_EQ(server.puts(), 7);
}

TEST(TransferTest, PaddingThatWasLeftOutIsSentAsZeros) {
  const FakeTensors server;
  Client client = Connect(server);
  const std::vector<float> values = {1, 2, 0, 3, 4};  // The last line ends after its last element.
  MatrixView view = View(values, 2, 2);
  view.leading_dimension = 3;
  const auto tensor = client.Put(view);
  ASSERT_THAT(tensor, IsOk());
  const float want[] = {1, 2, 0, 3, 4, 0};
  EXPECT_EQ(server.bytes_of(tensor->handle()),
            std::string(reinterpret_cast<const char*>(want), sizeof(want)));
}

TEST(TransferTest, AnUploadGoesOnAfterEachBreak) {
  const auto sent = RandomBytes(10000);
  for (int broken = 1; broken <= 10; ++broken) {
    const FakeTensors server({.max_chunk_bytes = 1000, .broken_put_chunks = {broken}});
    Client client = Connect(server);
    const auto tensor = client.Put(Line(sent));
    ASSERT_THAT(tensor, IsOk()) << "at chunk " << broken;
    EXPECT_EQ(server.bytes_of(tensor->handle()), TextOf(sent));
    // No chunk that had arrived was sent again.
    EXPECT_EQ(server.chunks(), 10);
    EXPECT_EQ(server.puts(), 2);
  }
}

TEST(TransferTest, AStripedUploadGoesOnAfterBreaks) {
  const auto sent = RandomBytes(12 * kMebi);
  const FakeTensors server({.broken_put_chunks = {2, 5, 9}, .broken_puts = {2, 6}});
  Client client = Connect(server);
  const auto tensor = client.Put(Line(sent), {.sha256 = Sha256Of(std::as_bytes(std::span(sent)))});
  ASSERT_THAT(tensor, IsOk());
  EXPECT_TRUE(server.bytes_of(tensor->handle()) == TextOf(sent));
}

TEST(TransferTest, AnUploadThatBringsNothingIsGivenUp) {
  std::set<int> all;
  for (int i = 1; i < 100; ++i) all.insert(i);
  const FakeTensors server({.broken_puts = all});
  Client client = Connect(server);
  EXPECT_THAT(client.Put(Line(RandomBytes(10))),
              StatusIs(absl::StatusCode::kUnavailable, "the test broke it"));
  EXPECT_EQ(server.puts(), 5);
}

TEST(TransferTest, AnUploadOfWhichNothingMovesIsGivenUp) {
  const FakeTensors server({.ignores_chunks = true});
  {
    Client client = Connect(server, absl::Seconds(1));
    ASSERT_THAT(client.OpenSession("", {.timeout = kPatience}), IsOk());
    EXPECT_THAT(client.Put(Line(RandomBytes(2 * kMebi))),
                StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("and none for 1s")));
  }
  Client client = Connect(server);
  EXPECT_THAT(client.Put(Line(RandomBytes(2 * kMebi)), {.timeout = absl::Seconds(1)}),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
}

TEST(TransferTest, WhatTheServerHasIsNotSent) {
  const FakeTensors server;
  Client client = Connect(server);
  const auto sent = RandomBytes(5000);
  const std::string hash = Sha256Of(std::as_bytes(std::span(sent)));
  const auto first = client.Put(Line(sent), {.sha256 = hash});
  ASSERT_THAT(first, IsOk());
  const int chunks = server.chunks();
  const auto second = client.Put(Line(sent), {.name = "again", .sha256 = hash});
  ASSERT_THAT(second, IsOk());
  EXPECT_EQ(server.chunks(), chunks);
  EXPECT_EQ(server.bytes_of(second->handle()), TextOf(sent));
  EXPECT_THAT(client.Put(Line(RandomBytes(4000)), {.sha256 = hash}), IsOk())
      << "the fake finds it by its hash alone";
}

TEST(TransferTest, TheHashIsThatOfTheStandard) {
  // FIPS 180-4's example.
  const std::string text = "abc";
  EXPECT_EQ(absl::BytesToHexString(Sha256Of(std::as_bytes(std::span(text)))),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(TransferTest, TheServersRefusalsArePassedOn) {
  const auto sent = RandomBytes(5000);
  const FakeTensors small({.max_bytes = 100});
  Client client = Connect(small);
  EXPECT_THAT(client.Put(Line(sent)), StatusIs(absl::StatusCode::kResourceExhausted,
                                               "tensors: got 5000 bytes, want at most 100"));
  const FakeTensors server;
  Client other = Connect(server);
  EXPECT_THAT(other.Put(Line(sent), {.sha256 = std::string(32, 'x')}),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("another hash")));
  EXPECT_THAT(other.Get(NamedTensor("none"), std::span<std::byte>()),
              StatusIs(absl::StatusCode::kNotFound));
}

TEST(TransferTest, MatricesThatAreNoTensorsAreRefusedHere) {
  const FakeTensors server;
  Client client = Connect(server);
  const std::vector<float> values(6);
  MatrixView view = View(values, 2, 4);
  EXPECT_THAT(client.Put(view), StatusIs(absl::StatusCode::kInvalidArgument,
                                         "matrix.data: got 24 bytes, want rows*columns*4 = 32"));
  view = View(values, 2, 3);
  view.transpose = true;
  EXPECT_THAT(client.Put(view),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("matrix.transpose")));
  view.transpose = false;
  view.batch_stride = 6;
  EXPECT_THAT(client.Put(view),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("matrix.batch_stride")));
  EXPECT_THAT(client.Put(View(values, 1, 3), {.matrices = 2}), IsOk());
  EXPECT_EQ(server.puts(), 1);
}

TEST(TransferTest, AServerThatAsksForTooMuchIsNotObeyed) {
  const FakeTensors server({.wants_too_much = true});
  Client client = Connect(server);
  EXPECT_THAT(client.Put(Line(RandomBytes(10))),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("of a tensor of 10 bytes")));
}

TEST(TransferTest, ADownloadGoesOnAfterBreaks) {
  const auto sent = RandomBytes(10000);
  const FakeTensors server({.max_chunk_bytes = 1000, .broken_get_chunks = {1, 4, 12}});
  Client client = Connect(server);
  const auto tensor = client.Put(Line(sent));
  ASSERT_THAT(tensor, IsOk());
  std::vector<uint8_t> got(sent.size());
  ASSERT_THAT(client.Get(tensor->ref(), std::as_writable_bytes(std::span(got))), IsOk());
  EXPECT_EQ(got, sent);
}

TEST(TransferTest, ADownloadNeedsTheRightRoom) {
  const FakeTensors server;
  Client client = Connect(server);
  const auto sent = RandomBytes(100);
  const auto tensor = client.Put(Line(sent), {.name = "t"});
  ASSERT_THAT(tensor, IsOk());
  std::vector<uint8_t> got(99);
  const auto room = std::as_writable_bytes(std::span(got));
  EXPECT_THAT(client.Get(tensor->ref(), room),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "into: got 99 bytes, want 100 for a tensor of 100 from byte 0 on"));
  EXPECT_THAT(client.Get(NamedTensor("t"), room, {.offset = 1}), IsOk());
  EXPECT_EQ(got, std::vector<uint8_t>(sent.begin() + 1, sent.end()));
  EXPECT_THAT(client.Get(tensor->ref(), room.first(10), {.offset = 5, .bytes = 10}), IsOk());
  EXPECT_EQ(got[9], sent[14]);
}

TEST(TransferTest, ASinkTakesBytesAndMayRefuseThem) {
  const FakeTensors server;
  Client client = Connect(server);
  const auto sent = RandomBytes(3 * kMebi);
  const auto tensor = client.Put(Line(sent));
  ASSERT_THAT(tensor, IsOk());
  std::vector<uint8_t> got(sent.size());
  const auto copy = [&](int64_t offset, std::span<const std::byte> bytes) {
    std::memcpy(got.data() + offset, bytes.data(), bytes.size());
    return absl::OkStatus();
  };
  ASSERT_THAT(client.Get(tensor->ref(), TensorSink(copy)), IsOk());
  EXPECT_TRUE(got == sent);
  const auto refuse = [](int64_t, std::span<const std::byte>) {
    return absl::ResourceExhaustedError("the disk is full");
  };
  EXPECT_THAT(client.Get(tensor->ref(), TensorSink(refuse)),
              StatusIs(absl::StatusCode::kResourceExhausted, "the disk is full"));
  EXPECT_THAT(client.Get(tensor->ref(), TensorSink(copy), {.offset = 1, .bytes = 3 * kMebi}),
              StatusIs(absl::StatusCode::kOutOfRange));
}

TEST(TransferTest, BytesAtAWrongPlaceAreRefused) {
  const FakeTensors server({.sends_wrong_offsets = true});
  Client client = Connect(server);
  const auto tensor = client.Put(Line(RandomBytes(100)));
  ASSERT_THAT(tensor, IsOk());
  std::vector<std::byte> got(100);
  EXPECT_THAT(client.Get(tensor->ref(), got),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("want at most 100 from 0 on")));
}

// Protobuf's encoding of a chunk, in slices of `piece` bytes.
grpc::ByteBuffer InPieces(const std::string& message, size_t piece) {
  std::vector<grpc::Slice> slices;
  for (size_t at = 0; at < message.size(); at += piece) {
    slices.emplace_back(message.substr(at, piece));
  }
  return {slices.data(), slices.size()};
}

std::string DataOf(const GetStep& step) {
  std::string data;
  for (const grpc::Slice& slice : step.data) {
    data.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return data;
}

TEST(ChunkMessageTest, AgreesWithProtobuf) {
  for (const int64_t offset :
       {int64_t{0}, int64_t{1}, int64_t{127}, int64_t{128}, int64_t{1} << 40}) {
    for (const size_t bytes : {size_t{0}, size_t{1}, size_t{127}, size_t{128}, size_t{70000}}) {
      const std::string data(bytes, 'd');
      v1::PutRequest request;
      request.mutable_chunk()->set_offset(offset);
      const std::string message = PutChunkHeader(offset, static_cast<int64_t>(bytes)) + data;
      v1::PutRequest parsed;
      ASSERT_TRUE(parsed.ParseFromString(message));
      EXPECT_EQ(parsed.chunk().offset(), offset);
      EXPECT_EQ(parsed.chunk().data(), data);

      v1::GetResponse response;
      response.mutable_chunk()->set_offset(offset);
      response.mutable_chunk()->set_data(data);
      for (const size_t piece : {size_t{1}, size_t{7}, size_t{100000}}) {
        if (piece == 1 && bytes > 1000) continue;
        const auto step = ReadGetResponse(InPieces(response.SerializeAsString(), piece));
        ASSERT_THAT(step, IsOk());
        EXPECT_TRUE(step->is_chunk);
        EXPECT_EQ(step->offset, offset);
        EXPECT_EQ(step->bytes, static_cast<int64_t>(bytes));
        EXPECT_EQ(DataOf(*step), data);
      }
    }
  }
}

TEST(ChunkMessageTest, ReadsOtherOrdersOfFields) {
  // The data before the offset, as another language's library may write them.
  const std::string inner = std::string("\x12\x03") + "abc" + "\x08\x05";
  const std::string message = std::string("\x12") + static_cast<char>(inner.size()) + inner;
  const auto step = ReadGetResponse(InPieces(message, 4));
  ASSERT_THAT(step, IsOk());
  EXPECT_EQ(step->offset, 5);
  EXPECT_EQ(DataOf(*step), "abc");
}

// A varint with `padding` more bytes than it needs.
std::string Padded(uint8_t value, int padding) {
  std::string bytes(static_cast<size_t>(padding) + 1, '\x80');
  bytes.front() = static_cast<char>(padding > 0 ? value | 0x80 : value);
  if (padding > 0) bytes.back() = '\0';
  return bytes;
}

TEST(ChunkMessageTest, AgreesWithProtobufOnLongEncodings) {
  for (int part = 0; part < 3; ++part) {
    for (int padding = 0; padding < 12; ++padding) {
      const auto number = [&](int of_part, uint8_t value) {
        return Padded(value, part == of_part ? padding : 0);
      };
      const std::string inner = "\x08" + number(0, 5) + "\x12" + number(1, 3) + "abc";
      const std::string message = "\x12" + number(2, static_cast<uint8_t>(inner.size())) + inner;
      v1::GetResponse want;
      const bool is_message = want.ParseFromString(message);
      const auto step = ReadGetResponse(InPieces(message, 4));
      ASSERT_EQ(step.ok(), is_message) << part << ", " << padding;
      if (!is_message) continue;
      EXPECT_EQ(step->offset, want.chunk().offset());
      EXPECT_EQ(DataOf(*step), want.chunk().data());
    }
  }
}

TEST(ChunkMessageTest, RefusesWhatIsNoAnswer) {
  EXPECT_THAT(ReadGetResponse(InPieces("\x12\xff", 1)), StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_THAT(ReadGetResponse(InPieces("\x12\x7f\x12\x7f"
                                       "abc",
                                       2)),
              StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_THAT(ReadPutResponse(InPieces("\x0a\x7f", 1)), StatusIs(absl::StatusCode::kDataLoss));
}

constexpr int kSeveral = LaneChoice::kSeveralLanes;

TEST(LaneChoiceTest, TriesBothWaysFirst) {
  for (const int64_t bytes : {3 * kMebi, 8 * kMebi, 8 * kMebi + 1, 100 * kMebi}) {
    LaneChoice choice;
    const int first = choice.For(bytes, 2 * kMebi);
    EXPECT_EQ(first, bytes > LaneChoice::kLargeBytes ? kSeveral : 1);
    // Nothing is known before the first transfer has ended.
    EXPECT_EQ(choice.For(bytes, 2 * kMebi), first);
    choice.Tell(bytes, first, absl::Milliseconds(10));
    EXPECT_NE(choice.For(bytes, 2 * kMebi), first);
  }
}

TEST(LaneChoiceTest, WhatCannotBeDividedTakesOne) {
  LaneChoice choice;
  for (const int64_t bytes : {int64_t{0}, int64_t{1}, 2 * kMebi}) {
    EXPECT_EQ(choice.For(bytes, 2 * kMebi), 1);
    choice.Tell(bytes, 1, absl::Milliseconds(1));
    EXPECT_EQ(choice.For(bytes, 2 * kMebi), 1);
  }
}

// A network on which one connection moves a byte in `one_ns`, and several in less after some time.
struct Network {
  double one_ns = 0;
  double several_ns = 0;
  absl::Duration several_start;

  absl::Duration Took(int64_t bytes, int lanes) const {
    const double count = static_cast<double>(bytes);
    return lanes == 1 ? absl::Nanoseconds(count * one_ns)
                      : several_start + absl::Nanoseconds(count * several_ns);
  }
};

// The number of transfers that use several connections, out of many after the first ones.
int CountSeveral(LaneChoice& choice, const Network& network, int64_t bytes, int transfers) {
  int several = 0;
  for (int i = 0; i < transfers; ++i) {
    const int lanes = choice.For(bytes, 2 * kMebi);
    choice.Tell(bytes, lanes, network.Took(bytes, lanes));
    several += lanes == 1 ? 0 : 1;
  }
  return several;
}

TEST(LaneChoiceTest, FindsTheSizeFromWhichSeveralAreFaster) {
  RandomSource random;
  for (int turn = 0; turn < 20; ++turn) {
    const double one_ns = 0.1 + static_cast<double>(random.Between(1, 100)) / 10;
    const Network network = {.one_ns = one_ns,
                             .several_ns = one_ns / 3,
                             .several_start = absl::Milliseconds(random.Between(1, 300))};
    LaneChoice choice;
    constexpr int kTransfers = 10 * LaneChoice::kTransfersPerTrial;
    for (int64_t bytes = 4 * kMebi; bytes <= 1024 * kMebi; bytes *= 2) {
      const bool are_several_faster = network.Took(bytes, kSeveral) < network.Took(bytes, 1);
      const int several = CountSeveral(choice, network, bytes, kTransfers);
      const int slower = are_several_faster ? kTransfers - several : several;
      // The first or second one, and one trial in sixteen.
      EXPECT_GE(slower, kTransfers / LaneChoice::kTransfersPerTrial - 1) << random.trace();
      EXPECT_LE(slower, kTransfers / LaneChoice::kTransfersPerTrial + 1) << random.trace();
    }
  }
}

TEST(LaneChoiceTest, FollowsANetworkThatChanges) {
  LaneChoice choice;
  constexpr int64_t kBytes = 64 * kMebi;
  const Network wide = {.one_ns = 1, .several_ns = 0.3, .several_start = absl::Milliseconds(1)};
  const Network narrow = {.one_ns = 1, .several_ns = 1, .several_start = absl::Milliseconds(9)};
  constexpr int kMany = 20 * LaneChoice::kTransfersPerTrial;
  EXPECT_GT(CountSeveral(choice, wide, kBytes, kMany), kMany / 10 * 9);
  CountSeveral(choice, narrow, kBytes, kMany);
  EXPECT_LT(CountSeveral(choice, narrow, kBytes, kMany), kMany / 10);
}

}  // namespace
}  // namespace gemmd
