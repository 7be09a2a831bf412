// SPDX-License-Identifier: Apache-2.0
#include "tests/kernels/stepwise_epilogue.h"

#include <cmath>

#include "kernels/activation.h"
#include "tests/testing/compare.h"

namespace gemmd {
namespace {

// A volatile variable makes every step round separately, even if the compiler would fuse steps.
template <typename T>
class Stepwise {
 public:
  void Set(T value) { x_ = value; }
  void Multiply(T factor) { x_ = x_ * factor; }
  void Add(T term) { x_ = x_ + term; }
  T Get() const { return x_; }

 private:
  volatile T x_ = 0;
};

// In f32, the definition is a sequence of operations; activation_test.cc compares it with these
// formulas.
float Activated(Activation activation, float x) { return Activate(activation, x); }
double Activated(Activation activation, double x) {
  switch (activation) {
    case Activation::kNone: return x;
    case Activation::kRelu: return std::isnan(x) ? x : std::fmax(x, 0);
    case Activation::kGeluErf: return x / 2 * std::erfc(-x / std::sqrt(2.0));
    case Activation::kGeluTanh:
      return x / (1 + std::exp(-2 * std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case Activation::kSilu: return x / (1 + std::exp(-x));
  }
  return x;
}

template <typename T>
T ScaleAt(const std::vector<float>& scale, int64_t index) {
  return scale.empty() ? 1 : scale[scale.size() == 1 ? 0 : static_cast<size_t>(index)];
}

void Store(const MatrixLayout& layout, std::byte* d, int64_t i, int64_t j, double value) {
  const bool is_row_major = layout.order == Order::kRowMajor;
  std::byte* line = d + (is_row_major ? i : j) * layout.line_stride_bytes();
  StoreBits(layout.type, line, is_row_major ? j : i, Encode(layout.type, value));
}

template <typename T>
std::vector<std::byte> Run(const EpilogueCase& test) {
  const Product& product = test.product;
  const Problem& problem = product.problem;
  MatrixLayout tight = problem.d;
  tight.type = test.description.stored;
  tight.leading_dimension = tight.line_length();
  const MatrixView accumulators = {tight, 1, test.accumulators.data()};
  const MatrixView c = {problem.c, 1, product.c.data()};
  std::vector<std::byte> d(static_cast<size_t>(BytesOf("d", problem.d, 1)->least), std::byte{0xff});
  for (int64_t i = 0; i < problem.m; ++i) {
    for (int64_t j = 0; j < problem.n; ++j) {
      Stepwise<T> x;
      x.Set(static_cast<T>(accumulators.value(0, i, j)));
      Stepwise<T> scale;
      scale.Set(ScaleAt<T>(product.a_scale, i));
      scale.Multiply(ScaleAt<T>(product.b_scale, j));
      x.Multiply(scale.Get());
      x.Multiply(static_cast<T>(problem.alpha));
      if (problem.has_c()) {
        Stepwise<T> term;
        term.Set(static_cast<T>(problem.beta));
        term.Multiply(static_cast<T>(c.value(0, i, j)));
        x.Add(term.Get());
      }
      if (problem.bias_axis != BiasAxis::kNone) {
        const int64_t index = problem.bias_axis == BiasAxis::kRows ? i : j;
        x.Add(static_cast<T>(
            Decode(problem.bias_type, LoadBits(problem.bias_type, product.bias.data(), index))));
      }
      Store(problem.d, d.data(), i, j, static_cast<double>(Activated(problem.activation, x.Get())));
    }
  }
  return d;
}

}  // namespace

std::vector<std::byte> StepwiseEpilogue(const EpilogueCase& test) {
  return test.description.type == ElementType::kF32 ? Run<float>(test) : Run<double>(test);
}

}  // namespace gemmd
