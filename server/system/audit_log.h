// SPDX-License-Identifier: Apache-2.0
//
// A log of its own of what callers asked for and got: JSON, a line for each product, for each call
// of another kind that has ended, and for each that was refused. It has no operands and no tokens.
#pragma once

#include <spdlog/logger.h>
#include <spdlog/sinks/sink.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "server/system/clock.h"
#include "server/system/log_sink.h"
#include "server/system/mutex.h"

namespace gemmd {

// Bounds how many lines a second are written; the next second's first line says how many were not.
// What was lost for any reason, as on a full disk, the daemon's own log says, once a second at
// most.
class AuditSink final : public spdlog::sinks::sink {
 public:
  // Borrows the clock.
  AuditSink(LogFile file, int64_t lines_per_second, const Clock& clock);

  void Close(absl::Duration patience) { sink_.Close(patience); }

  // Lines that were not written, for whatever reason. Threads: any.
  int64_t lost() const { return left_out_ + sink_.counts().lost; }

  void log(const spdlog::details::log_msg& message) override ABSL_LOCKS_EXCLUDED(mutex_);
  void flush() override {}
  void set_pattern(const std::string& /*pattern*/) override {}
  void set_formatter(std::unique_ptr<spdlog::formatter> /*formatter*/) override {}

 private:
  const int64_t lines_per_second_;
  const Clock& clock_;
  LogSink sink_;
  std::atomic<int64_t> left_out_ = 0;
  Mutex mutex_;
  int64_t second_ends_ns_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t lines_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t untold_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t warned_of_ ABSL_GUARDED_BY(mutex_) = 0;  // How much of lost().
};

// Makes the sink the audit log of the process, until the sink is given back with null.
void SetAuditLog(std::shared_ptr<AuditSink> sink);

// Null where there is no audit log. Threads: any.
std::shared_ptr<spdlog::logger> AuditLog();

}  // namespace gemmd
