// SPDX-License-Identifier: Apache-2.0
//
// Loading libraries, and how vendors' libraries are called for products.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/bench/gpu/library_problem.h"
#include "kernels/bench/problem.h"
#include "kernels/dynamic_library.h"
#include "tests/kernels/bench/simulating_device.h"
#include "tests/testing/status_matchers.h"

namespace gemmd::bench {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr char kOther[] = "libm.so.6";  // A library, but not the wanted one.

TEST(DynamicLibraryTest, SaysWhichLibrariesAreNotThere) {
  EXPECT_THAT(DynamicLibrary::Load({"libnone.so.1", "/nowhere/libnone.so"}),
              StatusIs(absl::StatusCode::kNotFound,
                       AllOf(HasSubstr("libnone.so.1"), HasSubstr("/nowhere/libnone.so"))));
}

TEST(DynamicLibraryTest, TakesTheFirstThatIsThere) {
  const absl::StatusOr<DynamicLibrary> library = DynamicLibrary::Load({"libnone.so.1", kOther});
  ASSERT_THAT(library, IsOk());
  EXPECT_EQ(library->name(), kOther);
  double (*cosine)(double) = nullptr;
  ASSERT_THAT(library->Find("cos", cosine), IsOk());
  EXPECT_EQ(cosine(0), 1);
  EXPECT_THAT(library->Find("cosinus", cosine),
              StatusIs(absl::StatusCode::kNotFound, "libm.so.6: no function cosinus"));
}

TEST(LibraryProblemTest, AlignmentIsThePointersOwn) {
  alignas(512) std::byte memory[512] = {};
  EXPECT_EQ(AlignmentOf(memory), 256U);
  EXPECT_EQ(AlignmentOf(memory + 256), 256U);
  EXPECT_EQ(AlignmentOf(memory + 48), 16U);
  EXPECT_EQ(AlignmentOf(memory + 3), 1U);
}

// The element at (row, column) of a column-major matrix without gaps, which may be transposed.
double At(const std::vector<double>& bytes, bool is_transposed, int64_t rows, int64_t row,
          int64_t column) {
  return bytes[static_cast<size_t>(is_transposed ? row * rows + column : column * rows + row)];
}

// Computes what the form describes, as the library would, and compares it with the definition.
TEST(LibraryProblemTest, TheColumnMajorProductIsTheSameProduct) {
  const Kernel& kernel = GpuRow("mma.m16n8k16.f64");
  constexpr Shape kShape = {3, 4, 5};
  for (const Orders& orders : AllOrders()) {
    const Problem problem = *MakeProblem(kernel, kShape, orders, 0);
    const auto place = [](const MatrixLayout& layout, int64_t row, int64_t column) {
      const bool is_row_major = layout.order == Order::kRowMajor;
      return static_cast<size_t>((is_row_major ? row : column) * layout.leading_dimension +
                                 (is_row_major ? column : row));
    };
    std::vector<double> a(15);
    std::vector<double> b(20);
    for (size_t i = 0; i < a.size(); ++i) a[i] = std::exp2(static_cast<double>(i));
    for (size_t i = 0; i < b.size(); ++i) b[i] = static_cast<double>(i * i + 1);

    const ColumnMajorProduct form = ColumnMajorProductOf(problem);
    const std::vector<double>& first = form.is_swapped ? b : a;
    const std::vector<double>& second = form.is_swapped ? a : b;
    const MatrixLayout& first_layout = form.is_swapped ? problem.b : problem.a;
    const MatrixLayout& second_layout = form.is_swapped ? problem.a : problem.b;
    const int64_t d_rows = problem.d.line_length();
    for (int64_t row = 0; row < kShape.m; ++row) {
      for (int64_t column = 0; column < kShape.n; ++column) {
        const auto index = static_cast<int64_t>(place(problem.d, row, column));
        double want = 0;
        double got = 0;
        for (int64_t p = 0; p < kShape.k; ++p) {
          want += a[place(problem.a, row, p)] * b[place(problem.b, p, column)];
          got += At(first, form.transposes_first, first_layout.line_length(), index % d_rows, p) *
                 At(second, form.transposes_second, second_layout.line_length(), p, index / d_rows);
        }
        ASSERT_EQ(got, want) << NameOf(orders);
      }
    }
  }
}

}  // namespace
}  // namespace gemmd::bench
