// SPDX-License-Identifier: Apache-2.0
#include "server/system/log_sink.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/system/log.h"

namespace gemmd {
namespace {

// The thread looks around so often even where nobody can wake it, since no descriptor was left.
constexpr int64_t kLongestRestNs = 1'000'000'000;

// A disk that takes lines takes them sooner.
constexpr absl::Duration kLongestWait = absl::Milliseconds(5);

std::string_view View(spdlog::string_view_t text) { return {text.data(), text.size()}; }

}  // namespace

LogSink::LogSink(LogFile file, const Options& options, const Clock& clock)
    : file_(std::move(file)),
      options_(options),
      clock_(clock),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      repeats_(options.repeats),
      thread_([this] { Run(); }) {}

void LogSink::log(const spdlog::details::log_msg& message) {
  const std::string_view pairs = View(message.payload);
  std::string line = FormatLine(options_.format, absl::FromChrono(message.time),
                                View(spdlog::level::to_string_view(message.level)), pairs);
  MutexLock lock(&mutex_);
  if (message.level >= spdlog::level::warn && !is_closed_) {
    const std::vector<LogField> fields = FieldsOf(pairs);
    const int64_t now_ns = clock_.NowNs();
    TellSuppressed(now_ns);
    if (!repeats_.Admit(ValueOf(fields, "event"), ValueOf(fields, "reason"), now_ns)) {
      ++suppressed_;
      return Wake();
    }
  }
  Add(std::move(line));
  AwaitWritten();
}

// Writes the line, or keeps it, or loses it.
void LogSink::Add(std::string line) {
  WriteKept();
  TellLost();
  if (kept_bytes_ + line.size() > options_.most_kept_bytes) {
    ++lost_;
    ++lost_untold_;
    return;
  }
  Keep(std::move(line));
  WriteKept();
  if (!kept_.empty()) Wake();
}

void LogSink::Keep(std::string line) {
  kept_bytes_ += line.size();
  kept_.push_back(std::move(line));
  ++added_;
}

void LogSink::WriteKept() {
  // After the end there is no other thread.
  if (file_.may_stall() && !is_closed_) return;
  while (!kept_.empty() && TakeWritten(file_.TryWrite(kept_.front()))) {
  }
}

void LogSink::WriteApart() {
  while (!kept_.empty()) {
    // Others only add lines behind it.
    const std::string_view line = kept_.front();
    mutex_.Unlock();
    const std::optional<size_t> written = file_.TryWrite(line);
    mutex_.Lock();
    is_stalled_ = false;
    if (!TakeWritten(written)) return;
  }
}

// So much of the first line was written. False where it takes no more now.
bool LogSink::TakeWritten(std::optional<size_t> written) {
  if (!written) {
    LoseKept();
    return false;
  }
  if (*written == 0) return false;
  std::string& line = kept_.front();
  kept_bytes_ -= *written;
  line.erase(0, *written);
  if (!line.empty()) return true;
  kept_.pop_front();
  ++gone_;
  return true;
}

void LogSink::AwaitWritten() {
  if (!file_.may_stall() || is_stalled_) return;
  const int64_t mine = added_;
  const auto is_gone = [this, mine]()
                           ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return gone_ >= mine; };
  if (!mutex_.AwaitWithTimeout(is_gone, kLongestWait)) is_stalled_ = true;
}

// Puts a line before the next one where lines were lost and half of the room is free again: where
// each line made room for one, half of all lines would tell of the others.
void LogSink::TellLost() {
  if (lost_untold_ == 0 || kept_bytes_ > options_.most_kept_bytes / 2) return;
  const int64_t untold = std::exchange(lost_untold_, 0);
  std::string line = OwnLine(absl::StrCat("event=log_lines_lost lines=", untold));
  Keep(std::move(line));
  WriteKept();
  if (lost_untold_ == 0) return;
  lost_untold_ += untold - 1;  // The line that tells of them is itself lost, and none of them.
  --lost_;
}

void LogSink::TellSuppressed(int64_t now_ns) {
  for (const RepeatLimit::Suppressed& kind : repeats_.TakeEnded(now_ns)) {
    Add(OwnLine(absl::StrCat("event=lines_suppressed of=", LogValue(kind.event),
                             " reason=", LogValue(kind.reason), " suppressed=", kind.lines)));
  }
}

void LogSink::LoseKept() {
  const auto lines = static_cast<int64_t>(kept_.size());
  lost_ += lines;
  lost_untold_ += lines;
  kept_.clear();
  kept_bytes_ = 0;
  gone_ = added_;
}

std::string LogSink::OwnLine(const std::string& pairs) const {
  return FormatLine(options_.format, absl::Now(),
                    View(spdlog::level::to_string_view(spdlog::level::warn)), pairs);
}

void LogSink::Run() {
  pthread_setname_np(pthread_self(), "gemmd-log");
  mutex_.Lock();
  while (true) {
    const int64_t now_ns = clock_.NowNs();
    const bool is_ending = end_ns_ != kNoDeadlineNs;
    TellSuppressed(is_ending ? kNoDeadlineNs : now_ns);
    file_.may_stall() ? WriteApart() : WriteKept();
    TellLost();  // No further line may come.
    if (file_.may_stall()) WriteApart();
    if (is_ending && (kept_.empty() || now_ns >= end_ns_)) break;
    const int64_t until_ns = std::min(repeats_.next_end_ns(), end_ns_);
    const bool is_room_awaited = !kept_.empty();
    mutex_.Unlock();
    Rest(until_ns, is_room_awaited);
    mutex_.Lock();
  }
  mutex_.Unlock();
}

void LogSink::Wake() const {
  const uint64_t one = 1;
  // It fails only where the count is full, and then the thread is awake.
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof(one));
}

// Sleeps until the time, until somebody woke the thread, or until the file may take something.
void LogSink::Rest(int64_t until_ns, bool is_room_awaited) const {
  // poll leaves out a negative file descriptor.
  pollfd files[] = {
      {.fd = wake_.get(), .events = POLLIN, .revents = 0},
      {.fd = is_room_awaited ? file_.descriptor() : -1, .events = POLLOUT, .revents = 0}};
  const int64_t wait_ns = std::clamp(until_ns - clock_.NowNs(), int64_t{0}, kLongestRestNs);
  // Rounded up, so that the thread does not turn around the last millisecond.
  poll(files, std::size(files), static_cast<int>((wait_ns + 999'999) / 1'000'000));
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t size = read(wake_.get(), &count, sizeof(count));
}

void LogSink::Close(absl::Duration patience) {
  if (!thread_.joinable()) return;
  {
    MutexLock lock(&mutex_);
    end_ns_ = clock_.NowNs() + absl::ToInt64Nanoseconds(patience);
  }
  Wake();
  thread_.join();
  MutexLock lock(&mutex_);
  LoseKept();
  is_closed_ = true;
}

}  // namespace gemmd
