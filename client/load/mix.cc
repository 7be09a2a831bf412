// SPDX-License-Identifier: Apache-2.0
#include "client/load/mix.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "client/matrix/random_matrix.h"
#include "gemmd/element_type.h"
#include "kernels/matrix/status.h"

namespace gemmd {
namespace {

using Json = nlohmann::json;

// Parser callback that records the path of the first duplicate name in a document.
class RepeatedNames {
 public:
  void Take(int depth, Json::parse_event_t event, const Json& value) {
    levels_.resize(static_cast<size_t>(depth));
    switch (event) {
      case Json::parse_event_t::key: return TakeName(value.get<std::string>());
      case Json::parse_event_t::object_start:
      case Json::parse_event_t::array_start:
        if (!levels_.empty()) ++levels_.back().elements;
        levels_.push_back({.is_array = event == Json::parse_event_t::array_start});
        return;
      case Json::parse_event_t::value:
        if (!levels_.empty()) ++levels_.back().elements;
        return;
      default: return;
    }
  }

  const std::string& first() const { return first_; }

 private:
  struct Level {
    bool is_array;
    size_t elements = 0;
    std::string name = {};
    std::set<std::string> names = {};
  };

  void TakeName(std::string name) {
    Level& object = levels_.back();
    object.name = name;
    if (object.names.insert(std::move(name)).second || !first_.empty()) return;
    for (const Level& level : levels_) {
      level.is_array ? absl::StrAppend(&first_, "[", level.elements - 1, "]")
                     : absl::StrAppend(&first_, ".", level.name);
    }
  }

  std::vector<Level> levels_;
  std::string first_;
};

}  // namespace

absl::StatusOr<Json> ParseStrictJson(absl::string_view text) {
  constexpr int kDeepest = 32;
  RepeatedNames repeated;
  const auto look = [&](int depth, Json::parse_event_t event, const Json& value) {
    repeated.Take(depth, event, value);
    return depth < kDeepest;
  };
  Json json;
  // The library reports the place of an error only by an exception.
  try {
    json = Json::parse(text.begin(), text.end(), look);
  } catch (const Json::exception& error) {
    return absl::InvalidArgumentError(error.what());
  }
  if (repeated.first().empty()) return json;
  return absl::InvalidArgumentError(absl::StrCat(absl::StripPrefix(repeated.first(), "."),
                                                 ": got it twice, want each name once"));
}

namespace {

// Sets the members of one product from the entries of one object.
class ProductParser {
 public:
  explicit ProductParser(size_t index) : index_(index) {}

  absl::StatusOr<LoadProduct> Parse(const Json& json) {
    if (!json.is_object()) return Error("", json, "an object");
    for (const auto& [key, value] : json.items()) {
      RETURN_IF_ERROR(Set(key, value));
    }
    for (const char* key : {"m", "n", "k"}) {
      if (!json.contains(key)) return Error(key, "nothing", "a size");
    }
    if (product_.name.empty()) product_.name = NameOf(product_);
    return product_;
  }

 private:
  absl::Status Error(absl::string_view key, const Json& got, absl::string_view want) const {
    // Does not print nested values: their depth could overflow the stack.
    const std::string text = got.is_structured() ? got.type_name() : got.dump();
    return absl::InvalidArgumentError(absl::StrCat("mix[", index_, "]", key.empty() ? "" : ".", key,
                                                   ": got ", text, ", want ", want));
  }

  absl::Status Set(const std::string& key, const Json& value) {
    if (key == "m") return SetSize(key, value, product_.m);
    if (key == "n") return SetSize(key, value, product_.n);
    if (key == "k") return SetSize(key, value, product_.k);
    if (key == "batch") return SetSize(key, value, product_.batch);
    if (key == "type") return SetType(key, value, product_.type);
    if (key == "accumulation_type") return SetType(key, value, product_.accumulation_type);
    if (key == "output_type") return SetType(key, value, product_.output_type);
    if (key == "name") return SetText(key, value, product_.name);
    if (key == "kernel") return SetText(key, value, product_.kernel);
    if (key == "device") return SetText(key, value, product_.device);
    if (key == "a") return SetText(key, value, product_.a_path);
    if (key == "b") return SetText(key, value, product_.b_path);
    if (key == "operands") {
      const bool is_known = value.is_string() &&
                            (value == "inline" || value == "resident" || value == "resident-all");
      if (!is_known) return Error(key, value, "inline, resident or resident-all");
      return SetText(key, value, product_.operands);
    }
    if (key == "sparse") return SetFlag(key, value, product_.is_sparse);
    if (key == "fast_accumulation") return SetFlag(key, value, product_.fast_accumulation);
    if (key == "b_order") {
      const bool is_known = value == "row" || value == "column";
      if (!is_known) return Error(key, value, "row or column");
      product_.b_order = value == "row" ? v1::ORDER_ROW_MAJOR : v1::ORDER_COLUMN_MAJOR;
      return absl::OkStatus();
    }
    if (key == "weight") {
      product_.weight = value.is_number() ? value.get<double>() : 0;
      const bool is_good = product_.weight > 0 && std::isfinite(product_.weight);
      return is_good ? absl::OkStatus() : Error(key, value, "a number above 0");
    }
    return Error(key, value,
                 "m, n, k, name, batch, type, accumulation_type, output_type, fast_accumulation, "
                 "sparse, b_order, kernel, device, operands, a, b or weight");
  }

  absl::Status SetSize(absl::string_view key, const Json& value, int64_t& size) const {
    // No side of a matrix that fits a message is longer.
    constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
    if (!value.is_number_integer() || value.get<int64_t>() < 1 || value.get<int64_t>() > kMax) {
      return Error(key, value, absl::StrCat("1 to ", kMax));
    }
    size = value.get<int64_t>();
    return absl::OkStatus();
  }

  absl::Status SetType(absl::string_view key, const Json& value, v1::ElementType& type) const {
    const auto parsed =
        value.is_string() ? ParseElementType(value.get<std::string>()) : std::nullopt;
    if (!parsed.has_value()) return Error(key, value, "an element type such as \"bf16\"");
    type = *parsed;
    return absl::OkStatus();
  }

  absl::Status SetFlag(absl::string_view key, const Json& value, bool& flag) const {
    if (!value.is_boolean()) return Error(key, value, "true or false");
    flag = value.get<bool>();
    return absl::OkStatus();
  }

  absl::Status SetText(absl::string_view key, const Json& value, std::string& text) const {
    if (!value.is_string()) return Error(key, value, "text");
    text = value.get<std::string>();
    return absl::OkStatus();
  }

  size_t index_;
  LoadProduct product_;
};

std::string TypeText(absl::string_view before, v1::ElementType type) {
  if (type == v1::ELEMENT_TYPE_UNSPECIFIED) return "";
  return absl::StrCat(before, std::string(ElementTypeName(type)));
}

}  // namespace

std::string NameOf(const LoadProduct& product) {
  const bool is_by_columns = product.b_order == v1::ORDER_COLUMN_MAJOR;
  return absl::StrCat(product.batch == 1 ? "" : absl::StrCat(product.batch, " of "), product.m, "x",
                      product.n, "x", product.k, " ", std::string(ElementTypeName(product.type)),
                      product.is_sparse ? " 2:4" : "", TypeText(" in ", product.accumulation_type),
                      TypeText(" to ", product.output_type),
                      product.fast_accumulation ? ", fast accumulation" : "",
                      product.kernel.empty() ? "" : absl::StrCat(" ", product.kernel),
                      product.device.empty() ? "" : absl::StrCat(" on ", product.device),
                      is_by_columns ? ", B column major" : "",
                      product.operands.empty() ? "" : absl::StrCat(", ", product.operands),
                      product.a_path.empty() ? "" : absl::StrCat(", A of ", product.a_path),
                      product.b_path.empty() ? "" : absl::StrCat(", B of ", product.b_path));
}

void MakeNamesUnique(Mix& mix) {
  std::set<std::string> names;
  for (LoadProduct& product : mix) {
    const std::string name = product.name;
    for (int i = 2; !names.insert(product.name).second; ++i) {
      product.name = absl::StrCat(name, " #", i);
    }
  }
}

absl::StatusOr<Mix> ParseMix(absl::string_view text) {
  const absl::StatusOr<Json> parsed = ParseStrictJson(text);
  if (!parsed.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "mix: want a JSON array of one object for each product: ", parsed.status().message()));
  }
  const Json& json = *parsed;
  if (!json.is_array() || json.empty()) {
    return absl::InvalidArgumentError("mix: want a JSON array of one object for each product");
  }
  Mix mix;
  double weights = 0;
  for (const Json& entry : json) {
    ASSIGN_OR_RETURN(auto product, ProductParser(mix.size()).Parse(entry));
    weights += product.weight;
    mix.push_back(std::move(product));
  }
  if (!std::isfinite(weights)) {
    return absl::InvalidArgumentError("mix: got weights without a sum, want smaller ones");
  }
  return mix;
}

MixPicker::MixPicker(const Mix& mix, uint64_t seed) : seed_(seed) {
  double sum = 0;
  for (const LoadProduct& product : mix) shares_.push_back(sum += product.weight);
  for (double& share : shares_) share /= sum;
}

size_t MixPicker::Pick(uint64_t call) const {
  // Spreads the seeds of neighbouring calls over the generator's states.
  SplitMix random(seed_ ^ (call * 0xd1342543de82ef95));
  const double at = random.Unit();
  const auto it = std::lower_bound(shares_.begin(), shares_.end(), at);
  return std::min(static_cast<size_t>(it - shares_.begin()), shares_.size() - 1);
}

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
      {"small", "products of 16 to 128 in f32, bf16 and s8, for the overhead of the service",
       Small},
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
