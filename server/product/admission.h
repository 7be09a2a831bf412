// SPDX-License-Identifier: Apache-2.0
//
// How much work the server takes on at once: requests, bytes of messages, results and scratch, as
// much memory as is left, and what can be in time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/product/counts.h"
#include "server/product/queue.h"
#include "server/system/mutex.h"

namespace gemmd {

// How near the process is to the limit of its memory, by what is resident, whatever the account of
// admission says.
enum class Pressure : uint8_t {
  kNone,
  kHigh,      // From 85 % of the limit: no new large products and tensors.
  kSevere,    // From 92 %: no new products, bytes of tensors or sessions; questions of operators
              // alone.
  kCritical,  // From 95 %: whoever does not read an answer loses the call.
};
inline constexpr size_t kPressures = 4;
std::string_view NameOf(Pressure pressure);  // "high"

class MemoryPressure {
 public:
  using ReadResidentBytes = std::function<std::optional<int64_t>()>;

  // `give_back` is called where much of what is resident may be free memory.
  MemoryPressure(int64_t limit_bytes, ReadResidentBytes read, std::function<void()> give_back);

  // Reads what is resident and tells the pressure; without a reading, the last one. `held_bytes`
  // are those that admission knows of. Threads: one at a time.
  Pressure Measure(int64_t held_bytes);

  // What was read last. Threads: as Measure.
  int64_t used_bytes() const { return used_bytes_; }

 private:
  int64_t PercentOf(int64_t bytes) const;

  const int64_t limit_bytes_;
  const ReadResidentBytes read_;
  const std::function<void()> give_back_;
  int64_t floor_bytes_ = 0;   // What was resident when memory was given back, or later and less.
  int64_t lowest_bytes_ = 0;  // What was resident at the least.
  int measures_ = 0;          // Since memory was given back.
  int64_t used_bytes_ = 0;
  Pressure last_ = Pressure::kNone;
};

// The status as a refusal that says when to try again, beside its message.
absl::Status WithRetryAfterMs(absl::Status status, int64_t retry_after_ms);
std::optional<int64_t> RetryAfterMs(const absl::Status& status);

// Why a request is not let in; kIn if it is.
enum class Verdict : uint8_t {
  kIn,
  // There is no place for it:
  kDraining,
  kRequests,
  kMemory,
  kBytes,
  // The places that are left are kept for others:
  kConnectionShare,
  kCallerShare,
  // It cannot be in time:
  kTooLong,
  kTooLate,
  kWait,
  kBacklog
};

// All that decides whether a product is let in. The refusal repeats these numbers.
struct Asked {
  int64_t predicted_ns = 0;
  int64_t expected_ns = 0;  // The same, by how the predictions of its caller's last products were.
  int64_t after_ns = 0;     // The part of both that is the check of its D.
  int64_t left_ns = 0;      // Until its deadline; kNoDeadlineNs where it has none.
  // The rest of what runs, what waits and would be launched before it, and what others are expected
  // to put there while it waits.
  int64_t running_ns = 0;
  int64_t ahead_ns = 0;
  int64_t to_come_ns = 0;
  int64_t backlog_ns = 0;  // All that its device has to do.

  // Set by Admission:
  int64_t more_bytes = 0;  // Beside those of its ticket.
  int64_t free_bytes = 0;
  int64_t free_requests = 0;
  FairQueue::Inside own = {};  // Requests of its caller and of its connection.
};

// How much work the server takes on at once: requests, bytes of messages, results and scratch, and
// the time that all of it takes.
//
// A ticket is held from the arrival of a message, which may become a request, until the answer has
// left the server, so that slow readers count. A drain closes the admission: there are no more
// tickets, and the server is idle when the last one is back.
class Admission {
 public:
  struct Limits {
    int64_t max_requests = 0;
    int64_t max_bytes = 0;
    // The longest product, by prediction.
    int64_t max_product_ns = 60'000'000'000;
    // What may wait ahead of a product, by prediction; what runs does not count. As long as the
    // default of --grace, so that a drain can finish what waits.
    int64_t max_backlog_ns = 20'000'000'000;
  };
  struct Load {
    int64_t requests = 0;  // Admitted and not yet answered.
    int64_t bytes = 0;     // Held by all tickets.
    int64_t tickets = 0;
    // Counted since the start:
    int64_t admitted = 0;
    int64_t refused_for_requests = 0;
    int64_t refused_for_bytes = 0;
    int64_t refused_when_closed = 0;
    int64_t refused_for_memory = 0;
    Pressure pressure = Pressure::kNone;
    // How often each pressure, by its number, has become that of the process.
    std::array<int64_t, kPressures> pressure_changes = {};
    bool is_closed = false;
  };

  // The right to hold bytes and, once admitted, to be one of the requests inside; given back by the
  // destructor. Movable. Threads: one at a time.
  class Ticket {
   public:
    Ticket() = default;
    Ticket(Ticket&& other) noexcept;
    Ticket& operator=(Ticket&& other) noexcept;
    ~Ticket();

    // The answer is about to be sent: gives up the place in the count of requests, and all bytes
    // but `bytes`, where it holds more.
    void MarkAnswered(int64_t bytes);

    int64_t bytes() const { return bytes_; }

   private:
    friend class Admission;
    Ticket(Admission* admission, int64_t bytes) : admission_(admission), bytes_(bytes) {}

    Admission* admission_ = nullptr;
    int64_t bytes_ = 0;
    bool is_request_ = false;  // It counts as one of the requests inside.
  };

  explicit Admission(Limits limits) : limits_(limits) {}

  // Room for a message that has arrived, which is no request yet.
  // Errors: Unavailable while closed; ResourceExhausted where there is no room.
  // Threads: any. Outlives its tickets.
  absl::StatusOr<Ticket> Hold(int64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);

  // Makes the holder of the ticket, which may be empty, one of the requests, if there is a place
  // for it and it can be in time; it then holds `bytes`, or as many as it held where that is more.
  // Nothing changes where it is refused. `own` is called where places are scarce. Allocates nothing
  // and is called with the scheduler's lock held. Threads: any.
  Verdict Admit(Ticket& ticket, int64_t bytes, Asked& asked,
                absl::FunctionRef<FairQueue::Inside()> own) ABSL_LOCKS_EXCLUDED(mutex_);

  // How short the process is of memory: with high pressure what is larger than kLargeBytes is
  // refused with ResourceExhausted, with more of it everything. Returns whether it has changed.
  bool SetPressure(Pressure pressure) ABSL_LOCKS_EXCLUDED(mutex_);
  static constexpr int64_t kLargeBytes = int64_t{1} << 20;

  // Whether there is memory for a question that nobody needs in order to mend that.
  // Errors: ResourceExhausted from severe pressure on. Threads: any.
  absl::Status CheckQuestion() ABSL_LOCKS_EXCLUDED(mutex_);

  // Refuses everything from now on.
  void Close() ABSL_LOCKS_EXCLUDED(mutex_);
  bool closed() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Waits until no ticket is out. Returns false where that takes longer than `timeout`, or until
  // StopWaiting is called.
  bool WaitUntilIdle(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits so long. Returns false where StopWaiting has ended that.
  bool Pause(absl::Duration duration) ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends a WaitUntilIdle or Pause that waits now, and each that is called later.
  void StopWaiting() ABSL_LOCKS_EXCLUDED(mutex_);

  Load load() const ABSL_LOCKS_EXCLUDED(mutex_);
  const Limits& limits() const { return limits_; }

 private:
  Verdict CheckShare(Asked& asked, absl::FunctionRef<FairQueue::Inside()> own) const;
  Verdict CheckRoom(Asked& asked) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Release(bool is_request, int64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  void ReleaseTicket(bool is_request, int64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);

  const Limits limits_;
  mutable Mutex mutex_;
  Load load_ ABSL_GUARDED_BY(mutex_);
  bool waits_no_more_ ABSL_GUARDED_BY(mutex_) = false;
};

// Whether a product can be in time: by its predicted time, what is ahead of it and its deadline. A
// product that cannot be is refused at once, which costs its caller nothing and the device nothing.
Verdict CheckTime(const Asked& asked, const Admission::Limits& limits);

// The refusal of a request; its status is OK where there is none.
struct ProductRefusal {
  absl::Status status;
  std::optional<RefusalReason> reason;  // Nothing for what Admission counts.
};

// Errors: Unavailable while the server drains; DeadlineExceeded where the product is too long for
// its deadline; otherwise ResourceExhausted, which says when to try again where that helps.
ProductRefusal RefusalOf(Verdict verdict, const Asked& asked, const Admission::Limits& limits);

// The refusal of a product that is too long for its deadline.
absl::Status TooLateForDeadline(int64_t predicted_ns, int64_t left_ns);

// Milliseconds after which to try again, for a wait of so long: 1 ms to 10 s.
int64_t RetryMs(int64_t wait_ns);

}  // namespace gemmd
