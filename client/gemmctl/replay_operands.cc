// SPDX-License-Identifier: Apache-2.0
#include "client/gemmctl/replay_operands.h"

#include <span>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "client/gemmctl/operand_input.h"
#include "client/sparse_operand.h"
#include "gemmd/tensor.h"
#include "gemmd/v1/gemm.pb.h"

namespace gemmd {
namespace {

struct Wanted {
  absl::string_view flag;   // "--a"
  const std::string& path;  // Empty: not given.
  const std::string& hash;  // In hexadecimal; empty: the product reads no such operand.
  v1::ElementType type;
  bool is_sparse = false;
};

absl::StatusOr<std::string> Compressed(const Wanted& wanted, const NpyArray& array, int64_t batch) {
  const auto view = ViewArray(std::string(wanted.flag), array, /*transpose=*/false, batch);
  if (!view.ok()) return view.status();
  auto made = CompressOperand(std::string(wanted.flag), *view, batch, Pruning::kNone);
  if (!made.ok()) return made.status();
  return std::string(made->data.begin(), made->data.end());
}

// The operand's bytes.
absl::StatusOr<std::string> Read(const Wanted& wanted, int64_t batch, const Console& console) {
  if (wanted.hash.empty() != wanted.path.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        wanted.flag, wanted.path.empty() ? ": got none, want the .npy file of this operand too"
                                         : ": got a file, want none: the product reads no such "
                                           "operand"));
  }
  if (wanted.path.empty()) return std::string();
  auto array = ReadArray(wanted.path, wanted.type, console);
  if (!array.ok()) return array.status();
  std::string bytes(array->data.begin(), array->data.end());
  if (wanted.is_sparse) {
    auto compressed = Compressed(wanted, *array, batch);
    if (!compressed.ok()) return compressed.status();
    bytes = *std::move(compressed);
  }
  const std::string hash =
      absl::BytesToHexString(Sha256Of(std::as_bytes(std::span(bytes.data(), bytes.size()))));
  if (hash == wanted.hash) return bytes;
  return absl::InvalidArgumentError(absl::StrCat(wanted.flag, ": got ", bytes.size(),
                                                 " bytes with SHA-256 ", hash, ", want ",
                                                 wanted.hash, ", those of the incident"));
}

}  // namespace

absl::Status FillOperands(const OperandFiles& files, const v1::Incident& incident,
                          const Console& console, v1::MultiplyRequest& request) {
  const int64_t batch = request.has_batch() ? request.batch() : 1;
  const bool is_sparse = request.a().sparsity() != v1::SPARSITY_NONE;
  auto a =
      Read({"--a", files.a, incident.a_sha256(), request.a().type(), is_sparse}, batch, console);
  if (!a.ok()) return a.status();
  auto b = Read({"--b", files.b, incident.b_sha256(), request.b().type()}, batch, console);
  if (!b.ok()) return b.status();
  auto c = Read({"--c", files.c, incident.c_sha256(), request.c().type()}, batch, console);
  if (!c.ok()) return c.status();
  auto bias =
      Read({"--bias", files.bias, incident.bias_sha256(), request.bias().type()}, batch, console);
  if (!bias.ok()) return bias.status();
  request.mutable_a()->set_data(*std::move(a));
  request.mutable_b()->set_data(*std::move(b));
  if (!c->empty()) request.mutable_c()->set_data(*std::move(c));
  if (!bias->empty()) request.mutable_bias()->set_data(*std::move(bias));
  return absl::OkStatus();
}

}  // namespace gemmd
