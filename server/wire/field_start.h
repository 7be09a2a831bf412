// SPDX-License-Identifier: Apache-2.0
//
// Fields that are written by hand, because protobuf would copy what they hold.
#pragma once

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace gemmd {

// The tag of a field of bytes, of a string or of a message.
constexpr uint32_t DelimitedTag(int number) {
  using google::protobuf::internal::WireFormatLite;
  return WireFormatLite::MakeTag(number, WireFormatLite::WIRETYPE_LENGTH_DELIMITED);
}

// The beginning of such a field that has so many bytes.
inline void AppendFieldStart(int number, size_t bytes, std::string& to) {
  using google::protobuf::io::CodedOutputStream;
  uint8_t start[10 + 10];
  uint8_t* end = CodedOutputStream::WriteVarint32ToArray(DelimitedTag(number), start);
  end = CodedOutputStream::WriteVarint64ToArray(bytes, end);
  to.append(reinterpret_cast<const char*>(start), static_cast<size_t>(end - start));
}

// The whole of it.
inline size_t EncodedFieldBytes(int number, size_t bytes) {
  using google::protobuf::io::CodedOutputStream;
  return CodedOutputStream::VarintSize32(DelimitedTag(number)) +
         CodedOutputStream::VarintSize64(bytes) + bytes;
}

}  // namespace gemmd
