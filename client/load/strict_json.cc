// SPDX-License-Identifier: Apache-2.0
#include "client/load/strict_json.h"

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace gemmd {
namespace {

using Json = nlohmann::json;

// Follows the parser through a document, and keeps the path of the first name that stands twice.
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
  // The library says where the text goes wrong by an exception only.
  try {
    json = Json::parse(text.begin(), text.end(), look);
  } catch (const Json::exception& error) {
    return absl::InvalidArgumentError(error.what());
  }
  if (repeated.first().empty()) return json;
  return absl::InvalidArgumentError(absl::StrCat(absl::StripPrefix(repeated.first(), "."),
                                                 ": got it twice, want each name once"));
}

}  // namespace gemmd
