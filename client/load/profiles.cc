// SPDX-License-Identifier: Apache-2.0
//
// The built-in mixes. Sizes are such that operands may be sent with each call.
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/load/mix.h"
#include "gemmd/v1/tensors.pb.h"

namespace gemmd {
namespace {

LoadProduct Product(int64_t m, int64_t n, int64_t k, v1::ElementType type, double weight) {
  LoadProduct product;
  product.m = m;
  product.n = n;
  product.k = k;
  product.type = type;
  product.weight = weight;
  product.name = NameOf(product);
  return product;
}

Mix Small() {
  return {
      Product(64, 64, 64, v1::ELEMENT_TYPE_F32, 4), Product(16, 64, 64, v1::ELEMENT_TYPE_F32, 2),
      Product(64, 64, 64, v1::ELEMENT_TYPE_BF16, 2), Product(32, 32, 128, v1::ELEMENT_TYPE_S8, 1),
      Product(128, 128, 128, v1::ELEMENT_TYPE_F32, 1)};
}

Mix Square() {
  return {Product(256, 256, 256, v1::ELEMENT_TYPE_BF16, 4),
          Product(512, 512, 512, v1::ELEMENT_TYPE_BF16, 3),
          Product(1024, 1024, 1024, v1::ELEMENT_TYPE_BF16, 2),
          Product(2048, 2048, 2048, v1::ELEMENT_TYPE_BF16, 1)};
}

// The four products of a transformer layer of half a billion parameters in all (hidden 896, with
// 14 query heads and 2 key and value heads of 64; feed-forward 4864, gate and up in one).
void AddLayer(Mix& mix, int64_t tokens, double weight) {
  constexpr int64_t kHidden = 896;
  constexpr int64_t kQueryKeyValue = 896 + 2 * 128;
  constexpr int64_t kFeedForward = 4864;
  const auto add = [&](const char* what, int64_t n, int64_t k) {
    LoadProduct product = Product(tokens, n, k, v1::ELEMENT_TYPE_BF16, weight);
    product.name = absl::StrCat(what, " ", product.name);
    mix.push_back(product);
  };
  add("qkv", kQueryKeyValue, kHidden);
  add("out", kHidden, kHidden);
  add("gate+up", 2 * kFeedForward, kHidden);
  add("down", kHidden, kFeedForward);
}

Mix LlmDecode() {
  Mix mix;
  AddLayer(mix, 1, 2);
  AddLayer(mix, 8, 2);
  AddLayer(mix, 32, 1);
  return mix;
}

Mix LlmPrefill() {
  Mix mix;
  AddLayer(mix, 256, 2);
  AddLayer(mix, 1024, 1);
  return mix;
}

Mix Sparse() {
  Mix mix = {Product(128, 128, 128, v1::ELEMENT_TYPE_BF16, 3),
             Product(256, 256, 256, v1::ELEMENT_TYPE_F16, 3),
             Product(256, 256, 512, v1::ELEMENT_TYPE_S8, 2),
             Product(512, 512, 512, v1::ELEMENT_TYPE_BF16, 1)};
  for (LoadProduct& product : mix) {
    product.is_sparse = true;
    product.name = NameOf(product);
  }
  return mix;
}

}  // namespace

const std::vector<Profile>& Profiles() {
  static const auto& profiles = *new std::vector<Profile>{
      {"small", "products of 16 to 128 in f32, bf16 and s8: what the service itself costs", Small},
      {"square", "bf16 squares of 256 to 2048", Square},
      {"llm-decode", "the four products of a transformer layer for 1, 8 and 32 tokens", LlmDecode},
      {"llm-prefill", "the four products of a transformer layer for 256 and 1024 tokens",
       LlmPrefill},
      {"sparse", "2:4 sparse A of 128 to 512 in bf16, f16 and s8", Sparse}};
  return profiles;
}

absl::StatusOr<Mix> FindProfile(absl::string_view name) {
  std::string names;
  for (const Profile& profile : Profiles()) {
    if (profile.name == name) return profile.mix();
    absl::StrAppend(&names, names.empty() ? "" : ", ", profile.name);
  }
  return absl::NotFoundError(absl::StrCat("profile: got \"", name, "\", want one of ", names));
}

}  // namespace gemmd
