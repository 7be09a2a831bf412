// SPDX-License-Identifier: Apache-2.0
#include "client/gemmctl/product_flags.h"

#include <CLI/CLI.hpp>

#include "client/terminal/option.h"

namespace gemmd {
namespace {

void AddOperandFlags(CLI::App& app, ProductFlags& flags) {
  const std::string group = "Operands";
  app.add_option("A", flags.a_path, "A, a .npy file: m x k, or batch x m x k; - is standard input")
      ->group(group);
  app.add_option("B", flags.b_path, "B, a .npy file: k x n, or batch x k x n; - is standard input")
      ->group(group);
  app.add_option("--random", flags.random, "Multiply random matrices instead: m,n,k")
      ->delimiter(',')
      ->expected(3)
      ->check(CLI::NonNegativeNumber.description(""))
      ->type_name("M,N,K")
      ->group(group);
  app.add_option("--batch", flags.batch,
                 "Number of products in the batch; a two-dimensional file serves all of them")
      ->check(CLI::NonNegativeNumber.description(""))
      ->type_name("N")
      ->group(group);
  app.add_option("--seed", flags.seed, "Seed of the random matrices")
      ->capture_default_str()
      ->type_name("N")
      ->group(group);
  AddTypeOption(app, "--type", flags.type,
                "Type of A and B, for files whose type NumPy cannot name and for random matrices, "
                "which are f32 by default")
      ->group(group);
  AddTypeOption(app, "--a-type", flags.a_type, "Type of A alone, instead of --type")->group(group);
  AddTypeOption(app, "--b-type", flags.b_type, "Type of B alone, instead of --type")->group(group);
  AddChoice(app, "--a-order", flags.a_order,
            "Storage order of a random A; a file has an order of its own", {"row", "column"})
      ->capture_default_str()
      ->group(group);
  AddChoice(app, "--b-order", flags.b_order,
            "Storage order of a random B; a file has an order of its own", {"row", "column"})
      ->capture_default_str()
      ->group(group);
  app.add_flag("--transpose-a", flags.transpose_a, "Use A transposed: A is stored k x m")
      ->group(group);
  app.add_flag("--transpose-b", flags.transpose_b, "Use B transposed: B is stored n x k")
      ->group(group);
  CLI::Option* sparse =
      app.add_flag(
             "--sparse-a", flags.sparse_a,
             "Send A compressed; it must be 2:4 along k (by pairs for 4-bit types, 1:2 for f32)")
          ->group(group);
  app.add_flag("--prune", flags.prune,
               "Drop the smallest elements of A where its compressed form cannot keep all")
      ->needs(sparse)
      ->group(group);
  app.add_option("--scale-a", flags.a_scale,
                 "Factor of A (8-bit types): a number, or a .npy vector of m")
      ->group(group);
  app.add_option("--scale-b", flags.b_scale,
                 "Factor of B (8-bit types): a number, or a .npy vector of n")
      ->group(group);
  AddChoice(app, "--bit-operation", flags.bit_operation, "How bits (b1) are multiplied",
            {"and", "xor"})
      ->capture_default_str()
      ->group(group);
}

void AddResultFlags(CLI::App& app, ProductFlags& flags) {
  const std::string group = "Result: D = activation(alpha * A B + beta * C + bias)";
  app.add_option("--alpha", flags.alpha, "Factor of the product")
      ->capture_default_str()
      ->group(group);
  app.add_option("--beta", flags.beta, "Factor of C")->capture_default_str()->group(group);
  app.add_option("--c", flags.c_path,
                 "C, a .npy file; without it, --random with --beta makes a random C")
      ->group(group);
  AddTypeOption(app, "--c-type", flags.c_type, "Type of C")->group(group);
  app.add_option("--bias", flags.bias_path, "Bias, a .npy vector that is added along --bias-axis")
      ->group(group);
  AddTypeOption(app, "--bias-type", flags.bias_type, "Type of the bias")->group(group);
  AddChoice(app, "--bias-axis", flags.bias_axis,
            "Axis of the bias: one value for each of the m rows, or for each of the n columns",
            {"rows", "columns"})
      ->capture_default_str()
      ->group(group);
  AddChoice(app, "--activation", flags.activation, "Function that is applied last",
            {"none", "relu", "gelu-erf", "gelu-tanh", "silu"})
      ->capture_default_str()
      ->group(group);
  AddTypeOption(app, "--accumulation-type", flags.accumulation_type,
                "Least precise type of the sums (default: f64 for f64, s32 for integers, else f32)")
      ->group(group);
  AddTypeOption(app, "--output-type", flags.output_type,
                "Type of D (default: the accumulation type)")
      ->group(group);
  AddChoice(app, "--output-order", flags.output_order, "Storage order of D", {"row", "column"})
      ->capture_default_str()
      ->group(group);
}

void AddChoiceFlags(CLI::App& app, ProductFlags& flags) {
  const std::string group = "Kernel and device";
  app.add_option("--kernel", flags.kernel,
                 "Kernel to use, by its name or by an instruction, whose best kernel on the device "
                 "is taken (default: the server chooses)")
      ->group(group);
  app.add_option("--device", flags.device,
                 "Device to use, by its name (default: the first of the server that has a kernel "
                 "for the product)")
      ->group(group);
  app.add_option("--chip", flags.chip,
                 "Simulated chip to use: sm_80 is short for --device sim:sm_80")
      ->group(group);
  app.add_option("--request-id", flags.request_id,
                 "Name of the request, which the answer and the log of the server repeat")
      ->group(group);
  app.add_flag("--deterministic", flags.deterministic,
               "Use only kernels that give the same bits every time")
      ->group(group);
  app.add_flag("--batch-invariant", flags.batch_invariant,
               "Use only kernels whose rows depend neither on m nor on the batch")
      ->group(group);
}

}  // namespace

void AddProductFlags(CLI::App& app, ProductFlags& flags) {
  AddOperandFlags(app, flags);
  AddResultFlags(app, flags);
  AddChoiceFlags(app, flags);
}

}  // namespace gemmd
