// SPDX-License-Identifier: Apache-2.0
//
// Fields that are written by hand, because protobuf would copy what they hold.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/wire_format_lite.h"

namespace gemmd {

// The beginning of a field of bytes or of a message that has so many bytes.
inline void AppendRequestField(int number, size_t bytes, std::string& to) {
  using google::protobuf::internal::WireFormatLite;
  using google::protobuf::io::CodedOutputStream;
  uint8_t start[10 + 10];
  uint8_t* end = CodedOutputStream::WriteVarint32ToArray(
      WireFormatLite::MakeTag(number, WireFormatLite::WIRETYPE_LENGTH_DELIMITED), start);
  end = CodedOutputStream::WriteVarint64ToArray(bytes, end);
  to.append(reinterpret_cast<const char*>(start), static_cast<size_t>(end - start));
}

}  // namespace gemmd
