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
                 "Count of products; two-dimensional files serve all of them")
      ->check(CLI::NonNegativeNumber.description(""))
      ->type_name("N")
      ->group(group);
  app.add_option("--seed", flags.seed, "Of the random matrices")
      ->capture_default_str()
      ->type_name("N")
      ->group(group);
  AddTypeOption(
      app, "--type", flags.type,
      "Of A and B: of random ones (default f32), or of files whose type NumPy cannot name")
      ->group(group);
  AddTypeOption(app, "--a-type", flags.a_type, "The same for A alone")->group(group);
  AddTypeOption(app, "--b-type", flags.b_type, "The same for B alone")->group(group);
  AddChoice(app, "--a-order", flags.a_order, "Storage order of a random A (files have their own)",
            {"row", "column"})
      ->capture_default_str()
      ->group(group);
  AddChoice(app, "--b-order", flags.b_order, "Storage order of a random B", {"row", "column"})
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
  app.add_flag("--prune", flags.prune, "Drop the smallest elements of A where it is not")
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
  app.add_option("--c", flags.c_path, "C, a .npy file (random with --random and --beta)")
      ->group(group);
  AddTypeOption(app, "--c-type", flags.c_type, "Type of C")->group(group);
  app.add_option("--bias", flags.bias_path, "A .npy vector, added along --bias-axis")->group(group);
  AddTypeOption(app, "--bias-type", flags.bias_type, "Type of the bias")->group(group);
  AddChoice(app, "--bias-axis", flags.bias_axis, "One value per row (m values) or per column (n)",
            {"rows", "columns"})
      ->capture_default_str()
      ->group(group);
  AddChoice(app, "--activation", flags.activation, "Applied last",
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
  app.add_option(
         "--kernel", flags.kernel,
         "A kernel by name, or an instruction: the best kernel of it on the device (default: the "
         "server chooses)")
      ->group(group);
  app.add_option("--device", flags.device,
                 "A device by name (default: the server's first that has a kernel for it)")
      ->group(group);
  app.add_option("--chip", flags.chip, "A simulated chip: sm_80 is short for --device sim:sm_80")
      ->group(group);
  app.add_option("--request-id", flags.request_id,
                 "Returned in the answer, written in the server's log")
      ->group(group);
  app.add_flag("--deterministic", flags.deterministic,
               "Only kernels that give the same bits every time")
      ->group(group);
  app.add_flag("--batch-invariant", flags.batch_invariant,
               "Only kernels whose rows depend neither on m nor on the batch")
      ->group(group);
}

}  // namespace

void AddProductFlags(CLI::App& app, ProductFlags& flags) {
  AddOperandFlags(app, flags);
  AddResultFlags(app, flags);
  AddChoiceFlags(app, flags);
}

}  // namespace gemmd
