// SPDX-License-Identifier: Apache-2.0
//
// Messages whose long fields stay in the slices in which they arrived, compared with protobuf's own
// parsing of the same bytes: random fields, some repeated, some corrupted, in slices cut at random
// places.
#include "server/wire/incoming.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "gemmd/v1/gemm.pb.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using ::testing::HasSubstr;

class Random {
 public:
  explicit Random(unsigned seed) : engine_(seed) {}
  size_t Below(size_t end) { return std::uniform_int_distribution<size_t>(0, end - 1)(engine_); }
  bool Once(size_t in) { return Below(in) == 0; }
  std::string Bytes(size_t count) {
    std::string bytes(count, '\0');
    const size_t step = count / 64 + 1;
    for (size_t i = 0; i < count; i += step) bytes[i] = static_cast<char>(Below(256));
    return bytes;
  }
  // A length of a field that stays, or of one that does not.
  std::string Data() {
    const size_t sizes[] = {0, 7, 1000, kHeldFromBytes - 1, kHeldFromBytes, 3 * kHeldFromBytes};
    return Bytes(sizes[Below(std::size(sizes))]);
  }

 private:
  std::mt19937 engine_;
};

v1::Operand RandomOperand(Random& random) {
  v1::Operand operand;
  if (random.Once(2)) operand.set_type(v1::ELEMENT_TYPE_F16);
  if (random.Once(3)) operand.set_batch_stride(static_cast<int64_t>(random.Below(1000)));
  if (random.Once(3)) operand.mutable_scale()->mutable_values()->Resize(20, 0.5f);
  switch (random.Below(6)) {
    case 0: operand.mutable_tensor()->mutable_tensor()->set_handle(random.Data()); break;
    case 1: operand.mutable_tensor()->mutable_tensor()->set_name("weights"); break;
    case 2: break;
    default: operand.set_data(random.Data());
  }
  return operand;
}

v1::MultiplyRequest RandomRequest(Random& random) {
  v1::MultiplyRequest request;
  if (random.Once(2)) request.set_request_id("request " + std::to_string(random.Below(100)));
  if (random.Once(2)) request.set_m(static_cast<int64_t>(random.Below(1 << 20)));
  if (random.Once(2)) *request.mutable_a() = RandomOperand(random);
  if (random.Once(2)) *request.mutable_b() = RandomOperand(random);
  if (random.Once(4)) *request.mutable_c() = RandomOperand(random);
  if (random.Once(4)) request.mutable_bias()->set_data(random.Data());
  if (random.Once(4)) request.set_alpha(0.5);
  if (random.Once(4)) request.mutable_d()->set_leading_dimension(77);
  if (random.Once(4)) request.set_kernel("auto");
  return request;
}

// Concatenated messages are one message, in which the last value of each field counts.
std::string RandomBytes(Random& random) {
  std::string bytes;
  for (size_t i = 0; i < 1 + random.Below(3); ++i) {
    bytes += RandomRequest(random).SerializeAsString();
    if (random.Once(4)) bytes += "\xf8\x3e\x05";  // An unknown field, 1007.
  }
  if (random.Once(4) && !bytes.empty()) bytes.resize(random.Below(bytes.size()));
  for (size_t i = 0; random.Once(4) && i < 3 && !bytes.empty(); ++i) {
    // More often near the beginning of a field than within a long one.
    const size_t end = random.Once(2) ? std::min<size_t>(bytes.size(), 100) : bytes.size();
    bytes[random.Below(end)] = static_cast<char>(random.Below(256));
  }
  return bytes;
}

grpc::ByteBuffer Cut(const std::string& bytes, Random& random) {
  const size_t longest[] = {3, 50, 9000, 70000, 1 << 20};
  const size_t most = longest[random.Below(std::size(longest))];
  std::vector<grpc::Slice> slices;
  for (size_t at = 0; at < bytes.size();) {
    const size_t size = std::min(1 + random.Below(most), bytes.size() - at);
    slices.emplace_back(bytes.data() + at, size);
    at += size;
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

std::string Joined(const HeldField& field) {
  std::string bytes;
  for (const Piece& piece : field.pieces()) {
    bytes.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  }
  return bytes;
}

// If the field is held, puts it back into the message, in which it is empty.
template <typename Message>
int Restore(Message& message, const HeldFields& held) {
  HeldField* const field = held.Find(message, Message::kDataFieldNumber);
  if (field == nullptr) return 0;
  EXPECT_EQ(message.data(), "");
  EXPECT_EQ(field->bytes(), std::ssize(Joined(*field)));
  message.set_data(Joined(*field));
  return 1;
}

class IncomingTest : public testing::Test {
 protected:
  absl::Status Parse(grpc::ByteBuffer bytes, v1::MultiplyRequest& request, HeldFields& held) {
    Incoming incoming(bytes);
    const absl::StatusOr<int64_t> max_bytes = incoming.Examine(request);
    if (!max_bytes.ok()) return max_bytes.status();
    EXPECT_GE(*max_bytes, incoming.wire_bytes());
    return incoming.Parse(request, quota_, held);
  }

  ReceiveQuota quota_{1 << 20};
};

class ParseTest : public IncomingTest {
 protected:
  void ExpectAgreement(int messages);
};
using ParseExhaustive = ParseTest;

void ParseTest::ExpectAgreement(int messages) {
  Random random(13);
  int held_count = 0;
  int ok_count = 0;
  for (int i = 0; i < messages; ++i) {
    const std::string bytes = RandomBytes(random);
    v1::MultiplyRequest want;
    const bool is_message = want.ParseFromString(bytes);
    want.DiscardUnknownFields();
    v1::MultiplyRequest got;
    HeldFields held;
    const absl::Status status = Parse(Cut(bytes, random), got, held);
    // Protobuf itself accepts any number of fields.
    if (absl::StrContains(status.message(), "fields, want")) continue;
    ASSERT_EQ(status.ok(), is_message) << "message " << i << ": " << status;
    if (!is_message) {
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument)) << "message " << i;
      continue;
    }
    ++ok_count;
    for (v1::Operand* const operand :
         {got.has_a() ? got.mutable_a() : nullptr, got.has_b() ? got.mutable_b() : nullptr,
          got.has_c() ? got.mutable_c() : nullptr}) {
      if (operand != nullptr) held_count += Restore(*operand, held);
    }
    if (got.has_bias()) held_count += Restore(*got.mutable_bias(), held);
    ASSERT_EQ(got.SerializeAsString(), want.SerializeAsString()) << "message " << i;
  }
  // Some, but not all.
  EXPECT_GT(ok_count, messages / 2);
  EXPECT_LT(ok_count, messages);
  EXPECT_GT(held_count, messages / 10);
}

TEST_F(ParseTest, AgreesWithProtobuf) { ExpectAgreement(500); }
TEST_F(ParseExhaustive, AgreesWithProtobuf) { ExpectAgreement(3000); }

v1::MultiplyRequest LongRequest() {
  v1::MultiplyRequest request;
  request.mutable_a()->set_data(std::string(100'000, 'a'));
  request.mutable_b()->set_data("short");
  request.set_kernel("auto");
  return request;
}

grpc::ByteBuffer InSlicesOf(const std::string& bytes, size_t most) {
  std::vector<grpc::Slice> slices;
  for (size_t at = 0; at < bytes.size(); at += most) {
    slices.emplace_back(bytes.data() + at, std::min(most, bytes.size() - at));
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

TEST_F(IncomingTest, HoldsWhatIsLongInFewSlices) {
  const v1::MultiplyRequest sent = LongRequest();
  v1::MultiplyRequest got;
  HeldFields held;
  ASSERT_THAT(Parse(InSlicesOf(sent.SerializeAsString(), 16384), got, held), IsOk());
  EXPECT_EQ(got.a().source_case(), v1::Operand::kData);
  EXPECT_EQ(got.a().data().capacity(), std::string().capacity());
  EXPECT_EQ(got.b().data(), "short");
  EXPECT_EQ(got.kernel(), "auto");
  ASSERT_NE(held.Find(got.a(), v1::Operand::kDataFieldNumber), nullptr);
  EXPECT_EQ(Joined(*held.Find(got.a(), v1::Operand::kDataFieldNumber)), sent.a().data());
  EXPECT_EQ(held.Find(got.b(), v1::Operand::kDataFieldNumber), nullptr);
}

// Nothing is parsed of a short message before there is room for it.
TEST_F(IncomingTest, LooksThroughAShortMessageAlone) {
  v1::MultiplyRequest sent;
  sent.mutable_a()->mutable_tensor()->mutable_tensor()->set_name("weights");
  sent.mutable_b()->set_data(std::string(kHeldFromBytes - 100, 'b'));
  grpc::ByteBuffer bytes = InSlicesOf(sent.SerializeAsString(), 16384);
  Incoming incoming(bytes);
  v1::MultiplyRequest got;
  ASSERT_THAT(incoming.Examine(got), IsOk());
  EXPECT_FALSE(got.has_a());
  EXPECT_FALSE(got.has_b());
  HeldFields held;
  ASSERT_THAT(incoming.Parse(got, quota_, held), IsOk());
  EXPECT_EQ(got.SerializeAsString(), sent.SerializeAsString());
}

// The slices of the pieces would take more memory than their bytes.
TEST_F(IncomingTest, CopiesWhatCameInScraps) {
  const v1::MultiplyRequest sent = LongRequest();
  v1::MultiplyRequest got;
  HeldFields held;
  ASSERT_THAT(Parse(InSlicesOf(sent.SerializeAsString(), 3000), got, held), IsOk());
  EXPECT_TRUE(held.empty());
  EXPECT_EQ(got.SerializeAsString(), sent.SerializeAsString());
}

// An operand that is repeated without data keeps its data; a tensor replaces the data.
TEST_F(IncomingTest, TheLastOneOfAOneofCounts) {
  const std::string sent = LongRequest().SerializeAsString();
  v1::MultiplyRequest again;
  again.mutable_a()->set_transpose(true);
  v1::MultiplyRequest tensor;
  tensor.mutable_a()->mutable_tensor()->mutable_tensor()->set_name("weights");
  {
    v1::MultiplyRequest got;
    HeldFields held;
    ASSERT_THAT(Parse(InSlicesOf(sent + again.SerializeAsString(), 16384), got, held), IsOk());
    EXPECT_TRUE(got.a().transpose());
    EXPECT_NE(held.Find(got.a(), v1::Operand::kDataFieldNumber), nullptr);
  }
  v1::MultiplyRequest got;
  HeldFields held;
  ASSERT_THAT(Parse(InSlicesOf(sent + tensor.SerializeAsString(), 16384), got, held), IsOk());
  EXPECT_TRUE(held.empty());
  EXPECT_EQ(got.a().source_case(), v1::Operand::kTensor);
}

// In an order that a peer chooses.
TEST_F(IncomingTest, CountsUnknownFieldsAroundHeldOnes) {
  const std::string unknown = "\xc2\x3e\xe8\x07" + std::string(1000, 'x');  // 1004 bytes.
  const std::string sent = LongRequest().SerializeAsString();
  v1::MultiplyRequest got;
  HeldFields held;
  ASSERT_THAT(Parse(InSlicesOf(unknown + sent, 16384), got, held), IsOk());
  EXPECT_EQ(got.GetReflection()->GetUnknownFields(got).field_count(), 0);
  EXPECT_THAT(Parse(InSlicesOf(unknown + sent + unknown, 16384), got, held),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("unknown fields")));
}

std::string Repeated(const std::string& field, int64_t count) {
  std::string bytes;
  for (int64_t i = 0; i < count; ++i) bytes += field;
  return bytes;
}

// Each takes almost no bytes, but time to find; fields of nested messages count, too.
TEST_F(IncomingTest, RefusesCountlessFields) {
  const std::string empty_a = {static_cast<char>(v1::MultiplyRequest::kAFieldNumber << 3 | 2), 0};
  std::string inner =
      Repeated(std::string("\x08\x01", 2), kMaxFields);  // Types, one after the other.
  const std::string within = empty_a.substr(0, 1) + "\x80\x10" + inner;
  ASSERT_EQ(inner.size(), 0x800u);
  const auto parsed = [&](const std::string& bytes) {
    v1::MultiplyRequest got;
    HeldFields held;
    return Parse(InSlicesOf(bytes, 16384), got, held);
  };
  EXPECT_THAT(parsed(Repeated(empty_a, kMaxFields)), IsOk());
  const auto refused = StatusIs(absl::StatusCode::kInvalidArgument,
                                "message: got more than 1024 fields, want at most 1024");
  EXPECT_THAT(parsed(Repeated(empty_a, kMaxFields + 1)), refused);
  EXPECT_THAT(parsed(within), refused);
  EXPECT_THAT(parsed(Repeated(std::string("\xf8\x3e\x05"), 300)), IsOk());  // Unknown ones.
}

TEST_F(IncomingTest, LooksForATextAmongTheFirstFieldsAlone) {
  const std::string empty_a = {static_cast<char>(v1::MultiplyRequest::kAFieldNumber << 3 | 2), 0};
  v1::MultiplyRequest named;
  named.set_request_id("name");
  const auto text_after = [&](int64_t fields) {
    grpc::ByteBuffer bytes =
        InSlicesOf(Repeated(empty_a, fields) + named.SerializeAsString(), 16384);
    return Incoming(bytes).ShortText(v1::MultiplyRequest::kRequestIdFieldNumber, 64);
  };
  EXPECT_EQ(text_after(kMaxFields - 1), "name");
  EXPECT_EQ(text_after(kMaxFields), "");
}

// Protobuf would copy it and check that it is UTF-8, on a thread that others wait for.
TEST_F(IncomingTest, RefusesEndlessText) {
  v1::MultiplyRequest sent;
  sent.set_kernel(std::string(kMaxTextBytes + 1, 'x'));
  v1::MultiplyRequest got;
  HeldFields held;
  EXPECT_THAT(Parse(InSlicesOf(sent.SerializeAsString(), 16384), got, held),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "kernel: got 1048577 bytes, want at most 1048576"));
}

TEST_F(IncomingTest, LetsGoOfPiecesOnceTheyAreCopied) {
  static int freed;
  freed = 0;
  std::vector<char> memory(100);
  std::vector<grpc::Slice> slices;
  for (size_t i = 0; i < 3; ++i) {
    slices.emplace_back(memory.data() + 30 * i, 30, [](void*) { ++freed; });
  }
  HeldField field(std::move(slices), quota_);
  EXPECT_EQ(field.bytes(), 90);
  field.Release(0, 2);
  EXPECT_EQ(freed, 2);
  field.Release(2, 1);
  EXPECT_EQ(freed, 3);
}

// An array that doubles as slices arrive would end with a power of two as its capacity.
TEST_F(IncomingTest, MakesRoomForFactorsOnce) {
  constexpr int kCount = (1 << 18) + 1;
  v1::MultiplyRequest sent;
  sent.mutable_a()->mutable_scale()->mutable_values()->Resize(kCount, 0.5f);
  v1::MultiplyRequest got;
  HeldFields held;
  ASSERT_THAT(Parse(InSlicesOf(sent.SerializeAsString(), 16384), got, held), IsOk());
  EXPECT_EQ(got.a().scale().values_size(), kCount);
  EXPECT_LT(got.a().scale().values().Capacity(), kCount + 1024);
}

}  // namespace
}  // namespace gemmd
