// SPDX-License-Identifier: Apache-2.0
#include "proto/field_start.h"

#include <google/protobuf/wire_format_lite.h>

namespace gemmd {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;
using google::protobuf::io::CodedOutputStream;

uint32_t DelimitedTag(int number) {
  return WireFormatLite::MakeTag(number, WireFormatLite::WIRETYPE_LENGTH_DELIMITED);
}

void AppendFieldStart(int number, size_t bytes, std::string& to) {
  uint8_t start[10 + 10];
  uint8_t* end = CodedOutputStream::WriteVarint32ToArray(DelimitedTag(number), start);
  end = CodedOutputStream::WriteVarint64ToArray(bytes, end);
  to.append(reinterpret_cast<const char*>(start), static_cast<size_t>(end - start));
}

uint32_t NextTag(CodedInputStream& input) {
  constexpr int kMaxTagBytes = 5;
  const int start = input.CurrentPosition();
  const uint32_t tag = input.ReadTag();
  return input.CurrentPosition() - start <= kMaxTagBytes ? tag : 0;
}

size_t EncodedFieldBytes(int number, size_t bytes) {
  return CodedOutputStream::VarintSize32(DelimitedTag(number)) +
         CodedOutputStream::VarintSize64(bytes) + bytes;
}

}  // namespace gemmd
