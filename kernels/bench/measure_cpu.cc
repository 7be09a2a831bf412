// SPDX-License-Identifier: Apache-2.0
#include "kernels/bench/measure_cpu.h"

#include <cblas.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <dnnl.hpp>
#include <functional>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/bench/operands.h"
#include "kernels/bench/problem.h"
#include "kernels/bench/statistics.h"
#include "kernels/cpu/host.h"
#include "kernels/kernel.h"
#include "kernels/matrix/element.h"
#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"
#include "kernels/problem.h"

namespace gemmd::bench {
namespace {

// Memory that starts on a page.
using Pages = std::unique_ptr<std::byte, void (*)(void*)>;

Pages PagesOf(int64_t bytes) {
  constexpr int64_t kPage = 4096;
  const int64_t rounded = std::max<int64_t>(1, (bytes + kPage - 1) / kPage) * kPage;
  Pages pages(static_cast<std::byte*>(
                  std::aligned_alloc(static_cast<size_t>(kPage), static_cast<size_t>(rounded))),
              std::free);
  if (pages == nullptr) throw std::bad_alloc();
  return pages;
}

Pages PagesOf(const std::vector<std::byte>& bytes) {
  Pages pages = PagesOf(static_cast<int64_t>(bytes.size()));
  std::copy(bytes.begin(), bytes.end(), pages.get());
  return pages;
}

// The matrices of one product, as the problem says.
struct Matrices {
  Pages a;
  Pages b;
  Pages d;
};

constexpr int kChecked = 1000;

double ValueAt(const MatrixLayout& layout, const std::byte* data, int64_t row, int64_t column) {
  const bool is_row_major = layout.order == Order::kRowMajor;
  const std::byte* line = data + (is_row_major ? row : column) * layout.line_stride_bytes();
  return Decode(layout.type, LoadBits(layout.type, line, is_row_major ? column : row));
}

// Checks a thousand random elements of D: they must be exact, or within the bound (2 k + 4) u sum
// |a b| of the reference, where u is the accumulation type's unit roundoff. Returns "ok", or the
// first wrong element.
std::string CheckElements(const Kernel& kernel, const Problem& problem, const Matrices& matrices) {
  if (!problem.has_output() || !problem.has_product()) return "ok";
  std::mt19937_64 random(1);
  std::uniform_int_distribution<int64_t> any_row(0, problem.m - 1);
  std::uniform_int_distribution<int64_t> any_column(0, problem.n - 1);
  const double unit = kernel.recipe.accumulation == ElementType::kF32 ? 0x1p-24 : 0x1p-53;
  for (int i = 0; i < kChecked; ++i) {
    const int64_t row = any_row(random);
    const int64_t column = any_column(random);
    double want = 0;
    double magnitude = 0;
    int64_t integer = 0;
    for (int64_t p = 0; p < problem.k; ++p) {
      const double a = ValueAt(problem.a, matrices.a.get(), row, p);
      const double b = ValueAt(problem.b, matrices.b.get(), p, column);
      want += a * b;
      magnitude += std::fabs(a * b);
      if (kernel.recipe.exact) integer += static_cast<int64_t>(a) * static_cast<int64_t>(b);
    }
    const double got = ValueAt(problem.d, matrices.d.get(), row, column);
    const bool is_right =
        kernel.recipe.exact
            ? static_cast<int32_t>(got) == static_cast<int32_t>(integer)
            : std::fabs(got - want) <= static_cast<double>(2 * problem.k + 4) * unit * magnitude;
    if (!is_right) return Concat("wrong at row ", row, ", column ", column);
  }
  return "ok";
}

// The CPU libraries called directly, as their manuals say, for comparison with the catalogue's
// rows: this uses nothing of kernels/cpu.
//
// One way to call a library for D = A B on row-major A and D and a B of either order.
struct DirectCall {
  std::string name;  // "dnnl_sgemm"
  ElementType a;     // The operand types of the call.
  ElementType b;
  ElementType d;
  std::function<void(const std::byte* a, const std::byte* b, std::byte* d)> run;
};

template <typename T>
const T* As(const std::byte* data) {
  return reinterpret_cast<const T*>(data);
}

// A oneDNN matmul primitive, created once and run many times.
DirectCall MatMul(const Shape& s, Order b_order, ElementType type) {
  using Descriptor = dnnl::memory::desc;
  const auto data_type =
      type == ElementType::kBf16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
  const auto b_tag =
      b_order == Order::kRowMajor ? dnnl::memory::format_tag::ab : dnnl::memory::format_tag::ba;
  const Descriptor a({s.m, s.k}, data_type, dnnl::memory::format_tag::ab);
  const Descriptor b({s.k, s.n}, data_type, b_tag);
  const Descriptor d({s.m, s.n}, dnnl::memory::data_type::f32, dnnl::memory::format_tag::ab);
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
#if DNNL_VERSION_MAJOR < 3
  const dnnl::matmul::primitive_desc description(dnnl::matmul::desc(a, b, d), engine);
#else
  const dnnl::matmul::primitive_desc description(engine, a, b, d);
#endif
  const dnnl::matmul matmul(description);
  const dnnl::stream stream(engine);
  const auto run = [=](const std::byte* a_data, const std::byte* b_data, std::byte* d_data) {
    matmul.execute(stream,
                   {{DNNL_ARG_SRC, dnnl::memory(a, engine, const_cast<std::byte*>(a_data))},
                    {DNNL_ARG_WEIGHTS, dnnl::memory(b, engine, const_cast<std::byte*>(b_data))},
                    {DNNL_ARG_DST, dnnl::memory(d, engine, d_data)}});
    dnnl::stream(stream).wait();
  };
  return {"dnnl::matmul", type, type, ElementType::kF32, run};
}

DirectCall Sgemm(const Shape& s, Order b_order) {
  const bool is_row_major = b_order == Order::kRowMajor;
  const auto run = [=](const std::byte* a, const std::byte* b, std::byte* d) {
    dnnl_sgemm('N', is_row_major ? 'N' : 'T', s.m, s.n, s.k, 1, As<float>(a), s.k, As<float>(b),
               is_row_major ? s.n : s.k, 0, reinterpret_cast<float*>(d), s.n);
  };
  return {"dnnl_sgemm", ElementType::kF32, ElementType::kF32, ElementType::kF32, run};
}

DirectCall IntegerGemm(const Shape& s, Order b_order, bool a_is_unsigned) {
  const bool is_row_major = b_order == Order::kRowMajor;
  const char flag = is_row_major ? 'N' : 'T';
  const int64_t ldb = is_row_major ? s.n : s.k;
  const auto run = [=](const std::byte* a, const std::byte* b, std::byte* d) {
    const int32_t zero = 0;
    auto* sums = reinterpret_cast<int32_t*>(d);
    if (a_is_unsigned) {
      dnnl_gemm_u8s8s32('N', flag, 'F', s.m, s.n, s.k, 1, As<uint8_t>(a), s.k, 0, As<int8_t>(b),
                        ldb, 0, 0, sums, s.n, &zero);
    } else {
      dnnl_gemm_s8s8s32('N', flag, 'F', s.m, s.n, s.k, 1, As<int8_t>(a), s.k, 0, As<int8_t>(b), ldb,
                        0, 0, sums, s.n, &zero);
    }
  };
  return {a_is_unsigned ? "dnnl_gemm_u8s8s32" : "dnnl_gemm_s8s8s32",
          a_is_unsigned ? ElementType::kU8 : ElementType::kS8, ElementType::kS8, ElementType::kS32,
          run};
}

// `gemm`: cblas_sgemm or cblas_dgemm, called `name`.
template <typename Float, typename Gemm>
DirectCall Cblas(std::string name, Gemm gemm, ElementType type, const Shape& s, Order b_order) {
  const bool is_row_major = b_order == Order::kRowMajor;
  const auto run = [=](const std::byte* a, const std::byte* b, std::byte* d) {
    gemm(CblasRowMajor, CblasNoTrans, is_row_major ? CblasNoTrans : CblasTrans,
         static_cast<blasint>(s.m), static_cast<blasint>(s.n), static_cast<blasint>(s.k), 1,
         As<Float>(a), static_cast<blasint>(s.k), As<Float>(b),
         static_cast<blasint>(is_row_major ? s.n : s.k), 0, reinterpret_cast<Float*>(d),
         static_cast<blasint>(s.n));
  };
  return {std::move(name), type, type, type, run};
}

// Direct calls equivalent to an engine of the catalogue; the fastest counts. `a_is_unsigned`:
// whether A's 8-bit integers are unsigned.
std::vector<DirectCall> DirectCalls(std::string_view engine, const Shape& shape, Order b_order,
                                    bool a_is_unsigned) {
  if (engine == "onednn.f32") {
    return {Sgemm(shape, b_order), MatMul(shape, b_order, ElementType::kF32)};
  }
  if (engine == "onednn.bf16") return {MatMul(shape, b_order, ElementType::kBf16)};
  if (engine == "onednn.s8") return {IntegerGemm(shape, b_order, a_is_unsigned)};
  if (engine == "openblas.f32") {
    return {Cblas<float>("cblas_sgemm", cblas_sgemm, ElementType::kF32, shape, b_order)};
  }
  if (engine == "openblas.f64") {
    return {Cblas<double>("cblas_dgemm", cblas_dgemm, ElementType::kF64, shape, b_order)};
  }
  return {};
}

using Clock = std::chrono::steady_clock;

constexpr int kSets = 3;  // Operands alternate, so that no call finds its own in cache.
constexpr double kSampleSeconds = 2e-4;  // A sample repeats short calls for this long.

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// A contender that takes turns with others. call(set) multiplies once.
struct HostContender {
  std::string name;
  std::function<void(int set)> call;
  int calls_per_sample = 1;
  int next_set = 0;
  std::vector<double> seconds = {};

  double Sample() {
    const Clock::time_point start = Clock::now();
    for (int i = 0; i < calls_per_sample; ++i) call(next_set++ % kSets);
    return SecondsSince(start) / calls_per_sample;
  }

  // Also touches all memory and starts threads.
  void WarmUp() {
    for (int set = 0; set < kSets; ++set) call(set);
    while (Sample() * calls_per_sample < kSampleSeconds) calls_per_sample *= 2;
  }
};

void TakeTurns(std::vector<HostContender>& contenders, const CpuSettings& settings) {
  for (HostContender& contender : contenders) contender.WarmUp();
  const Clock::time_point start = Clock::now();
  for (int turn = 0; turn < settings.min_samples || SecondsSince(start) < settings.seconds;
       ++turn) {
    for (HostContender& contender : contenders) contender.seconds.push_back(contender.Sample());
  }
}

GemmArgs MakeArgs(const Problem& problem, const Target& target, const Matrices& matrices,
                  absl::Span<std::byte> workspace) {
  return {.problem = problem,
          .target = target,
          .a = matrices.a.get(),
          .b = matrices.b.get(),
          .c = nullptr,
          .bias = nullptr,
          .a_scale = {},
          .b_scale = {},
          .d = matrices.d.get(),
          .workspace = workspace};
}

absl::StatusOr<std::vector<Matrices>> MakeSets(const Problem& problem,
                                               int64_t workspace_bytes = 0) {
  RETURN_IF_ERROR(CheckMemory(problem, kSets, workspace_bytes));
  std::vector<Matrices> sets;
  for (int set = 0; set < kSets; ++set) {
    ASSIGN_OR_RETURN(const Operands operands, DrawOperands(problem, set));
    sets.push_back({PagesOf(operands.a), PagesOf(operands.b), PagesOf(BytesOf(problem.d))});
  }
  return sets;
}

// Adds the library calls, with separate operands, so that their time does not include widening.
absl::Status AddOpponents(const Kernel& kernel, const Problem& problem, const Shape& shape,
                          std::vector<HostContender>& contenders) {
  const bool a_is_unsigned = kernel.recipe.a_compute == ElementType::kU8;
  for (const DirectCall& call : DirectCalls(kernel.engine, shape, problem.b.order, a_is_unsigned)) {
    Problem direct;
    ASSIGN_OR_RETURN(direct.a, TightLayout("a", call.a, problem.a.order, shape.m, shape.k));
    ASSIGN_OR_RETURN(direct.b, TightLayout("b", call.b, problem.b.order, shape.k, shape.n));
    ASSIGN_OR_RETURN(direct.d, TightLayout("d", call.d, problem.d.order, shape.m, shape.n));
    direct.m = shape.m;
    direct.n = shape.n;
    direct.k = shape.k;
    ASSIGN_OR_RETURN(std::vector<Matrices> sets, MakeSets(direct));
    const auto run = [call,
                      kept = std::make_shared<std::vector<Matrices>>(std::move(sets))](int set) {
      const Matrices& matrices = (*kept)[static_cast<size_t>(set)];
      call.run(matrices.a.get(), matrices.b.get(), matrices.d.get());
    };
    contenders.push_back({call.name, run});
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<CpuMeasurement> MeasureOnCpu(const Kernel& kernel, const Shape& shape,
                                            const CpuSettings& settings) {
  const Orders orders = {.a = Order::kRowMajor, .b = settings.b_order, .d = Order::kRowMajor};
  ASSIGN_OR_RETURN(const Problem problem, MakeProblem(kernel, shape, orders));
  ASSIGN_OR_RETURN(const int64_t workspace_bytes, kernel.workspace_bytes(problem));
  ASSIGN_OR_RETURN(const std::vector<Matrices> sets, MakeSets(problem, workspace_bytes));
  const Pages workspace = PagesOf(workspace_bytes);
  const auto launch = [&](int set) {
    const GemmArgs args = MakeArgs(problem, HostTarget(), sets[static_cast<size_t>(set)],
                                   {workspace.get(), static_cast<size_t>(workspace_bytes)});
    return kernel.launch(args);
  };
  RETURN_IF_ERROR(launch(0));

  std::vector<HostContender> contenders;
  contenders.push_back({std::string(kernel.name), [&](int set) { launch(set).IgnoreError(); }});
  RETURN_IF_ERROR(AddOpponents(kernel, problem, shape, contenders));
  TakeTurns(contenders, settings);

  const HostContender& row = contenders[0];
  CpuMeasurement result = {.kernel = row.name,
                           .shape = shape,
                           .seconds = Median(row.seconds),
                           .library = std::nullopt,
                           .samples = static_cast<int>(row.seconds.size()),
                           .verdict = CheckElements(kernel, problem, sets[0])};
  for (size_t i = 1; i < contenders.size(); ++i) {
    LibraryTime library = LibraryTimeOf(contenders[i].name, contenders[i].seconds, row.seconds);
    if (result.library && library.seconds >= result.library->seconds) continue;
    result.library = std::move(library);
  }
  return result;
}

std::vector<Column> CpuColumns() {
  return {{"kernel", -32},    {"m x n x k", -16}, {"Gop/s", 10},  {"library", 10},
          {"called as", -18}, {"ratio", 6},       {"samples", 8}, {"check", -1}};
}

Entry EntryOf(const CpuMeasurement& m) {
  const double rate = m.shape.operations() / m.seconds;
  const auto rate_of = [&m](const LibraryTime& library) {
    return m.shape.operations() / library.seconds;
  };
  return {.kernel = m.kernel,
          .shape = m.shape,
          .fields = {{"kernel", m.kernel},
                     {"m", m.shape.m},
                     {"n", m.shape.n},
                     {"k", m.shape.k},
                     {"kernel_seconds", m.seconds},
                     {"library_call", ValueOf(m.library, &LibraryTime::how)},
                     {"library_seconds", ValueOf(m.library, &LibraryTime::seconds)},
                     {"kernel_gops", rate / 1e9},
                     {"library_gops",
                      ValueOf(m.library, [&](const auto& l) { return rate_of(l) / 1e9; })},
                     {"ratio", ValueOf(m.library, &LibraryTime::ratio)},
                     {"samples", m.samples},
                     {"check", m.verdict}},
          .cells = {m.kernel, NameOf(m.shape), GigaText(rate),
                    TextOf(m.library, [&](const auto& l) { return GigaText(rate_of(l)); }),
                    TextOf(m.library, &LibraryTime::how), TextOf(m.library, RatioText),
                    Concat(m.samples), m.verdict},
          .is_right = m.verdict == "ok"};
}

}  // namespace gemmd::bench
