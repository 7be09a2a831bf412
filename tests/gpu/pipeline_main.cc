// SPDX-License-Identifier: Apache-2.0
//
// gemmd-pipeline: what products cost on a GPU by way of its worker, without gRPC: operands and
// results that travel, alone and many at once; operands and results in blocks; copies to and from
// blocks; a product larger than the staging area. Prints a line for each, and ratios; with a file,
// also JSON. Ends with 0 where each ratio is what it must be.
// usage: gemmd-pipeline WORKER_BINARY [JSON_FILE [SCALE]]: extents are divided by SCALE, for a
// worker without a GPU.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "kernels/bench/report.h"
#include "kernels/kernel.h"
#include "server/device/job.h"
#include "server/device/worker_device.h"
#include "server/system/clock.h"

namespace gemmd {
namespace {

constexpr double kGiga = 1e9;

// One line of the report.
struct Row {
  std::string name;
  double value = 0;
  std::string unit;
  std::optional<double> least = {};  // The required value, where there is one.
  std::optional<double> most = {};

  bool is_right() const { return (!least || value >= *least) && (!most || value <= *most); }
};

class Report {
 public:
  void Add(const Row& row) {
    rows_.push_back(row);
    std::string bound;
    if (row.least) bound = "  at least " + std::to_string(*row.least);
    if (row.most) bound = "  at most " + std::to_string(*row.most);
    std::printf("%-58s %12.3f %-6s%s%s\n", row.name.c_str(), row.value, row.unit.c_str(),
                bound.c_str(), row.is_right() ? "" : "  MISSED");
    std::fflush(stdout);
  }
  bool is_right() const {
    return std::all_of(rows_.begin(), rows_.end(), [](const Row& row) { return row.is_right(); });
  }
  absl::Status Write(const std::string& path) const {
    std::ostringstream file;
    file << "{\"rows\": [";
    for (size_t i = 0; i < rows_.size(); ++i) {
      const Row& row = rows_[i];
      file << (i == 0 ? "\n" : ",\n") << R"(  {"name": ")" << row.name << R"(", "value": )"
           << row.value << R"(, "unit": ")" << row.unit << "\"";
      if (row.least) file << ", \"least\": " << *row.least;
      if (row.most) file << ", \"most\": " << *row.most;
      file << "}";
    }
    file << "\n]}\n";
    return bench::WriteOutputFile(path, file.str());
  }

 private:
  std::vector<Row> rows_;
};

// A is m x k and B k x n in bf16, of small integers, as one row-major and one column-major matrix.
class Product {
 public:
  Product(int64_t m, int64_t n, int64_t k, ElementType d) {
    problem_.m = m;
    problem_.n = n;
    problem_.k = k;
    problem_.a = TightLayout("a", ElementType::kBf16, Order::kRowMajor, m, k).value();
    problem_.b = TightLayout("b", ElementType::kBf16, Order::kColumnMajor, k, n).value();
    problem_.d = TightLayout("d", d, Order::kRowMajor, m, n).value();
    a_ = Ones(m * k);
    b_ = Ones(k * n);
    a_source_ = pieces_.Add(PieceOf(a_));
    b_source_ = pieces_.Add(PieceOf(b_));
  }

  Job JobFor(const Device& device) const {
    Job job;
    job.problem = problem_;
    job.kernel =
        Choose(Catalog(DeviceKind::kCuda), problem_, Constraints(), device.profile()).value();
    job.workspace_bytes = job.kernel->workspace_bytes(problem_).value();
    job.d_bytes = BytesWritten(problem_);
    job.a = a_source_;
    job.b = b_source_;
    return job;
  }
  const std::string& a() const { return a_; }
  const std::string& b() const { return b_; }
  int64_t d_bytes() const { return BytesWritten(problem_); }
  // Whether each element of D is k, which it is where every element of A and B is 1.
  bool IsRight(absl::Span<const std::byte> d) const {
    const int64_t count = problem_.m * problem_.n;
    const int64_t bytes = BitsOf(problem_.d.type) / 8;
    if (static_cast<int64_t>(d.size()) != count * bytes) return false;
    const uint64_t want = Encode(problem_.d.type, static_cast<double>(problem_.k));
    for (int64_t i = 0; i < count; i += 997) {
      uint64_t got = 0;
      std::memcpy(&got, d.data() + i * bytes, static_cast<size_t>(bytes));
      if (got != want) return false;
    }
    return true;
  }

 private:
  static std::string Ones(int64_t count) {
    std::string bytes(static_cast<size_t>(count * 2), '\0');
    for (size_t i = 0; i < bytes.size(); i += 2) {
      bytes[i] = '\x80';  // 0x3f80 is 1.
      bytes[i + 1] = '\x3f';
    }
    return bytes;
  }

  Problem problem_;
  std::string a_;
  std::string b_;
  SourcePieces pieces_;
  Source a_source_;
  Source b_source_;
};

struct Run {
  JobOutcome outcome;
  int64_t whole_ns = 0;
};

// Times of many runs of one job, by the median of the total.
struct Stages {
  double whole_ns = 0;
  double copy_in_ns = 0;
  double compute_ns = 0;
  double copy_out_ns = 0;

  double slowest_ns() const { return std::max({copy_in_ns, compute_ns, copy_out_ns}); }
};

class Checks {
 public:
  Checks(WorkerDevice& device, Report& report, int64_t scale)
      : device_(device), memory_(*device.memory()), report_(report), scale_(scale) {}

  void RunAll() {
    Blocks();
    ResidentSquare();
    ResidentWeights();
    Overlap();
    LargerThanStaging();
  }

 private:
  int64_t Extent(int64_t extent) const { return std::max<int64_t>(16, extent / scale_); }

  [[noreturn]] static void Fail(const std::string& what) {
    std::fprintf(stderr, "%s\n", what.c_str());
    std::exit(1);
  }
  static void Check(const absl::Status& status, const char* what) {
    if (!status.ok()) Fail(std::string(what) + ": " + status.ToString());
  }

  Run RunOnce(const Job& job) {
    std::promise<Run> done;
    const int64_t start_ns = clock_.NowNs();
    device_.Submit(job, [&](JobOutcome outcome) {
      done.set_value({.outcome = std::move(outcome), .whole_ns = clock_.NowNs() - start_ns});
    });
    return done.get_future().get();
  }

  Stages Measure(const Job& job, int runs) {
    std::vector<Stages> all;
    for (int i = 0; i < runs + 2; ++i) {
      const Run run = RunOnce(job);
      Check(run.outcome.status, "product");
      // The first runs also load code and touch memory.
      if (i < 2) continue;
      all.push_back({.whole_ns = static_cast<double>(run.whole_ns),
                     .copy_in_ns = static_cast<double>(run.outcome.copy_in_ns),
                     .compute_ns = static_cast<double>(run.outcome.compute_ns),
                     .copy_out_ns = static_cast<double>(run.outcome.copy_out_ns)});
    }
    std::sort(all.begin(), all.end(),
              [](const Stages& a, const Stages& b) { return a.whole_ns < b.whole_ns; });
    return all[all.size() / 2];
  }

  DeviceBlock Allocate(int64_t bytes) {
    std::promise<absl::StatusOr<DeviceBlock>> block;
    memory_.Allocate(bytes,
                     [&](absl::StatusOr<DeviceBlock> got) { block.set_value(std::move(got)); });
    const absl::StatusOr<DeviceBlock> got = block.get_future().get();
    Check(got.status(), "block");
    return *got;
  }
  double WriteNs(DeviceBlock block, const std::string& bytes) {
    std::promise<absl::Status> done;
    const int64_t start_ns = clock_.NowNs();
    memory_.Write(block, 0, {PieceOf(bytes)},
                  [&](absl::Status status) { done.set_value(std::move(status)); });
    Check(done.get_future().get(), "write");
    return static_cast<double>(clock_.NowNs() - start_ns);
  }
  double ReadNs(DeviceBlock block, std::string& bytes) {
    std::promise<absl::Status> done;
    const int64_t start_ns = clock_.NowNs();
    memory_.Read(block, 0, absl::MakeSpan(reinterpret_cast<std::byte*>(bytes.data()), bytes.size()),
                 [&](absl::Status status) { done.set_value(std::move(status)); });
    Check(done.get_future().get(), "read");
    return static_cast<double>(clock_.NowNs() - start_ns);
  }
  DeviceBlock BlockOf(const std::string& bytes) {
    const DeviceBlock block = Allocate(static_cast<int64_t>(bytes.size()));
    WriteNs(block, bytes);
    return block;
  }
  static Source In(DeviceBlock block, const std::string& bytes) {
    Source source;
    source.block = block;
    source.bytes = static_cast<int64_t>(bytes.size());
    return source;
  }

  void Blocks() {
    const auto bytes = static_cast<size_t>((int64_t{1} << 30) / scale_ / scale_);
    std::string data(bytes, '\0');
    for (size_t i = 0; i < bytes; ++i) data[i] = static_cast<char>(i * 31 + (i >> 12));
    const DeviceBlock block = BlockOf(data);
    std::string back(bytes, 'x');
    ReadNs(block, back);
    if (back != data) Fail("a block does not hold what was written");
    const double size = static_cast<double>(bytes);
    report_.Add({.name = "write to a block", .value = size / WriteNs(block, data), .unit = "GB/s"});
    report_.Add({.name = "read from a block", .value = size / ReadNs(block, back), .unit = "GB/s"});
    memory_.Free(block);
  }

  // Everything stays on the GPU.
  void ResidentSquare() {
    const int64_t extent = Extent(8192);
    const Product product(extent, extent, extent, ElementType::kBf16);
    Job job = product.JobFor(device_);
    const DeviceBlock a = BlockOf(product.a());
    const DeviceBlock b = BlockOf(product.b());
    const DeviceBlock d = Allocate(product.d_bytes());
    job.a = In(a, product.a());
    job.b = In(b, product.b());
    job.d = {.block = d};
    const Stages stages = Measure(job, 20);
    std::string result(static_cast<size_t>(product.d_bytes()), 'x');
    ReadNs(d, result);
    if (!product.IsRight(PieceOf(result))) Fail("a resident product is wrong");
    report_.Add(
        {.name = "8192^3 bf16, resident: compute", .value = stages.compute_ns / 1e3, .unit = "us"});
    constexpr double kAllowedNs = 100e3;
    report_.Add({.name = "8192^3 bf16, resident: (whole - 100 us) / compute",
                 .value = (stages.whole_ns - kAllowedNs) / stages.compute_ns,
                 .unit = "x",
                 .most = 1.1});
    for (const DeviceBlock block : {a, b, d}) memory_.Free(block);
  }

  // The shapes of a language model.
  void ResidentWeights() {
    const int64_t extent = Extent(8192);
    const Product product(16, extent, extent, ElementType::kBf16);
    Job job = product.JobFor(device_);
    const DeviceBlock b = BlockOf(product.b());
    job.b = In(b, product.b());
    const Run run = RunOnce(job);
    Check(run.outcome.status, "product");
    if (!product.IsRight(run.outcome.d.bytes())) Fail("a product with resident weights is wrong");
    const Stages stages = Measure(job, 200);
    report_.Add({.name = "16x8192x8192 bf16, B resident: compute",
                 .value = stages.compute_ns / 1e3,
                 .unit = "us"});
    report_.Add({.name = "16x8192x8192 bf16, B resident: whole",
                 .value = stages.whole_ns / 1e3,
                 .unit = "us",
                 .most = scale_ == 1 ? std::optional<double>(300) : std::nullopt});
    memory_.Free(b);
  }

  // Several callers, each of which submits the next job when it has its result.
  double RateOf(const Job& job, int callers, int jobs) {
    std::promise<void> all_done;
    std::atomic<int> left = jobs;
    std::atomic<int> done = 0;
    std::function<void()> submit = [&] {
      if (left.fetch_sub(1) <= 0) return;
      device_.Submit(job, [&](JobOutcome outcome) {
        Check(outcome.status, "product");
        outcome.d = HeldBytes();
        submit();
        if (++done == jobs) all_done.set_value();
      });
    };
    const int64_t start_ns = clock_.NowNs();
    for (int i = 0; i < callers; ++i) submit();
    all_done.get_future().wait();
    return jobs * kGiga / static_cast<double>(clock_.NowNs() - start_ns);
  }

  void Overlap() {
    const int64_t extent = Extent(4096);
    const Product product(extent, extent, extent, ElementType::kF32);
    const Job job = product.JobFor(device_);
    const Run run = RunOnce(job);
    Check(run.outcome.status, "product");
    if (!product.IsRight(run.outcome.d.bytes())) Fail("a product is wrong");
    const Stages alone = Measure(job, 10);
    report_.Add({.name = "4096^3 bf16 -> f32, alone: copy in",
                 .value = alone.copy_in_ns / 1e6,
                 .unit = "ms"});
    report_.Add({.name = "4096^3 bf16 -> f32, alone: compute",
                 .value = alone.compute_ns / 1e6,
                 .unit = "ms"});
    report_.Add({.name = "4096^3 bf16 -> f32, alone: copy out",
                 .value = alone.copy_out_ns / 1e6,
                 .unit = "ms"});
    report_.Add(
        {.name = "4096^3 bf16 -> f32, alone: whole", .value = alone.whole_ns / 1e6, .unit = "ms"});
    RateOf(job, 4, 8);
    const double rate = RateOf(job, 4, 100);
    report_.Add({.name = "4096^3 bf16 -> f32, 4 at once", .value = rate, .unit = "/s"});
    report_.Add({.name = "4096^3 bf16 -> f32, 4 at once / rate of the slowest stage",
                 .value = rate * alone.slowest_ns() / kGiga,
                 .unit = "x",
                 .least = scale_ == 1 ? std::optional<double>(0.8) : std::nullopt});
    const Product small(64, 64, 64, ElementType::kF32);
    const Job small_job = small.JobFor(device_);
    for (const int callers : {1, 8, 24}) {
      RateOf(small_job, callers, 200);
      report_.Add({.name = "64^3 bf16 -> f32, " + std::to_string(callers) + " at once",
                   .value = RateOf(small_job, callers, 20000 / static_cast<int>(scale_)),
                   .unit = "/s"});
    }
  }

  void LargerThanStaging() {
    const int64_t extent = Extent(8192);
    const Product product(extent, extent, extent, ElementType::kF32);
    const Run run = RunOnce(product.JobFor(device_));
    if (absl::IsResourceExhausted(run.outcome.status)) {
      std::printf("8192^3 bf16 -> f32 is larger than the staging area takes: %s\n",
                  std::string(run.outcome.status.message()).c_str());
      return;
    }
    Check(run.outcome.status, "product");
    if (!product.IsRight(run.outcome.d.bytes())) Fail("a large product is wrong");
    const Stages stages = Measure(product.JobFor(device_), 5);
    report_.Add(
        {.name = "8192^3 bf16 -> f32, alone: whole", .value = stages.whole_ns / 1e6, .unit = "ms"});
  }

  const SteadyClock clock_;
  WorkerDevice& device_;
  DeviceMemory& memory_;
  Report& report_;
  const int64_t scale_;
};

int Main(int argc, char** argv) {
  if (argc < 2) return 2;
  WorkerDeviceOptions options;
  options.program.binary = argv[1];
  const int64_t scale = argc > 3 ? std::max(1, std::atoi(argv[3])) : 1;
  options.staging_bytes /= scale * scale;
  WorkerDevice device(options);
  if (const absl::Status status = device.WaitUntilStarted(); !status.ok()) {
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    return 1;
  }
  std::printf("%s, %d threads copy\n", device.info().description.c_str(), options.copy_threads);
  Report report;
  Checks(device, report, scale).RunAll();
  const absl::Status written = argc > 2 ? report.Write(argv[2]) : absl::OkStatus();
  if (!written.ok()) {
    std::fprintf(stderr, "%s\n", std::string(written.message()).c_str());
    return 1;
  }
  return report.is_right() ? 0 : 1;
}

}  // namespace
}  // namespace gemmd

int main(int argc, char** argv) { return gemmd::Main(argc, argv); }
