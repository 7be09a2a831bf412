// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/product_seeds.h"

#include <optional>
#include <string>
#include <utility>

namespace gemmd::fuzz {
namespace {

using google::protobuf::Message;

// Gives an operand as many bytes as its layout takes.
void FillOperand(v1::Operand& operand, int64_t rows, int64_t columns, int64_t batch) {
  if (operand.has_tensor()) operand.clear_tensor();
  if (operand.leading_dimension() != 0 || operand.batch_stride() != 0) {
    operand.set_leading_dimension(operand.leading_dimension() & 31);
    if (operand.has_batch_stride()) operand.set_batch_stride(operand.batch_stride() & 255);
  }
  const auto bytes = SizeOperand("x", ShapeOf(operand, operand.type(), rows, columns, batch));
  if (bytes.ok() && bytes->full < 4096) {
    operand.set_data(std::string(static_cast<size_t>(bytes->full), '\0'));
  }
}

// Adds the factors of blocks for so many lines (of m or n) along k.
void FillBlocks(v1::Operand& operand, int64_t lines, int64_t k, int64_t batch) {
  if (!operand.scale().has_blocks()) return;
  v1::BlockScale& blocks = *operand.mutable_scale()->mutable_blocks();
  operand.mutable_scale()->clear_values();
  if (!v1::FactorType_IsValid(blocks.type()) || blocks.type() == 0) {
    blocks.set_type(v1::FACTOR_TYPE_F32);
  }
  blocks.set_rows_per_block((blocks.rows_per_block() & 7) + 1);
  blocks.set_k_per_block((blocks.k_per_block() & 15) + 1);
  const int64_t along_k = (k + blocks.k_per_block() - 1) / blocks.k_per_block();
  const int64_t across = (lines + blocks.rows_per_block() - 1) / blocks.rows_per_block();
  const int64_t bytes = blocks.type() == v1::FACTOR_TYPE_F32 ? 4 : 1;
  const int64_t all = across * along_k * bytes * (blocks.per_matrix() ? batch : 1);
  blocks.set_factors(std::string(static_cast<size_t>(all), '\1'));
}

// Adds one request of each unusual kind.
void AddUnusual(std::vector<v1::MultiplyRequest>& requests) {
  const auto add = [&](auto change, v1::ElementType type = v1::ELEMENT_TYPE_F16) {
    requests.push_back(PlainRequest(type));
    change(requests.back());
  };
  // Lines with padding, after the last one too.
  add([](v1::MultiplyRequest& request) {
    request.mutable_a()->set_leading_dimension(7);
    FillOperand(*request.mutable_a(), 4, 4, 1);
  });
  add([](v1::MultiplyRequest& request) {
    request.mutable_a()->set_leading_dimension(7);
    request.mutable_a()->set_data("x");
  });
  for (const int64_t stride : {int64_t{-1}, int64_t{1}, INT64_MAX}) {
    add([stride](v1::MultiplyRequest& request) {
      request.set_batch(2);
      request.mutable_d()->set_batch_stride(stride);
    });
    add([stride](v1::MultiplyRequest& request) {
      request.set_batch(2);
      request.mutable_a()->set_batch_stride(stride);
    });
  }
  add([](v1::MultiplyRequest& request) { request.set_batch(-1); });
  add(
      [](v1::MultiplyRequest& request) {
        request.mutable_a()->mutable_scale()->add_values(1);
        request.mutable_a()->mutable_scale()->mutable_blocks();
      },
      v1::ELEMENT_TYPE_S8);
  for (const int count : {1, 3, 4}) {
    add(
        [count](v1::MultiplyRequest& request) {
          for (int i = 0; i < count; ++i) request.mutable_a()->mutable_scale()->add_values(1);
        },
        v1::ELEMENT_TYPE_S8);
  }
  add([](v1::MultiplyRequest& request) {
    request.set_beta(1);
    *request.mutable_c() = request.a();
    request.mutable_c()->mutable_scale()->add_values(1);
  });
  for (const bool by_columns : {false, true}) {
    for (const int64_t leading : {0, 4}) {
      for (const int64_t stride : {0, 1, 24}) {
        add([&](v1::MultiplyRequest& request) {
          request.set_batch(2);
          request.mutable_a()->set_sparsity(v1::SPARSITY_2_4);
          if (by_columns) request.mutable_a()->set_order(v1::ORDER_COLUMN_MAJOR);
          request.mutable_a()->set_leading_dimension(leading);
          request.mutable_a()->set_batch_stride(stride);
          request.mutable_a()->set_data(std::string(static_cast<size_t>(24 + stride), '\0'));
        });
      }
    }
  }
  // Sizes whose sum or product does not fit 63 bits. Empty matrices have no bytes.
  for (const int64_t k : {int64_t{0}, int64_t{1} << 40, int64_t{1} << 45}) {
    add(
        [k](v1::MultiplyRequest& request) {
          request.set_m(int64_t{1} << 30);
          request.set_n(int64_t{1} << 30);
          request.set_k(k);
          request.set_batch(4);
          request.mutable_a()->set_batch_stride(0);
          request.mutable_b()->set_batch_stride(0);
        },
        v1::ELEMENT_TYPE_S8);
    add([k](v1::MultiplyRequest& request) {
      request.set_n(INT64_MAX / 2);
      request.set_m(0);
      request.set_k(k);
      request.mutable_bias()->set_type(v1::ELEMENT_TYPE_F32);
      request.mutable_bias()->set_axis(v1::BIAS_AXIS_COLUMNS);
    });
  }
  add(
      [](v1::MultiplyRequest& request) {
        request.set_m(3);
        request.set_n(3);
        request.set_k(3);
        request.mutable_a()->set_leading_dimension(int64_t{1} << 61);
        *request.mutable_b() = request.a();
        request.mutable_a()->clear_data();
        request.mutable_b()->clear_data();
      },
      v1::ELEMENT_TYPE_S8);
  add([](v1::MultiplyRequest& request) {
    request.set_m(0);
    request.set_k(0);
    request.set_n(INT64_MAX / 2);
    request.mutable_b()->set_order(v1::ORDER_COLUMN_MAJOR);
    request.mutable_bias()->set_type(v1::ELEMENT_TYPE_F32);
    request.mutable_bias()->set_axis(v1::BIAS_AXIS_COLUMNS);
  });
  add(
      [](v1::MultiplyRequest& request) {
        request.set_batch(2);
        request.mutable_a()->set_batch_stride(1);
      },
      v1::ELEMENT_TYPE_S4);
  for (const auto axis : {v1::BIAS_AXIS_ROWS, v1::BIAS_AXIS_COLUMNS}) {
    add(
        [axis](v1::MultiplyRequest& request) {
          request.mutable_bias()->set_type(v1::ELEMENT_TYPE_F32);
          request.mutable_bias()->set_axis(axis);
          request.mutable_bias()->set_data(std::string(16, '\0'));
          request.mutable_d()->set_order(v1::ORDER_COLUMN_MAJOR);
        },
        v1::ELEMENT_TYPE_F32);
  }
}

}  // namespace

OperandShape ShapeOf(const v1::Operand& operand, v1::ElementType type, int64_t rows,
                     int64_t columns, int64_t batch) {
  if (operand.transpose()) std::swap(rows, columns);
  OperandShape shape = {.type = type,
                        .order = operand.order(),
                        .rows = rows,
                        .columns = columns,
                        .leading_dimension = operand.leading_dimension(),
                        .batch_stride = std::nullopt,
                        .batch = batch,
                        .sparsity = operand.sparsity()};
  if (operand.has_batch_stride()) shape.batch_stride = operand.batch_stride();
  return shape;
}

void RepairRequest(Message& message, Choices& choices) {
  auto& request = static_cast<v1::MultiplyRequest&>(message);
  if (choices.OnceIn(4)) return;  // Large sizes are described but not sent.
  request.set_m(request.m() & 15);
  request.set_n(request.n() & 15);
  request.set_k(request.k() & 31);
  if (request.has_batch()) request.set_batch(request.batch() & 3);
  const auto usual = static_cast<v1::ElementType>(1 + choices.Below(15));
  if (request.a().type() < 1 || request.a().type() > 15) request.mutable_a()->set_type(usual);
  if (!choices.OnceIn(4)) request.mutable_b()->set_type(request.a().type());
  const int64_t batch = request.has_batch() ? request.batch() : 1;
  FillOperand(*request.mutable_a(), request.m(), request.k(), batch);
  FillOperand(*request.mutable_b(), request.k(), request.n(), batch);
  if (!choices.OnceIn(4)) {
    FillBlocks(*request.mutable_a(), request.m(), request.k(), batch);
    FillBlocks(*request.mutable_b(), request.n(), request.k(), batch);
    if (request.has_verify() && request.verify().rate() != 0) {
      request.mutable_verify()->set_mode(v1::VERIFY_MODE_SAMPLED);
    }
  }
  if (request.beta() == 0) {
    request.clear_c();
  } else {
    FillOperand(*request.mutable_c(), request.m(), request.n(), batch);
  }
  if (!choices.OnceIn(3)) {
    request.clear_accumulation_type();
    request.clear_kernel();
    request.mutable_d()->clear_leading_dimension();
    request.mutable_d()->clear_batch_stride();
    request.mutable_d()->clear_type();
  }
  if (request.has_bias()) {
    const int64_t count = request.bias().axis() == v1::BIAS_AXIS_ROWS ? request.m() : request.n();
    request.mutable_bias()->set_type(v1::ELEMENT_TYPE_F32);
    request.mutable_bias()->set_data(std::string(static_cast<size_t>(4 * count), '\0'));
  }
}

v1::MultiplyRequest PlainRequest(v1::ElementType type) {
  v1::MultiplyRequest request;
  request.set_m(4);
  request.set_n(4);
  request.set_k(4);
  for (v1::Operand* const operand : {request.mutable_a(), request.mutable_b()}) {
    operand->set_type(type);
    FillOperand(*operand, 4, 4, 1);
  }
  return request;
}

std::vector<v1::MultiplyRequest> SeedRequests() {
  std::vector<v1::MultiplyRequest> requests;
  for (int type = 1; type <= 15; ++type) {
    Choices choices(static_cast<uint64_t>(type));
    v1::MultiplyRequest request;
    request.set_request_id("request");
    request.set_m(3);
    request.set_n(4);
    request.set_k(8);
    request.mutable_a()->set_type(static_cast<v1::ElementType>(type));
    request.mutable_b()->set_type(static_cast<v1::ElementType>(type));
    if (type % 3 == 0) request.set_beta(1);
    if (type % 4 == 0) request.mutable_bias()->set_axis(v1::BIAS_AXIS_COLUMNS);
    if (type % 5 == 0) request.set_batch(2);
    if (type % 2 == 0) request.mutable_b()->set_order(v1::ORDER_COLUMN_MAJOR);
    if (type == 5) request.mutable_a()->set_sparsity(v1::SPARSITY_2_4);
    if (type == 11) request.mutable_a()->mutable_scale()->add_values(0.5f);
    if (type % 7 == 3) request.mutable_a()->mutable_scale()->mutable_blocks();
    if (type >= 8)
      request.mutable_b()->mutable_scale()->mutable_blocks()->set_type(v1::FACTOR_TYPE_UE8M0);
    if (type % 6 == 1) request.mutable_verify()->set_mode(v1::VERIFY_MODE_CHECKSUM);
    if (type % 6 == 2) request.mutable_verify()->set_rate(0.5);
    while (request.a().data().empty()) RepairRequest(request, choices);
    requests.push_back(request);
    // The same request without bytes, with sizes as large as possible.
    request.mutable_a()->clear_data();
    request.mutable_b()->clear_data();
    request.set_m(int64_t{1} << (type % 4 * 10 + 20));
    request.set_n(int64_t{1} << (50 - type % 4 * 10));
    request.mutable_a()->set_leading_dimension(type % 2 == 0 ? int64_t{1} << 50 : 0);
    requests.push_back(request);
  }
  AddUnusual(requests);
  requests.back().mutable_a()->mutable_tensor()->mutable_tensor()->set_name("weights");
  requests.back().mutable_d()->mutable_new_tensor()->set_name("result");
  return requests;
}

}  // namespace gemmd::fuzz
