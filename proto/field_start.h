// SPDX-License-Identifier: Apache-2.0
//
// Fields that server and client read and write by hand, because protobuf would copy their contents.
#pragma once

#include <google/protobuf/io/coded_stream.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace gemmd {

// The tag of a field of bytes, of a string or of a message.
uint32_t DelimitedTag(int number);

// Appends the start of such a field with `bytes` bytes.
void AppendFieldStart(int number, size_t bytes, std::string& to);

// The next tag; 0 at the end, and for a tag that protobuf's own parser rejects: CodedInputStream
// also accepts tags of 10 bytes, and truncates them.
uint32_t NextTag(google::protobuf::io::CodedInputStream& input);

// The length of a field with `bytes` bytes, including its start.
size_t EncodedFieldBytes(int number, size_t bytes);

}  // namespace gemmd
