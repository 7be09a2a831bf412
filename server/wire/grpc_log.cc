// SPDX-License-Identifier: Apache-2.0
#include "server/wire/grpc_log.h"

#ifdef GEMMD_GRPC_HAS_LOG_FUNCTION
#include <grpc/support/log.h>

#include <string_view>

#include "server/system/log.h"

namespace gemmd {
namespace {

// Limited, so that a peer cannot fill the log faster than it sends.
constexpr size_t kLongestMessage = 1000;

spdlog::level::level_enum LevelOf(gpr_log_severity severity) {
  switch (severity) {
    case GPR_LOG_SEVERITY_DEBUG: return spdlog::level::debug;
    case GPR_LOG_SEVERITY_INFO: return spdlog::level::info;
    case GPR_LOG_SEVERITY_ERROR: return spdlog::level::warn;
  }
  return spdlog::level::warn;
}

void Log(gpr_log_func_args* line) {
  const spdlog::level::level_enum level = LevelOf(line->severity);
  if (!spdlog::should_log(level)) return;
  std::string_view file = line->file;
  file.remove_prefix(file.rfind('/') + 1);  // Without a slash npos + 1, which is 0.
  const std::string_view message = std::string_view(line->message).substr(0, kLongestMessage);
  spdlog::log(level, "event=grpc source={}:{} message={}", LogValue(file), line->line,
              LogValue(message));
}

}  // namespace

void RouteGrpcLog() { gpr_set_log_function(Log); }

}  // namespace gemmd

#else

namespace gemmd {
void RouteGrpcLog() {}
}  // namespace gemmd

#endif
