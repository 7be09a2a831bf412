// SPDX-License-Identifier: Apache-2.0
#include "server/system/log.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstddef>
#include <filesystem>
#include <iterator>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/system/clock.h"
#include "server/system/files.h"
#include "server/system/sockets.h"

namespace gemmd {

namespace {

// Removes digits from the front; false if there are none.
bool TakeDigits(std::string_view& text) {
  const size_t end = std::min(text.find_first_not_of("0123456789"), text.size());
  text.remove_prefix(end);
  return end > 0;
}

bool TakeOne(std::string_view& text, std::string_view any_of) {
  if (text.empty() || any_of.find(text.front()) == any_of.npos) return false;
  text.remove_prefix(1);
  return true;
}

// The length of a quoted value with both quotes; nullopt if the second is missing.
std::optional<size_t> QuotedLength(std::string_view text) {
  for (size_t i = 1; i < text.size(); ++i) {
    if (text[i] == '\\') {
      ++i;
    } else if (text[i] == '"') {
      return i + 1;
    }
  }
  return std::nullopt;
}

// Removes one pair and the space after it; false if there is none.
bool TakeField(std::string_view& pairs, std::vector<LogField>& fields) {
  const size_t equals = pairs.find('=');
  if (equals == pairs.npos || equals == 0) return false;
  LogField field{.key = pairs.substr(0, equals), .value = "", .is_number = false};
  const bool is_word = std::all_of(field.key.begin(), field.key.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_';
  });
  if (!is_word) return false;
  pairs.remove_prefix(equals + 1);
  const bool is_quoted = pairs.starts_with('"');
  const std::optional<size_t> length =
      is_quoted ? QuotedLength(pairs) : std::min(pairs.find(' '), pairs.size());
  if (!length) return false;
  const std::string_view value = pairs.substr(0, *length);
  pairs.remove_prefix(*length);
  if (is_quoted) {
    const std::string_view inner = value.substr(1, value.size() - 2);
    if (!absl::CUnescape({inner.data(), inner.size()}, &field.value)) return false;
  } else {
    field.value = value;
    field.is_number = IsNumber(value);
  }
  fields.push_back(std::move(field));
  return pairs.empty() || TakeOne(pairs, " ");
}

// The length of the UTF-8 character at the front; 0 if it is invalid. Overlong forms and surrogates
// are invalid (RFC 3629).
size_t CharacterLength(std::string_view text) {
  const auto byte = [&text](size_t i) { return static_cast<unsigned char>(text[i]); };
  const auto follows = [&](size_t i, int min = 0x80, int max = 0xBF) {
    return i < text.size() && byte(i) >= min && byte(i) <= max;
  };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) return follows(1) ? 2 : 0;
  if (first >= 0xE0 && first <= 0xEF) {
    const int min = first == 0xE0 ? 0xA0 : 0x80;
    const int max = first == 0xED ? 0x9F : 0xBF;
    return follows(1, min, max) && follows(2) ? 3 : 0;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    const int min = first == 0xF0 ? 0x90 : 0x80;
    const int max = first == 0xF4 ? 0x8F : 0xBF;
    return follows(1, min, max) && follows(2) && follows(3) ? 4 : 0;
  }
  return 0;
}

void AppendJsonString(std::string_view text, std::string& json) {
  json += '"';
  while (!text.empty()) {
    const size_t length = CharacterLength(text);
    const auto first = static_cast<unsigned char>(text.front());
    if (length == 0) {
      json += "\xEF\xBF\xBD";  // U+FFFD
    } else if (first == '"' || first == '\\') {
      json.append({'\\', text.front()});
    } else if (first < 0x20 || first == 0x7F) {
      absl::StrAppend(&json, "\\u", absl::Hex(first, absl::kZeroPad4));
    } else {
      json.append(text.substr(0, length));
    }
    text.remove_prefix(std::max(length, size_t{1}));
  }
  json += '"';
}

}  // namespace

bool IsNumber(std::string_view text) {
  TakeOne(text, "-");
  const bool is_zero_first = text.starts_with('0');
  const size_t before = text.size();
  if (!TakeDigits(text) || (is_zero_first && before - text.size() > 1)) return false;
  if (TakeOne(text, ".") && !TakeDigits(text)) return false;
  if (TakeOne(text, "eE")) {
    TakeOne(text, "+-");
    if (!TakeDigits(text)) return false;
  }
  return text.empty();
}

std::vector<LogField> FieldsOf(std::string_view pairs) {
  std::vector<LogField> fields;
  std::string_view rest = pairs;
  while (!rest.empty()) {
    if (!TakeField(rest, fields)) return {{"message", std::string(pairs), false}};
  }
  return fields;
}

std::string_view ValueOf(const std::vector<LogField>& fields, std::string_view key) {
  const auto found = std::find_if(fields.begin(), fields.end(),
                                  [key](const LogField& field) { return field.key == key; });
  return found == fields.end() ? "" : std::string_view(found->value);
}

std::string FormatLine(LogFormat format, absl::Time time, std::string_view level,
                       std::string_view pairs) {
  const std::string when = absl::FormatTime("%Y-%m-%dT%H:%M:%E6S%Ez", time, absl::LocalTimeZone());
  if (format == LogFormat::kText) {
    std::string line = absl::StrCat("time=", when, " level=");
    line.append(level).append(" ").append(pairs).append("\n");
    return line;
  }
  std::string line = absl::StrCat("{\"time\":\"", when, "\",\"level\":");
  AppendJsonString(level, line);
  for (const LogField& field : FieldsOf(pairs)) {
    line += ',';
    AppendJsonString(field.key, line);
    line += ':';
    if (field.is_number) {
      line += field.value;
    } else {
      AppendJsonString(field.value, line);
    }
  }
  return line + "}\n";
}

std::string LogValue(std::string_view value) {
  const bool is_word = !value.empty() && std::all_of(value.begin(), value.end(), [](char c) {
    return absl::ascii_isgraph(static_cast<unsigned char>(c)) && c != '"' && c != '=' && c != '\\';
  });
  if (is_word && !IsNumber(value)) return std::string(value);
  return absl::StrCat("\"", absl::Utf8SafeCEscape(std::string(value)), "\"");
}

namespace {

bool IsRegular(int descriptor) {
  struct stat status = {};
  return fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode);
}

bool HasRoom(int descriptor) {
  pollfd file = {.fd = descriptor, .events = POLLOUT, .revents = 0};
  return poll(&file, 1, 0) > 0;  // The write reports any error.
}

}  // namespace

absl::StatusOr<LogFile> LogFile::Open(const std::string& path) {
  constexpr mode_t kReadableForOthers = 0644;
  std::error_code ignored;  // The open reports the error.
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (!folder.empty()) std::filesystem::create_directories(folder, ignored);
  FileDescriptor file(open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK,
                           kReadableForOthers));
  if (!file.is_open()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "cannot open ", path, ": ", std::error_code(errno, std::generic_category()).message()));
  }
  const int descriptor = file.get();
  LogFile opened(descriptor, std::move(file),
                 IsRegular(descriptor) ? Kind::kStalls : Kind::kNeverWaits);
  opened.path_ = path;
  return opened;
}

LogFile LogFile::Of(int descriptor) {
  struct stat status = {};
  if (fstat(descriptor, &status) != 0) return {descriptor, {}, Kind::kMayWait};
  if (S_ISREG(status.st_mode)) return {descriptor, {}, Kind::kStalls};
  if (S_ISSOCK(status.st_mode)) return {descriptor, {}, Kind::kSocket};
  if (S_ISFIFO(status.st_mode)) {
    // Opened again, because O_NONBLOCK would otherwise apply to all processes that share the pipe.
    // Another user's pipe cannot be opened.
    FileDescriptor again(open(absl::StrCat("/proc/self/fd/", descriptor).c_str(),
                              O_WRONLY | O_CLOEXEC | O_NONBLOCK));
    if (again.is_open()) {
      const int number = again.get();
      return {number, std::move(again), Kind::kNeverWaits};
    }
  }
  return {descriptor, {}, Kind::kMayWait};
}

std::optional<size_t> LogFile::TryWrite(std::string_view text) const {
  if (write_) return write_(text);
  ssize_t written = 0;
  if (kind_ == Kind::kSocket) {
    written = send(descriptor_, text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  } else if (kind_ != Kind::kMayWait) {
    written = write(descriptor_, text.data(), text.size());
  } else if (HasRoom(descriptor_)) {
    // If poll reports room in a pipe, there is room for PIPE_BUF bytes.
    written = write(descriptor_, text.data(), std::min<size_t>(text.size(), PIPE_BUF));
  }
  if (written >= 0) return static_cast<size_t>(written);
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return 0;
  return std::nullopt;
}

bool RepeatLimit::Admit(std::string_view event, std::string_view reason, int64_t now_ns) {
  if (windows_.size() >= limits_.kinds) {
    std::erase_if(windows_, [&](const auto& kind) {
      return kind.second.end_ns <= now_ns && left_out(kind.second) <= 0;
    });
  }
  Kind kind(event, reason);
  if (windows_.size() >= limits_.kinds && !windows_.contains(kind)) kind.second.clear();
  Window& window = windows_[kind];
  // A window with suppressed lines continues until TakeEnded has returned it.
  if (window.end_ns <= now_ns && left_out(window) <= 0) {
    window = {.end_ns = now_ns + limits_.window_ns, .lines = 0};
  }
  return ++window.lines <= limits_.lines;
}

std::vector<RepeatLimit::Suppressed> RepeatLimit::TakeEnded(int64_t now_ns) {
  std::vector<Suppressed> ended;
  for (auto& [kind, window] : windows_) {
    if (window.end_ns > now_ns || left_out(window) <= 0) continue;
    ended.push_back({.event = kind.first, .reason = kind.second, .lines = left_out(window)});
    window = {};
  }
  return ended;
}

int64_t RepeatLimit::next_end_ns() const {
  int64_t next_ns = kNoDeadlineNs;
  for (const auto& [kind, window] : windows_) {
    if (left_out(window) > 0) next_ns = std::min(next_ns, window.end_ns);
  }
  return next_ns;
}

namespace {

// The thread checks this often even if nobody can wake it because no descriptor was left.
constexpr int64_t kLongestRestNs = 1'000'000'000;

// A working disk takes lines sooner.
constexpr absl::Duration kLongestWait = absl::Milliseconds(5);

std::string_view View(spdlog::string_view_t text) { return {text.data(), text.size()}; }

}  // namespace

LogSink::LogSink(LogFile file, const Options& options, const Clock& clock)
    : options_(options),
      clock_(clock),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      file_(std::move(file)),
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

// Writes, buffers or drops the line.
void LogSink::Add(std::string line) {
  WriteBuffered();
  TellLost();
  if (buffered_bytes_ + line.size() > options_.max_buffered_bytes) {
    ++lost_;
    ++lost_untold_;
    return;
  }
  Buffer(std::move(line));
  WriteBuffered();
  if (!buffered_.empty()) Wake();
}

void LogSink::Buffer(std::string line) {
  buffered_bytes_ += line.size();
  buffered_.push_back(std::move(line));
  ++added_;
}

void LogSink::WriteBuffered() {
  // After Close there is no other thread.
  if (file_.may_stall() && !is_closed_) return;
  while (!buffered_.empty()) {
    EndCutLine();
    if (!TakeWritten(file_.TryWrite(buffered_.front()))) return;
  }
}

void LogSink::WriteUnlocked() {
  while (!buffered_.empty()) {
    EndCutLine();
    // Other threads only add lines behind it.
    const std::string_view line = buffered_.front();
    const LogFile* const file = &file_;
    mutex_.Unlock();
    const std::optional<size_t> written = file->TryWrite(line);
    mutex_.Lock();
    is_stalled_ = false;
    if (!TakeWritten(written)) return;
  }
}

void LogSink::Reopen() {
  {
    MutexLock lock(&mutex_);
    if (file_.path().empty()) return;
    is_renamed_ = true;
  }
  Wake();
}

void LogSink::OpenAgain() {
  is_renamed_ = false;
  const std::string path = file_.path();
  mutex_.Unlock();
  {
    absl::StatusOr<LogFile> opened = LogFile::Open(path);
    if (opened.ok()) {
      spdlog::info("event=file_opened_again file={}", LogValue(path));
      MutexLock lock(&mutex_);
      // Meanwhile, another thread may have written a part of a line to the old file.
      is_renamed_ = is_renamed_ || is_begun_;
      if (!is_begun_) {
        std::swap(file_, *opened);
        is_cut_ = false;
      }
    } else {
      spdlog::warn("event=file_kept file={} reason={}", LogValue(path),
                   LogValue(std::string(opened.status().message())));
    }
  }  // Closes a file, which may take time.
  mutex_.Lock();
}

// Ends a line that was only partly written.
void LogSink::EndCutLine() {
  if (!std::exchange(is_cut_, false)) return;
  buffered_.front().insert(buffered_.front().begin(), '\n');
  ++buffered_bytes_;
}

// `written` bytes of the first line were written. False if the file takes no more now.
bool LogSink::TakeWritten(std::optional<size_t> written) {
  if (!written) {
    DropBuffered();
    return false;
  }
  if (*written == 0) return false;
  std::string& line = buffered_.front();
  buffered_bytes_ -= *written;
  line.erase(0, *written);
  is_begun_ = !line.empty();
  if (is_begun_) return true;
  buffered_.pop_front();
  ++removed_;
  if (!reports_.empty() && reports_.front().first == removed_) reports_.pop_front();
  return true;
}

void LogSink::AwaitWritten() {
  if (!file_.may_stall() || is_stalled_) return;
  const int64_t mine = added_;
  const auto is_removed = [this, mine]()
                              ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return removed_ >= mine; };
  if (!mutex_.AwaitWithTimeout(is_removed, kLongestWait)) is_stalled_ = true;
}

// If lines were lost and half of the room is free again, inserts a line that reports them before
// the next one. If it did not wait for half of the room, half of all lines would be such reports.
void LogSink::TellLost() {
  if (lost_untold_ == 0 || buffered_bytes_ > options_.max_buffered_bytes / 2) return;
  const int64_t untold = std::exchange(lost_untold_, 0);
  std::string line = OwnLine(absl::StrCat("event=log_lines_lost lines=", untold));
  Buffer(std::move(line));
  reports_.emplace_back(added_, untold);
  WriteBuffered();
}

void LogSink::TellSuppressed(int64_t now_ns) {
  for (const RepeatLimit::Suppressed& kind : repeats_.TakeEnded(now_ns)) {
    Add(OwnLine(absl::StrCat("event=lines_suppressed of=", LogValue(kind.event),
                             " reason=", LogValue(kind.reason), " suppressed=", kind.lines)));
  }
}

void LogSink::DropBuffered() {
  // A report is not one of the lost lines, and what it reports is still to be reported.
  const auto lines = static_cast<int64_t>(buffered_.size() - reports_.size());
  lost_ += lines;
  lost_untold_ += lines;
  for (const auto& [number, reported] : reports_) lost_untold_ += reported;
  reports_.clear();
  is_cut_ = is_cut_ || std::exchange(is_begun_, false) ||
            (!buffered_.empty() && absl::StartsWith(buffered_.front(), "\n"));
  buffered_.clear();
  buffered_bytes_ = 0;
  removed_ = added_;
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
    file_.may_stall() ? WriteUnlocked() : WriteBuffered();
    TellLost();  // There may be no further line.
    if (file_.may_stall()) WriteUnlocked();
    if (is_renamed_ && !is_begun_) OpenAgain();
    if (is_ending && (buffered_.empty() || now_ns >= end_ns_)) break;
    const int64_t until_ns = std::min(repeats_.next_end_ns(), end_ns_);
    const int awaited_file = buffered_.empty() ? -1 : file_.descriptor();
    mutex_.Unlock();
    Rest(until_ns, awaited_file);
    mutex_.Lock();
  }
  mutex_.Unlock();
}

void LogSink::Wake() const {
  const uint64_t one = 1;
  // It fails only if the counter is full, and then the thread is awake.
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof(one));
}

// Sleeps until the time, until the thread is woken, or until the file may take something.
void LogSink::Rest(int64_t until_ns, int awaited_file) const {
  // poll ignores a negative file descriptor.
  pollfd files[] = {{.fd = wake_.get(), .events = POLLIN, .revents = 0},
                    {.fd = awaited_file, .events = POLLOUT, .revents = 0}};
  const int64_t wait_ns = std::clamp(until_ns - clock_.NowNs(), int64_t{0}, kLongestRestNs);
  // Rounded up, so that the thread does not spin in the last millisecond.
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
  DropBuffered();
  is_closed_ = true;
}

namespace {

constexpr char kName[] = "audit";
constexpr int64_t kSecondNs = 1'000'000'000;

// Of one peer, in a second.
constexpr int64_t kMaxRefusals = 10;

// Whether nothing was done for the caller. The status is the last field.
bool IsRefusal(std::string_view pairs) {
  constexpr std::string_view kRefused[] = {"event=call_refused", "event=product_refused",
                                           "event=product_dropped"};
  const std::string_view event = pairs.substr(0, pairs.find(' '));
  if (std::ranges::find(kRefused, event) != std::end(kRefused)) return true;
  if (event == "event=product") return false;  // It was launched, and may have run.
  constexpr std::string_view kStatus = " status=";
  const size_t at = pairs.rfind(kStatus);
  if (at == pairs.npos) return false;
  constexpr std::string_view kRefusals[] = {
      "INVALID_ARGUMENT", "NOT_FOUND",          "ALREADY_EXISTS",      "PERMISSION_DENIED",
      "UNAUTHENTICATED",  "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "OUT_OF_RANGE",
      "UNIMPLEMENTED",    "UNAVAILABLE"};
  return std::find(std::begin(kRefusals), std::end(kRefusals), pairs.substr(at + kStatus.size())) !=
         std::end(kRefusals);
}

// Refusals count for the peer's host or user, or for the identity if the line has no peer. Work
// that was done counts for the identity, because a proxy may be the peer of many; otherwise for the
// peer.
std::string WhoOf(std::string_view pairs, bool is_refusal) {
  const std::vector<LogField> fields = FieldsOf(pairs);
  const std::string_view host = HostOf(ValueOf(fields, "peer"));
  const std::string_view identity = ValueOf(fields, "identity");
  if (is_refusal) return std::string(host.empty() ? identity : host);
  return std::string(identity.empty() ? host : identity);
}

}  // namespace

bool AuditSink::Budget::Admit(const std::string& who) {
  const bool is_known = parts_.size() < kMaxParts || parts_.contains(who);
  Part& part = parts_[is_known ? who : ""];
  if (part.written >= std::min(of_one_, lines_ - written_)) {
    ++part.summed;
    return false;
  }
  ++part.written;
  ++written_;
  return true;
}

std::vector<std::pair<std::string, int64_t>> AuditSink::Budget::TakeSums() {
  std::vector<std::pair<std::string, int64_t>> sums;
  for (const auto& [who, part] : parts_) {
    if (part.summed > 0) sums.emplace_back(who, part.summed);
  }
  parts_.clear();
  written_ = 0;
  return sums;
}

AuditSink::AuditSink(LogFile file, int64_t lines_per_second, const Clock& clock)
    : clock_(clock),
      sink_(std::move(file), {.format = LogFormat::kJson, .repeats = {}}, clock),
      done_(lines_per_second, lines_per_second),
      refused_(lines_per_second, kMaxRefusals) {}

void AuditSink::log(const spdlog::details::log_msg& message) {
  const std::string_view pairs = View(message.payload);
  const bool is_refusal = IsRefusal(pairs);
  const std::string who = WhoOf(pairs, is_refusal);
  bool is_written = false;
  int64_t lost_since = 0;
  std::vector<std::string> sums;
  {
    MutexLock lock(&mutex_);
    const int64_t now_ns = clock_.NowNs();
    if (now_ns >= second_ends_ns_) {
      second_ends_ns_ = now_ns + kSecondNs;
      sums = TakeSums();
      const int64_t lost_by_now = lost();
      lost_since = lost_by_now - std::exchange(warned_of_, lost_by_now);
    }
    is_written = (is_refusal ? refused_ : done_).Admit(who);
  }
  if (lost_since > 0) spdlog::warn("event=audit_lines_lost lines={}", lost_since);
  Tell(sums);
  if (is_written) sink_.log(message);
}

std::vector<std::string> AuditSink::TakeSums() {
  std::vector<std::string> lines;
  for (const auto& [caller, count] : done_.TakeSums()) {
    lines.push_back(absl::StrCat("event=work_summed caller=", LogValue(caller), " lines=", count));
  }
  for (const auto& [peer, count] : refused_.TakeSums()) {
    lines.push_back(absl::StrCat("event=refusals_summed peer=", LogValue(peer), " calls=", count));
  }
  return lines;
}

void AuditSink::Tell(const std::vector<std::string>& lines) {
  for (const std::string& line : lines) {
    sink_.log(spdlog::details::log_msg(kName, spdlog::level::info, line));
  }
}

void AuditSink::Close(absl::Duration patience) {
  std::vector<std::string> sums;
  {
    MutexLock lock(&mutex_);
    sums = TakeSums();
  }
  Tell(sums);
  sink_.Close(patience);
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
