// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/row_check.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <exception>
#include <iterator>
#include <map>
#include <optional>
#include <tuple>

#include "kernels/cpu/host.h"
#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"

namespace gemmd {
namespace {

struct Shape {
  int64_t m;
  int64_t n;
  int64_t k;
  Order a;
  Order b;
  Order d;
};

// First, shapes large enough for several threads; then one line more or less than tiles and
// vectors.
constexpr Shape kShapes[] = {
    {129, 65, 63, Order::kRowMajor, Order::kRowMajor, Order::kRowMajor},
    {33, 17, 95, Order::kColumnMajor, Order::kRowMajor, Order::kRowMajor},
    {17, 49, 31, Order::kRowMajor, Order::kColumnMajor, Order::kColumnMajor},
    {1, 67, 129, Order::kRowMajor, Order::kColumnMajor, Order::kRowMajor},
    {65, 1, 7, Order::kColumnMajor, Order::kColumnMajor, Order::kRowMajor},
};

// The integers in an operand: those that its type holds.
enum class Range : uint8_t { kBits, kUnsigned, kSigned };
Range RangeOf(ElementType type) {
  if (type == ElementType::kB1) return Range::kBits;
  return FactsOf(type).is_signed ? Range::kSigned : Range::kUnsigned;
}

constexpr int64_t kValues = 7;
int32_t ValueOf(Range range, int64_t index) {
  if (range == Range::kBits) return static_cast<int32_t>(index % 2);
  return static_cast<int32_t>(range == Range::kSigned ? index - 3 : index % 4);
}
// The index of an element's value.
int64_t AIndex(int64_t i, int64_t l) { return (i * 3 + l * 5) % kValues; }
int64_t BIndex(int64_t l, int64_t j) { return (l * 11 + j * 2) % kValues; }

std::vector<int32_t> ExpectedD(const Shape& shape, Range a, Range b) {
  std::vector<int32_t> y(static_cast<size_t>(shape.k * shape.n));
  for (int64_t l = 0; l < shape.k; ++l) {
    for (int64_t j = 0; j < shape.n; ++j) {
      y[static_cast<size_t>(l * shape.n + j)] = ValueOf(b, BIndex(l, j));
    }
  }
  std::vector<int32_t> d(static_cast<size_t>(shape.m * shape.n));
  for (int64_t i = 0; i < shape.m; ++i) {
    int32_t* const sums = d.data() + i * shape.n;
    for (int64_t l = 0; l < shape.k; ++l) {
      const int32_t x = ValueOf(a, AIndex(i, l));
      const int32_t* const line = y.data() + l * shape.n;
      for (int64_t j = 0; j < shape.n; ++j) sums[j] += x * line[j];
    }
  }
  return d;
}

// The expected products of the shapes, cached, because most rows have operands of the same ranges.
class ExpectedProducts {
 public:
  const std::vector<int32_t>& Of(size_t shape, Range a, Range b) {
    std::vector<int32_t>& d = products_[{shape, a, b}];
    if (d.empty()) d = ExpectedD(kShapes[shape], a, b);
    return d;
  }

 private:
  std::map<std::tuple<size_t, Range, Range>, std::vector<int32_t>> products_;
};

// `index` returns the index of an element's value from its row and column.
template <typename Index>
std::vector<std::byte> Encoded(const MatrixLayout& layout, const Index& index) {
  std::array<uint64_t, kValues> codes;
  for (size_t i = 0; i < codes.size(); ++i) {
    codes[i] = Encode(layout.type, ValueOf(RangeOf(layout.type), static_cast<int64_t>(i)));
  }
  std::vector<std::byte> bytes(static_cast<size_t>(layout.lines() * layout.line_stride_bytes()));
  const bool is_row_major = layout.order == Order::kRowMajor;
  for (int64_t i = 0; i < layout.lines(); ++i) {
    std::byte* const line = bytes.data() + i * layout.line_stride_bytes();
    for (int64_t j = 0; j < layout.line_length(); ++j) {
      const int64_t which = is_row_major ? index(i, j) : index(j, i);
      StoreBits(layout.type, line, j, codes[static_cast<size_t>(which)]);
    }
  }
  return bytes;
}

// Memory for a launch, 64-byte aligned.
class Workspace {
 public:
  explicit Workspace(int64_t bytes) : bytes_(static_cast<size_t>(bytes) + kAlignment) {
    const auto over = reinterpret_cast<uintptr_t>(bytes_.data()) % kAlignment;
    span_ = absl::MakeSpan(bytes_).subspan(over == 0 ? 0 : kAlignment - over);
  }
  absl::Span<std::byte> span() const { return span_; }

 private:
  static constexpr size_t kAlignment = 64;
  std::vector<std::byte> bytes_;
  absl::Span<std::byte> span_;
};

absl::Status CheckShape(const Kernel& kernel, const Target& target, size_t number,
                        ExpectedProducts& products) {
  const Shape& shape = kShapes[number];
  Problem problem;
  problem.m = shape.m;
  problem.n = shape.n;
  problem.k = shape.k;
  problem.accumulation = kernel.recipe.accumulation;
  ASSIGN_OR_RETURN(problem.a, TightLayout("a", kernel.a, shape.a, shape.m, shape.k));
  ASSIGN_OR_RETURN(problem.b, TightLayout("b", kernel.b, shape.b, shape.k, shape.n));
  ASSIGN_OR_RETURN(problem.d, TightLayout("d", problem.accumulation, shape.d, shape.m, shape.n));
  RETURN_IF_ERROR(kernel.supports(problem));
  ASSIGN_OR_RETURN(const int64_t workspace_bytes, kernel.workspace_bytes(problem));
  const std::vector<std::byte> a = Encoded(problem.a, AIndex);
  const std::vector<std::byte> b = Encoded(problem.b, BIndex);
  const Workspace workspace(workspace_bytes);
  std::vector<std::byte> d(static_cast<size_t>(BytesWritten(problem)), std::byte{0xff});
  RETURN_IF_ERROR(kernel.launch({.problem = problem,
                                 .target = target,
                                 .a = a.data(),
                                 .b = b.data(),
                                 .c = nullptr,
                                 .bias = nullptr,
                                 .a_scale = {},
                                 .b_scale = {},
                                 .d = d.data(),
                                 .workspace = workspace.span()}));
  const std::vector<int32_t>& expected = products.Of(number, RangeOf(kernel.a), RangeOf(kernel.b));
  const bool is_row_major = shape.d == Order::kRowMajor;
  for (int64_t i = 0; i < shape.m; ++i) {
    for (int64_t j = 0; j < shape.n; ++j) {
      const int64_t at = is_row_major ? i * shape.n + j : j * shape.m + i;
      const double got = Decode(problem.d.type, LoadBits(problem.d.type, d.data(), at));
      if (got == expected[static_cast<size_t>(i * shape.n + j)]) continue;
      return absl::DataLossError("got a wrong product");
    }
  }
  return absl::OkStatus();
}

// Whether the row was not tried: it does not support the product, or memory was short.
bool SaysNothing(const absl::Status& status) {
  return absl::IsUnimplemented(status) || absl::IsResourceExhausted(status);
}

std::string TextOf(const Shape& shape) { return Concat(shape.m, " x ", shape.n, " x ", shape.k); }

// A message of the checking process on its pipe: before each shape, after a wrong row, and at the
// end.
struct Report {
  enum class Kind : uint32_t { kBegins, kIsWrong, kEnd };
  Kind kind;
  uint32_t row;
  uint32_t shape;
  std::array<char, 192> reason;
};

constexpr int kNotChecked = 75;  // Exit code of the checking process: EX_TEMPFAIL.

void Write(int pipe, Report::Kind kind, size_t row, size_t shape, std::string_view reason) {
  Report report = {kind, static_cast<uint32_t>(row), static_cast<uint32_t>(shape), {}};
  std::copy_n(reason.begin(), std::min(reason.size(), report.reason.size() - 1),
              report.reason.begin());
  // Atomic, because it is shorter than PIPE_BUF. If the reader is gone, this process ends.
  if (write(pipe, &report, sizeof(report)) < 0) _exit(kNotChecked);
}

// The process that checks rows from `first` on. It dies with its parent, and leaves no core.
[[noreturn]] void CheckAndExit(absl::Span<const Kernel> kernels, size_t first, const Target& target,
                               int threads, int pipe) {
  prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
  const rlimit none = {0, 0};
  setrlimit(RLIMIT_CORE, &none);
  if (threads > 0) SetThreads(threads);
  try {
    ExpectedProducts products;
    for (size_t row = first; row < kernels.size(); ++row) {
      if (!kernels[row].available(target).ok()) continue;
      for (size_t shape = 0; shape < std::size(kShapes); ++shape) {
        Write(pipe, Report::Kind::kBegins, row, shape, "");
        const absl::Status status = CheckShape(kernels[row], target, shape, products);
        if (status.ok() || SaysNothing(status)) continue;
        const std::string message(status.message());
        Write(pipe, Report::Kind::kIsWrong, row, shape, message);
        break;
      }
    }
    Write(pipe, Report::Kind::kEnd, 0, 0, "");
  } catch (const std::exception&) {
    _exit(kNotChecked);
  }
  _exit(0);
}

// The next report; nullopt if there is none, or none arrived in time.
std::optional<Report> Read(int pipe, bool& is_late) {
  constexpr int kMaxMilliseconds = 30'000;  // No shape takes more than a few milliseconds.
  Report report;
  size_t have = 0;
  while (have < sizeof(report)) {
    pollfd wait = {.fd = pipe, .events = POLLIN, .revents = 0};
    const int ready = poll(&wait, 1, kMaxMilliseconds);
    if (ready < 0 && errno == EINTR) continue;
    is_late = ready == 0;
    if (ready <= 0) return std::nullopt;
    const ssize_t got = read(pipe, reinterpret_cast<char*>(&report) + have, sizeof(report) - have);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return std::nullopt;
    have += static_cast<size_t>(got);
  }
  return report;
}

// Why the process ended in the middle of a row; empty if the row is not to blame.
std::string EndOf(int how, bool is_late) {
  if (is_late) return "got no answer within 30 s";
  if (WIFEXITED(how)) {
    return WEXITSTATUS(how) == kNotChecked ? "" : Concat("got exit code ", WEXITSTATUS(how));
  }
  const int signal = WTERMSIG(how);
  if (signal == SIGKILL || signal == SIGTERM || signal == SIGINT) return "";
  // NOLINTNEXTLINE(concurrency-mt-unsafe): no threads yet.
  return Concat("got signal ", signal, " (", strsignal(signal), ")");
}

// Checks rows from `first` on, as far as one process gets. Returns the next one to check.
size_t CheckInProcess(absl::Span<const Kernel> kernels, size_t first, const Target& target,
                      int threads, std::vector<RowFault>& faults) {
  std::array<int, 2> ends = {-1, -1};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return kernels.size();
  const auto [reading, writing] = ends;
  const pid_t process = fork();
  if (process == 0) CheckAndExit(kernels, first, target, threads, writing);
  close(writing);
  std::optional<Report> last;
  bool is_late = false;
  while (const std::optional<Report> report = Read(reading, is_late)) {
    last = report;
    if (report->kind != Report::Kind::kIsWrong) continue;
    faults.push_back({&kernels[report->row],
                      Concat(TextOf(kShapes[report->shape]), ": ", report->reason.data())});
  }
  close(reading);
  if (process < 0) return kernels.size();
  if (is_late) kill(process, SIGKILL);
  int how = 0;
  while (waitpid(process, &how, 0) < 0 && errno == EINTR) continue;
  if (!last || last->kind == Report::Kind::kEnd) return kernels.size();
  if (last->kind == Report::Kind::kBegins) {
    const std::string reason = EndOf(how, is_late);
    if (reason.empty()) return kernels.size();
    faults.push_back({&kernels[last->row], Concat(TextOf(kShapes[last->shape]), ": ", reason)});
  }
  return last->row + 1;
}

}  // namespace

absl::Status CheckRow(const Kernel& kernel, const Target& target) {
  ExpectedProducts products;
  for (size_t shape = 0; shape < std::size(kShapes); ++shape) {
    const absl::Status status = CheckShape(kernel, target, shape, products);
    if (status.ok() || absl::IsUnimplemented(status)) continue;
    return absl::Status(status.code(),
                        Concat(TextOf(kShapes[shape]), ": ", std::string(status.message())));
  }
  return absl::OkStatus();
}

std::vector<RowFault> FindFaultyRows(absl::Span<const Kernel> kernels, const Target& target,
                                     int threads) {
  std::vector<RowFault> faults;
  for (size_t next = 0; next < kernels.size();) {
    next = CheckInProcess(kernels, next, target, threads, faults);
  }
  return faults;
}

}  // namespace gemmd
