// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "kernels/kernel.h"
#include "server/product/prediction.h"

namespace gemmd {
namespace {

class KernelChoicesTest : public testing::Test {
 protected:
  static KernelChoices::Question QuestionOf(int64_t m) {
    KernelChoices::Question question;
    question.problem.m = m;
    return question;
  }

  // The choice, with the time predicted for it.
  const Kernel* Ask(const KernelChoices::Question& question, const Kernel* answer) {
    is_asked_ = false;
    const auto choose = [&]() -> KernelChoices::Choice {
      is_asked_ = true;
      return {.kernel = answer, .predicted = {.kernel_ns = question.problem.m, .copy_ns = 7}};
    };
    const KernelChoices::Choice choice = choices_.Find(question, choose);
    EXPECT_EQ(choice.predicted.total_ns(), question.problem.m + 7);
    return choice.kernel;
  }

  KernelChoices choices_;
  bool is_asked_ = false;
  const Kernel* const one_ = &Catalog()[0];
  const Kernel* const other_ = &Catalog()[1];
};

TEST_F(KernelChoicesTest, RemembersAChoice) {
  EXPECT_EQ(Ask(QuestionOf(1), one_), one_);
  EXPECT_TRUE(is_asked_);
  EXPECT_EQ(Ask(QuestionOf(1), other_), one_);
  EXPECT_FALSE(is_asked_);
}

// A change of any member on which a choice may depend makes another question, whatever its hash.
TEST_F(KernelChoicesTest, AsksForEachQuestion) {
  const KernelChoices::Question first = QuestionOf(1);
  std::vector<KernelChoices::Question> others(9, first);
  others[0].kernel = one_;
  others[1].deterministic = true;
  others[2].batch_invariant = true;
  others[3].problem.n = 1;
  others[4].problem.alpha = 2;
  others[5].problem.activation = Activation::kRelu;
  others[6].problem.a.leading_dimension = 9;
  others[7].problem.c.type = ElementType::kF64;
  others[8].problem.b_scale = ScaleKind::kVector;
  for (const KernelChoices::Question& other : others) {
    Ask(first, one_);
    EXPECT_EQ(Ask(other, other_), other_);
    EXPECT_TRUE(is_asked_);
  }
}

TEST_F(KernelChoicesTest, ManyQuestionsTakePlacesOfOthers) {
  const auto count = static_cast<int64_t>(4 * KernelChoices::kPlaces);
  for (int round = 0; round < 2; ++round) {
    for (int64_t m = 0; m < count; ++m) {
      const Kernel* const right = m % 2 == 0 ? one_ : other_;
      EXPECT_EQ(Ask(QuestionOf(m), right), right);
    }
  }
}

TEST_F(KernelChoicesTest, RemembersNoRefusalAndNoQuestionThatIsNotItself) {
  EXPECT_EQ(Ask(QuestionOf(1), nullptr), nullptr);
  EXPECT_EQ(Ask(QuestionOf(1), one_), one_);
  KernelChoices::Question nan = QuestionOf(2);
  nan.problem.alpha = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(Ask(nan, one_), one_);
  EXPECT_EQ(Ask(nan, other_), other_);
}

}  // namespace
}  // namespace gemmd
