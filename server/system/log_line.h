// SPDX-License-Identifier: Apache-2.0
//
// What a line of the log looks like, as text and as JSON: the only place that knows either.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"

namespace gemmd {

enum class LogFormat : uint8_t {
  kText,  // time=2026-11-22T10:00:00.000000+01:00 level=info event=serving
  kJson   // {"time":"2026-11-22T10:00:00.000000+01:00","level":"info","event":"serving"}
};

struct LogField {
  std::string_view key;
  std::string value;  // Unescaped.
  bool is_number = false;
};

// Whether a text is a number as JSON writes them.
bool IsNumber(std::string_view text);

// The fields of "event=x key=word key="some text"", in their order. A line of any other form, as a
// library may log it, is one field: message.
std::vector<LogField> FieldsOf(std::string_view pairs);

// The value of a field; empty where there is none.
std::string_view ValueOf(const std::vector<LogField>& fields, std::string_view key);

// The whole line with its end. In JSON, numbers are numbers, everything else is a string, and what
// is no UTF-8 becomes U+FFFD.
std::string FormatLine(LogFormat format, absl::Time time, std::string_view level,
                       std::string_view pairs);

}  // namespace gemmd
