// SPDX-License-Identifier: Apache-2.0
#include "kernels/bench/problem.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "kernels/matrix/invalid.h"
#include "kernels/matrix/layout.h"
#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"
#include "kernels/promotion.h"

namespace gemmd::bench {
namespace {

std::vector<std::string_view> Split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

std::optional<int64_t> ParseExtent(std::string_view text) {
  int64_t extent = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, extent);
  if (error != std::errc() || rest != end || extent < 1) return std::nullopt;
  return extent;
}

std::optional<Shape> ParseShape(std::string_view text) {
  const size_t star = text.find('*');
  if (star != std::string_view::npos) {
    const std::optional<int64_t> batch = ParseExtent(text.substr(0, star));
    std::optional<Shape> shape = ParseShape(text.substr(star + 1));
    if (!batch || !shape || shape->batch != 1) return std::nullopt;
    shape->batch = *batch;
    return shape;
  }
  std::vector<int64_t> extents;
  for (const std::string_view part : Split(text, 'x')) {
    const std::optional<int64_t> extent = ParseExtent(part);
    if (!extent) return std::nullopt;
    extents.push_back(*extent);
  }
  if (extents.size() == 1) return Shape{extents[0], extents[0], extents[0]};
  if (extents.size() == 3) return Shape{extents[0], extents[1], extents[2]};
  return std::nullopt;
}

}  // namespace

std::string NameOf(const Shape& shape) {
  const std::string matrices = shape.batch > 1 ? Concat(shape.batch, "*") : "";
  return Concat(matrices, shape.m, "x", shape.n, "x", shape.k);
}

std::vector<Shape> Suite() {
  return {{512, 512, 512},    {1024, 1024, 1024}, {2048, 2048, 2048}, {4096, 4096, 4096},
          {8192, 8192, 8192}, {16, 8192, 8192},   {64, 8192, 8192},   {8192, 8192, 512},
          {512, 512, 32768},  {4095, 4097, 4093}};
}

absl::StatusOr<std::vector<Shape>> ParseShapes(std::string_view text) {
  std::vector<Shape> shapes;
  const auto add = [&shapes](const Shape& shape) {
    if (std::find(shapes.begin(), shapes.end(), shape) == shapes.end()) shapes.push_back(shape);
  };
  for (const std::string_view part : Split(text, ',')) {
    if (part == "suite") {
      for (const Shape& shape : Suite()) add(shape);
    } else if (const std::optional<Shape> shape = ParseShape(part)) {
      add(*shape);
    } else {
      return Invalid("--shapes", part,
                     "N, MxNxK, BATCH*N or BATCH*MxNxK with numbers above 0, or suite");
    }
  }
  return shapes;
}

namespace {

char LetterOf(Order order) { return order == Order::kRowMajor ? 'r' : 'c'; }

constexpr Order kOrders[] = {Order::kRowMajor, Order::kColumnMajor};

absl::StatusOr<MatrixLayout> DenseLayout(std::string_view field, ElementType type, Order order,
                                         int64_t rows, int64_t columns, int64_t offset) {
  ASSIGN_OR_RETURN(MatrixLayout layout, TightLayout(field, type, order, rows, columns));
  const Checked line = PackedBytes(type, layout.leading_dimension + offset);
  const std::optional<int64_t> bytes = (line * layout.lines()).value();
  if (!bytes) {
    return Invalid("--shapes", Concat(rows, "x", columns, " elements of ", field),
                   "matrices of less than 2^63 bytes");
  }
  layout.leading_dimension += offset;
  layout.batch_stride_bytes = *bytes;
  return layout;
}

}  // namespace

std::string NameOf(const Orders& orders) {
  return {LetterOf(orders.a), LetterOf(orders.b), LetterOf(orders.d)};
}

std::vector<Orders> AllOrders() {
  std::vector<Orders> all;
  for (const Order a : kOrders) {
    for (const Order b : kOrders) {
      for (const Order d : kOrders) all.push_back({a, b, d});
    }
  }
  return all;
}

absl::StatusOr<std::vector<Orders>> ParseOrders(std::string_view text) {
  const std::vector<Orders> all = AllOrders();
  if (text == "all") return all;
  std::vector<Orders> chosen;
  for (const std::string_view part : Split(text, ',')) {
    const auto found = std::find_if(
        all.begin(), all.end(), [part](const Orders& orders) { return NameOf(orders) == part; });
    if (found == all.end()) {
      return Invalid("--orders", part,
                     "three letters r or c, for the orders of A, B and D, or all");
    }
    if (std::find(chosen.begin(), chosen.end(), *found) == chosen.end()) chosen.push_back(*found);
  }
  return chosen;
}

std::string_view NameOf(Activation activation) {
  switch (activation) {
    case Activation::kNone: return "none";
    case Activation::kRelu: return "relu";
    case Activation::kGeluErf: return "gelu-erf";
    case Activation::kGeluTanh: return "gelu-tanh";
    case Activation::kSilu: return "silu";
  }
  return "";
}

std::string NameOf(const Output& output) {
  std::string name(output.type ? gemmd::NameOf(*output.type) : "");
  const auto add = [&name](std::string_view word) {
    if (!name.empty()) name += ' ';
    name += word;
  };
  if (output.has_bias) add("bias");
  if (output.activation != Activation::kNone) add(NameOf(output.activation));
  if (output.a_blocks || output.b_blocks) {
    const auto name_of = [](const std::optional<BlockScale>& blocks) {
      return blocks ? gemmd::NameOf(*blocks) : "none";
    };
    add(Concat("blocks ", name_of(output.a_blocks), " by ", name_of(output.b_blocks)));
  }
  return name;
}

absl::Status ParseEpilogue(std::string_view text, Output& output) {
  for (const Activation activation : {Activation::kNone, Activation::kRelu, Activation::kGeluErf,
                                      Activation::kGeluTanh, Activation::kSilu}) {
    const std::string_view name = NameOf(activation);
    const std::string with_bias = activation == Activation::kNone ? "bias" : Concat("bias-", name);
    if (text != name && text != with_bias) continue;
    output.has_bias = text == with_bias;
    output.activation = activation;
    return absl::OkStatus();
  }
  return Invalid("--epilogue", text,
                 "none, bias, or relu, gelu-erf, gelu-tanh or silu, alone or as in bias-relu");
}

namespace {

// "1x128".
std::optional<BlockScale> ParseBlock(std::string_view text) {
  const std::vector<std::string_view> extents = Split(text, 'x');
  const auto lines = ParseExtent(extents.front());
  const auto depth = ParseExtent(extents.back());
  if (extents.size() != 2 || !lines || !depth) return std::nullopt;
  return BlockScale{.lines = *lines, .depth = *depth};
}

struct QuantizedOperand {
  std::optional<ElementType> type;
  std::optional<BlockScale> blocks;
};

// "none", "s8" or "s4:f32:1x128".
std::optional<QuantizedOperand> ParseQuantizedOperand(std::string_view text) {
  if (text == "none") return QuantizedOperand{};
  const std::vector<std::string_view> parts = Split(text, ':');
  QuantizedOperand operand;
  operand.type = ElementTypeFromName(parts.front());
  if (!operand.type || (parts.size() != 1 && parts.size() != 3)) return std::nullopt;
  if (parts.size() == 1) return operand;
  operand.blocks = ParseBlock(parts[2]);
  if (!operand.blocks) return std::nullopt;
  for (const FactorType type : {FactorType::kF32, FactorType::kUe8m0, FactorType::kUe4m3}) {
    if (gemmd::NameOf(type) != parts[1]) continue;
    operand.blocks->type = type;
    return operand;
  }
  return std::nullopt;
}

}  // namespace

absl::Status ParseQuantized(std::string_view text, Output& output) {
  if (text == "none") return absl::OkStatus();
  const std::vector<std::string_view> parts = Split(text, ',');
  const auto a = ParseQuantizedOperand(parts.front());
  const auto b = ParseQuantizedOperand(parts.back());
  if (parts.size() != 2 || !a || !b) {
    return Invalid("--quantized", text,
                   "none, or for A and for B none, TYPE or TYPE:FACTOR:LINESxDEPTH, as in "
                   "none,s4:f32:1x128");
  }
  output.a_type = a->type;
  output.b_type = b->type;
  output.a_blocks = a->blocks;
  output.b_blocks = b->blocks;
  return absl::OkStatus();
}

absl::Status ParseBlocks(std::string_view text, Output& output) {
  if (text == "none") return absl::OkStatus();
  std::vector<BlockScale> blocks;
  for (const std::string_view part : Split(text, ',')) {
    const std::optional<BlockScale> one = ParseBlock(part);
    if (!one) break;
    blocks.push_back(*one);
  }
  if (blocks.size() != 2) {
    return Invalid("--blocks", text, "none, or LINESxDEPTH of A and of B, as in 1x128,128x128");
  }
  output.a_blocks = blocks.front();
  output.b_blocks = blocks.back();
  return absl::OkStatus();
}

absl::StatusOr<Problem> MakeProblem(const Kernel& kernel, const Shape& shape, const Orders& orders,
                                    int64_t leading_dimension_offset, const Output& output) {
  const mma::Instruction* const instruction = kernel.instruction;
  const int64_t offset = leading_dimension_offset;
  const ElementType d_type =
      output.type.value_or(instruction != nullptr ? instruction->d : kernel.recipe.accumulation);
  Problem problem;
  problem.m = shape.m;
  problem.n = shape.n;
  problem.k = shape.k;
  problem.batch = shape.batch;
  problem.accumulation = kernel.recipe.accumulation;
  problem.fast_accumulation =
      instruction != nullptr && HasPromotedRows(*instruction) && kernel.recipe.promotion_k == 0;
  problem.bias_axis = output.has_bias ? BiasAxis::kColumns : BiasAxis::kNone;
  problem.bias_type = d_type;
  problem.activation = output.activation;
  if (output.a_blocks) {
    problem.a_scale = ScaleKind::kBlocks;
    problem.a_blocks = *output.a_blocks;
  }
  if (output.b_blocks) {
    problem.b_scale = ScaleKind::kBlocks;
    problem.b_blocks = *output.b_blocks;
  }
  if (instruction != nullptr && instruction->bit_count == mma::BitCount::kXor) {
    problem.bit_operation = BitOperation::kXor;
  }
  if (instruction == nullptr || !instruction->is_sparse()) {
    ASSIGN_OR_RETURN(problem.a, DenseLayout("a", output.a_type.value_or(kernel.a), orders.a,
                                            shape.m, shape.k, offset));
  } else if (shape.batch > 1) {
    return absl::UnimplementedError("batch: got several matrices, want one of a sparse A");
  } else if (orders.a == Order::kRowMajor) {
    ASSIGN_OR_RETURN(problem.a, TightSparseLayout("a", kernel.a, shape.m, shape.k));
  } else {
    return absl::UnimplementedError("a.order: got column major, want row major of a sparse A");
  }
  ASSIGN_OR_RETURN(problem.b, DenseLayout("b", output.b_type.value_or(kernel.b), orders.b, shape.k,
                                          shape.n, offset));
  ASSIGN_OR_RETURN(problem.d, DenseLayout("d", d_type, orders.d, shape.m, shape.n, offset));
  RETURN_IF_ERROR(Validate(problem));
  RETURN_IF_ERROR(kernel.supports(problem));
  return problem;
}

int64_t BytesOf(const MatrixLayout& layout) { return layout.batch_stride_bytes; }

}  // namespace gemmd::bench
