// SPDX-License-Identifier: Apache-2.0
//
// What the command line says, as plain data. Texts that name types and choices are still texts
// here; command_line.cc has checked that they are known ones.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gemmd {

// Flags of every command.
struct GlobalFlags {
  std::string address;
  std::string timeout;  // "60", "500ms"; empty: the command's default.
  bool json = false;
};

// The product of `multiply` and `explain`.
struct ProductFlags {
  std::string a_path;  // "-": standard input.
  std::string b_path;
  std::vector<int64_t> random;  // m, n, k; empty: A and B are files.
  int64_t batch = -1;           // -1: not given.
  uint64_t seed = 1;
  std::string type;    // Of A and B; empty: what the files say, f32 for random ones.
  std::string a_type;  // Empty: `type`.
  std::string b_type;
  std::string a_order = "row";  // Of random operands.
  std::string b_order = "row";
  bool transpose_a = false;
  bool transpose_b = false;
  bool sparse_a = false;  // A is sent compressed.
  bool prune = false;     // Where A is not sparse enough for that.
  std::string a_scale;    // A number or a path.
  std::string b_scale;
  double alpha = 1;
  double beta = 0;
  std::string c_path;
  std::string c_type;
  std::string bias_path;
  std::string bias_type;
  std::string bias_axis = "columns";
  std::string activation = "none";
  std::string bit_operation = "and";
  std::string accumulation_type;
  std::string output_type;
  std::string output_order = "row";
  std::string kernel;
  std::string device;
  std::string chip;  // "sm_90": the device "sim:sm_90".
  std::string request_id;
  bool deterministic = false;
  bool batch_invariant = false;
};

struct MultiplyFlags {
  ProductFlags product;
  std::string output_path;  // Empty: D is not kept. "-": standard output.
  int64_t repeat = 1;
  int64_t warmup = 0;
  bool verify = false;
  std::string traceparent;  // Empty: none is sent.
};

struct RandomFlags {
  std::vector<int64_t> shape;
  std::string type = "f32";
  std::string order = "row";
  uint64_t seed = 1;
  std::string output_path;  // "-": standard output.
};

struct ExplainFlags {
  ProductFlags product;
  bool all = false;  // Every kernel on a line of its own.
};

struct KernelsFlags {
  std::string pattern;
  std::string device;
  bool all = false;  // Also kernels that no device runs, and each width of wgmma.
};

struct InstructionsFlags {
  std::string chip;
  std::string pattern;
  bool all = false;  // Each width of wgmma.
  bool families = false;
};

struct FragmentFlags {
  std::string instruction;
  std::string operand;  // Empty: all of them.
  int selector = 0;
  std::string svg_path;  // Empty: text. "-": standard output.
};

struct TopFlags {
  bool once = false;
  std::string interval = "1s";  // As GlobalFlags::timeout.
};

struct HealthFlags {
  std::string service;
  bool watch = false;
};

}  // namespace gemmd
