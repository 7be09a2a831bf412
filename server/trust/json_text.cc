// SPDX-License-Identifier: Apache-2.0
#include "server/trust/json_text.h"

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace gemmd {
namespace {

using nlohmann::json;

constexpr size_t kMostDepth = 8;

// Looks for what nlohmann::json would take silently.
class Examiner final : public nlohmann::json_sax<json> {
 public:
  explicit Examiner(std::string_view text) : text_(text) {}

  const std::string& problem() const { return problem_; }

  bool null() override { return Count(); }
  bool boolean(bool /*value*/) override { return Count(); }
  bool number_integer(number_integer_t /*value*/) override { return Count(); }
  bool number_unsigned(number_unsigned_t /*value*/) override { return Count(); }
  bool number_float(number_float_t /*value*/, const string_t& /*text*/) override { return Count(); }
  bool string(string_t& /*value*/) override { return Count(); }
  bool binary(binary_t& /*value*/) override { return Count(); }

  bool start_object(size_t /*members*/) override { return Open(/*is_array=*/false); }
  bool end_object() override { return Close(); }
  bool start_array(size_t /*elements*/) override { return Open(/*is_array=*/true); }
  bool end_array() override { return Close(); }

  bool key(string_t& name) override {
    constexpr size_t kMostShown = 64;
    Level& object = levels_.back();
    object.name = name.substr(0, kMostShown);
    if (object.names.insert(name).second) return true;
    for (const Level& level : levels_) {
      level.is_array ? absl::StrAppend(&problem_, "[", level.elements - 1, "]")
                     : absl::StrAppend(&problem_, problem_.empty() ? "" : ".", level.name);
    }
    absl::StrAppend(&problem_, ": got it twice, want each name once");
    return false;
  }

  bool parse_error(size_t position, const std::string& /*token*/,
                   const nlohmann::detail::exception& /*error*/) override {
    const std::string_view before = text_.substr(0, std::min(position, text_.size()));
    problem_ = absl::StrCat("line ", 1 + std::count(before.begin(), before.end(), '\n'),
                            ": got what is no JSON, want JSON");
    return false;
  }

 private:
  // An object or a list that is not over.
  struct Level {
    bool is_array;
    size_t elements = 0;
    std::string name = {};  // The last one in an object.
    std::set<std::string> names = {};
  };

  bool Count() {
    if (!levels_.empty()) ++levels_.back().elements;
    return true;
  }

  bool Open(bool is_array) {
    Count();
    levels_.push_back({.is_array = is_array});
    if (levels_.size() <= kMostDepth) return true;
    problem_ = absl::StrCat("got more than ", kMostDepth, " levels, want fewer");
    return false;
  }

  bool Close() {
    levels_.pop_back();
    return true;
  }

  const std::string_view text_;
  std::vector<Level> levels_;
  std::string problem_;
};

}  // namespace

absl::StatusOr<json> ParseJson(std::string_view what, std::string_view text, size_t most_bytes) {
  const std::string field(what);
  if (text.size() > most_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, ": got ", text.size(), " bytes, want at most ", most_bytes));
  }
  Examiner examiner(text);
  if (!json::sax_parse(text, &examiner)) {
    return absl::InvalidArgumentError(absl::StrCat(field, ": ", examiner.problem()));
  }
  return json::parse(text, nullptr, /*allow_exceptions=*/false);
}

}  // namespace gemmd
