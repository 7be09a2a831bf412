// SPDX-License-Identifier: Apache-2.0
#include "client/gemmctl/product_flags.h"

#include <cstdio>
#include <optional>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/gemmctl/operand_input.h"
#include "client/gemmctl/tensor_session.h"
#include "client/matrix/verify.h"
#include "client/operand_size.h"
#include "client/sparse_operand.h"
#include "client/terminal/option.h"
#include "gemmd/element_type.h"
#include "gemmd/product.h"
#include "kernels/matrix/status.h"

namespace gemmd {
namespace {

void AddOperandFlags(CLI::App& app, ProductFlags& flags) {
  SetGroup(app, "Operands");
  AddOption(
      app, "A", flags.a_path,
      "A, a .npy file: m x k, or batch x m x k; - is standard input, @NAME a tensor on the server");
  AddOption(
      app, "B", flags.b_path,
      "B, a .npy file: k x n, or batch x k x n; - is standard input, @NAME a tensor on the server");
  AddShape(app, "--random", flags.random, "Multiply random matrices instead: m,n,k or mxnxk",
           {.min_extents = 3})
      .TypeName("M,N,K");
  AddOption(app, "--batch", flags.batch,
            "Number of products in the batch; a two-dimensional file is used for all of them", 0)
      .TypeName("N");
  AddOption(app, "--seed", flags.seed, "Seed of the random matrices").ShowDefault().TypeName("N");
  AddTypeOption(app, "--type", flags.type,
                "Type of A and B, for files whose type NumPy cannot name and for random matrices, "
                "which are f32 by default");
  AddTypeOption(app, "--a-type", flags.a_type, "Type of A alone, instead of --type");
  AddTypeOption(app, "--b-type", flags.b_type, "Type of B alone, instead of --type");
  AddChoice(app, "--a-order", flags.a_order,
            "Storage order of a random A; a file has its own order", {"row", "column"})
      .ShowDefault();
  AddChoice(app, "--b-order", flags.b_order,
            "Storage order of a random B; a file has its own order", {"row", "column"})
      .ShowDefault();
  AddFlag(app, "--transpose-a", flags.transpose_a, "Use A transposed: A is stored k x m");
  AddFlag(app, "--transpose-b", flags.transpose_b, "Use B transposed: B is stored n x k");
  const CommandOption sparse =
      AddFlag(app, "--sparse-a", flags.sparse_a,
              "Send A compressed; it must be 2:4 along k (by pairs for 4-bit types, 1:2 for f32)");
  AddFlag(app, "--prune", flags.prune,
          "Drop the smallest elements of A if its compressed form cannot keep all")
      .Need(sparse);
  AddOption(app, "--scale-a", flags.a_scale,
            "Factor of A (8-bit types): a number, or a .npy vector of m; a matrix with --blocks-a");
  AddOption(app, "--scale-b", flags.b_scale,
            "Factor of B (8-bit types): a number, or a .npy vector of n; a matrix with --blocks-b");
  AddOption(app, "--blocks-a", flags.a_blocks,
            "Blocks of A (floats of at most 8 bits) with one factor each: f32:1x128 for 1 row and "
            "128 of k; ue8m0 and ue4m3 factors are bytes. --scale-a has a line of factors for each "
            "block of rows")
      .TypeName("TYPE:ROWSxK");
  AddOption(app, "--blocks-b", flags.b_blocks,
            "Blocks of B with one factor each: f32:128x128 for 128 columns and 128 of k. --scale-b "
            "has a line of factors for each block of columns")
      .TypeName("TYPE:COLUMNSxK");
  AddChoice(app, "--bit-operation", flags.bit_operation, "How bits (b1) are multiplied",
            {"and", "xor"})
      .ShowDefault();
}

void AddResultFlags(CLI::App& app, ProductFlags& flags) {
  SetGroup(app, "Result: D = activation(alpha * A B + beta * C + bias)");
  AddOption(app, "--alpha", flags.alpha, "Factor of the product").ShowDefault();
  AddOption(app, "--beta", flags.beta, "Factor of C").ShowDefault();
  AddOption(app, "--c", flags.c_path,
            "C, a .npy file, or @NAME; without it, --random with --beta makes a random C");
  AddTypeOption(app, "--c-type", flags.c_type, "Type of C");
  AddOption(app, "--bias", flags.bias_path, "Bias, a .npy vector that is added along --bias-axis");
  AddTypeOption(app, "--bias-type", flags.bias_type, "Type of the bias");
  AddChoice(app, "--bias-axis", flags.bias_axis,
            "Axis of the bias: one value for each of the m rows, or for each of the n columns",
            {"rows", "columns"})
      .ShowDefault();
  AddChoice(app, "--activation", flags.activation, "Activation function, applied last",
            {"none", "relu", "gelu-erf", "gelu-tanh", "silu"})
      .ShowDefault();
  AddTypeOption(
      app, "--accumulation-type", flags.accumulation_type,
      "Least precise type of the sums (default: f64 for f64, s32 for integers, else f32)");
  AddFlag(app, "--fast-accumulation", flags.fast_accumulation,
          "Let the tensor core sum with the few bits that it keeps: 8-bit floats are then somewhat "
          "faster on sm_90, and their error grows with k");
  AddTypeOption(app, "--output-type", flags.output_type,
                "Type of D (default: the accumulation type)");
  AddChoice(app, "--output-order", flags.output_order, "Storage order of D", {"row", "column"})
      .ShowDefault();
}

void AddChoiceFlags(CLI::App& app, ProductFlags& flags) {
  SetGroup(app, "Kernel and device");
  AddOption(app, "--kernel", flags.kernel,
            "Kernel to use: its name, or an instruction for the best kernel with it (default: the "
            "server chooses)");
  AddOption(app, "--device", flags.device,
            "Name of the device to use (default: the server's first device with a kernel for the "
            "product)");
  AddOption(app, "--chip", flags.chip,
            "Simulated chip to use: sm_80 is short for --device sim:sm_80");
  AddOption(app, "--request-id", flags.request_id,
            "Name of the request, repeated in the answer and in the server's log");
  AddChoice(app, "--priority", flags.priority,
            "With low, run only when no product of normal priority waits for the device",
            {"normal", "low"})
      .ShowDefault();
  AddFlag(app, "--deterministic", flags.deterministic,
          "Give the same bits every time: use only deterministic kernels, and do not run "
          "floating-point products on cpu as one with others");
  AddFlag(app, "--batch-invariant", flags.batch_invariant,
          "Use only kernels whose rows depend neither on m nor on the batch");
}

}  // namespace

std::vector<NamedFile> FilesOf(const ProductFlags& flags) {
  std::vector<NamedFile> files;
  for (NamedFile file : {NamedFile{"A", flags.a_path},
                         {"B", flags.b_path},
                         {"--c", flags.c_path},
                         {"--bias", flags.bias_path},
                         {"--scale-a", flags.a_scale},
                         {"--scale-b", flags.b_scale}}) {
    double number = 0;
    const bool is_file = !absl::StartsWith(file.path, "@") && !absl::SimpleAtod(file.path, &number);
    if (is_file) files.push_back(std::move(file));
  }
  return files;
}

void AddProductFlags(CLI::App& app, ProductFlags& flags) {
  AddOperandFlags(app, flags);
  AddResultFlags(app, flags);
  AddChoiceFlags(app, flags);
}

namespace {

v1::Activation ActivationOf(const std::string& name) {
  if (name == "relu") return v1::ACTIVATION_RELU;
  if (name == "gelu-erf") return v1::ACTIVATION_GELU_ERF;
  if (name == "gelu-tanh") return v1::ACTIVATION_GELU_TANH;
  if (name == "silu") return v1::ACTIVATION_SILU;
  return v1::ACTIVATION_NONE;
}

// The matrices and vectors of a product; views into them make the request.
struct Operands {
  NpyArray a;
  NpyArray b;
  std::optional<NpyArray> c;
  std::optional<NpyArray> bias;
  std::vector<float> a_scale;
  std::vector<float> b_scale;
  BlockFile a_blocks;
  BlockFile b_blocks;
  int64_t batch = 1;

  // Resident operands; the arrays then have only their shapes.
  std::optional<TensorView> a_tensor;
  std::optional<TensorView> b_tensor;
  std::optional<TensorView> c_tensor;
};

bool IsTensor(const std::string& path) { return absl::StartsWith(path, "@"); }

// A matrix from a file, or the shape of a resident one.
absl::StatusOr<NpyArray> ReadOrDescribe(const std::string& path, v1::ElementType hint,
                                        const Console& console, Client* client,
                                        std::optional<TensorView>& tensor) {
  if (!IsTensor(path)) return ReadArray(path, hint, console);
  const auto info = client->Describe(TensorNamed(path));
  if (!info.ok()) return Prefixed(path, info.status());
  if (hint != v1::ELEMENT_TYPE_UNSPECIFIED && hint != info->spec().type()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": got a tensor of type ", ElementTypeName(info->spec().type()),
                     ", want ", ElementTypeName(hint), " as its type was given"));
  }
  tensor = ViewOf(*info);
  NpyArray shape;
  shape.type = tensor->type;
  shape.order = tensor->order;
  if (tensor->matrices != 1) shape.shape.push_back(tensor->matrices);
  shape.shape.insert(shape.shape.end(), {tensor->rows, tensor->columns});
  return shape;
}

// A random C of D's type, for random products with --beta but without --c.
RandomOperand RandomC(const ProductFlags& flags, v1::ElementType a_type, v1::ElementType b_type,
                      int64_t batch) {
  const v1::ElementType accumulated =
      TypeOf(flags.accumulation_type, DefaultAccumulationType(a_type, b_type));
  return {.type = TypeOf(flags.c_type, TypeOf(flags.output_type, accumulated)),
          .batch = batch,
          .rows = flags.random[0],
          .columns = flags.random[1],
          .order = v1::ORDER_ROW_MAJOR,
          .transpose = false,
          .seed = flags.seed + 2};
}

absl::Status MakeRandomOperands(const ProductFlags& flags, bool with_data, Operands& operands) {
  if (!flags.a_path.empty()) {
    return absl::InvalidArgumentError(
        "--random: got files too, want either files or random matrices");
  }
  const v1::ElementType type = TypeOf(flags.type, v1::ELEMENT_TYPE_F32);
  operands.batch = flags.batch >= 0 ? flags.batch : 1;
  const RandomOperand a = {.type = TypeOf(flags.a_type, type),
                           .batch = operands.batch,
                           .rows = flags.random[0],
                           .columns = flags.random[2],
                           .order = OrderOf(flags.a_order),
                           .transpose = flags.transpose_a,
                           .seed = flags.seed};
  const RandomOperand b = {.type = TypeOf(flags.b_type, type),
                           .batch = operands.batch,
                           .rows = flags.random[2],
                           .columns = flags.random[1],
                           .order = OrderOf(flags.b_order),
                           .transpose = flags.transpose_b,
                           .seed = flags.seed + 1};
  ASSIGN_OR_RETURN(auto a_array, MakeRandomArray("a", a, with_data));
  ASSIGN_OR_RETURN(auto b_array, MakeRandomArray("b", b, with_data));
  operands.a = std::move(a_array);
  operands.b = std::move(b_array);
  if (flags.beta == 0 || !flags.c_path.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(operands.c,
                   MakeRandomArray("c", RandomC(flags, a.type, b.type, operands.batch), with_data));
  return absl::OkStatus();
}

// The number of matrices in a batch: --batch, else that of the files.
int64_t BatchOf(const ProductFlags& flags, const NpyArray& a, const NpyArray& b) {
  if (flags.batch >= 0) return flags.batch;
  if (a.shape.size() == 3) return a.shape[0];
  return b.shape.size() == 3 ? b.shape[0] : 1;
}

absl::Status ReadOperands(const ProductFlags& flags, const Console& console, Client* client,
                          Operands& operands) {
  if (flags.b_path.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(flags.a_path.empty() ? "A, B" : "B",
                     ": got none, want two .npy files, tensors as @NAME, or --random m,n,k"));
  }
  const v1::ElementType type = TypeOf(flags.type);
  ASSIGN_OR_RETURN(auto a, ReadOrDescribe(flags.a_path, TypeOf(flags.a_type, type), console, client,
                                          operands.a_tensor));
  ASSIGN_OR_RETURN(auto b, ReadOrDescribe(flags.b_path, TypeOf(flags.b_type, type), console, client,
                                          operands.b_tensor));
  operands.batch = BatchOf(flags, a, b);
  operands.a = std::move(a);
  operands.b = std::move(b);
  return absl::OkStatus();
}

// Reads the factors of one operand, "a" or "b", as its flags say.
absl::Status ReadFactors(absl::string_view operand, const std::string& scale_text,
                         const std::string& blocks_text, const Console& console,
                         std::vector<float>& scale, BlockFile& blocks) {
  const std::string scale_flag = absl::StrCat("--scale-", operand);
  if (blocks_text.empty()) {
    ASSIGN_OR_RETURN(scale, ReadScale(scale_flag, scale_text, console));
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(blocks, ReadBlocks(absl::StrCat("--blocks-", operand), blocks_text, scale_flag,
                                      scale_text, console));
  return absl::OkStatus();
}

absl::Status ReadRest(const ProductFlags& flags, const Console& console, Client* client,
                      Operands& operands) {
  if (!flags.c_path.empty()) {
    ASSIGN_OR_RETURN(operands.c, ReadOrDescribe(flags.c_path, TypeOf(flags.c_type), console, client,
                                                operands.c_tensor));
  }
  if (!flags.bias_path.empty()) {
    ASSIGN_OR_RETURN(auto bias, ReadArray(flags.bias_path, TypeOf(flags.bias_type), console));
    if (bias.shape.size() != 1) {
      return absl::InvalidArgumentError(absl::StrCat("--bias: got an array of ", bias.shape.size(),
                                                     " dimensions, want a vector"));
    }
    operands.bias = std::move(bias);
  }
  RETURN_IF_ERROR(ReadFactors("a", flags.a_scale, flags.a_blocks, console, operands.a_scale,
                              operands.a_blocks));
  return ReadFactors("b", flags.b_scale, flags.b_blocks, console, operands.b_scale,
                     operands.b_blocks);
}

// Refuses leftover data on standard input if it was read.
absl::Status ExpectAllRead(const ProductFlags& flags, const Console& console) {
  for (const std::string& path :
       {flags.a_path, flags.b_path, flags.c_path, flags.bias_path, flags.a_scale, flags.b_scale}) {
    if (path == "-") return ExpectEndOfInput(console);
  }
  return absl::OkStatus();
}

// The device that --device or --chip names; empty if neither is given.
absl::StatusOr<std::string> DeviceOf(const ProductFlags& flags) {
  if (flags.chip.empty()) return flags.device;
  std::string simulator = absl::StrCat("sim:", flags.chip);
  if (flags.device.empty() || flags.device == simulator) return simulator;
  return absl::InvalidArgumentError(
      absl::StrCat("--chip: got ", flags.chip, " with --device ", flags.device, ", want either"));
}

ProductOptions OptionsFor(const ProductFlags& flags, const Operands& operands) {
  ProductOptions options;
  options.request_id = flags.request_id;
  const bool is_batch =
      flags.batch >= 0 || operands.batch != 1 ||
      (flags.random.empty() && (operands.a.shape.size() == 3 || operands.b.shape.size() == 3));
  if (is_batch) options.batch = operands.batch;
  options.alpha = flags.alpha;
  options.beta = flags.beta;
  if (operands.bias.has_value()) {
    options.bias =
        BiasView{.type = operands.bias->type,
                 .axis = flags.bias_axis == "rows" ? v1::BIAS_AXIS_ROWS : v1::BIAS_AXIS_COLUMNS,
                 .data = std::as_bytes(std::span(operands.bias->data))};
  }
  options.activation = ActivationOf(flags.activation);
  options.bit_operation =
      flags.bit_operation == "xor" ? v1::BIT_OPERATION_XOR : v1::BIT_OPERATION_AND;
  options.accumulation_type = TypeOf(flags.accumulation_type);
  options.fast_accumulation = flags.fast_accumulation;
  options.output_type = TypeOf(flags.output_type);
  options.output_order = OrderOf(flags.output_order);
  options.kernel = flags.kernel;
  options.require_deterministic = flags.deterministic;
  options.require_batch_invariant = flags.batch_invariant;
  options.priority = flags.priority == "low" ? v1::PRIORITY_LOW : v1::PRIORITY_NORMAL;
  return options;
}

// The matrix, or the resident tensor instead.
Operand OperandOf(const MatrixView& matrix, const std::optional<TensorView>& tensor) {
  if (!tensor.has_value()) return matrix;
  return matrix.transpose ? tensor->Transposed() : *tensor;
}

// Replaces A by its sparse form, whose bytes are in `compressed`.
absl::Status MakeSparse(const ProductFlags& flags, bool with_data, int64_t batch,
                        const Console& console, MatrixView& a, SparseOperand& compressed) {
  const bool has_data = with_data && !a.data.empty();
  if (has_data) {
    const Pruning pruning = flags.prune ? Pruning::kByMagnitude : Pruning::kNone;
    auto made = CompressOperand("a", a, batch, pruning);
    if (!made.ok()) {
      const bool may_be_pruned = HasSparseForm(a.type);
      const absl::string_view advice = may_be_pruned ? " (--prune drops the smallest)" : "";
      return absl::Status(made.status().code(), absl::StrCat(made.status().message(), advice));
    }
    compressed = *std::move(made);
    if (flags.prune) {
      const std::string note = absl::StrCat("gemmctl: a: dropped ", compressed.dropped, " of ",
                                            compressed.nonzeros, " nonzero elements\n");
      std::fwrite(note.data(), 1, note.size(), console.err);
    }
  }
  if (a.transpose) std::swap(a.rows, a.columns);
  a.transpose = false;
  a.order = v1::ORDER_ROW_MAJOR;
  a.sparsity = v1::SPARSITY_2_4;
  a.data = std::as_bytes(std::span(compressed.data));
  return absl::OkStatus();
}

}  // namespace

bool NamesTensors(const ProductFlags& flags) {
  return IsTensor(flags.a_path) || IsTensor(flags.b_path) || IsTensor(flags.c_path);
}

absl::StatusOr<Client> ConnectFor(const GlobalFlags& global, const ProductFlags& flags,
                                  const Console& console) {
  return NamesTensors(flags) ? ConnectSession(global, false, console) : Connect(global);
}

absl::StatusOr<v1::MultiplyRequest> ProductRequest(const ProductFlags& flags, bool with_data,
                                                   const Console& console, Client* client) {
  ASSIGN_OR_RETURN(const auto device, DeviceOf(flags));
  Operands operands;
  absl::Status status = flags.random.empty() ? ReadOperands(flags, console, client, operands)
                                             : MakeRandomOperands(flags, with_data, operands);
  if (status.ok()) status = ReadRest(flags, console, client, operands);
  if (status.ok()) status = ExpectAllRead(flags, console);
  if (!status.ok()) return status;
  ASSIGN_OR_RETURN(auto a, ViewArray("a", operands.a, flags.transpose_a, operands.batch));
  ASSIGN_OR_RETURN(auto b, ViewArray("b", operands.b, flags.transpose_b, operands.batch));
  SparseOperand compressed;
  if (flags.sparse_a && operands.a_tensor.has_value()) {
    return absl::InvalidArgumentError(
        "--sparse-a: got a tensor of the server, want a file: `gemmctl compress` makes a 2:4 "
        "tensor");
  }
  if (flags.sparse_a) {
    status = MakeSparse(flags, with_data, operands.batch, console, a, compressed);
    if (!status.ok()) return status;
  }
  if ((operands.a_tensor.has_value() && !operands.a_scale.empty()) ||
      (operands.b_tensor.has_value() && !operands.b_scale.empty())) {
    return absl::InvalidArgumentError(
        "--scale-a, --scale-b: got factors of a tensor of the server, which has its own, want "
        "none");
  }
  if (operands.a_tensor.has_value()) a.sparsity = operands.a_tensor->sparsity;
  a.scale = operands.a_scale;
  b.scale = operands.b_scale;
  a.blocks = operands.a_blocks.view();
  b.blocks = operands.b_blocks.view();
  if (operands.a_tensor.has_value()) operands.a_tensor->blocks = a.blocks;
  if (operands.b_tensor.has_value()) operands.b_tensor->blocks = b.blocks;
  ProductOptions options = OptionsFor(flags, operands);
  options.device = device;
  if (operands.c.has_value()) {
    ASSIGN_OR_RETURN(auto c, ViewArray("c", *operands.c, false, operands.batch));
    if (operands.c_tensor.has_value()) c.sparsity = operands.c_tensor->sparsity;
    options.c = c;
  }
  if (!with_data) return DescribeRequest(a, b, options);
  if (!NamesTensors(flags)) return BuildRequest(a, b, options);
  if (operands.c_tensor.has_value()) options.c.reset();
  return BuildRequest(OperandOf(a, operands.a_tensor), OperandOf(b, operands.b_tensor), options,
                      operands.c_tensor);
}

}  // namespace gemmd
