// SPDX-License-Identifier: Apache-2.0
#include "client/gemmctl/product_flags.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "client/terminal/option.h"

namespace gemmd {
namespace {

void AddOperandFlags(CLI::App& app, ProductFlags& flags) {
  const std::string group = "Operands";
  AddOption(app, "A", flags.a_path,
            "A, a .npy file: m x k, or batch x m x k; - is standard input, @NAME a tensor of "
            "the server")
      .Group(group);
  AddOption(app, "B", flags.b_path,
            "B, a .npy file: k x n, or batch x k x n; - is standard input, @NAME a tensor of "
            "the server")
      .Group(group);
  AddShape(app, "--random", flags.random, "Multiply random matrices instead: m,n,k or mxnxk",
           {.least_extents = 3})
      .TypeName("M,N,K")
      .Group(group);
  AddOption(app, "--batch", flags.batch,
            "Number of products in the batch; a two-dimensional file serves all of them", 0)
      .TypeName("N")
      .Group(group);
  AddOption(app, "--seed", flags.seed, "Seed of the random matrices")
      .ShowDefault()
      .TypeName("N")
      .Group(group);
  AddTypeOption(app, "--type", flags.type,
                "Type of A and B, for files whose type NumPy cannot name and for random matrices, "
                "which are f32 by default")
      .Group(group);
  AddTypeOption(app, "--a-type", flags.a_type, "Type of A alone, instead of --type").Group(group);
  AddTypeOption(app, "--b-type", flags.b_type, "Type of B alone, instead of --type").Group(group);
  AddChoice(app, "--a-order", flags.a_order,
            "Storage order of a random A; a file has an order of its own", {"row", "column"})
      .ShowDefault()
      .Group(group);
  AddChoice(app, "--b-order", flags.b_order,
            "Storage order of a random B; a file has an order of its own", {"row", "column"})
      .ShowDefault()
      .Group(group);
  AddFlag(app, "--transpose-a", flags.transpose_a, "Use A transposed: A is stored k x m")
      .Group(group);
  AddFlag(app, "--transpose-b", flags.transpose_b, "Use B transposed: B is stored n x k")
      .Group(group);
  const CommandOption sparse =
      AddFlag(app, "--sparse-a", flags.sparse_a,
              "Send A compressed; it must be 2:4 along k (by pairs for 4-bit types, 1:2 for f32)")
          .Group(group);
  AddFlag(app, "--prune", flags.prune,
          "Drop the smallest elements of A where its compressed form cannot keep all")
      .Need(sparse)
      .Group(group);
  AddOption(app, "--scale-a", flags.a_scale,
            "Factor of A (8-bit types): a number, or a .npy vector of m; a matrix with --blocks-a")
      .Group(group);
  AddOption(app, "--scale-b", flags.b_scale,
            "Factor of B (8-bit types): a number, or a .npy vector of n; a matrix with --blocks-b")
      .Group(group);
  AddOption(
      app, "--blocks-a", flags.a_blocks,
      "Blocks of A (floats of at most 8 bits) that have a factor each: f32:1x128 for 1 row and "
      "128 of k; ue8m0 and ue4m3 factors are bytes. --scale-a has a line of factors for each "
      "block of rows")
      .TypeName("TYPE:ROWSxK")
      .Group(group);
  AddOption(
      app, "--blocks-b", flags.b_blocks,
      "Blocks of B that have a factor each: f32:128x128 for 128 columns and 128 of k. --scale-b "
      "has a line of factors for each block of columns")
      .TypeName("TYPE:COLUMNSxK")
      .Group(group);
  AddChoice(app, "--bit-operation", flags.bit_operation, "How bits (b1) are multiplied",
            {"and", "xor"})
      .ShowDefault()
      .Group(group);
}

void AddResultFlags(CLI::App& app, ProductFlags& flags) {
  const std::string group = "Result: D = activation(alpha * A B + beta * C + bias)";
  AddOption(app, "--alpha", flags.alpha, "Factor of the product").ShowDefault().Group(group);
  AddOption(app, "--beta", flags.beta, "Factor of C").ShowDefault().Group(group);
  AddOption(app, "--c", flags.c_path,
            "C, a .npy file, or @NAME; without it, --random with --beta makes a random C")
      .Group(group);
  AddTypeOption(app, "--c-type", flags.c_type, "Type of C").Group(group);
  AddOption(app, "--bias", flags.bias_path, "Bias, a .npy vector that is added along --bias-axis")
      .Group(group);
  AddTypeOption(app, "--bias-type", flags.bias_type, "Type of the bias").Group(group);
  AddChoice(app, "--bias-axis", flags.bias_axis,
            "Axis of the bias: one value for each of the m rows, or for each of the n columns",
            {"rows", "columns"})
      .ShowDefault()
      .Group(group);
  AddChoice(app, "--activation", flags.activation, "Function that is applied last",
            {"none", "relu", "gelu-erf", "gelu-tanh", "silu"})
      .ShowDefault()
      .Group(group);
  AddTypeOption(app, "--accumulation-type", flags.accumulation_type,
                "Least precise type of the sums (default: f64 for f64, s32 for integers, else f32)")
      .Group(group);
  AddFlag(app, "--fast-accumulation", flags.fast_accumulation,
          "Leave sums to the tensor core however few bits it keeps: 8-bit floats are then somewhat "
          "faster on sm_90, and their error grows with k")
      .Group(group);
  AddTypeOption(app, "--output-type", flags.output_type,
                "Type of D (default: the accumulation type)")
      .Group(group);
  AddChoice(app, "--output-order", flags.output_order, "Storage order of D", {"row", "column"})
      .ShowDefault()
      .Group(group);
}

void AddChoiceFlags(CLI::App& app, ProductFlags& flags) {
  const std::string group = "Kernel and device";
  AddOption(app, "--kernel", flags.kernel,
            "Kernel to use, by its name or by an instruction, whose best kernel on the device "
            "is taken (default: the server chooses)")
      .Group(group);
  AddOption(app, "--device", flags.device,
            "Device to use, by its name (default: the first of the server that has a kernel "
            "for the product)")
      .Group(group);
  AddOption(app, "--chip", flags.chip,
            "Simulated chip to use: sm_80 is short for --device sim:sm_80")
      .Group(group);
  AddOption(app, "--request-id", flags.request_id,
            "Name of the request, which the answer and the log of the server repeat")
      .Group(group);
  AddChoice(app, "--priority", flags.priority,
            "Whether the product waits until none of normal priority waits for the device",
            {"normal", "low"})
      .ShowDefault()
      .Group(group);
  AddFlag(app, "--deterministic", flags.deterministic,
          "Give the same bits every time: use only kernels that do, and run floats on cpu alone")
      .Group(group);
  AddFlag(app, "--batch-invariant", flags.batch_invariant,
          "Use only kernels whose rows depend neither on m nor on the batch")
      .Group(group);
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

}  // namespace gemmd
