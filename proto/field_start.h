// SPDX-License-Identifier: Apache-2.0
//
// Fields that server and client read and write by hand, because protobuf would copy what they hold.
#pragma once

#include <google/protobuf/io/coded_stream.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace gemmd {

// The tag of a field of bytes, of a string or of a message.
uint32_t DelimitedTag(int number);

// The beginning of such a field that has so many bytes.
void AppendFieldStart(int number, size_t bytes, std::string& to);

// The next tag; 0 at the end, and for what protobuf's own parser takes for none: CodedInputStream
// takes tags of 10 bytes, too, and leaves out what does not fit.
uint32_t NextTag(google::protobuf::io::CodedInputStream& input);

// The bytes of a field of so many bytes with its beginning.
size_t EncodedFieldBytes(int number, size_t bytes);

}  // namespace gemmd
