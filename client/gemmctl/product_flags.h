// SPDX-License-Identifier: Apache-2.0
//
// The flags that describe a product, the same for `multiply` and `explain`, and the request that
// they describe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/gemmctl/command.h"
#include "client/output_file.h"
#include "client/terminal/console.h"
#include "gemmd/client.h"
#include "gemmd/v1/gemm.pb.h"

namespace CLI {
class App;
}

namespace gemmd {

// Types and choices are still strings here; parsing has checked that they are known.
struct ProductFlags {
  std::string a_path;  // "-": standard input.
  std::string b_path;
  std::vector<int64_t> random;  // m, n, k; empty: A and B are files.
  int64_t batch = -1;           // -1: not given.
  uint64_t seed = 1;
  std::string type;    // For A and B; empty: what the files say, f32 for random matrices.
  std::string a_type;  // Empty: `type`.
  std::string b_type;
  std::string a_order = "row";  // For random operands.
  std::string b_order = "row";
  bool transpose_a = false;
  bool transpose_b = false;
  bool sparse_a = false;  // A is sent compressed.
  bool prune = false;     // Drops elements of A if it is not sparse enough.
  std::string a_scale;    // A number or a path.
  std::string b_scale;
  std::string a_blocks;  // "ue8m0:1x32": the factors of --scale-a are those of blocks.
  std::string b_blocks;
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
  bool fast_accumulation = false;
  std::string output_type;
  std::string output_order = "row";
  std::string kernel;
  std::string device;
  std::string chip;  // "sm_90": the device "sim:sm_90".
  std::string request_id;
  std::string priority = "normal";
  bool deterministic = false;
  bool batch_invariant = false;

  bool operator==(const ProductFlags& other) const = default;
};

// The files that the flags name, without resident tensors and numbers.
std::vector<NamedFile> FilesOf(const ProductFlags& flags);

// Adds positionals and options that set `flags`, which outlives the app.
void AddProductFlags(CLI::App& app, ProductFlags& flags);

// Whether A, B or C is a tensor of the server, `@NAME`.
bool NamesTensors(const ProductFlags& flags);

// A client for the product, joined to the session if the flags name tensors. Errors: those of
// ConnectSession.
absl::StatusOr<Client> ConnectFor(const GlobalFlags& global, const ProductFlags& flags,
                                  const Console& console);

// The request that the flags describe. Without `with_data`, the request has no bytes of A, B and C,
// and random ones are not made. `client` is asked for the shapes of tensors; it must not be null if
// the flags name any.
//
// Errors: InvalidArgument or NotFound, for flags that contradict each other and files that cannot
// be used; the message begins with the flag or the path.
absl::StatusOr<v1::MultiplyRequest> ProductRequest(const ProductFlags& flags, bool with_data,
                                                   const Console& console, Client* client);

}  // namespace gemmd
