// SPDX-License-Identifier: Apache-2.0
#include "server/wire/protobuf_log.h"

#ifdef GEMMD_PROTOBUF_HAS_LOG_HANDLER
#include <google/protobuf/stubs/logging.h>

#include <string>
#include <string_view>

#include "server/system/log.h"

namespace gemmd {
namespace {

// Limited, so that a peer cannot fill the log faster than it sends.
constexpr size_t kLongestMessage = 1000;

void Log(google::protobuf::LogLevel severity, const char* path, int line, const std::string& text) {
  const spdlog::level::level_enum level =
      severity == google::protobuf::LOGLEVEL_INFO ? spdlog::level::info : spdlog::level::warn;
  if (!spdlog::should_log(level)) return;
  std::string_view file = path;
  file.remove_prefix(file.rfind('/') + 1);  // Without a slash npos + 1, which is 0.
  spdlog::log(level, "event=protobuf source={}:{} message={}", LogValue(file), line,
              LogValue(std::string_view(text).substr(0, kLongestMessage)));
}

}  // namespace

void RouteProtobufLog() { google::protobuf::SetLogHandler(Log); }

}  // namespace gemmd

#else

namespace gemmd {
void RouteProtobufLog() {}
}  // namespace gemmd

#endif
