// SPDX-License-Identifier: Apache-2.0
#include "kernels/bench/gpu/errors.h"

#include <algorithm>
#include <cmath>
#include <iostream>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "kernels/bench/gpu/operand_sets.h"
#include "kernels/bench/problem.h"
#include "kernels/bench/report.h"
#include "kernels/bench/session.h"
#include "kernels/kernel.h"
#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"
#include "kernels/select.h"

namespace gemmd::bench {
namespace {

constexpr int64_t kDepths[] = {32, 128, 256, 1024, 4096, 8192, 16384, 65536};
constexpr int64_t kCompared = 128;  // Rows and columns of D.
// Rows and columns of D. Large for f32, because the library splits k for a small D, unlike for
// large matrices.
constexpr int64_t ExtentOf(ElementType type) { return type == ElementType::kF32 ? 2048 : 128; }
constexpr int64_t kMaxDepthOfF32 = 16384;

enum class Data { kUniform, kNormal, kOutlier, kWide, kCancellation };

struct Operand {
  ElementType type;
  Data data;
};
constexpr Operand kOperands[] = {
    {ElementType::kE4m3, Data::kUniform},     {ElementType::kE4m3, Data::kNormal},
    {ElementType::kE4m3, Data::kOutlier},     {ElementType::kF32, Data::kUniform},
    {ElementType::kF32, Data::kNormal},       {ElementType::kF32, Data::kWide},
    {ElementType::kF32, Data::kCancellation},
};

std::string_view NameOf(Data data) {
  switch (data) {
    case Data::kUniform: return "uniform 0..1";
    case Data::kNormal: return "normal";
    case Data::kOutlier: return "normal, one 448 in a row";
    case Data::kWide: return "normal, times 2^-12..2^12";
    case Data::kCancellation: return "normal, pairs cancel but for 2^-10";
  }
  return "";
}

// A is row major and B column major, so that both have lines along k.
absl::StatusOr<Problem> ProblemOf(ElementType type, int64_t k, bool is_fast) {
  Problem problem;
  const int64_t extent = ExtentOf(type);
  problem.m = problem.n = extent;
  problem.k = k;
  problem.fast_accumulation = is_fast;
  ASSIGN_OR_RETURN(problem.a, TightLayout("a", type, Order::kRowMajor, extent, k));
  ASSIGN_OR_RETURN(problem.b, TightLayout("b", type, Order::kColumnMajor, k, extent));
  ASSIGN_OR_RETURN(problem.d,
                   TightLayout("d", ElementType::kF32, Order::kRowMajor, extent, extent));
  return problem;
}

// Draws all lines along k of A or B.
std::vector<std::byte> DrawLines(const Operand& operand, bool is_a, int64_t k,
                                 std::mt19937_64& random) {
  std::uniform_real_distribution<double> uniform(0, 1);
  std::normal_distribution<double> normal;
  std::uniform_int_distribution<int> exponent(-12, 12);
  std::uniform_int_distribution<int64_t> place(0, k - 1);
  const int64_t extent = ExtentOf(operand.type);
  std::vector<std::byte> bytes(static_cast<size_t>(extent * k * BitsOf(operand.type) / 8));
  double before = 0;
  for (int64_t i = 0; i < extent * k; ++i) {
    double value = operand.data == Data::kUniform ? uniform(random) : normal(random);
    if (operand.data == Data::kWide) value = std::ldexp(value, exponent(random));
    if (operand.data == Data::kCancellation && i % 2 == 1) {
      value = is_a ? before * (1 + 0x1p-10 * value) : -before;
    }
    before = value;
    StoreBits(operand.type, bytes.data(), i, Encode(operand.type, value));
  }
  if (operand.data != Data::kOutlier || !is_a) return bytes;
  for (int64_t line = 0; line < extent; ++line) {
    StoreBits(operand.type, bytes.data(), line * k + place(random), Encode(operand.type, 448));
  }
  return bytes;
}

// Computes the compared rows and columns. Products are exact in f64, and sums of this length nearly
// so.
std::vector<double> ExactProduct(ElementType type, const Operands& operands, int64_t k) {
  const auto decode = [type, k](const std::vector<std::byte>& bytes) {
    std::vector<double> values;
    values.reserve(static_cast<size_t>(kCompared * k));
    for (int64_t i = 0; i < kCompared * k; ++i) {
      values.push_back(Decode(type, LoadBits(type, bytes.data(), i)));
    }
    return values;
  };
  const std::vector<double> a = decode(operands.a);
  const std::vector<double> b = decode(operands.b);
  std::vector<double> d;
  d.reserve(static_cast<size_t>(kCompared * kCompared));
  for (int64_t i = 0; i < kCompared; ++i) {
    for (int64_t j = 0; j < kCompared; ++j) {
      double sum = 0;
      for (int64_t p = 0; p < k; ++p) {
        sum += a[static_cast<size_t>(i * k + p)] * b[static_cast<size_t>(j * k + p)];
      }
      d.push_back(sum);
    }
  }
  return d;
}

// NaN if D contains one.
double ErrorOf(const std::vector<float>& got, const std::vector<double>& exact) {
  double largest = 0;
  double error = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    largest = std::max(largest, std::fabs(exact[i]));
    const double difference = std::fabs(static_cast<double>(got[i]) - exact[i]);
    if (!(difference <= error)) error = difference;
    if (std::isnan(error)) return error;
  }
  return error / largest;
}

absl::StatusOr<std::vector<float>> ReadD(Device& device, const OperandSets& operands) {
  const int64_t extent = operands.problem().n;
  std::vector<float> all(static_cast<size_t>(kCompared * extent));
  RETURN_IF_ERROR(device.Wait());
  RETURN_IF_ERROR(device.Read(reinterpret_cast<std::byte*>(all.data()), operands.d(0),
                              static_cast<int64_t>(all.size() * sizeof(float))));
  std::vector<float> d;
  for (int64_t row = 0; row < kCompared; ++row) {
    const auto first = all.begin() + row * extent;
    d.insert(d.end(), first, first + kCompared);
  }
  return d;
}

// D by the kernel that the server would choose, whose bits do not depend on measured rates.
absl::StatusOr<std::vector<float>> MultiplyByChoice(Device& device, const OperandSets& operands) {
  const Problem& problem = operands.problem();
  const Target& target = device.facts().target;
  DeviceProfile profile;
  profile.target = target;
  ASSIGN_OR_RETURN(const Kernel* const kernel,
                   Choose(Catalog(DeviceKind::kCuda), problem, {}, profile));
  ASSIGN_OR_RETURN(const int64_t bytes, kernel->workspace_bytes(problem));
  ASSIGN_OR_RETURN(const DeviceBytes workspace, device.Allocate(bytes));
  RETURN_IF_ERROR(device.Fill(operands.d(0), 0xff, BytesOf(problem.d)));
  RETURN_IF_ERROR(
      device.Launch(*kernel, {.problem = problem,
                              .target = target,
                              .a = operands.a(0),
                              .b = operands.b(0),
                              .c = nullptr,
                              .bias = nullptr,
                              .a_scale = {},
                              .b_scale = {},
                              .d = operands.d(0),
                              .workspace = {workspace.get(), static_cast<size_t>(bytes)}}));
  return ReadD(device, operands);
}

absl::StatusOr<std::vector<float>> MultiplyByLibrary(Device& device, Library& library,
                                                     const OperandSets& operands) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Opponent> opponent, library.Prepare(device, operands));
  RETURN_IF_ERROR(device.Fill(operands.d(0), 0xff, BytesOf(operands.problem().d)));
  RETURN_IF_ERROR(opponent->Multiply(0));
  return ReadD(device, operands);
}

// Errors by default and (e4m3) with fast accumulation; NaN if not measured.
struct Errors {
  int64_t k = 0;
  Operand operand;
  double gemmd[2] = {kNone, kNone};
  double cublaslt[2] = {kNone, kNone};

  static constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  bool is_right() const { return std::isnan(cublaslt[0]) || gemmd[0] <= cublaslt[0]; }
};

absl::StatusOr<Errors> Compare(Device& device, Library* cublaslt, int64_t k,
                               const Operand& operand) {
  Errors errors = {.k = k, .operand = operand};
  std::mt19937_64 random(static_cast<uint64_t>(k) * 3 + static_cast<uint64_t>(operand.data));
  Operands host;
  host.a = DrawLines(operand, true, k, random);
  host.b = DrawLines(operand, false, k, random);
  const std::vector<double> exact = ExactProduct(operand.type, host, k);
  for (const bool is_fast : {false, true}) {
    if (is_fast && operand.type != ElementType::kE4m3) continue;
    ASSIGN_OR_RETURN(const Problem problem, ProblemOf(operand.type, k, is_fast));
    ASSIGN_OR_RETURN(const OperandSets operands, OperandSets::Make(device, problem, host, 0));
    ASSIGN_OR_RETURN(const std::vector<float> d, MultiplyByChoice(device, operands));
    errors.gemmd[is_fast ? 1 : 0] = ErrorOf(d, exact);
    if (cublaslt == nullptr) continue;
    ASSIGN_OR_RETURN(const std::vector<float> other,
                     MultiplyByLibrary(device, *cublaslt, operands));
    errors.cublaslt[is_fast ? 1 : 0] = ErrorOf(other, exact);
  }
  return errors;
}

nlohmann::ordered_json JsonOf(const Errors& errors) {
  return {{"k", errors.k},
          {"type", std::string(gemmd::NameOf(errors.operand.type))},
          {"data", std::string(NameOf(errors.operand.data))},
          {"gemmd", errors.gemmd[0]},
          {"gemmd_fast", errors.gemmd[1]},
          {"cublaslt", errors.cublaslt[0]},
          {"cublaslt_fast", errors.cublaslt[1]}};
}

}  // namespace

absl::StatusOr<bool> CompareErrors(const Options& options, Device& device, Library* cublaslt) {
  const DeviceFacts& facts = device.facts();
  nlohmann::ordered_json report = {{"gpu", facts.name},
                                   {"driver", facts.driver},
                                   {"cuda", facts.cuda},
                                   {"cublaslt", cublaslt != nullptr ? cublaslt->version() : ""},
                                   {"commit", BuildCommit()},
                                   {"command", options.command},
                                   {"errors", nlohmann::ordered_json::array()}};
  std::cout << "| k | type | data | gemmd | gemmd, fast | cuBLASLt | cuBLASLt, fast |\n"
               "| ---: | --- | --- | ---: | ---: | ---: | ---: |\n";
  bool is_right = true;
  for (const Operand& operand : kOperands) {
    for (const int64_t k : kDepths) {
      if (operand.type == ElementType::kF32 && k > kMaxDepthOfF32) continue;
      ASSIGN_OR_RETURN(const Errors errors, Compare(device, cublaslt, k, operand));
      std::cout << absl::StrFormat("| %d | %s | %s | %.2e | %.2e | %.2e | %.2e |%s\n", k,
                                   std::string(gemmd::NameOf(operand.type)),
                                   std::string(NameOf(operand.data)), errors.gemmd[0],
                                   errors.gemmd[1], errors.cublaslt[0], errors.cublaslt[1],
                                   errors.is_right() ? "" : " gemmd's default is worse")
                << std::flush;
      report["errors"].push_back(JsonOf(errors));
      is_right &= errors.is_right();
    }
  }
  if (!options.save.empty()) {
    RETURN_IF_ERROR(WriteOutputFile(options.save, report.dump(2) + "\n"));
  }
  return is_right;
}

}  // namespace gemmd::bench
