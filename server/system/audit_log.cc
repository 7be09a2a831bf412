// SPDX-License-Identifier: Apache-2.0
#include "server/system/audit_log.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "absl/strings/str_cat.h"

namespace gemmd {
namespace {

constexpr char kName[] = "audit";
constexpr int64_t kSecondNs = 1'000'000'000;

LogSink::Options JsonLines() {
  LogSink::Options options;
  options.format = LogFormat::kJson;
  return options;
}

}  // namespace

AuditSink::AuditSink(LogFile file, int64_t lines_per_second, const Clock& clock)
    : lines_per_second_(lines_per_second),
      clock_(clock),
      sink_(std::move(file), JsonLines(), clock) {}

void AuditSink::log(const spdlog::details::log_msg& message) {
  int64_t untold = 0;
  int64_t lost_since = 0;
  {
    MutexLock lock(&mutex_);
    const int64_t now_ns = clock_.NowNs();
    if (now_ns >= second_ends_ns_) {
      second_ends_ns_ = now_ns + kSecondNs;
      lines_ = 0;
      const int64_t lost_by_now = lost();
      lost_since = lost_by_now - std::exchange(warned_of_, lost_by_now);
    }
    if (++lines_ > lines_per_second_) {
      ++untold_;
      ++left_out_;
      return;
    }
    untold = std::exchange(untold_, 0);
  }
  if (lost_since > 0) spdlog::warn("event=audit_lines_lost lines={}", lost_since);
  if (untold > 0) {
    const std::string text = absl::StrCat("event=audit_lines_lost lines=", untold);
    sink_.log(spdlog::details::log_msg(kName, spdlog::level::info, text));
  }
  sink_.log(message);
}

void SetAuditLog(std::shared_ptr<AuditSink> sink) {
  spdlog::drop(kName);
  if (sink == nullptr) return;
  auto logger = std::make_shared<spdlog::logger>(kName, std::move(sink));
  logger->set_level(spdlog::level::info);
  spdlog::register_logger(std::move(logger));
}

std::shared_ptr<spdlog::logger> AuditLog() { return spdlog::get(kName); }

}  // namespace gemmd
