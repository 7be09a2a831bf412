// SPDX-License-Identifier: Apache-2.0
#include "tests/kernels/verify_figures.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <vector>

#include "kernels/cpu/host.h"
#include "kernels/epilogue.h"
#include "kernels/kernel.h"
#include "kernels/matrix/element.h"
#include "kernels/matrix/sparse24.h"
#include "kernels/verify/checksum.h"
#include "kernels/verify/recompute.h"
#include "kernels/verify/sampled.h"
#include "tests/kernels/reference.h"

namespace gemmd {
namespace {

using Bytes = std::vector<std::byte>;

absl::Span<const std::byte> SpanOf(const Bytes& bytes) { return absl::MakeConstSpan(bytes); }

Bytes Run(const Kernel& kernel, const Product& product) {
  absl::StatusOr<Bytes> d = RunKernel(kernel, product, TargetOf(kernel));
  if (!d.ok()) {
    std::cerr << kernel.name << ": " << d.status() << std::endl;
    std::abort();
  }
  return *std::move(d);
}

double ValueAt(const Problem& problem, const Bytes& d, int64_t row, int64_t column) {
  return Decode(problem.d.type, verify::BitsAt(problem.d, d.data(), row, column));
}

double RootMeanSquare(const Problem& problem, const Bytes& d) {
  double sum = 0;
  for (int64_t row = 0; row < problem.m; ++row) {
    for (int64_t column = 0; column < problem.n; ++column) {
      sum += std::pow(ValueAt(problem, d, row, column), 2);
    }
  }
  return std::sqrt(sum / static_cast<double>(problem.m * problem.n));
}

struct Change {
  double size = 0;
  double in_ulp = 0;  // Of the right element.
};

// The largest difference of two results; infinity if only one of them is a number.
Change LargestChange(const Problem& problem, const Bytes& d, const Bytes& flipped) {
  Change largest;
  for (int64_t row = 0; row < problem.m; ++row) {
    for (int64_t column = 0; column < problem.n; ++column) {
      const double right = ValueAt(problem, d, row, column);
      const double change = std::fabs(right - ValueAt(problem, flipped, row, column));
      if (std::isnan(change)) return {.size = INFINITY, .in_ulp = INFINITY};
      if (change <= largest.size) continue;
      largest = {.size = change, .in_ulp = change / UlpAt(problem.d.type, right)};
    }
  }
  return largest;
}

// A kernel of a library has no fragments; its faults are those of this instruction.
const mma::Instruction& InstructionOf(const Kernel& kernel) {
  if (kernel.instruction != nullptr) return *kernel.instruction;
  static const Kernel& stand_in = KernelNamed("mma.m16n8k16.f32.f16.f16.f32");
  return *stand_in.instruction;
}

// The type of a kernel's accumulators in memory.
ElementType SumTypeOf(const Kernel& kernel) {
  const ElementType own = kernel.recipe.accumulation;
  return own == ElementType::kF16 ? ElementType::kF32 : own;
}

void CountOne(const verify::CheckResult& result, bool is_above, Found& found) {
  const bool is_found = result.end == verify::CheckEnd::kWrong;
  ++found.faults;
  found.found += is_found ? 1 : 0;
  found.above += is_above ? 1 : 0;
  found.above_found += is_above && is_found ? 1 : 0;
}

// One product of random numbers, into which faults are put.
class FaultyProduct {
 public:
  FaultyProduct(const FaultyCase& of, RandomSource& random)
      : kernel_(KernelNamed(of.kernel)),
        instruction_(InstructionOf(kernel_)),
        random_(random),
        product_(RandomProduct(of, random)),
        dense_(product_) {
    if (of.is_sparse) product_ = WithSparseA(dense_);
    sums_problem_ = MakeProblem(kernel_, of.m, of.n, of.k, {});
    sums_problem_.a = product_.problem.a;
    sums_problem_.d = TightLayout("d", SumTypeOf(kernel_), Order::kRowMajor, of.m, of.n).value();
    sums_ = SumsOf(product_);
    d_ = Finished(sums_);
    scale_ = RootMeanSquare(product_.problem, d_);
    can_sum_ = verify::CanCheckSums(kernel_, product_.problem).ok();
    compares_bits_ = kernel_.instruction != nullptr || kernel_.recipe.exact;
    if (!compares_bits_) bounds_ = MakeReference(dense_, kernel_.recipe).bound;
    verify::Draw draw;
    if (CheckSample(d_, 1, draw).end != verify::CheckEnd::kPassed) {
      std::cerr << kernel_.name << ": a product without a fault is refused" << std::endl;
      std::abort();
    }
  }

  void Count(FaultAt at, FaultKind kind, verify::Draw& draw, FaultFigures& figures) {
    const Bytes d = WithFault(at, kind);
    if (d == d_) return;
    CountOne(CheckSample(d, 1, draw), compares_bits_ || IsAboveBounds(d), figures.whole);
    CountOne(CheckSample(d, kPartRate, draw), false, figures.part);
    if (can_sum_) CountSums(d, draw, figures);
  }

 private:
  Bytes SumsOf(const Product& operands) const {
    Product product;
    product.problem = sums_problem_;
    product.a = operands.a;
    product.b = operands.b;
    return Run(kernel_, product);
  }

  Bytes Finished(const Bytes& sums) const {
    Bytes d(static_cast<size_t>(BytesWritten(product_.problem)));
    const ElementType type = SumTypeOf(kernel_);
    ApplyEpilogue(EpilogueArgs(product_, d.data()), 0,
                  {.data = sums.data(),
                   .stored = type,
                   .leading_dimension = product_.problem.n,
                   .type = type});
    return d;
  }

  Bytes WithFault(FaultAt at, FaultKind kind) {
    if (at == FaultAt::kResult) {
      Bytes d = d_;
      Corrupt(kind, instruction_, mma::Operand::kD, {product_.problem.d, d.data()}, random_);
      return d;
    }
    if (at == FaultAt::kOperand) {
      Product changed = product_;
      const bool is_b = mma::ElementsPerLane(instruction_, mma::Operand::kB) > 0 && random_.Flip();
      const MatrixLayout& layout = is_b ? product_.problem.b : product_.problem.a;
      Corrupt(kind, instruction_, is_b ? mma::Operand::kB : mma::Operand::kA,
              {layout, (is_b ? changed.b : changed.a).data()}, random_);
      return Finished(SumsOf(changed));
    }
    Bytes sums = sums_;
    const ElementTable table(sums_problem_.d, sums.data());
    if (kind == FaultKind::kStuckBit) {
      StickAccumulator(instruction_, dense_.problem, dense_.a.data(), dense_.b.data(), table,
                       random_);
    } else {
      Corrupt(kind, instruction_, mma::Operand::kD, table, random_);
    }
    return Finished(sums);
  }

  verify::CheckedProduct Checked(const Bytes& d) const {
    return ProductToCheck(kernel_, TargetOf(kernel_), product_, SpanOf(d));
  }

  verify::CheckResult CheckSample(const Bytes& d, double rate, verify::Draw& draw) const {
    return verify::CheckSample(Checked(d), rate, draw).value();
  }

  bool IsAboveBounds(const Bytes& d) const {
    const Problem& problem = product_.problem;
    for (int64_t i = 0; i < problem.m * problem.n; ++i) {
      const double change = ValueAt(problem, d, i / problem.n, i % problem.n) -
                            ValueAt(problem, d_, i / problem.n, i % problem.n);
      if (!(std::fabs(change) <= 2 * bounds_[static_cast<size_t>(i)])) return true;
    }
    return false;
  }

  void CountSums(const Bytes& d, verify::Draw& draw, FaultFigures& figures) const {
    const verify::CheckResult result = verify::CheckSums(Checked(d), draw).value();
    const Change change = LargestChange(product_.problem, d_, d);
    // The bound on the error of a right row's sum determines what this check finds.
    CountOne(result, !(change.size <= result.least_error), figures.sums);
    const bool is_found = result.end == verify::CheckEnd::kWrong;
    if (is_found) {
      figures.least_found = std::min(figures.least_found, change.size);
      figures.least_found_ulp = std::min(figures.least_found_ulp, change.in_ulp);
    }
    if (change.size <= 0.01 * scale_) return;
    ++figures.large;
    figures.large_found += is_found ? 1 : 0;
  }

  const Kernel& kernel_;
  const mma::Instruction& instruction_;
  RandomSource& random_;
  Product product_;
  Product dense_;  // The same product with a dense A.
  Problem sums_problem_;
  Bytes sums_;
  Bytes d_;
  double scale_ = 0;
  bool can_sum_ = false;
  bool compares_bits_ = false;
  std::vector<double> bounds_;
};

bool PassesAll(const Kernel& kernel, const Product& product, verify::Draw& draw,
               CleanFigures& figures) {
  const Target target = TargetOf(kernel);
  const Bytes d = Run(kernel, product);
  const verify::CheckedProduct checked = ProductToCheck(kernel, target, product, SpanOf(d));
  std::vector<verify::CheckResult> results;
  results.push_back(verify::CheckSample(checked, 1.0 / 64, draw).value());
  if (verify::CanCheckSums(kernel, product.problem).ok()) {
    results.push_back(verify::CheckSums(checked, draw).value());
  }
  bool passes = true;
  for (const verify::CheckResult& result : results) {
    figures.suspicions += result.suspicions;
    if (result.end == verify::CheckEnd::kNotVerified) ++figures.not_verified;
    if (result.end != verify::CheckEnd::kWrong) continue;
    passes = false;
    std::cerr << kernel.name << " " << Describe(product.problem) << ": refused at "
              << result.wrong->row << "," << result.wrong->column << std::endl;
  }
  return passes;
}

ElementType SomeOutput(const Kernel& kernel, RandomSource& random) {
  if (random.Flip()) return SumTypeOf(kernel);
  constexpr ElementType kTypes[] = {ElementType::kF64,  ElementType::kF32,  ElementType::kF16,
                                    ElementType::kBf16, ElementType::kE4m3, ElementType::kE5m2,
                                    ElementType::kS8,   ElementType::kU8,   ElementType::kS32};
  return kTypes[random.Between(0, 8)];
}

// Whether it takes an A in 2:4 form, and no other.
bool NeedsSparse(const Kernel& kernel) {
  return kernel.instruction != nullptr && kernel.instruction->is_sparse();
}
bool MayBeSparse(const Kernel& kernel) {
  const bool is_possible = kernel.instruction == nullptr || NeedsSparse(kernel);
  return is_possible && SparseFormOf(kernel.a).has_value();
}

Problem SomeProblem(const Kernel& kernel, bool is_sparse, RandomSource& random) {
  const auto order = [&] { return random.Flip() ? Order::kRowMajor : Order::kColumnMajor; };
  Layouts layouts = {.a = order(), .b = order(), .c = order(), .d = order()};
  layouts.padding = random.Between(0, 1) * 8;
  layouts.batch = random.Between(1, 2);
  Problem problem = MakeProblem(kernel, random.Between(1, 20), random.Between(1, 20),
                                random.Between(1, 36), layouts);
  if (is_sparse) {
    problem.a = TightLayout("a", problem.a.type, Order::kRowMajor, problem.m, problem.k).value();
  }
  const ElementType d = SomeOutput(kernel, random);
  problem.d = MakeLayout(d, problem.d.order, problem.m, problem.n, layouts);
  if (random.Flip()) return problem;
  problem.alpha = random.Normal();
  if (random.Flip()) {
    problem.beta = random.Normal();
    problem.c = MakeLayout(ElementType::kF32, layouts.c, problem.m, problem.n, layouts);
  }
  if (random.Flip()) {
    problem.bias_axis = random.Flip() ? BiasAxis::kRows : BiasAxis::kColumns;
    problem.bias_type = ElementType::kF32;
  }
  if (random.Flip()) problem.a_scale = ScaleKind::kVector;
  if (random.Flip()) problem.b_scale = ScaleKind::kVector;
  if (random.Between(0, 3) == 0) problem.activation = static_cast<Activation>(random.Between(1, 4));
  return problem;
}

// Codes of a type on both sides of each boundary between kinds of values.
std::vector<uint64_t> Extremes(ElementType type) {
  const int bits = BitsOf(type);
  const uint64_t all = bits == 64 ? ~uint64_t{0} : (uint64_t{1} << bits) - 1;
  std::vector<uint64_t> codes = {0, 1, 2, all, all - 1, all / 2, all / 2 + 1, all / 2 + 2};
  if (IsInteger(type)) return codes;
  codes.clear();
  const uint64_t one = Encode(type, 1);
  const uint64_t largest = Encode(type, std::numeric_limits<double>::max());
  for (const uint64_t near : {uint64_t{0}, one, Encode(type, UlpAt(type, 0) * 0x1p10), largest}) {
    for (const uint64_t code : {near - 1, near, near + 1}) {
      codes.push_back(code & (all >> 1));
      codes.push_back((code & (all >> 1)) | (all / 2 + 1));
    }
  }
  return codes;
}

// Replaces elements, those of padding included, one in `one_in` of them.
void Choose(ElementType type, bool is_extreme, int64_t one_in, Bytes& bytes, RandomSource& random) {
  const std::vector<uint64_t> codes = Extremes(type);
  const int64_t elements = static_cast<int64_t>(bytes.size()) * 8 / BitsOf(type);
  for (int64_t i = 0; i < elements; ++i) {
    if (random.Between(1, one_in) > 1) continue;
    uint64_t code = random.Bits();
    if (is_extreme) {
      code = codes[static_cast<size_t>(random.Between(0, static_cast<int64_t>(codes.size()) - 1))];
    }
    // Infinities and NaN leave most sums without a verdict.
    if (!std::isfinite(Decode(type, code)) && random.Between(0, 999) > 0) code = 0;
    StoreBits(type, bytes.data(), i, code);
  }
}

double ChosenFactor(RandomSource& random) {
  constexpr double kFactors[] = {
      0,     -0.0,     1,   -1,    0x1.000002p0, 0x1.fffffep-1, 3e38, -3.4e38, 1e300, 1e-300,
      1e-45, -1.2e-38, 0.1, 65504, -0x1p-126,    0x1p-149,      448,  0x1p127, -7,    0x1p-1074};
  return kFactors[random.Between(0, static_cast<int64_t>(std::size(kFactors)) - 1)];
}

float ChosenScale(RandomSource& random) {
  constexpr double kMax = std::numeric_limits<float>::max();
  return static_cast<float>(std::clamp(ChosenFactor(random), -kMax, kMax));
}

void ChooseOperands(bool is_sparse, Product& product, RandomSource& random) {
  Problem& problem = product.problem;
  const bool is_extreme = random.Flip();
  const int64_t one_in = random.Flip() ? 1 : random.Between(2, 30);
  if (!is_sparse) Choose(problem.a.type, is_extreme, one_in, product.a, random);
  Choose(problem.b.type, is_extreme, one_in, product.b, random);
  if (problem.has_c()) Choose(problem.c.type, is_extreme, one_in, product.c, random);
  if (!product.bias.empty()) Choose(problem.bias_type, is_extreme, one_in, product.bias, random);
  if (random.Flip()) problem.alpha = ChosenFactor(random);
  if (problem.has_c()) problem.beta = ChosenFactor(random);
  for (std::vector<float>* const scales : {&product.a_scale, &product.b_scale}) {
    for (float& scale : *scales) {
      if (random.Flip()) scale = ChosenScale(random);
    }
  }
}

}  // namespace

double UlpAt(ElementType type, double value) {
  if (IsInteger(type)) return 1;
  const auto code = Encode(type, std::fabs(value));
  const double here = Decode(type, code);
  const double above = Decode(type, code + 1);
  return std::isfinite(above) ? above - here : here - Decode(type, code - 1);
}

verify::CheckedProduct ProductToCheck(const Kernel& kernel, const Target& target,
                                      const Product& product, absl::Span<const std::byte> d) {
  return {.kernel = kernel,
          .target = target,
          .problem = product.problem,
          .a = product.a,
          .b = product.b,
          .c = product.c,
          .bias = product.bias,
          .a_scale = product.a_scale,
          .b_scale = product.b_scale,
          .d = d,
          .abort = nullptr,
          .a_factors = product.a_factors,
          .b_factors = product.b_factors};
}

Product RandomProduct(const FaultyCase& of, RandomSource& random) {
  const Kernel& kernel = KernelNamed(of.kernel);
  Problem problem = MakeProblem(kernel, of.m, of.n, of.k, {});
  problem.d = TightLayout("d", of.d, Order::kRowMajor, of.m, of.n).value();
  problem.activation = of.activation;
  if (of.has_epilogue) {
    // Integers are scaled to those of 8 bits.
    problem.alpha = IsInteger(kernel.a) ? 0x1p-11 : 0.375;
    problem.beta = -0.5;
    problem.c = TightLayout("c", ElementType::kF32, Order::kRowMajor, of.m, of.n).value();
    problem.bias_axis = BiasAxis::kColumns;
    problem.bias_type = ElementType::kF32;
  }
  return FillCase(problem, Pattern::kRandom, random);
}

FaultFigures CountFound(const FaultyCase& of, FaultAt at, FaultKind kind, int64_t faults,
                        RandomSource& random) {
  constexpr int64_t kFaultsOfOne = 50;
  verify::Draw draw(random.Bits());
  FaultFigures figures;
  for (int64_t left = faults; left > 0; left -= kFaultsOfOne) {
    FaultyProduct product(of, random);
    for (int64_t i = 0; i < std::min(left, kFaultsOfOne); ++i) {
      product.Count(at, kind, draw, figures);
    }
  }
  return figures;
}

SampleFigures CountFoundBySample(const Kernel& kernel, int64_t flips, double rate,
                                 RandomSource& random) {
  verify::Draw draw(random.Bits());
  const Problem problem = MakeProblem(kernel, 128, 256, 8, {});
  const Product product = FillCase(problem, Pattern::kRandom, random);
  const Bytes d = Run(kernel, product);
  SampleFigures figures;
  figures.predicted = 1 - verify::PlanSample(problem, rate).miss_probability;
  for (int64_t i = 0; i < flips; ++i) {
    Bytes flipped = d;
    Corrupt(FaultKind::kOneBit, InstructionOf(kernel), mma::Operand::kD,
            {problem.d, flipped.data()}, random);
    const verify::CheckResult result =
        verify::CheckSample(ProductToCheck(kernel, TargetOf(kernel), product, SpanOf(flipped)),
                            rate, draw)
            .value();
    ++figures.flips;
    figures.found += result.end == verify::CheckEnd::kWrong ? 1 : 0;
  }
  return figures;
}

bool IsAsPredicted(const SampleFigures& figures) {
  const double mean = figures.predicted * static_cast<double>(figures.flips);
  const double odds = std::log(2e9);
  const double above = (odds + std::sqrt(odds * odds + 8 * odds * mean)) / 2;
  const double below = std::sqrt(2 * odds * mean);
  const auto found = static_cast<double>(figures.found);
  return mean - below <= found && found <= mean + above;
}

CleanFigures CountRefused(int64_t products, Operands operands, RandomSource& random) {
  std::vector<const Kernel*> kernels;
  for (const DeviceKind kind : {DeviceKind::kCpu, DeviceKind::kSim}) {
    for (const Kernel& kernel : Catalog(kind)) {
      if (kernel.available(TargetOf(kernel)).ok()) kernels.push_back(&kernel);
    }
  }
  verify::Draw draw(random.Bits());
  CleanFigures figures;
  while (figures.products < products) {
    const Kernel& kernel =
        *kernels[static_cast<size_t>(random.Between(0, static_cast<int64_t>(kernels.size()) - 1))];
    const bool is_sparse =
        MayBeSparse(kernel) && (NeedsSparse(kernel) || random.Between(0, 3) == 0);
    const Problem problem = SomeProblem(kernel, is_sparse, random);
    if (!Validate(problem).ok()) continue;
    if (!is_sparse && !kernel.supports(problem).ok()) continue;
    const bool is_usual = random.Between(0, 3) > 0;
    const Pattern pattern =
        is_usual ? Pattern::kRandom : kAllPatterns[static_cast<size_t>(random.Between(0, 7))];
    Product product = FillCase(problem, pattern, random);
    if (is_sparse) product = WithSparseA(product);
    if (operands == Operands::kChosen) ChooseOperands(is_sparse, product, random);
    if (!kernel.supports(product.problem).ok()) continue;
    ++figures.products;
    if (is_sparse) ++figures.sparse;
    if (!PassesAll(kernel, product, draw, figures)) ++figures.refused;
  }
  return figures;
}

const Kernel& KernelNamed(std::string_view name) {
  for (const DeviceKind kind : {DeviceKind::kCpu, DeviceKind::kSim, DeviceKind::kCuda}) {
    for (const Kernel& kernel : Catalog(kind)) {
      if (kernel.name == name) return kernel;
    }
  }
  std::cerr << "no kernel " << name << std::endl;
  std::abort();
}

Target TargetOf(const Kernel& kernel) {
  if (kernel.device_kind == DeviceKind::kCpu) return HostTarget();
  const Target hopper = {.kind = kernel.device_kind, .chip = mma::Chip::kSm90};
  if (kernel.available(hopper).ok()) return hopper;
  return {.kind = kernel.device_kind, .chip = mma::Chip::kSm120};
}

}  // namespace gemmd
