// SPDX-License-Identifier: Apache-2.0
//
// How the client reads a server's answers, and how it writes its own requests.
#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "client/operand_size.h"
#include "client/product_call.h"
#include "gemmd/product.h"
#include "gemmd/v1/gemm.pb.h"
#include "tests/fuzz/target.h"

namespace gemmd::fuzz {
namespace {

using google::protobuf::Message;
__extension__ using Wide = __int128;

// Whether a result has as many bytes as its layout takes, with or without the padding after its
// last line.
bool IsWhole(const v1::Matrix& d) {
  if (d.rows() == 0 || d.columns() == 0 || d.batch() == 0) return d.data().empty();
  const bool by_columns = d.order() == v1::ORDER_COLUMN_MAJOR;
  const Wide bits = ElementBits(d.type());
  const Wide lines = by_columns ? d.columns() : d.rows();
  const Wide length = by_columns ? d.rows() : d.columns();
  const Wide leading = d.leading_dimension() == 0 ? length : Wide{d.leading_dimension()};
  const Wide line_bytes = (leading * bits + 7) / 8;
  const Wide before = (Wide{d.batch()} - 1) * d.batch_stride();
  const Wide least = before + (lines - 1) * line_bytes + (length * bits + 7) / 8;
  const Wide got = static_cast<Wide>(d.data().size());
  return least <= got && got <= before + lines * line_bytes;
}

// Reads the bytes with the client's own parser, in slices cut anywhere, into memory of its own or
// into `into`.
void CheckRead(std::string_view input, bool is_message, v1::MultiplyResponse want) {
  Choices choices(input);
  grpc::ByteBuffer buffer = Cut(input, choices);
  const auto read = ReadProductAnswer(buffer, {});
  // The client's parser drops bits of a length beyond the 32nd; protobuf refuses such lengths.
  if (!is_message) return;
  const std::string text = want.d().data();
  const auto data = std::as_bytes(std::span(text.data(), text.size()));
  const auto result = MultiplyResult::FromResponse(std::move(want));
  if (read.ok()) {
    Demand(result.ok() && read->rows() == result->rows() && read->columns() == result->columns() &&
               read->batch() == result->batch(),
           "an answer is read that protobuf reads otherwise");
    Demand(std::ranges::equal(read->data(), data), "an answer has other bytes");
  }
  for (const size_t size : {data.size(), data.size() + 1}) {
    std::vector<std::byte> into(size);
    grpc::ByteBuffer again = Cut(input, choices);
    const bool is_read = ReadProductAnswer(again, into).ok();
    Demand(is_read == (read.ok() && size == data.size()),
           "an answer goes to memory of another size");
    if (is_read) Demand(std::ranges::equal(into, data), "D has other bytes");
  }
}

void RunAnswer(std::string_view input) {
  v1::MultiplyResponse answer;
  const bool is_message = answer.ParseFromArray(input.data(), static_cast<int>(input.size()));
  CheckRead(input, is_message, answer);
  if (!answer.ParseFromArray(input.data(), static_cast<int>(input.size()))) return;
  const v1::Matrix d = answer.d();
  const auto result = MultiplyResult::FromResponse(answer);
  const auto apart = MultiplyResult::FromParts(
      answer, std::as_bytes(std::span(d.data().data(), d.data().size())), nullptr);
  Demand(result.ok() == apart.ok(), "an answer is right in one piece alone");
  if (!result.ok()) return;
  Demand(IsWhole(d), "an answer with too few or too many bytes is taken");
  Demand(result->data().size() == d.data().size(), "an answer lost bytes");
  Demand(result->batch() >= 0 && result->rows() >= 0 && result->columns() >= 0,
         "an answer has a negative extent");
}

void RepairAnswer(Message& message, Choices& choices) {
  auto& d = *static_cast<v1::MultiplyResponse&>(message).mutable_d();
  if (d.type() < 1 || d.type() > 16) d.set_type(v1::ELEMENT_TYPE_F16);
  d.set_rows(d.rows() & 15);
  d.set_columns(d.columns() & 15);
  d.set_leading_dimension(d.leading_dimension() & 31);
  if (!choices.OnceIn(4)) d.set_batch(d.batch() & 3);
  const auto one = SizeOperand("d", {.type = d.type(),
                                     .order = d.order(),
                                     .rows = d.rows(),
                                     .columns = d.columns(),
                                     .leading_dimension = d.leading_dimension(),
                                     .batch_stride = std::nullopt,
                                     .batch = 1});
  if (!one.ok() || d.batch() < 0 || d.batch() > 3) return;
  d.set_batch_stride(one->full);
  d.set_data(std::string(static_cast<size_t>(one->full * d.batch()), 'd'));
}

MatrixView ViewOf(const v1::Operand& operand, int64_t rows, int64_t columns) {
  MatrixView view;
  view.type = operand.type();
  view.data = std::as_bytes(std::span(operand.data().data(), operand.data().size()));
  view.rows = operand.transpose() ? columns : rows;
  view.columns = operand.transpose() ? rows : columns;
  view.order = operand.order();
  view.transpose = operand.transpose();
  view.leading_dimension = operand.leading_dimension();
  if (operand.has_batch_stride()) view.batch_stride = operand.batch_stride();
  view.sparsity = operand.sparsity();
  view.scale = {operand.scale().values().data(),
                static_cast<size_t>(operand.scale().values_size())};
  return view;
}

// The bytes that the client sends without copying equal those of the whole message.
void RunRequest(std::string_view input) {
  v1::MultiplyRequest wire;
  if (!wire.ParseFromArray(input.data(), static_cast<int>(input.size()))) return;
  ProductOptions options;
  options.request_id = wire.request_id();
  if (wire.has_batch()) options.batch = wire.batch();
  options.alpha = wire.has_alpha() ? wire.alpha() : 1;
  options.beta = wire.beta();
  if (wire.has_c()) options.c = ViewOf(wire.c(), wire.m(), wire.n());
  if (wire.has_bias()) {
    options.bias = BiasView{
        .type = wire.bias().type(),
        .axis = wire.bias().axis(),
        .data = std::as_bytes(std::span(wire.bias().data().data(), wire.bias().data().size()))};
  }
  options.output_type = wire.d().type();
  const MatrixView a = ViewOf(wire.a(), wire.m(), wire.k());
  const MatrixView b = ViewOf(wire.b(), wire.k(), wire.n());
  const auto whole = BuildRequest(a, b, options);
  const auto lent = BuildLentRequest(a, b, options);
  Demand(whole.ok() == lent.ok(), "a request can be sent in one way alone");
  Demand(DescribeRequest(a, b, options).ok() || !whole.ok(), "a request cannot be described");
  if (!whole.ok()) return;
  LentBytes lender;
  v1::MultiplyRequest read;
  Demand(read.ParseFromString(Joined(ToByteBuffer(*lent, lender))), "a lent request is no message");
  Demand(read.SerializeAsString() == whole->SerializeAsString(), "a lent request is another one");
}

std::vector<std::string> AnswerSeeds() {
  std::vector<std::string> seeds;
  for (int type = 1; type <= 16; ++type) {
    Choices choices(static_cast<uint64_t>(type));
    v1::MultiplyResponse answer;
    answer.mutable_d()->set_type(static_cast<v1::ElementType>(type));
    answer.mutable_d()->set_rows(3);
    answer.mutable_d()->set_columns(5);
    answer.mutable_d()->set_batch(type % 3);
    if (type % 2 == 0) answer.mutable_d()->set_order(v1::ORDER_COLUMN_MAJOR);
    RepairAnswer(answer, choices);
    seeds.push_back(answer.SerializeAsString());
  }
  v1::MultiplyResponse negative;
  negative.mutable_d()->set_type(v1::ELEMENT_TYPE_F32);
  for (const int64_t batch : {int64_t{-1}, INT64_MIN}) {
    negative.mutable_d()->set_batch(batch);
    seeds.push_back(negative.SerializeAsString());
  }
  return seeds;
}

std::vector<std::string> RequestSeeds() {
  for (const Target& target : ProductTargets()) {
    if (target.name == "multiply") return target.seeds();
  }
  return {};
}

void RepairLikeMultiply(Message& message, Choices& choices) {
  static const auto repair = ProductTargets().front().repair;
  repair(message, choices);
}

}  // namespace

std::vector<Target> AnswerTargets() {
  return {
      {"answer", RunAnswer, AnswerSeeds, DefaultOf<v1::MultiplyResponse>, RepairAnswer},
      {"request", RunRequest, RequestSeeds, DefaultOf<v1::MultiplyRequest>, RepairLikeMultiply}};
}

}  // namespace gemmd::fuzz
