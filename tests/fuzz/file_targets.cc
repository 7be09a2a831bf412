// SPDX-License-Identifier: Apache-2.0
//
// Files of arrays and tensors that people give to gemmctl and gemmload.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "client/matrix/safetensors.h"
#include "gemmd/v1/tensors.pb.h"
#include "tests/client/matrix/npy_fuzz.h"
#include "tests/client/matrix/npy_text.h"
#include "tests/fuzz/target.h"

namespace gemmd::fuzz {
namespace {

void RunNpy(std::string_view input) {
  FuzzNpy(reinterpret_cast<const uint8_t*>(input.data()), input.size());
}

std::vector<std::string> NpySeeds() {
  const std::string data(48, '\1');
  std::vector<std::string> seeds;
  char hint = 0;
  for (const char* dict :
       {"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }       \n",
        "{'descr': '|b1', 'fortran_order': True, 'shape': (12, 4), }\n",
        "{'descr': '|V1', 'fortran_order': True, 'shape': (2, 3, 8), }\n",
        "{'descr': '>f8', 'fortran_order': False, 'shape': (6,), }\n",
        "{'descr': '<V2', 'fortran_order': True, 'shape': (3, 4, 2), }\n",
        "{'descr': '|i1', 'fortran_order': False, 'shape': (0, 3), }\n",
        "{'descr': '|i1', 'fortran_order': False, }\n",
        "{'descr': '|i1', 'fortran_order': False, 'shape': (1,) * 9, }\n",
        "{'descr': '|i1', 'fortran_order': False, 'shape': "
        "(1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1), }\n",
        "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }\n",
        "{'descr': '<f4', 'fortran_order': 1, 'shape': (1,), }\n"}) {
    for (const int version : {1, 2, 3}) {
      hint = static_cast<char>((hint + 5) % v1::ElementType_ARRAYSIZE);
      seeds.push_back(hint + RawNpyHeader(version, dict) + data);
    }
  }
  return seeds;
}

// The bytes of data that a file must have after its header, by the largest end of any tensor;
// meaningful only where the header is valid.
int64_t DataBytesOf(std::string_view header) {
  const auto document = nlohmann::json::parse(header, nullptr, /*allow_exceptions=*/false);
  int64_t most = 0;
  if (!document.is_object()) return most;
  for (const auto& member : document) {
    if (!member.is_object() || !member.contains("data_offsets")) continue;
    for (const auto& offset : member["data_offsets"]) {
      if (offset.is_number_integer()) most = std::max(most, offset.get<int64_t>());
    }
  }
  return most;
}

// Checks the size of one tensor with numbers of 128 bits.
void CheckEntry(const SafetensorsEntry& tensor) {
  __extension__ using WideBits = __int128;
  const auto byte = SafetensorsBytes(tensor.type, {8});
  Demand(byte.ok() && tensor.begin >= 0 && tensor.end >= tensor.begin, "a tensor has no place");
  // Bits and extents fit 63 bits at every step: larger ones were refused.
  WideBits bits = *byte;
  bool is_empty = false;
  for (const int64_t extent : tensor.shape) is_empty |= extent == 0;
  for (const int64_t extent : tensor.shape) {
    Demand(extent >= 0, "a tensor has a negative extent");
    bits = is_empty ? 0 : bits * extent;
    Demand(bits <= WideBits{1} << 63, "a tensor is larger than 2^63 bits");
  }
  Demand(bits % 8 == 0 && bits / 8 == WideBits{tensor.end} - tensor.begin,
         "a tensor has other bytes than its shape");
}

// The header alone, or with its length before it.
void RunSafetensors(std::string_view input) {
  if (const auto bytes =
          SafetensorsHeaderBytes(Viewed(input.substr(0, 8)), static_cast<int64_t>(input.size()));
      bytes.ok()) {
    Demand(*bytes >= 0 && static_cast<size_t>(*bytes) <= input.size() - 8,
           "a header is longer than its file");
    input = input.substr(8, static_cast<size_t>(*bytes));
  }
  const int64_t data_bytes = DataBytesOf(input);
  (void)ParseSafetensorsHeader(Viewed(input), data_bytes + 1);
  const auto header = ParseSafetensorsHeader(Viewed(input), data_bytes);
  if (!header.ok()) {
    Demand(header.status().message().size() < 2000, "a refusal is long");
    return;
  }
  int64_t end = 0;
  for (const SafetensorsEntry& tensor : header->tensors) {
    CheckEntry(tensor);
    Demand(tensor.begin == end, "tensors overlap, or have a gap between them");
    end = tensor.end;
    (void)SafetensorsTypeOf(TypeOfSafetensors(tensor.type));
  }
  Demand(end == data_bytes, "tensors end within the file");
  // What is printed of a header parses to the same header.
  const std::string text = PrintSafetensorsHeader(*header);
  const auto bytes =
      SafetensorsHeaderBytes(Viewed(text).substr(0, 8), static_cast<int64_t>(text.size()));
  Demand(bytes.ok() && static_cast<size_t>(*bytes) == text.size() - 8,
         "a header has another length");
  const auto again = ParseSafetensorsHeader(Viewed(text).substr(8), data_bytes);
  Demand(again.ok() && again->tensors.size() == header->tensors.size() &&
             again->metadata.size() == header->metadata.size(),
         "a header that was written is not read again");
}

std::vector<std::string> SafetensorsSeeds() {
  std::vector<std::string> seeds;
  for (const char* const type : {"F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2", "F6_E3M2",
                                 "F6_E2M3", "F4", "I8", "U8", "I32", "BOOL", "I16", "F8_E8M0"}) {
    const int64_t bytes = SafetensorsBytes(type, {2, 8}).value();
    SafetensorsHeader header;
    header.tensors = {
        {.name = "a", .type = type, .shape = {2, 8}, .begin = 0, .end = bytes},
        {.name = "b", .type = "F32", .shape = {}, .begin = bytes, .end = bytes + 4},
        {.name = "none", .type = type, .shape = {0, 3}, .begin = bytes + 4, .end = bytes + 4}};
    header.metadata = {{"format", "pt"}};
    seeds.push_back(PrintSafetensorsHeader(header));
    seeds.push_back(seeds.back().substr(8));
  }
  // Headers with one fault each.
  for (const char* const tensor :
       {R"("dtype":"F32","shape":[1],"data_offsets":[4,8])",
        R"("dtype":"F32","shape":[1],"data_offsets":[0])",
        R"("dtype":"F32","shape":[1],"data_offsets":[4,0])", R"("dtype":"F32","shape":[1])",
        R"("dtype":"F32","shape":[-1],"data_offsets":[0,4])",
        R"("dtype":"F32","shape":[1.5],"data_offsets":[0,4])",
        R"("dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,4])",
        R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4])",
        R"("dtype":"F4","shape":[1],"data_offsets":[0,1])",
        R"("dtype":"X","shape":[1],"data_offsets":[0,1])",
        R"("dtype":null,"shape":[1],"data_offsets":[0,1])",
        R"("dtype":true,"shape":[1],"data_offsets":[0,1])",
        R"("dtype":{},"shape":[1],"data_offsets":[0,1])",
        R"("dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1])",
        R"("dtype":"U8","shape":"1","data_offsets":[0,1])",
        R"("dtype":[],"shape":[1],"data_offsets":[0,1])"}) {
    seeds.push_back(std::string(R"({"a":{)") + tensor + "}}");
  }
  const std::string one = R"({"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  seeds.push_back(R"({"a":)" + one + R"(,"a":)" + one + "}");
  // Tensors that overlap, and tensors with a gap between them.
  for (const char* const second : {"[0,4]", "[2,6]", "[5,9]"}) {
    seeds.push_back(std::string(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)") +
                    R"("b":{"dtype":"U8","shape":[4],"data_offsets":)" + second + "}}");
  }
  seeds.push_back(R"({"a":{)");
  seeds.push_back("{}");
  return seeds;
}

}  // namespace

std::vector<Target> FileTargets() {
  return {{"npy", RunNpy, NpySeeds}, {"safetensors", RunSafetensors, SafetensorsSeeds}};
}

}  // namespace gemmd::fuzz
