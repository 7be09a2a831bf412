// SPDX-License-Identifier: Apache-2.0
//
// Log lines of key=value pairs: one line per event, `event=` first. They are written with spdlog;
// log_sink.h says what becomes of them.
#pragma once

#include <spdlog/spdlog.h>

#include <string>
#include <string_view>

namespace gemmd {

// `value` as it stands in a log line: bare where it is a plain word, otherwise in double quotes
// with quotes, backslashes and control characters escaped, so that a caller's text cannot forge a
// line. A text that reads like a number is quoted too: bare numbers are numbers.
std::string LogValue(std::string_view value);

}  // namespace gemmd
