// SPDX-License-Identifier: Apache-2.0
//
// Operands of a load that come from files.
#include "client/load/payload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <span>

#include "client/load/load_session.h"
#include "client/matrix/verify.h"
#include "gemmd/element_codec.h"
#include "gemmd/element_type.h"
#include "gemmd/v1/gemm.pb.h"
#include "tests/client/fake_tensors.h"
#include "tests/testing/random_source.h"
#include "tests/testing/scratch_folder.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using testing::HasSubstr;

LoadProduct Product(v1::ElementType type, bool is_sparse = false) {
  LoadProduct product;
  product.name = "p";
  product.m = 9;
  product.n = 7;
  product.k = 24;
  product.type = type;
  product.is_sparse = is_sparse;
  return product;
}

// The answer of a correct server, element by element in f64; D is of `type`.
v1::MultiplyResponse RightAnswer(const v1::MultiplyRequest& request, v1::ElementType type) {
  const MatrixReader a(request.a(), request.a().type(), request.m(), request.k());
  const MatrixReader b(request.b(), request.b().type(), request.k(), request.n());
  v1::MultiplyResponse response;
  v1::Matrix& d = *response.mutable_d();
  const int64_t batch = request.has_batch() ? request.batch() : 1;
  const size_t width = static_cast<size_t>(ElementBits(type) / 8);
  std::string data;
  for (int64_t matrix = 0; matrix < batch; ++matrix) {
    for (int64_t i = 0; i < request.m(); ++i) {
      std::string line(static_cast<size_t>(request.n()) * width, '\0');
      for (int64_t j = 0; j < request.n(); ++j) {
        double sum = 0;
        for (int64_t l = 0; l < request.k(); ++l) sum += a.At(matrix, i, l) * b.At(matrix, l, j);
        StoreElement(type, ElementPattern(type, sum), j, line.data());
      }
      data += line;
    }
  }
  d.set_type(type);
  d.set_rows(request.m());
  d.set_columns(request.n());
  d.set_batch(batch);
  d.set_leading_dimension(request.n());
  d.set_batch_stride(request.m() * request.n() * static_cast<int64_t>(width));
  d.set_data(data);
  return response;
}

v1::ElementType AccumulationOf(v1::ElementType type) {
  switch (type) {
    case v1::ELEMENT_TYPE_F64: return type;
    case v1::ELEMENT_TYPE_S8:
    case v1::ELEMENT_TYPE_U8:
    case v1::ELEMENT_TYPE_S4:
    case v1::ELEMENT_TYPE_U4:
    case v1::ELEMENT_TYPE_B1: return v1::ELEMENT_TYPE_S32;
    default: return v1::ELEMENT_TYPE_F32;
  }
}

constexpr v1::ElementType kTypes[] = {
    v1::ELEMENT_TYPE_F64,  v1::ELEMENT_TYPE_F32,  v1::ELEMENT_TYPE_TF32, v1::ELEMENT_TYPE_F16,
    v1::ELEMENT_TYPE_BF16, v1::ELEMENT_TYPE_E4M3, v1::ELEMENT_TYPE_E5M2, v1::ELEMENT_TYPE_E3M2,
    v1::ELEMENT_TYPE_E2M3, v1::ELEMENT_TYPE_E2M1, v1::ELEMENT_TYPE_S8,   v1::ELEMENT_TYPE_U8,
    v1::ELEMENT_TYPE_S4,   v1::ELEMENT_TYPE_U4,   v1::ELEMENT_TYPE_B1};

TEST(PayloadTest, IntegersOfEveryTypeAreCheckedExactly) {
  for (const v1::ElementType type : kTypes) {
    LoadProduct product = Product(type);
    product.batch = 2;
    // Both orders with every element width.
    for (const v1::Order order : {v1::ORDER_ROW_MAJOR, v1::ORDER_COLUMN_MAJOR}) {
      product.b_order = order;
      const auto payload = MakePayload(product, OperandValues::kIntegers, 5);
      ASSERT_THAT(payload, IsOk()) << ElementTypeName(type);
      ASSERT_TRUE(payload->fingerprint.has_value()) << ElementTypeName(type);
      const v1::MultiplyResponse right = RightAnswer(*payload->request, AccumulationOf(type));
      EXPECT_THAT(CheckAnswer(*payload, right), IsOk()) << ElementTypeName(type);
      // Operands that are all zeros would let any answer pass.
      EXPECT_NE(right.d().data(), std::string(right.d().data().size(), '\0'));
      EXPECT_EQ(payload->request->b().order(), order);
    }
  }
}

TEST(PayloadTest, SumsMayBeLeftToTheTensorCore) {
  LoadProduct product = Product(v1::ELEMENT_TYPE_E4M3);
  for (const bool is_fast : {false, true}) {
    product.fast_accumulation = is_fast;
    const auto payload = MakePayload(product, OperandValues::kNormal, 5);
    ASSERT_THAT(payload, IsOk());
    EXPECT_EQ(payload->request->fast_accumulation(), is_fast);
  }
}

TEST(PayloadTest, EveryWrongElementIsFound) {
  const auto payload =
      MakePayload(Product(v1::ELEMENT_TYPE_BF16), OperandValues::kIntegers, 5).value();
  const v1::MultiplyResponse right = RightAnswer(*payload.request, v1::ELEMENT_TYPE_F32);
  for (size_t i = 0; i < 63; ++i) {
    for (const float wrong : {1e9F, 0.5F, std::nanf(""), HUGE_VALF}) {
      v1::MultiplyResponse response = right;
      std::memcpy(response.mutable_d()->mutable_data()->data() + 4 * i, &wrong, 4);
      EXPECT_THAT(CheckAnswer(payload, response),
                  StatusIs(absl::StatusCode::kDataLoss, HasSubstr("d[0, ")))
          << i << " " << wrong;
    }
  }
}

TEST(PayloadTest, AnswersOfAnotherShapeAreWrong) {
  const auto payload =
      MakePayload(Product(v1::ELEMENT_TYPE_F32), OperandValues::kIntegers, 5).value();
  const v1::MultiplyResponse right = RightAnswer(*payload.request, v1::ELEMENT_TYPE_F32);
  EXPECT_THAT(CheckAnswer(payload, {}), StatusIs(absl::StatusCode::kDataLoss));
  v1::MultiplyResponse fewer_rows = right;
  fewer_rows.mutable_d()->set_rows(8);
  EXPECT_THAT(CheckAnswer(payload, fewer_rows), StatusIs(absl::StatusCode::kDataLoss));
  v1::MultiplyResponse lying = right;
  lying.mutable_d()->set_leading_dimension(1 << 20);
  EXPECT_THAT(CheckAnswer(payload, lying), StatusIs(absl::StatusCode::kDataLoss));
}

TEST(PayloadTest, SparseOperandsAreCheckedExactly) {
  for (const v1::ElementType type : {v1::ELEMENT_TYPE_BF16, v1::ELEMENT_TYPE_S8}) {
    const auto payload = MakePayload(Product(type, true), OperandValues::kIntegers, 5);
    ASSERT_THAT(payload, IsOk());
    EXPECT_EQ(payload->request->a().sparsity(), v1::SPARSITY_2_4);
    EXPECT_THAT(CheckAnswer(*payload, RightAnswer(*payload->request, AccumulationOf(type))),
                IsOk());
  }
  EXPECT_THAT(MakePayload(Product(v1::ELEMENT_TYPE_F64, true), OperandValues::kIntegers, 5),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("p: ")));
}

TEST(PayloadTest, RoundedResultsAreCheckedWithinABound) {
  LoadProduct rounded = Product(v1::ELEMENT_TYPE_BF16);
  rounded.output_type = v1::ELEMENT_TYPE_BF16;
  LoadProduct normal = Product(v1::ELEMENT_TYPE_F32);
  for (const auto& [product, values] :
       {std::pair(rounded, OperandValues::kIntegers), std::pair(normal, OperandValues::kNormal)}) {
    const auto payload = MakePayload(product, values, 5);
    ASSERT_THAT(payload, IsOk());
    EXPECT_FALSE(payload->fingerprint.has_value());
    const v1::ElementType type = product.output_type == v1::ELEMENT_TYPE_UNSPECIFIED
                                     ? v1::ELEMENT_TYPE_F32
                                     : product.output_type;
    v1::MultiplyResponse answer = RightAnswer(*payload->request, type);
    EXPECT_THAT(CheckAnswer(*payload, answer), IsOk());
    (*answer.mutable_d()->mutable_data())[static_cast<size_t>(ElementBits(type) / 8) - 1] ^= 0x04;
    EXPECT_THAT(CheckAnswer(*payload, answer),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr("d[0, 0, 0]: got ")));
  }
}

TEST(PayloadTest, DeepProductsOfNarrowFloatsAreNotExact) {
  LoadProduct product = Product(v1::ELEMENT_TYPE_E4M3);
  product.k = 10000;
  EXPECT_FALSE(MakePayload(product, OperandValues::kIntegers, 5).value().fingerprint.has_value());
}

TEST(PayloadTest, RefusesWhatNoMessageHolds) {
  LoadProduct product = Product(v1::ELEMENT_TYPE_F64);
  product.m = product.k = 1 << 20;
  EXPECT_THAT(MakePayload(product, OperandValues::kIntegers, 5),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("bytes of operands, want less than 2^31")));
  product = Product(v1::ELEMENT_TYPE_S8);
  product.m = product.n = 1 << 28;
  product.k = 1;
  EXPECT_THAT(
      MakePayload(product, OperandValues::kIntegers, 5),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("bytes of d, want less than 2^31")));
}

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

// The correct answer, in f32.
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

constexpr LoadProduct kProduct = {
    .name = {}, .m = 3, .n = 5, .k = 7, .kernel = {}, .device = {}, .operands = {}};

class OperandPlaceTest : public testing::Test {
 protected:
  OperandPlaceTest() {
    client_ = std::make_unique<Client>(Client::Create(server_.address()).value());
    reader_ = std::make_shared<Client>(Client::Create(server_.address()).value());
  }

  Payload Place(absl::string_view name) {
    Payload payload = MakePayload(kProduct, OperandValues::kIntegers, 1).value();
    EXPECT_THAT(PlaceOperands(*FindOperandPlace(name), kProduct, *client_, reader_, payload),
                IsOk());
    return payload;
  }

  FakeTensors server_;
  std::unique_ptr<Client> client_;
  std::shared_ptr<Client> reader_;
};

TEST_F(OperandPlaceTest, InlineSendsAllWithEachCall) {
  const Payload payload = Place("inline");
  EXPECT_EQ(payload.RequestFor(0), payload.request);
  EXPECT_EQ(payload.wire_bytes(), payload.sent_bytes + 3 * 5 * 4);
  EXPECT_EQ(server_.tensors(), 0u);
  EXPECT_EQ(FindOperandPlace("elsewhere"), nullptr);
}

TEST_F(OperandPlaceTest, ResidentKeepsTheWeights) {
  const Payload payload = Place("resident");
  const v1::MultiplyRequest& sent = *payload.RequestFor(0);
  EXPECT_EQ(sent.a().data(), payload.request->a().data());
  ASSERT_EQ(server_.tensors(), 1u);
  EXPECT_EQ(server_.bytes_of(sent.b().tensor().tensor().handle()), payload.request->b().data());
  EXPECT_FALSE(sent.d().has_tensor());
  EXPECT_EQ(payload.sent_bytes, static_cast<int64_t>(sent.ByteSizeLong()));
}

TEST_F(OperandPlaceTest, ResidentAllKeepsEverything) {
  const Payload payload = Place("resident-all");
  const v1::MultiplyRequest& sent = *payload.RequestFor(0);
  EXPECT_EQ(server_.bytes_of(sent.a().tensor().tensor().handle()), payload.request->a().data());
  const std::string result = sent.d().tensor().tensor().handle();
  EXPECT_EQ(server_.bytes_of(result).size(), 3u * 5 * 4);
  EXPECT_EQ(payload.wire_bytes(), static_cast<int64_t>(sent.ByteSizeLong()));
  EXPECT_LT(payload.wire_bytes(), 100);
  // The next call puts its result somewhere else.
  EXPECT_NE(payload.RequestFor(0)->d().tensor().tensor().handle(), result);
}

TEST_F(OperandPlaceTest, OneCallAtATimeHasTheResultThatIsChecked) {
  const Payload payload = Place("resident-all");
  ResultSlot* const slot = payload.TakeSlot(0);
  ASSERT_NE(slot, nullptr);
  EXPECT_EQ(payload.TakeSlot(0), nullptr);
  const std::string result = slot->request->d().tensor().tensor().handle();
  EXPECT_NE(result, payload.RequestFor(0)->d().tensor().tensor().handle());
  v1::MultiplyResponse response;
  response.mutable_d()->set_type(v1::ELEMENT_TYPE_F32);
  response.mutable_d()->set_rows(3);
  response.mutable_d()->set_columns(5);
  response.mutable_d()->set_batch(1);
  response.mutable_tensor()->set_handle(result);
  // The server has computed nothing: the contents are zeros, which is wrong.
  EXPECT_THAT(CheckAnswer(payload, response), StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_EQ(payload.TakeSlot(0), slot);
  payload.Release(response);
  EXPECT_EQ(payload.TakeSlot(0), slot);
  response.mutable_tensor()->set_handle("another");
  EXPECT_THAT(CheckAnswer(payload, response), StatusIs(absl::StatusCode::kDataLoss));
}

}  // namespace
}  // namespace gemmd
