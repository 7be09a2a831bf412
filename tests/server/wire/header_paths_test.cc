// SPDX-License-Identifier: Apache-2.0
//
// Paths of calls in headers: the examples of RFC 7541, Appendix C, each form of a field, and bytes
// that are no headers.
#include "server/wire/header_paths.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"

namespace gemmd {
namespace {

std::optional<std::string_view> Read(HeaderPaths& paths, std::string_view block) {
  return paths.Read({reinterpret_cast<const uint8_t*>(block.data()), block.size()});
}
std::optional<std::string_view> ReadHex(HeaderPaths& paths, std::string_view hex) {
  std::string block;
  for (; !hex.empty(); hex.remove_prefix(2)) {
    uint32_t byte = 0;
    EXPECT_TRUE(absl::SimpleHexAtoi(std::string(hex.substr(0, 2)), &byte)) << hex;
    block += static_cast<char>(byte);
  }
  return Read(paths, block);
}

std::string Text(std::string_view text) {
  return std::string(1, static_cast<char>(text.size())) + std::string(text);
}

constexpr char kMultiply[] = "/gemmd.v1.Gemm/Multiply";
constexpr uint8_t kStaticPath = 4;

// C.3 and C.4: three requests on one connection, plain and coded. The paths of the first two are
// those of the static table, which are of no method.
TEST(HeaderPathsTest, ReadsTheExamplesOfItsStandard) {
  HeaderPaths plain;
  EXPECT_EQ(ReadHex(plain, "828684410f7777772e6578616d706c652e636f6d"), "");
  EXPECT_EQ(ReadHex(plain, "828684be58086e6f2d6361636865"), "");
  EXPECT_EQ(ReadHex(plain, "828785bf400a637573746f6d2d6b65790c637573746f6d2d76616c7565"), "");
  HeaderPaths coded;
  EXPECT_EQ(ReadHex(coded, "828684418cf1e3c2e5f23a6ba0ab90f4ff"), "");
  EXPECT_EQ(ReadHex(coded, "828684be5886a8eb10649cbf"), "");
  EXPECT_EQ(ReadHex(coded, "828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf"), "");
  // C.2.2, not kept: "/sample/path".
  EXPECT_EQ(ReadHex(plain, "040c2f73616d706c652f70617468"), "/sample/path");
}

TEST(HeaderPathsTest, ReadsEachFormOfAPath) {
  HeaderPaths paths;
  for (const char form : {'\x00', '\x10'}) {  // Neither is kept.
    EXPECT_EQ(Read(paths, std::string(1, static_cast<char>(form | kStaticPath)) + Text(kMultiply)),
              kMultiply);
    EXPECT_EQ(Read(paths, std::string(1, form) + Text(":path") + Text(kMultiply)), kMultiply);
  }
  EXPECT_EQ(Read(paths, "\xbe"), std::nullopt);  // Nothing was kept.

  HeaderPaths kept;
  EXPECT_EQ(Read(kept, std::string("\x44") + Text(kMultiply)), kMultiply);
  EXPECT_EQ(Read(kept, "\xbe"), kMultiply);
  EXPECT_EQ(Read(kept, std::string("\x40") + Text("name") + Text("value")), "");
  EXPECT_EQ(Read(kept, "\xbf"), kMultiply);  // It is the second newest now.
  EXPECT_EQ(Read(kept, "\xbe"), "");
  EXPECT_EQ(Read(kept, std::string("\x0f\x30") + Text("/other")), "/other");  // By its name.
  EXPECT_EQ(Read(kept, std::string("\xbf\x04") + Text("/last")), "/last");
}

TEST(HeaderPathsTest, TheTableForgetsTheOldestBySize) {
  HeaderPaths paths;
  EXPECT_EQ(Read(paths, std::string("\x44") + Text(kMultiply)), kMultiply);
  const size_t own = 5 + std::string_view(kMultiply).size() + 32;
  // Each takes 42 bytes. The path is the oldest for as long as it has room.
  const size_t others = (HeaderPaths::kMaxTableBytes - own) / 42;
  for (size_t i = 0; i < others; ++i) {
    EXPECT_EQ(Read(paths, std::string("\x40") + Text("names") + Text("value")), "");
  }
  const std::string oldest = std::string("\xff") + static_cast<char>(61 + others + 1 - 127);
  EXPECT_EQ(Read(paths, oldest), kMultiply);
  HeaderPaths full = paths;
  EXPECT_EQ(Read(full, std::string("\x40") + Text("names") + Text("value")), "");
  EXPECT_EQ(Read(full, oldest), "");  // One of the others.

  HeaderPaths shrunk = paths;
  EXPECT_EQ(Read(shrunk, "\x20"), "");                                        // To nothing.
  EXPECT_EQ(Read(shrunk, std::string("\x44") + Text(kMultiply)), kMultiply);  // Is not kept.
  EXPECT_EQ(Read(shrunk, "\xbe"), std::nullopt);
}

// gRPC's clients send a trace and a deadline with each call. The path stays in the table for as
// long as it has room beside their sizes without base64, or without the zero before binary values.
TEST(HeaderPathsTest, BinaryValuesCountDecoded) {
  const std::string digits(38, 'A');  // 28 bytes.
  for (const std::string& value : {digits, digits + "==", std::string(29, '\0')}) {
    HeaderPaths paths;
    EXPECT_EQ(Read(paths, std::string("\x44") + Text(kMultiply)), kMultiply);
    size_t left = HeaderPaths::kMaxTableBytes - (5 + std::string_view(kMultiply).size() + 32);
    size_t others = 0;
    std::string trace = std::string("\x40") + Text("grpc-trace-bin");
    for (; left >= 12 + 5 + 32 + 14 + 28 + 32; left -= 12 + 5 + 32 + 14 + 28 + 32) {
      const std::string timeout = std::to_string(9999 - others) + "m";
      EXPECT_EQ(Read(paths, std::string("\x40") + Text("grpc-timeout") + Text(timeout)), "");
      EXPECT_EQ(Read(paths, trace + Text(value)), "");
      trace = std::string("\x7f\0", 2);  // By its name, the last field but one.
      others += 2;
    }
    ASSERT_GT(left, 32);
    const std::string filler(left - 32, 'f');
    EXPECT_EQ(Read(paths, std::string("\x40") + Text("") + Text(filler)), "");
    const std::string oldest = std::string("\xff") + static_cast<char>(61 + others + 2 - 127);
    EXPECT_EQ(Read(paths, oldest), kMultiply) << absl::BytesToHexString(value);
    EXPECT_EQ(Read(paths, std::string("\x40") + Text("a") + Text("b")), "");
    EXPECT_EQ(Read(paths, oldest), "") << "it had no room to spare";
  }
}

TEST(HeaderPathsTest, LongPathsAreCutAndCountWhole) {
  HeaderPaths paths;
  const std::string path = "/" + std::string(200, 'p');
  const std::string block = std::string("\x44\x7f\x4a", 3) + path;  // 201 = 127 + 74.
  EXPECT_EQ(Read(paths, block), path.substr(0, HeaderPaths::kMaxPathBytes));
  EXPECT_EQ(Read(paths, "\xbe"), path.substr(0, HeaderPaths::kMaxPathBytes));
}

TEST(HeaderPathsTest, BytesThatAreNoHeadersEndIt) {
  const std::string bad[] = {
      std::string("\x80"),                                  // No index.
      std::string("\xbe"),                                  // Of a table that is empty.
      std::string("\x44"),                                  // No value.
      std::string("\x44\x05/abc"),                          // Too short a value.
      std::string("\x44\xff\xff\xff\xff\xff\xff\xff\x7f"),  // A length beyond all.
      std::string("\x3f\xff\x7f"),                          // A table of more than it may have.
      std::string("\x44\x84\xff\xff\xff\xff"),              // The code of the end.
      std::string("\x78\x81\x00", 3),                       // Padded with zeros,
      std::string("\x78\x82\x07\xff", 4),                   // and with more than seven bits.
  };
  for (const std::string& block : bad) {
    HeaderPaths paths;
    EXPECT_EQ(Read(paths, block), std::nullopt) << absl::BytesToHexString(block);
    EXPECT_EQ(Read(paths, std::string("\x04") + Text(kMultiply)), std::nullopt);
  }
}

}  // namespace
}  // namespace gemmd
