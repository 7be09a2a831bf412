// SPDX-License-Identifier: Apache-2.0
//
// Operands of a load that come from files.
#include "client/load/operand_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <span>

#include "client/load/load_plan.h"
#include "client/load/payload.h"
#include "client/matrix/matrix_reader.h"
#include "gemmd/v1/gemm.pb.h"
#include "tests/testing/random_source.h"
#include "tests/testing/scratch_folder.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using testing::HasSubstr;

// A file of normal numbers.
std::string WriteFloats(const ScratchFolder& folder, const char* name, RandomSource& random,
                        std::vector<int64_t> shape, v1::Order order = v1::ORDER_ROW_MAJOR) {
  NpyArray array = {.type = v1::ELEMENT_TYPE_F32, .shape = std::move(shape), .order = order};
  int64_t elements = 1;
  for (const int64_t extent : array.shape) elements *= extent;
  for (int64_t i = 0; i < elements; ++i) {
    const float value = static_cast<float>(random.Normal());
    array.data.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  const std::string path = folder.Path(name);
  EXPECT_THAT(WriteNpyFile(array, path), IsOk());
  return path;
}

// The right answer, in f32.
v1::MultiplyResponse Answer(const v1::MultiplyRequest& request) {
  const MatrixReader a(request.a(), request.a().type(), request.m(), request.k());
  const MatrixReader b(request.b(), request.b().type(), request.k(), request.n());
  const int64_t batch = request.has_batch() ? request.batch() : 1;
  v1::MultiplyResponse response;
  v1::Matrix& d = *response.mutable_d();
  std::string data;
  for (int64_t matrix = 0; matrix < batch; ++matrix) {
    for (int64_t i = 0; i < request.m(); ++i) {
      for (int64_t j = 0; j < request.n(); ++j) {
        double sum = 0;
        for (int64_t l = 0; l < request.k(); ++l) sum += a.At(matrix, i, l) * b.At(matrix, l, j);
        const float rounded = static_cast<float>(sum);
        data.append(reinterpret_cast<const char*>(&rounded), sizeof(rounded));
      }
    }
  }
  d.set_type(v1::ELEMENT_TYPE_F32);
  d.set_rows(request.m());
  d.set_columns(request.n());
  d.set_batch(batch);
  d.set_leading_dimension(request.n());
  d.set_batch_stride(request.m() * request.n() * 4);
  d.set_data(data);
  return response;
}

TEST(OperandFilesTest, FilesAreWhatIsSentAndChecked) {
  RandomSource random;
  SCOPED_TRACE(random.trace());
  const ScratchFolder folder;
  for (const v1::Order order : {v1::ORDER_ROW_MAJOR, v1::ORDER_COLUMN_MAJOR}) {
    LoadFlags flags;
    flags.a_path = WriteFloats(folder, "a.npy", random, {3, 5}, order);
    flags.b_path = WriteFloats(folder, "b.npy", random, {5, 4}, order);
    const auto plan = PlanSession(flags);
    ASSERT_THAT(plan, IsOk());
    const LoadProduct& product = plan->mix[0];
    EXPECT_EQ(product.m, 3);
    EXPECT_EQ(product.n, 4);
    EXPECT_EQ(product.k, 5);
    EXPECT_EQ(product.batch, 1);
    EXPECT_THAT(product.name, HasSubstr("3x4x5 f32"));
    EXPECT_THAT(product.name, HasSubstr("A of " + flags.a_path));
    const auto payload = MakePayload(product, OperandValues::kIntegers, 1, plan->given[0]);
    ASSERT_THAT(payload, IsOk());
    EXPECT_EQ(payload->request->a().data(), plan->given[0].a->data);
    EXPECT_EQ(payload->request->b().data(), plan->given[0].b->data);
    EXPECT_EQ(payload->request->a().order(), order);
    EXPECT_EQ(payload->request->b().order(), order);
    EXPECT_FALSE(payload->fingerprint.has_value());
    v1::MultiplyResponse answer = Answer(*payload->request);
    EXPECT_THAT(CheckAnswer(*payload, answer), IsOk());
    (*answer.mutable_d()->mutable_data())[3] ^= 0x04;
    EXPECT_THAT(CheckAnswer(*payload, answer), StatusIs(absl::StatusCode::kDataLoss));
  }
}

TEST(OperandFilesTest, OneFileAndARandomOperandMakeAProduct) {
  RandomSource random;
  SCOPED_TRACE(random.trace());
  const ScratchFolder folder;
  LoadProduct product;
  product.m = 3;
  product.n = 4;
  product.k = 6;
  product.batch = 2;
  product.b_path = WriteFloats(folder, "b.npy", random, {2, 6, 4});
  const auto given = ReadOperands(product);
  ASSERT_THAT(given, IsOk());
  const auto payload = MakePayload(product, OperandValues::kIntegers, 1, *given);
  ASSERT_THAT(payload, IsOk());
  EXPECT_EQ(payload->request->b().data(), given->b->data);
  EXPECT_EQ(payload->request->a().data().size(), size_t{2} * 3 * 6 * 4);
  EXPECT_THAT(CheckAnswer(*payload, Answer(*payload->request)), IsOk());
}

TEST(OperandFilesTest, AMixMayNameFiles) {
  RandomSource random;
  SCOPED_TRACE(random.trace());
  const ScratchFolder folder;
  const std::string path = WriteFloats(folder, "w.npy", random, {8, 8});
  const auto mix = ParseMix(R"([{"m":2,"n":8,"k":8,"b":")" + path + R"("},{"m":1,"n":1,"k":1}])");
  ASSERT_THAT(mix, IsOk());
  EXPECT_EQ((*mix)[0].b_path, path);
  EXPECT_THAT((*mix)[0].name, HasSubstr("B of " + path));
  EXPECT_EQ((*mix)[1].b_path, "");
  EXPECT_THAT(ParseMix(R"([{"m":1,"n":1,"k":1,"a":3}])"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("mix[0].a: got 3")));
}

TEST(OperandFilesTest, RefusesWhatDoesNotFit) {
  RandomSource random;
  SCOPED_TRACE(random.trace());
  const ScratchFolder folder;
  const std::string a = WriteFloats(folder, "a.npy", random, {3, 5});
  const std::string b = WriteFloats(folder, "b.npy", random, {6, 4});
  const std::string vector = WriteFloats(folder, "v.npy", random, {6});
  const std::string empty = WriteFloats(folder, "e.npy", random, {0, 5});
  LoadFlags flags;
  const auto refused = [&](const char* message) {
    EXPECT_THAT(PlanSession(flags).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
  };
  flags.a_path = a;
  refused("--shape names those of an operand that comes from no file");
  flags.b_path = b;
  refused("b.npy: got k = 6, want 5");
  flags.b_path = "";
  flags.shape = {3, 4, 6};
  refused("a.npy: got k = 5, want 6");
  flags.shape = {3, 4, 5};
  flags.batch = 2;
  refused("a.npy: got batch = 1, want 2");
  flags.batch = 1;
  flags.type = "bf16";
  refused("a.npy: ");
  flags.type = "";
  flags.a_path = vector;
  refused("got an array of 1 dimensions, want 2");
  flags.shape = {};
  flags.a_path = empty;
  refused("m,n,k: got 0,0,5");
  flags.a_path = "/nowhere.npy";
  EXPECT_THAT(PlanSession(flags).status(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/nowhere.npy")));
}

}  // namespace
}  // namespace gemmd
