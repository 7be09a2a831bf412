// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/target.h"

#include <grpcpp/support/slice.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>

namespace gemmd::fuzz {

Choices::Choices(std::string_view input) : state_(14695981039346656037u) {  // FNV-1a.
  for (const char c : input) state_ = (state_ ^ static_cast<uint8_t>(c)) * 1099511628211u;
}

// SplitMix64.
uint64_t Choices::Bits() {
  uint64_t z = (state_ += 0x9e3779b97f4a7c15);
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
  z = (z ^ z >> 27) * 0x94d049bb133111eb;
  return z ^ z >> 31;
}

int64_t SomeNumber(Choices& choices) {
  switch (choices.Below(4)) {
    case 0: return static_cast<int64_t>(choices.Below(20));
    case 1: return static_cast<int64_t>(choices.Bits() >> choices.Below(64));
    case 2: return -static_cast<int64_t>(choices.Below(3));
    default: {
      const auto power = static_cast<int64_t>(uint64_t{1} << choices.Below(63));
      return power - 2 + static_cast<int64_t>(choices.Below(4));
    }
  }
}

void Demand(bool holds, std::string_view what) {
  if (holds) return;
  std::cerr << "The fuzzer found what must not be: " << what << std::endl;
  std::abort();
}

bool IsAboutCountsOfFields(const absl::Status& status) {
  return status.message().find("fields, want") != std::string_view::npos;
}

grpc::ByteBuffer Cut(std::string_view bytes, Choices& choices) {
  const size_t longest[] = {1, 7, 100, 9000, size_t{1} << 20};
  // Few slices are freed by the thread that reads them; more go to one of gRPC's threads.
  constexpr size_t kMaxSlices = 200;
  const size_t most =
      std::max(longest[choices.Below(std::size(longest))], 2 * bytes.size() / kMaxSlices);
  std::vector<grpc::Slice> slices;
  while (!bytes.empty()) {
    const size_t size = std::min(1 + choices.Below(most), bytes.size());
    slices.emplace_back(bytes.data(), size);
    bytes.remove_prefix(size);
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

std::string Joined(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  (void)buffer.Dump(&slices);  // Fails only for compressed messages.
  std::string bytes;
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return bytes;
}

}  // namespace gemmd::fuzz
