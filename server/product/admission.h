// SPDX-License-Identifier: Apache-2.0
//
// Decides how much work the server takes on at once: requests, and the bytes of messages, results
// and scratch memory. Also refuses products while memory is short, and products that cannot finish
// in time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
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

// How close the process is to its memory limit, by its resident memory and not by what admission
// has counted.
enum class Pressure : uint8_t {
  kNone,
  kHigh,      // From 85 % of the limit: refuse large new products and tensors.
  kSevere,    // From 92 %: refuse all new products, tensor bytes and sessions; answer operators
              // only.
  kCritical,  // From 95 %: also end calls whose peers do not read an answer.
};
inline constexpr size_t kPressures = 4;
std::string_view NameOf(Pressure pressure);  // For example "high".

class MemoryPressure {
 public:
  using ReadResidentBytes = std::function<std::optional<int64_t>()>;

  // Calls `give_back` when much of the resident memory may be free memory that the allocator keeps.
  MemoryPressure(int64_t limit_bytes, ReadResidentBytes read, std::function<void()> give_back);

  // Reads the resident memory and returns the pressure; if it cannot be read, the previous
  // pressure. `held_bytes` are those that admission has counted. Threads: one at a time.
  Pressure Measure(int64_t held_bytes);

  // The last reading. Threads: as Measure.
  int64_t used_bytes() const { return used_bytes_; }

 private:
  int64_t PercentOf(int64_t bytes) const;

  const int64_t limit_bytes_;
  const ReadResidentBytes read_;
  const std::function<void()> give_back_;
  int64_t floor_bytes_ = 0;   // The smallest reading since memory was last given back.
  int64_t lowest_bytes_ = 0;  // The smallest reading.
  int measures_ = 0;          // Since memory was given back.
  int64_t used_bytes_ = 0;
  Pressure last_ = Pressure::kNone;
};

// Adds to a refusal the time after which to try again.
absl::Status WithRetryAfterMs(absl::Status status, int64_t retry_after_ms);
std::optional<int64_t> RetryAfterMs(const absl::Status& status);

// Why a request is refused, or kIn if it is admitted.
enum class Verdict : uint8_t {
  kIn,
  // There is no room:
  kDraining,
  kRequests,
  kMemory,
  kBytes,
  // The room left is reserved for others:
  kConnectionShare,
  kCallerShare,
  kConnectionAnswers,
  kCallerAnswers,
  // It cannot finish in time:
  kTooLong,
  kTooLate,
  kWait,
  kBacklog
};

// Everything that decides whether a product is admitted. The refusal's text repeats these numbers.
struct Asked {
  int64_t predicted_ns = 0;
  int64_t expected_ns = 0;  // The prediction corrected by the caller's last products.
  int64_t after_ns = 0;     // The part of both for the check of D.
  int64_t left_ns = 0;      // Until its deadline; kNoDeadlineNs without one.
  // The remaining time of running jobs, the time of waiting jobs that would be launched before this
  // one, and the time of jobs that others are expected to add ahead of it while it waits.
  int64_t running_ns = 0;
  int64_t ahead_ns = 0;
  int64_t to_come_ns = 0;
  int64_t backlog_ns = 0;  // All work of the device, waiting and running.

  int64_t answer_bytes = 0;  // Of D, if that is sent.

  // Set by Admission:
  int64_t more_bytes = 0;  // In addition to those of its ticket.
  int64_t free_bytes = 0;
  int64_t free_requests = 0;
  FairQueue::Inside own = {};          // Requests of its caller and of its connection.
  FairQueue::Inside own_answers = {};  // Bytes of all other answers of both.
};

// Limits how much work the server takes on at once: the number of requests, the bytes of messages,
// results and scratch memory, and the time that the products take.
//
// A ticket is held from the arrival of a message, which may become a request, until the answer has
// left the server, so that slow readers count. A drain closes the admission: no more tickets are
// given, and the server is idle when the last one has been returned.
//
// An answer that is not read holds its bytes for long, and so does one that is yet to be computed
// for a caller who then does not read it. So the answers of one caller may hold half of all bytes;
// a single answer may hold more. Several answers of one connection leave room for its caller's
// other connections.
class Admission {
  // The tickets of a caller or of one of its connections, and their answers from admission to the
  // last byte sent.
  struct Holder {
    int64_t tickets = 0;
    int64_t answer_bytes = 0;
  };
  // By name. Those without tickets stay for the next one, until there are many.
  template <typename Name, typename Named>
  class Holders {
   public:
    template <typename Key>
    Named& Find(const Key& name);

   private:
    static constexpr size_t kIdle = 64;
    std::map<Name, Named, std::less<>> named_;
    size_t max_ = kIdle;
  };
  struct Caller;
  struct Connection : Holder {
    Caller* caller = nullptr;
  };
  struct Caller : Holder {
    Holders<uint64_t, Connection> connections;
  };

 public:
  struct Limits {
    int64_t max_requests = 0;
    int64_t max_bytes = 0;
    // The maximum predicted time of a product.
    int64_t max_product_ns = 60'000'000'000;
    // The maximum predicted time of the jobs ahead of a product, running jobs not counted. As long
    // as the default of --grace, so that a drain can finish what waits.
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
    // By Pressure: how often the process entered it.
    std::array<int64_t, kPressures> pressure_changes = {};
    bool is_closed = false;
  };

  // The right to hold bytes and, once admitted, to be one of the counted requests. The destructor
  // returns both. Movable. Threads: one at a time.
  class Ticket {
   public:
    Ticket() = default;
    Ticket(Ticket&& other) noexcept;
    Ticket& operator=(Ticket&& other) noexcept;
    ~Ticket();

    // The answer is about to be sent: stops counting as a request, and returns all bytes above
    // `bytes`.
    void MarkAnswered(int64_t bytes);

    int64_t bytes() const { return bytes_; }

   private:
    friend class Admission;
    Ticket(Admission* admission, int64_t bytes, Connection* connection)
        : admission_(admission), bytes_(bytes), connection_(connection) {}

    Admission* admission_ = nullptr;
    int64_t bytes_ = 0;
    int64_t answer_bytes_ = 0;
    Connection* connection_ = nullptr;  // Null if its caller is not known.
    bool is_request_ = false;           // Counts as one of the requests.
  };

  explicit Admission(Limits limits) : limits_(limits) {}

  // Holds the bytes of a message that has arrived and is not a request yet. The caller of `flow`
  // may be empty if it is not known. Errors: Unavailable while closed; ResourceExhausted if there
  // is no room. Threads: any. Outlives its tickets.
  absl::StatusOr<Ticket> Hold(int64_t bytes, const FlowId& flow = {}) ABSL_LOCKS_EXCLUDED(mutex_);

  // Counts the holder of the ticket, which may be empty, as a request if there is room for it and
  // it can finish in time. It then holds `bytes`, or what it held before if that is more. A refusal
  // changes nothing. `own` is called when little room is left. Allocates nothing, and is called
  // with the scheduler's lock held. Threads: any.
  Verdict Admit(Ticket& ticket, int64_t bytes, Asked& asked,
                absl::FunctionRef<FairQueue::Inside()> own) ABSL_LOCKS_EXCLUDED(mutex_);

  // Sets the memory pressure. At kHigh, everything larger than kLargeBytes is refused with
  // ResourceExhausted; above kHigh, everything. Returns whether the pressure has changed.
  bool SetPressure(Pressure pressure) ABSL_LOCKS_EXCLUDED(mutex_);
  static constexpr int64_t kLargeBytes = int64_t{1} << 20;

  // Checks that there is memory for a question. Not asked for those questions by which an operator
  // can relieve the pressure. Errors: ResourceExhausted from kSevere on. Threads: any.
  absl::Status CheckQuestion() ABSL_LOCKS_EXCLUDED(mutex_);

  // Refuses everything from now on.
  void Close() ABSL_LOCKS_EXCLUDED(mutex_);
  bool closed() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Waits until no ticket is held. Returns false if that takes longer than `timeout` or StopWaiting
  // is called.
  bool WaitUntilIdle(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits for `duration`. Returns false if StopWaiting has ended the wait.
  bool Pause(absl::Duration duration) ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends every WaitUntilIdle and Pause, those in progress and later ones.
  void StopWaiting() ABSL_LOCKS_EXCLUDED(mutex_);

  Load load() const ABSL_LOCKS_EXCLUDED(mutex_);
  const Limits& limits() const { return limits_; }

 private:
  Verdict CheckShare(Asked& asked, absl::FunctionRef<FairQueue::Inside()> own) const;
  Verdict CheckRoom(Asked& asked) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Verdict CheckAnswers(const Asked& asked) const;
  Connection* Enter(const FlowId& flow) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Release(bool is_request, int64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  void ReleaseTicket(const Ticket& ticket) ABSL_LOCKS_EXCLUDED(mutex_);

  const Limits limits_;
  mutable Mutex mutex_;
  Load load_ ABSL_GUARDED_BY(mutex_);
  Holders<std::string, Caller> callers_ ABSL_GUARDED_BY(mutex_);
  bool waits_no_more_ ABSL_GUARDED_BY(mutex_) = false;
};

// Whether a product can finish in time, by its predicted time, the work ahead of it and its
// deadline. A product that cannot is refused at once, which costs neither its caller nor the device
// any time.
Verdict CheckTime(const Asked& asked, const Admission::Limits& limits);

// The refusal of a request; its status is OK if there is none.
struct ProductRefusal {
  absl::Status status;
  std::optional<RefusalReason> reason;  // Absent for refusals that Admission counts itself.
};

// Errors: Unavailable while the server drains; DeadlineExceeded if the product takes longer than
// its deadline allows; otherwise ResourceExhausted, with a time after which to try again if that
// can help.
ProductRefusal RefusalOf(Verdict verdict, const Asked& asked, const Admission::Limits& limits);

// The refusal of a product that takes longer than its deadline allows.
absl::Status TooLateForDeadline(int64_t predicted_ns, int64_t left_ns);

// The milliseconds after which to try again, for a wait of `wait_ns`: 1 ms to 10 s.
int64_t RetryMs(int64_t wait_ns);

}  // namespace gemmd
